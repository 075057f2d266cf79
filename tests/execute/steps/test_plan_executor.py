"""Plans and their steps: intents, failures, tasks that hang, runs that were cut off, guests that are shut down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.errors import LoginRefused, NotConnected, StepFailed
from gpuops.execute.journal import IntentState, Journal
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.settle import settle_open
from gpuops.execute.steps.step_executor import StepInFlight
from gpuops.execute.steps.step_queue import HUNG_S
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.nights.rotation_policy import Limits
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Outcome, Plan, Verdict, Wave
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, ResumeVm, SetAttribute, ShutDownGuest, Step, SuspendVm
from tests.execute.small_vcenter import SmallVcenter, World
from tests.execute.steps.guarded_steps import NIGHT, Do, verdicts


def test_one_failure_does_not_stop_the_others(do: Do, world: World) -> None:
    world.failing["vm-1"] = StepFailed("no space on ssd")
    outcomes = do(
        (SuspendVm("vm-1"), SuspendVm("vm-2")), (SetAttribute("vm-1", "a", "b"), SetAttribute("vm-2", "a", "b"))
    )
    assert [(outcome.step.vm, outcome.verdict) for outcome in outcomes if isinstance(outcome.step, SuspendVm)] == [
        ("vm-1", Verdict.FAILED),
        ("vm-2", Verdict.DONE),
    ]
    skipped = next(outcome for outcome in outcomes if outcome.verdict is Verdict.SKIPPED)
    assert skipped.step == SetAttribute("vm-1", "a", "b")
    assert skipped.reason == "an earlier step failed: no space on ssd"


def test_no_more_is_in_flight_than_the_limits_say(do: Do, world: World) -> None:
    steps = tuple(SuspendVm(f"vm-{number}") for number in range(1, 6))
    assert set(verdicts(do(steps, limits=Limits(in_flight=2, per_host=4))).values()) == {Verdict.DONE}
    assert world.in_flight_most == 2


def test_no_more_is_in_flight_on_one_host_than_the_limits_say(do: Do, world: World) -> None:
    steps = (*(SuspendVm(f"vm-{number}") for number in range(1, 6)), PowerOnVm("vm-92"))
    assert set(verdicts(do(steps, limits=Limits(in_flight=8, per_host=1))).values()) == {Verdict.DONE}
    assert world.in_flight_most == 2
    assert world.requests[:2] == [SuspendVm("vm-1"), PowerOnVm("vm-92")], "order is kept on a host, not across hosts"


def test_one_vm_has_one_step_in_flight(do: Do, world: World) -> None:
    outcomes = do((SuspendVm("vm-1"), ResumeVm("vm-1")))
    assert [outcome.verdict for outcome in outcomes] == [Verdict.DONE, Verdict.DONE]
    assert world.in_flight_most == 1


def test_a_task_that_never_ends_is_given_up_and_named(do: Do, world: World) -> None:
    world.hung.add("vm-1")
    outcomes = do((SuspendVm("vm-1"), SuspendVm("vm-2")), limits=Limits(step_timeout_s=60))
    assert verdicts(outcomes) == {"vm-1": Verdict.UNKNOWN, "vm-2": Verdict.DONE}
    assert outcomes[-1].reason == "task-1 still runs after 60 s"


@pytest.mark.parametrize("returning", [False, True])
def test_a_start_that_hangs_holds_up_a_night_and_no_return(world: World, journal: Journal, returning: bool) -> None:
    """In a return it brings back a desktop that its guest had shut down: the others need not wait for it."""
    world.hung.add("vm-91")
    world.set("vm-1", power=PowerState.SUSPENDED)
    world.on_gpu.clear()
    sent: list[float] = []
    began = world.now
    world.on_submit = lambda step: sent.append((world.now - began).total_seconds())
    plan: Plan = Plan((Wave("first", (PowerOnVm("vm-91"),)), Wave("then", (ResumeVm("vm-1"),))))
    executor = VmExecutor(SmallVcenter(world), journal, journal.begin("test"), world.snapshot())
    execute(plan, executor, Limits(step_timeout_s=900), lambda outcome: None, returning=returning)
    assert (sent[1] < HUNG_S + 60) == returning


def test_progress_is_told_step_by_step(world: World, journal: Journal) -> None:
    outcomes: list[Outcome] = []
    plan = Plan(waves=(Wave("", (SuspendVm("vm-1"), SuspendVm("vm-2"))),))
    executor = VmExecutor(SmallVcenter(world), journal, journal.begin("test"), world.snapshot())
    assert execute(plan, executor, Limits(), outcomes.append) == tuple(outcomes)


def test_what_is_in_flight_is_told_before_each_wait(world: World, journal: Journal) -> None:
    in_flight: list[list[Step]] = []
    stops = (PowerOffVm("vm-1"), PowerOffVm("vm-2"))
    steps: tuple[Step, ...] = (SetAttribute("vm-1", "marker", "x"), *stops)
    plan = Plan(waves=(Wave("", steps),))
    executor = VmExecutor(SmallVcenter(world), journal, journal.begin("test"), world.snapshot())
    limits = Limits(in_flight=1)
    execute(plan, executor, limits, lambda _: None, in_flight=lambda sent: in_flight.append([*sent]))
    assert [sent for sent in in_flight if sent] == [[stop] for stop in stops]
    assert in_flight[-1] in ([], [stops[-1]])


def test_a_marker_that_nothing_waits_for_is_judged_by_the_look_after_the_next_wait(do: Do, world: World) -> None:
    outcomes = do((PowerOffVm("vm-1"), SetAttribute("vm-2", "marker", "x")), guard=None)
    assert set(verdicts(outcomes).values()) == {Verdict.DONE}
    assert world.looks == 2, "one before them and one after both"


def test_what_waits_for_a_marker_is_sent_before_the_next_wait(do: Do, world: World) -> None:
    steps = (PowerOffVm("vm-1"), SetAttribute("vm-2", "marker", "x"), PowerOffVm("vm-2"))
    assert {outcome.verdict for outcome in do(steps, guard=None)} == {Verdict.DONE}
    assert world.in_flight_most == 2


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


def test_what_is_done_is_not_sent(do: Do, world: World) -> None:
    world.set("vm-1", power=PowerState.SUSPENDED)
    [outcome] = do((SuspendVm("vm-1"),))
    assert outcome.verdict is Verdict.ALREADY
    assert world.requests == []


def test_the_intent_is_on_disk_before_the_request_leaves(do: Do, world: World, tmp_path: Path) -> None:
    intents: list[tuple[Step, IntentState]] = []

    def look(step: Step) -> None:
        other_journal = Journal.open(tmp_path / "state", "vc-uuid", lambda: world.now)
        [run] = other_journal.open_runs(["test"])
        intents.extend((intent.step, intent.state) for intent in other_journal.open_intents(run))
        other_journal.close()

    world.on_submit = look
    do((SuspendVm("vm-1"),))
    assert intents == [(SuspendVm("vm-1"), IntentState.INTENT)]


def test_a_session_that_ended_is_renewed_by_reading_and_the_step_sent_again(do: Do, world: World) -> None:
    refusals = [LoginRefused("the session is not logged in any more")]

    def expire(step: Step) -> None:
        if refusals:
            raise refusals.pop()

    world.on_submit = expire
    [outcome] = do((SuspendVm("vm-1"),))
    assert outcome.verdict is Verdict.DONE
    assert len(world.ledger) == 1


def test_a_login_that_stays_refused_ends_the_run_and_leaves_it_open(do: Do, world: World, journal: Journal) -> None:
    def refuse(step: Step) -> None:
        raise LoginRefused("password expired")

    world.on_submit = refuse
    with pytest.raises(LoginRefused):
        do((SuspendVm("vm-1"),))
    assert len(journal.open_runs(["test"])) == 1


def test_success_without_the_state_is_unknown(do: Do, world: World, journal: Journal) -> None:
    world.lying.add("vm-1")
    [outcome] = do((SuspendVm("vm-1"),))
    assert outcome.verdict is Verdict.UNKNOWN
    [run] = journal.open_runs(["test"])
    assert [intent.state for intent in journal.open_intents(run)] == [IntentState.UNKNOWN]


def test_a_fault_with_the_state_reached_is_done(do: Do, world: World) -> None:
    world.failing["vm-1"] = StepFailed("invalid power state")
    world.on_submit = lambda step: world.set("vm-1", power=PowerState.SUSPENDED)
    [outcome] = do((SuspendVm("vm-1"),))
    assert outcome.verdict is Verdict.DONE


def test_an_observation_never_replaces_the_plan(world: World, journal: Journal) -> None:
    executor = VmExecutor(SmallVcenter(world), journal, journal.begin("test"), world.snapshot())
    before = executor.planned
    world.set("vm-1", name="renamed")
    executor.look(["vm-1"])
    assert executor.planned is before
    assert executor.inventory.vm("vm-1").name == "renamed"
    assert executor.inventory.vm("vm-2") == replace(before.vm("vm-2"))


def test_the_task_of_a_request_is_on_disk_as_soon_as_it_is_known(world: World, journal: Journal) -> None:
    run = journal.begin("test")
    executor = VmExecutor(SmallVcenter(world), journal, run, world.snapshot(), guard=NIGHT)
    in_flight = executor.begin(SuspendVm("vm-1"))
    assert isinstance(in_flight, StepInFlight)
    [intent] = journal.open_intents(run)
    assert (intent.state, intent.task) == (IntentState.SUBMITTED, in_flight.task and in_flight.task.ref)


def test_a_guest_shuts_down_within_its_grace(do: Do, world: World) -> None:
    world.set("vm-1", tools_running=True)
    [outcome] = do((ShutDownGuest("vm-1", grace_s=60, then_off=True),), guard=None)
    assert outcome == Outcome(ShutDownGuest("vm-1", grace_s=60, then_off=True), Verdict.DONE)
    assert world.requests == [outcome.step]


def test_a_stubborn_guest_is_powered_off_only_if_the_plan_says_so(do: Do, world: World) -> None:
    world.stubborn |= {"vm-1", "vm-2"}
    outcomes = do((ShutDownGuest("vm-1", 60, then_off=True), ShutDownGuest("vm-2", 60, then_off=False)), guard=None)
    assert verdicts(outcomes) == {"vm-1": Verdict.DONE, "vm-2": Verdict.FAILED}
    reasons = {outcome.step.vm: outcome.reason for outcome in outcomes}
    assert reasons == {
        "vm-1": "the guest still runs after 60 s; powered off",
        "vm-2": "the guest still runs after 60 s",
    }
    assert (world.power("desktop-01"), world.power("desktop-02")) == (PowerState.OFF, PowerState.ON)


def test_a_guest_without_tools_is_powered_off_at_once(do: Do, world: World) -> None:
    world.set("vm-1", tools_running=False)
    [outcome] = do((ShutDownGuest("vm-1", 60, then_off=True),), guard=None)
    assert outcome.verdict is Verdict.DONE
    assert "Tools" in outcome.reason
    assert world.requests[-1] == PowerOffVm("vm-1")
