"""The runner of `cases/rotation`: which desktops are suspended, which VMs start where, and why every other VM stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import pytest
import yaml

from gpuops.catalog import load
from gpuops.config.policy import parse_policy
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import PowerOnVm, RelocateVm, ShutDownGuest, SuspendVm
from gpuops.plan.rotation.nights.night import RotateNight
from tests.execute.small_vcenter import SLOTS, World, desktop, ml, small_world
from tests.plan.case import Words, case_of, compare, read_cases, rejection_line, with_host_values, with_values

CATALOG = load(profiles=SLOTS)
EVENING: Final = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)
POLICY: Final[Words] = {
    "version": 1,
    "name": "small",
    "pools": [
        {
            "name": "all",
            "parked": True,
            "select": {"name": "desktop-*"},
            "idle": {"cpu_below_mhz": 500},
            "owner": "none",
        }
    ],
    "ml": {"queue": [{"vm": "ml-01"}, {"vm": "ml-02"}]},
    "window": {"opens": "20:00", "closes": "06:00", "zone": "UTC"},
}
"""What the policy of a case says where the case says nothing else."""


@dataclass(frozen=True)
class NightCase:
    """The world is two hosts with two A40 each: desktop-01 and -02 (24q) and desktop-03 to -05 (12q) run on the GPUs of
    esx-01, esx-02 is free; ml-01 (48c) is on esx-01, ml-02 (48c) on esx-02, both off. All desktops are idle."""

    name: str
    expect: Words
    policy: Words = field(default_factory=dict)
    """Keys of a policy file. `pool`: keys of its one pool."""
    now: datetime = EVENING
    add: Sequence[str] = ()
    """More VMs: desktop-06, desktop-07 (48q) run on esx-02 and are in use; ml-03, ml-04 (48c) are on esx-01, off."""
    change: Mapping[str, Words] = field(default_factory=dict)
    """vms, hosts, datastores: name -> fields to replace, a host's `gpus` by address."""
    history: Sequence[Words] = ()
    """What the journal knows: `vm`, `night`, and fields of what it remembers; taken, unless the case says otherwise."""

    def __str__(self) -> str:
        return self.name


CASES = read_cases("rotation", NightCase)


def policy_of(case: NightCase) -> Policy:
    keys = dict(case.policy)
    pool = {**POLICY["pools"][0], **keys.pop("pool", {})}
    return parse_policy(yaml.safe_dump({**POLICY, "pools": [pool], **keys}), "the case")


def world_of(case: NightCase) -> World:
    world = small_world()
    for name in case.add:
        kind, _, number = name.partition("-")
        vm = ml(int(number), "host-1") if kind == "ml" else desktop(int(number), "nvidia_a40-48q", "host-2")
        world.vms[vm.ref] = replace(vm, cpu_usage_mhz=4000)
        world._set_power(vm.ref, vm.power or PowerState.OFF)
    assert set(case.change) <= {"vms", "hosts", "datastores"}, f"unknown changes: {sorted(case.change)}"
    for name, changes in case.change.get("vms", {}).items():
        ref = _ref(world, name)
        power_before, vm = world.vms[ref].power, with_values(world.vms[ref], changes)
        world.vms[ref] = vm
        if vm.power is not power_before and vm.power is not None:
            world._set_power(ref, vm.power)
    for name, changes in case.change.get("hosts", {}).items():
        [host] = [host for host in world.hosts.values() if host.name == name]
        world.hosts[host.ref] = with_host_values(host, changes)
    for name, changes in case.change.get("datastores", {}).items():
        [ref] = [ref for ref, datastore in world.datastores.items() if datastore.name == name]
        world.datastores[ref] = with_values(world.datastores[ref], changes)
    return world


def history_of(case: NightCase, world: World) -> tuple[Original, ...]:
    originals = []
    for line in case.history:
        keys = dict(line)
        vm = world.vms[_ref(world, keys.pop("vm"))]
        role = Role.DESKTOP if vm.name.startswith("desktop") else Role.ML
        original_vm = Original(
            keys.pop("night"), role, vm.ref, vm.instance_uuid, vm.name, vm.host, vm.profiles, taken=True
        )
        originals.append(with_values(original_vm, keys))
    return tuple(originals)


