"""A start by the night is distinguished from a start by a user."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpuops.errors import LoginRefused, NotConnected, StepFailed
from gpuops.execute.journal import Journal
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.settle import settle_in_snapshot, settle_open
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Plan, Verdict, Wave
from gpuops.plan.core.steps import PowerOnVm, Step
from tests.execute.small_vcenter import SmallVcenter, World
from tests.execute.steps.guarded_steps import CATALOG, LIMITS


def test_an_ml_vm_that_somebody_else_started_just_before_is_not_the_nights(world: World, journal: Journal) -> None:
    """Its morning leaves it alone: what runs there is not what the night asked for."""
    world._set_power("vm-1", PowerState.SUSPENDED)
    world._set_power("vm-2", PowerState.SUSPENDED)
    world.on_submit = lambda step: world._set_power("vm-91", PowerState.ON)
    night = journal.begin("night", night="2026-11-20")
    plan = Plan(waves=(Wave("start", (PowerOnVm("vm-91", "host-1"),)),))
    [outcome] = execute(plan, VmExecutor(SmallVcenter(world), journal, night, world.snapshot()), LIMITS, lambda _: None)
    assert (outcome.verdict, outcome.reason) == (Verdict.ALREADY, "another user started it just before")
    assert journal.state.takes["2026-11-20", "vm-91"] == 0
    assert journal.setbacks()["2026-11-20"].failed == 0, "nothing went wrong"


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(StepFailed("no host is compatible"), id="refused"),
        pytest.param(LoginRefused("the session is not logged in any more"), id="the session had ended"),
    ],
)
def test_what_vcenter_refused_just_before_it_went_away_did_not_happen(
    world: World, journal: Journal, refused: Exception
) -> None:
    """A user who starts the VM meanwhile keeps it: the resumed run finds it running and leaves nothing open."""
    world._set_power("vm-1", PowerState.SUSPENDED)
    world._set_power("vm-2", PowerState.SUSPENDED)

    def refuse(step: Step) -> None:
        world.down_until = world.now + timedelta(minutes=5)
        raise refused

    world.on_submit = refuse
    night = journal.begin("night", night="2026-11-20")
    plan = Plan(waves=(Wave("start", (PowerOnVm("vm-91", "host-1"),)),))
    with pytest.raises(NotConnected):
        execute(plan, VmExecutor(SmallVcenter(world), journal, night, world.snapshot()), LIMITS, lambda _: None)
    world.now += timedelta(minutes=5)
    world._set_power("vm-91", PowerState.ON)
    assert journal.open_intents(night) == ()
    assert settle_open(VmExecutor(SmallVcenter(world), journal, night, world.snapshot()), timeout_s=60) == ()
    assert journal.state.takes["2026-11-20", "vm-91"] == 0


def test_what_is_refused_once_more_may_have_happened_the_first_time(world: World, journal: Journal) -> None:
    world._set_power("vm-1", PowerState.SUSPENDED)
    world._set_power("vm-2", PowerState.SUSPENDED)
    world.lose_before = {PowerOnVm}
    submitted: list[Step] = []

    def refuse(step: Step) -> None:
        submitted.append(step)
        if len(submitted) == 2:
            world.down_until = world.now + timedelta(minutes=5)
            raise StepFailed("no host is compatible")

    world.on_submit = refuse
    night = journal.begin("night", night="2026-11-20")
    plan = Plan(waves=(Wave("start", (PowerOnVm("vm-91", "host-1"),)),))
    vcenter = SmallVcenter(world)
    with pytest.raises(NotConnected):
        execute(plan, VmExecutor(vcenter, journal, night, world.snapshot()), LIMITS, lambda _: None)
    assert [intent.step for intent in journal.open_intents(night)] == [PowerOnVm("vm-91", "host-1")]


@pytest.mark.parametrize("answer", ["refused", "lost", "lost, and old values are read"])
def test_who_starts_an_ml_vm_while_it_is_asked_for_keeps_it(world: World, journal: Journal, answer: str) -> None:
    """Whatever the night's own request met: vCenter says who asked for the start that there was."""
    world._set_power("vm-1", PowerState.SUSPENDED)
    world._set_power("vm-2", PowerState.SUSPENDED)
    vcenter = SmallVcenter(world)

    def start(step: Step) -> None:
        if not world.tasks:
            theirs = vcenter.receive(step, "")
            assert theirs is not None
            if answer == "refused":
                world.finish(theirs)
        if answer == "refused":
            raise StepFailed("no host is compatible")

    world.lose_before = {PowerOnVm} if answer != "refused" else set()
    world.lying = {"vm-91"} if "old values" in answer else set()
    world.on_submit = start
    night = journal.begin("night", night="2026-11-20")
    plan = Plan(waves=(Wave("start", (PowerOnVm("vm-91", "host-1"),)),))
    [outcome] = execute(plan, VmExecutor(vcenter, journal, night, world.snapshot()), LIMITS, lambda _: None)
    assert (outcome.verdict, outcome.reason) == (Verdict.ALREADY, "another user started it just before")
    assert journal.state.takes["2026-11-20", "vm-91"] == 0


