"""The runner of `cases/returns`: what a return does after a night, what it leaves out, and what it warns of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import pytest
import yaml

from gpuops.config.policy import parse_policy
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.steps import ResumeVm, RunInGuest, SetAttribute, ShutDownGuest, Step
from gpuops.plan.rotation.returns.day import RotateDay
from tests.execute.small_vcenter import World
from tests.plan.case import Words, case_of, compare, read_cases, rejection_line, with_values
from tests.plan.rotation.returns.morning import CATALOG, MORNING, original, world_after_night

POLICY: Final[Words] = {
    "version": 1,
    "name": "small",
    "pools": [
        {
            "name": "all",
            "parked": True,
            "select": {"folder": "desktops", "name": "desktop-*"},
            "idle": {"cpu_below_mhz": 500},
            "owner": "none",
        }
    ],
    "ml": {"queue": [{"vm": "ml-01"}, {"vm": "ml-02"}], "stop": {"grace_s": 120, "then": "power-off"}},
    "windows": "any",
}
"""What the policy of a case says where the case says nothing else."""


@dataclass(frozen=True)
class ReturnCase:
    """The world of the nights' cases after a night: desktop-01 and -02 are suspended, ml-01 runs, all three are marked;
    their journal has the three. The return is at 5:00."""

    name: str
    expect: Words
    policy: Words = field(default_factory=dict)
    """Keys of a policy file."""
    now: datetime = MORNING
    change: Mapping[str, Words] = field(default_factory=dict)
    """VM -> fields to replace."""
    journal: Mapping[str, Words] = field(default_factory=lambda: {"desktop-01": {}, "desktop-02": {}, "ml-01": {}})
    """VM -> fields of what the journal remembers of it; taken, unless the case says otherwise."""

    def __str__(self) -> str:
        return self.name


CASES = read_cases("returns", ReturnCase)


def world_of(case: ReturnCase) -> World:
    world = world_after_night()
    for name, changes in case.change.items():
        [vm] = [vm for vm in world.vms.values() if vm.name == name]
        changed_vm = with_values(vm, changes)
        if changed_vm.power is not None and changed_vm.power is not vm.power:
            world._set_power(vm.ref, changed_vm.power)
        world.vms[vm.ref] = changed_vm
    return world


def journal_of(case: ReturnCase) -> tuple[Original, ...]:
    world = world_after_night()
    refs = {vm.name: ref for ref, vm in world.vms.items()}
    return tuple(
        with_values(original(world, refs[name], Role.ML if name.startswith("ml") else Role.DESKTOP), fields)
        for name, fields in case.journal.items()
    )


def step_line(step: Step, inventory: Inventory) -> str:
    name = inventory.vms[step.vm].name
    match step:
        case RunInGuest(program=program, arguments=arguments, limit_s=limit_s):
            return f"run {program} {arguments} in {name} for {limit_s} s"
        case ShutDownGuest(grace_s=grace_s, then_off=then_off):
            return f"shut down {name} in {grace_s} s" + (" then off" if then_off else "")
        case ResumeVm(host=host):
            return f"resume {name} on {inventory.hosts[host or ''].name}"
        case SetAttribute(name="gpuops.rotation", value=""):
            return f"unmark {name}"
        case _:
            raise AssertionError(step)


def came_back(case: ReturnCase) -> dict[str, Any]:
    inventory = world_of(case).snapshot()
    policy = parse_policy(yaml.safe_dump({**POLICY, **case.policy}), "the case")
    now = case.now if case.now.tzinfo else case.now.replace(tzinfo=UTC)
    day = RotateDay(policy, journal_of(case)).plan(inventory, CATALOG, now)
    likes = [*case.expect.get("unmet", []), *[""] * len(day.unmet)]
    return {
        "steps": [step_line(step, inventory) for step in day.steps],
        "unmet": [rejection_line(rejection, like) for rejection, like in zip(day.unmet, likes, strict=False)],
        "rejections": [str(rejection) for rejection in day.rejections],
        "warnings": list(day.warnings),
        "because": list(day.because),
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: ReturnCase) -> None:
    compare(came_back(case), case.expect, {"steps", "unmet", "rejections", "warnings"})


def test_a_wrong_key_is_refused() -> None:
    with pytest.raises(TypeError, match="history"):
        case_of(ReturnCase, {"name": "x", "expect": {}, "history": []})
    with pytest.raises(AssertionError, match="unknown expectations"):
        test_case(replace(CASES[0], expect={"resumes": []}))