def _ref(world: World, name: str) -> str:
    [ref] = [ref for ref, vm in world.vms.items() if vm.name == name]
    return ref


def plan_rotation(case: NightCase, world: World, history: tuple[Original, ...]) -> Plan:
    now = case.now if case.now.tzinfo else case.now.replace(tzinfo=UTC)
    return RotateNight(policy_of(case), history).plan(world.snapshot(), CATALOG, now)


def summary_of(plan: Plan, inventory: Inventory) -> dict[str, Any]:
    """What is done to which VM; the marks that are set beside it stand for themselves."""
    names = {ref: vm.name for ref, vm in inventory.vms.items()}
    hosts = {ref: host.name for ref, host in inventory.hosts.items()}
    return {
        "suspends": [names[step.vm] for step in plan.steps if isinstance(step, SuspendVm)],
        "shuts_down": [names[step.vm] for step in plan.steps if isinstance(step, ShutDownGuest)],
        "moves": {names[step.vm]: hosts[step.host] for step in plan.steps if isinstance(step, RelocateVm)},
        "starts": {names[step.vm]: hosts[step.host or ""] for step in plan.steps if isinstance(step, PowerOnVm)},
    }


def check(case: NightCase) -> None:
    world = world_of(case)
    plan = plan_rotation(case, world, history_of(case, world))
    likes = [*case.expect.get("rejections", []), *[""] * len(plan.rejections)]
    reasons = {choice.subject: choice.reason for choice in plan.choices}
    actual = {
        **summary_of(plan, world.snapshot()),
        "rejections": [
            rejection_line(rejection, like) for rejection, like in zip(plan.rejections, likes, strict=False)
        ],
        "warnings": list(plan.warnings),
        "because": list(plan.because),
        "waves": [wave.title for wave in plan.waves],
        "reasons": {name: reasons.get(name) for name in case.expect.get("reasons", {})},
    }
    compare(actual, case.expect, actual.keys() - {"waves", "reasons", "because"})


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: NightCase) -> None:
    check(case)


def starts_narrow_vms(case: NightCase) -> bool:
    """Whether the night starts VMs, and no VM has two vGPUs: the small vCenter starts no such VM."""
    return bool(case.expect.get("starts")) and all(len(vm.profiles) <= 1 for vm in world_of(case).vms.values())


@pytest.mark.quick_cases(12)
@pytest.mark.parametrize("case", [case for case in CASES if starts_narrow_vms(case)], ids=str)
def test_a_night_that_was_carried_out_has_nothing_left_to_do(case: NightCase) -> None:
    world = world_of(case)
    history = history_of(case, world)
    plan = plan_rotation(case, world, history)
    now = case.now if case.now.tzinfo else case.now.replace(tzinfo=UTC)
    saved = RotateNight(policy_of(case), history).originals_of(plan, world.snapshot(), now)
    for step in plan.steps:
        if isinstance(step, ShutDownGuest):
            world._set_power(step.vm, PowerState.OFF)
        else:
            assert world.apply("op", step) is None, step
    fresh = tuple(replace(original_vm, taken=True) for original_vm in saved)
    all_originals = (
        *(original_vm for original_vm in history if original_vm.vm not in {fresh_vm.vm for fresh_vm in fresh}),
        *fresh,
    )
    assert plan_rotation(case, world, all_originals).steps == ()


def test_a_wrong_key_is_refused() -> None:
    case = CASES[0]
    with pytest.raises(TypeError, match="request"):
        case_of(NightCase, {"name": "x", "expect": {}, "request": {}})
    with pytest.raises(AssertionError, match="unknown expectations"):
        check(replace(case, expect={**case.expect, "suspended": []}))
    with pytest.raises(AssertionError, match="unknown changes"):
        check(replace(case, change={"host": {}}))
    with pytest.raises(Exception, match="unknown key"):
        check(replace(case, policy={"flor": 1}))
