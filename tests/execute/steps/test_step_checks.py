"""What speaks against a step: a VM in use, one that is gone or another one, a state that would be discarded."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pytest_mock import MockerFixture

from gpuops.errors import StepFailed
from gpuops.execute.journal import Journal
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.step_executor import StepInFlight
from gpuops.execute.steps.vm_executor import STARTED_SINCE, VmExecutor
from gpuops.model.nights.rotation_policy import Limits
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Outcome, Plan, Verdict, Wave
from gpuops.plan.core.step_checks import NOT_MADE, NOT_OFF
from gpuops.plan.core.steps import (
    PowerOffForRemoval,
    PowerOffVm,
    PowerOnVm,
    RemoveVm,
    ResumeVm,
    ShutDownGuest,
    Step,
    SuspendVm,
)
from tests.execute.small_vcenter import SmallVcenter, World
from tests.execute.steps.guarded_steps import Do, verdicts


def test_an_ml_vm_does_not_start_where_a_desktop_stayed(do: Do, world: World) -> None:
    world.failing["vm-1"] = StepFailed("no space on ssd")
    outcomes = do((SuspendVm("vm-1"),), (PowerOnVm("vm-91", "host-1"), PowerOnVm("vm-92", "host-2")))
    assert verdicts(outcomes) == {"vm-1": Verdict.FAILED, "vm-91": Verdict.SKIPPED, "vm-92": Verdict.DONE}
    assert "desktop-01, whose GPUs it needs, was not suspended" in outcomes[1].reason


def test_a_desktop_in_use_is_not_suspended_whatever_the_plan_says(do: Do, world: World) -> None:
    run = do
    world.set("vm-1", console_connections=1)
    [outcome] = run((SuspendVm("vm-1"),))
    assert (outcome.verdict, outcome.reason) == (Verdict.SKIPPED, "1 console connection(s) open")
    assert world.requests == []


@pytest.mark.parametrize(
    ("step", "power", "reason"),
    [
        (ResumeVm("vm-1"), PowerState.OFF, "is powered off: somebody else discarded its suspended state"),
        (PowerOffVm("vm-1"), PowerState.SUSPENDED, "a power-off would discard"),
        (ShutDownGuest("vm-1", then_off=True), PowerState.SUSPENDED, "a power-off would discard"),
        (PowerOnVm("vm-1"), PowerState.SUSPENDED, "a cold boot would discard"),
    ],
)
def test_what_a_guest_holds_is_never_discarded(
    do: Do, world: World, step: Step, power: PowerState, reason: str
) -> None:
    world.set("vm-1", power=power)
    [outcome] = do((step,))
    assert outcome.verdict is Verdict.SKIPPED
    assert reason in outcome.reason
    assert world.requests == []


@pytest.mark.parametrize("power", [PowerState.ON, PowerState.SUSPENDED, None])
def test_a_vm_is_removed_only_while_it_is_off(do: Do, world: World, power: PowerState | None) -> None:
    world.set("vm-1", power=power)
    [outcome] = do((RemoveVm("vm-1", world.vms["vm-1"].name, "made"),))
    assert (outcome.verdict, outcome.reason) == (Verdict.SKIPPED, NOT_OFF)
    assert world.requests == []


@pytest.mark.parametrize("kind", [PowerOffForRemoval, RemoveVm])
def test_a_vm_of_another_name_is_not_removed(
    do: Do, world: World, kind: type[PowerOffForRemoval] | type[RemoveVm]
) -> None:
    [outcome] = do((kind("vm-1", "made-01", "made"),))
    assert (outcome.verdict, outcome.reason) == (Verdict.SKIPPED, NOT_MADE)
    assert world.requests == []


def test_another_vm_under_the_same_id_is_not_touched(world: World, journal: Journal) -> None:
    planned = world.snapshot()
    world.set("vm-1", instance_uuid="other")
    executor = VmExecutor(SmallVcenter(world), journal, journal.begin("test"), planned)
    plan = Plan(waves=(Wave("", (SuspendVm("vm-1"),)),))
    [outcome] = execute(plan, executor, Limits(), lambda outcome: None)
    assert outcome.verdict is Verdict.SKIPPED
    assert "another VM" in outcome.reason


def test_a_vm_that_is_gone_is_named(do: Do, world: World) -> None:
    world.on_submit = lambda step: None
    del world.vms["vm-5"]
    [outcome] = do((SuspendVm("vm-5"),))
    assert (outcome.verdict, outcome.reason) == (Verdict.SKIPPED, "is gone from vCenter")


@pytest.mark.parametrize("by_somebody", [True, False], ids=["by somebody", "by vSphere HA"])
@pytest.mark.parametrize("step", [PowerOffVm("vm-1"), ShutDownGuest("vm-1", grace_s=60)])
def test_what_somebody_started_again_since_the_plan_is_theirs(
    world: World, journal: Journal, mocker: MockerFixture, step: Step, by_somebody: bool
) -> None:
    began = world.now
    world.set("vm-1", started_at=began)
    vcenter = SmallVcenter(world)
    executor = VmExecutor(vcenter, journal, journal.begin("test"), world.snapshot())
    started_by_others = mocker.patch.object(vcenter, "started_by_others", return_value=by_somebody)
    world.set("vm-1", started_at=began + timedelta(minutes=5))
    executor.look_before([step])
    begun = executor.begin(step)
    started_by_others.assert_called_with("vm-1", began)
    if by_somebody:
        assert begun == Outcome(step, Verdict.SKIPPED, STARTED_SINCE)
    else:
        assert isinstance(begun, StepInFlight)


def test_without_a_rule_no_desktop_is_suspended(world: World, do: Do) -> None:
    [outcome] = do((SuspendVm("vm-1"),), guard=None)
    assert (outcome.verdict, outcome.reason) == (
        Verdict.SKIPPED,
        "is in no pool of a policy: nothing says when it is idle",
    )