@pytest.mark.parametrize(
    ("started_by", "verdict"),
    [
        pytest.param("gpuops-late", Verdict.DONE, id="this login"),
        pytest.param("", Verdict.ALREADY, id="another user"),
        pytest.param(None, Verdict.ALREADY, id="unknown"),
    ],
)
def test_an_ml_vm_found_running_when_its_task_is_forgotten_is_whose_the_task_history_says(
    world: World, journal: Journal, started_by: str | None, verdict: Verdict
) -> None:
    """The reply of its start was lost, and vCenter was away until it listed no task of it any more."""
    world._set_power("vm-1", PowerState.SUSPENDED)
    world._set_power("vm-2", PowerState.SUSPENDED)
    vcenter, step = SmallVcenter(world), PowerOnVm("vm-91", "host-1")
    night = journal.begin("night", night="2026-11-20")
    journal.intend(night, step, world.snapshot())
    if started_by is None:
        world._set_power("vm-91", PowerState.ON)
    else:
        theirs = vcenter.receive(step, started_by)
        assert theirs is not None
        world.finish(theirs)
    world.forgotten = True
    foreseen = settle_in_snapshot(vcenter, journal.open_intents(night), world.snapshot(), CATALOG)
    assert foreseen.undone == (frozenset() if verdict is Verdict.DONE else {"vm-91"}), "a dry run says the same"
    [outcome] = settle_open(VmExecutor(vcenter, journal, night, world.snapshot()), timeout_s=60)
    assert outcome.verdict is verdict
    assert journal.state.takes["2026-11-20", "vm-91"] == (verdict is Verdict.DONE)


@pytest.mark.parametrize("somebody", [True, False], ids=["and somebody starts it", "and it comes up all the same"])
def test_whose_an_ml_vm_is_of_which_the_nights_own_start_failed(world: World, journal: Journal, somebody: bool) -> None:
    world._set_power("vm-1", PowerState.SUSPENDED)
    world._set_power("vm-2", PowerState.SUSPENDED)
    world.failing = {"vm-91": StepFailed("vCenter gave up waiting for it")}

    def comes_up(name: str) -> None:
        if not name.startswith("after the effect of"):
            return
        if somebody:
            world.failing = {}
            theirs = vcenter.receive(PowerOnVm("vm-91", "host-1"), "")
            assert theirs is not None
            world.finish(theirs)
        else:
            world._set_power("vm-91", PowerState.ON)

    vcenter = SmallVcenter(world, comes_up)
    night = journal.begin("night", night="2026-11-20")
    plan = Plan(waves=(Wave("start", (PowerOnVm("vm-91", "host-1"),)),))
    [outcome] = execute(plan, VmExecutor(vcenter, journal, night, world.snapshot()), LIMITS, lambda _: None)
    assert outcome.verdict is (Verdict.ALREADY if somebody else Verdict.DONE)
    assert journal.state.takes["2026-11-20", "vm-91"] == (not somebody)


def test_an_ml_vm_found_running_by_a_second_request_is_the_nights(world: World, journal: Journal) -> None:
    """The first may have arrived after all: left running, it would be in a desktop's way."""
    world._set_power("vm-1", PowerState.SUSPENDED)
    world._set_power("vm-2", PowerState.SUSPENDED)
    world.lose_before = {PowerOnVm}
    submitted: list[Step] = []

    def started_late(step: Step) -> None:
        submitted.append(step)
        if len(submitted) == 2:
            world._set_power("vm-91", PowerState.ON)

    world.on_submit = started_late
    night = journal.begin("night", night="2026-11-20")
    plan = Plan(waves=(Wave("start", (PowerOnVm("vm-91", "host-1"),)),))
    [outcome] = execute(plan, VmExecutor(SmallVcenter(world), journal, night, world.snapshot()), LIMITS, lambda _: None)
    assert (outcome.verdict, len(submitted)) == (Verdict.DONE, 2)
    assert journal.state.takes["2026-11-20", "vm-91"] == 1
