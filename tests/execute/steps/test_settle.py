"""A run that was cut off: the next run finds out how its steps ended."""

from __future__ import annotations

import pytest

from gpuops.errors import NotConnected
from gpuops.execute.journal import IntentState, Journal
from gpuops.execute.steps.settle import settle_open
from gpuops.execute.steps.step_executor import StepInFlight
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.steps import PowerOnVm, SuspendVm
from tests.execute.small_vcenter import SmallVcenter, World
from tests.execute.steps.guarded_steps import Do


def test_a_lost_vcenter_leaves_the_run_open_and_resume_settles_it(do: Do, world: World, journal: Journal) -> None:
    world.unreachable_for = SuspendVm
    with pytest.raises(NotConnected):
        do((SuspendVm("vm-1"),))
    [run] = journal.open_runs(["test"])
    [intent] = journal.open_intents(run)
    assert intent.state is IntentState.INTENT
    [outcome] = settle_open(VmExecutor(SmallVcenter(world), journal, run, world.snapshot()), timeout_s=60)
    assert outcome.verdict is Verdict.FAILED
    assert "did not reach vCenter" in outcome.reason
    assert journal.open_intents(run) == ()


def test_what_never_reached_vcenter_is_known_before_another_task_is_waited_for(world: World, journal: Journal) -> None:
    """A hanging task is waited for half an hour: a start of the other VM meanwhile is not by the cut-off run."""
    run = journal.begin("test")
    executor = VmExecutor(SmallVcenter(world), journal, run, world.snapshot())
    assert isinstance(executor.begin(PowerOnVm("vm-91", "host-1")), StepInFlight)
    journal.intend(run, PowerOnVm("vm-92", "host-2"), world.snapshot())

    def somebody_starts_it(name: str) -> None:
        if name.startswith("before the effect of"):
            world.set("vm-92", power=PowerState.ON)

    vcenter = SmallVcenter(world, somebody_starts_it)
    outcomes = settle_open(VmExecutor(vcenter, journal, run, world.snapshot()), timeout_s=1800)
    assert world.power("ml-02") is PowerState.ON
    [never] = [outcome for outcome in outcomes if outcome.step.vm == "vm-92"]
    assert (never.verdict, never.reason) == (
        Verdict.FAILED,
        "it did not reach vCenter before the run was cut off",
    )


def test_a_task_of_a_dead_run_that_is_still_queued_is_withdrawn(world: World, journal: Journal) -> None:
    """It would begin at an unknown time: the window may have closed by then."""
    run = journal.begin("test")
    executor = VmExecutor(SmallVcenter(world), journal, run, world.snapshot())
    world.queued.add("vm-91")
    assert isinstance(executor.begin(PowerOnVm("vm-91", "host-1")), StepInFlight)
    [outcome] = settle_open(VmExecutor(SmallVcenter(world), journal, run, world.snapshot()), timeout_s=60)
    world.settle()
    assert (outcome.verdict, world.power("ml-01")) == (Verdict.FAILED, PowerState.OFF)


@pytest.mark.parametrize("power", [PowerState.OFF, None], ids=["powered off since", "cannot be read"])
def test_what_may_have_been_done_before_a_run_was_cut_off_is_not_called_failed(
    world: World, journal: Journal, power: PowerState | None
) -> None:
    """Its task is forgotten: the desktop may have been suspended, and somebody have discarded that."""
    run = journal.begin("test")
    journal.intend(run, SuspendVm("vm-1"), world.snapshot())
    world.set("vm-1", power=power)
    [outcome] = settle_open(VmExecutor(SmallVcenter(world), journal, run, world.snapshot()), timeout_s=60)
    assert (outcome.verdict, outcome.reason) == (
        Verdict.UNKNOWN,
        "the run was cut off before it was seen to end; vCenter shows no task of it",
    )


def test_resume_finds_an_effect_whose_task_vcenter_forgot(world: World, journal: Journal) -> None:
    run = journal.begin("test")
    step = SuspendVm("vm-1")
    op_id = journal.intend(run, step, world.snapshot())
    assert world.apply(op_id, step) is None
    [outcome] = settle_open(VmExecutor(SmallVcenter(world), journal, run, world.snapshot()), timeout_s=60)
    assert (outcome.verdict, outcome.reason) == (Verdict.DONE, "found done after the run was cut off")
    assert journal.open_intents(run) == ()
