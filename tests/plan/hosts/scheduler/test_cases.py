"""The runner of `cases/scheduler`: what `scheduler set` writes on each host, or why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_type_hints

import pytest

from gpuops.errors import GpuopsError
from gpuops.model.stored_json import decode_stored
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import ConfigureModule, HostStep
from gpuops.plan.hosts.scheduler.scheduler_change import SetScheduler
from tests.plan.case import Words, case_of, compare, read_cases, rejection_line, with_changes
from tests.plan.snapshots import SNAPSHOTS, catalog


@dataclass(frozen=True)
class SchedulerCase:
    name: str
    request: Words
    """Options of `scheduler set`."""
    expect: Words
    inventory: str = "drivers"
    change: Mapping[str, Words] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


CASES = read_cases("scheduler", SchedulerCase)


def plan_scheduler(case: SchedulerCase, inventory: Inventory) -> Plan[HostStep]:
    hints = get_type_hints(SetScheduler)
    options = {name: decode_stored(hints[name], stored) for name, stored in case.request.items()}
    return SetScheduler(**options).plan(inventory, catalog())


def module_options(plan: Plan[HostStep], inventory: Inventory) -> dict[str, str]:
    """Host -> the module options that it is given."""
    steps = [step for step in plan.steps if isinstance(step, ConfigureModule)]
    assert len(steps) == len(plan.steps)
    return {inventory.hosts[step.host].name: step.after for step in steps}


def check(case: SchedulerCase) -> None:
    inventory = with_changes(SNAPSHOTS[case.inventory](), case.change)
    try:
        plan = plan_scheduler(case, inventory)
    except GpuopsError as error:
        assert {"error": f"{type(error).__name__}: {error.message}"} == case.expect
        return
    likes = [*case.expect.get("rejections", []), *[""] * len(plan.rejections)]
    actual: dict[str, Any] = {
        "options": module_options(plan, inventory),
        "gpus": {
            inventory.hosts[step.host].name: [str(settings.gpu) for settings in step.gpus]
            for step in plan.steps
            if isinstance(step, ConfigureModule)
        },
        "rejections": [
            rejection_line(rejection, like) for rejection, like in zip(plan.rejections, likes, strict=False)
        ],
        "warnings": list(plan.warnings),
        "because": list(plan.because),
        "afterwards": list(plan.afterwards),
        "reboot_due": [inventory.hosts[step.host].name for step in plan.due],
    }
    compare(actual, case.expect, actual.keys() - {"gpus", "afterwards"})


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: SchedulerCase) -> None:
    check(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.expect.get("options")], ids=str)
def test_hosts_that_have_the_options_need_a_reboot_and_no_change(case: SchedulerCase) -> None:
    inventory = with_changes(SNAPSHOTS[case.inventory](), case.change)
    plan = plan_scheduler(case, inventory)
    now = inventory
    for name, options in module_options(plan, inventory).items():
        host = now.find_host(name)
        assert host.settings is not None
        now = now.with_hosts([replace(host, settings=replace(host.settings, module_options=options))])
    second_plan = plan_scheduler(case, now)
    assert (second_plan.steps, second_plan.rejections) == ((), ())
    assert {step.host for step in second_plan.due} >= {step.host for step in plan.steps}


def test_a_wrong_key_is_refused() -> None:
    case = CASES[0]
    with pytest.raises(TypeError, match="expected"):
        case_of(SchedulerCase, {"name": "x", "request": {}, "expect": {}, "expected": {}})
    with pytest.raises(AssertionError, match="unknown expectations"):
        check(replace(case, expect={**case.expect, "options_of": {}}))
    with pytest.raises(AssertionError, match="unknown changes"):
        check(replace(case, change={"host": {}}))
    with pytest.raises(KeyError, match="schedulers"):
        check(replace(case, request={**case.request, "schedulers": "best-effort"}))
