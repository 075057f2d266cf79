"""One step at a time: nothing is sent without an intent on disk, and what is not known is looked for, not repeated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from gpuops.errors import LoginRefused, NotConnected, StepFailed
from gpuops.execute.journal import IntentState, Journal, Run
from gpuops.execute.site import catalog_of
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.settle import settle_in_snapshot, settle_open
from gpuops.execute.steps.step_executor import StepInFlight
from gpuops.execute.steps.step_queue import HUNG_S
from gpuops.execute.steps.vm_executor import STARTED_SINCE, VmExecutor
from gpuops.execute.steps.vm_looks import FRESH, LOOK_S
from gpuops.model.desktops.evidence import SessionCount, Source
from gpuops.model.measurements.measurement import CPU_MHZ, CounterWindow
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.rotation import IdleRule, Limits, Policy, Pool
from gpuops.model.nights.selector import Mark, Selector
from gpuops.model.prediction import Prediction
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.outcome import Outcome, Verdict
from gpuops.plan.core.plan import Plan, Wave
from gpuops.plan.core.steps import (
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    ResumeVm,
    SetAttribute,
    ShutDownGuest,
    Step,
    SuspendVm,
    VmChange,
)
from gpuops.plan.rotation.nights.guard import Guard
from gpuops.plan.rotation.nights.stop_conditions import StepCounts
from tests.execute.small_vcenter import SmallVcenter, World, small_world

LIMITS = Limits()
CATALOG = catalog_of(small_world().snapshot())
DESKTOPS = Pool("all", Selector(name="desktop-*"), IdleRule(500), parked=True)
QUEUE = (QueuedVm("ml-*"),)
NIGHT = Guard(Policy("small", (DESKTOPS,), ml=QUEUE), StepCounts(40), CATALOG)
"""What lets each desktop be taken that is idle, and each ML VM start."""
Do = Callable[..., tuple[Outcome, ...]]


@pytest.fixture
def world() -> World:
    return small_world()


@pytest.fixture
def journal(tmp_path: Path, world: World) -> Journal:
    return Journal.open(tmp_path / "state", "vc-uuid", lambda: world.now)


@pytest.fixture
def do(world: World, journal: Journal) -> Do:
    def run(*waves: tuple[Step, ...], limits: Limits = LIMITS, guard: Guard | None = NIGHT) -> tuple[Outcome, ...]:
        plan = Plan(waves=tuple(Wave(str(number), steps) for number, steps in enumerate(waves)))
        run_ = journal.begin("test")
        executor = VmExecutor(SmallVcenter(world), journal, run_, world.snapshot(), guard=guard)
        return execute(plan, executor, limits, lambda outcome: None)

    return run


def verdicts(outcomes: tuple[Outcome, ...]) -> dict[str, Verdict]:
    return {outcome.step.vm: outcome.verdict for outcome in outcomes}


def test_what_is_done_is_not_sent(do: Do, world: World) -> None:
    world.set("vm-1", power=PowerState.SUSPENDED)
    [outcome] = do((SuspendVm("vm-1"),))
    assert outcome.verdict is Verdict.ALREADY
    assert world.requests == []


def test_the_intent_is_on_disk_before_the_request_leaves(do: Do, world: World, tmp_path: Path) -> None:
    seen: list[tuple[Step, IntentState]] = []

    def look(step: Step) -> None:
        other = Journal.open(tmp_path / "state", "vc-uuid", lambda: world.now)
        [run] = other.open_runs(["test"])
        seen.extend((intent.step, intent.state) for intent in other.open_intents(run))
        other.close()

    world.on_submit = look
    do((SuspendVm("vm-1"),))
    assert seen == [(SuspendVm("vm-1"), IntentState.INTENT)]


@pytest.mark.parametrize("step", [SuspendVm("vm-1"), PowerOnVm("vm-92"), SetAttribute("vm-1", "a", "b")])
def test_a_lost_reply_is_looked_for_not_repeated(do: Do, world: World, step: Step) -> None:
    world.lose_after.add(type(step))
    [outcome] = do((step,))
    assert outcome.verdict is Verdict.DONE
    assert world.requests == [step]
    assert len(world.ledger) == 1


def test_a_request_that_never_arrived_is_sent_once_more_after_looking(do: Do, world: World) -> None:
    world.lose_before.add(SuspendVm)
    [outcome] = do((SuspendVm("vm-1"),))
    assert outcome.verdict is Verdict.DONE
    assert world.requests == [SuspendVm("vm-1")] * 2
    assert len(world.ledger) == 1


CHANGE = ReconfigureVm("vm-92", VmChange(memory_locked=False))


def test_a_reconfiguration_that_never_arrived_is_sent_once_more_for_the_same_configuration(
    do: Do, world: World
) -> None:
    world.lose_before.add(ReconfigureVm)
    [outcome] = do((CHANGE,))
    assert outcome.verdict is Verdict.DONE
    assert world.requests == [CHANGE] * 2
    assert len(world.ledger) == 1


@pytest.mark.parametrize("arrives", ["before the second", "while the second is refused for it"])
def test_a_reconfiguration_that_arrives_late_and_again_has_one_effect(do: Do, world: World, arrives: str) -> None:
    vcenter = SmallVcenter(world)
    world.lose_before.add(ReconfigureVm)

    def first_arrives(step: Step) -> None:
        if not world.requests:
            return
        ref = vcenter.receive(step, "gpuops-late", world.vms["vm-92"].change_version)
        assert ref is not None
        if arrives == "before the second":
            world.finish(ref)
        else:
            raise StepFailed("another task is running on it")

    world.on_submit = first_arrives
    [outcome] = do((CHANGE,))
    assert outcome.verdict is Verdict.DONE
    assert len(world.ledger) == 1


def test_a_lost_reconfiguration_is_not_repeated_over_somebody_elses(do: Do, world: World, journal: Journal) -> None:
    world.lose_before.add(ReconfigureVm)
    world.on_submit = lambda step: world.set("vm-92", change_version="theirs")
    [outcome] = do((CHANGE,))
    assert outcome.verdict is Verdict.FAILED
    assert outcome.reason.startswith("the reply was lost, and its configuration was changed by somebody else since")
    assert world.requests == [CHANGE]
    [run] = journal.open_runs(["test"])
    assert journal.open_intents(run) == (), "it can have no effect any more"


def test_a_second_lost_request_is_unknown(do: Do, world: World) -> None:
    world.on_submit = lambda step: world.lose_before.add(ReconfigureVm)
    [outcome] = do((CHANGE,))
    assert outcome.verdict is Verdict.UNKNOWN
    assert "neither task nor effect" in outcome.reason
    assert world.requests == [CHANGE] * 2


MOVE = RelocateVm("vm-92", "host-2")


@pytest.fixture
def far(world: World) -> World:
    """The VM that is moved stands on another host than it is wanted on."""
    world.set("vm-92", host="host-1")
    return world


def test_a_move_whose_reply_was_lost_is_settled_by_the_host_of_the_vm(do: Do, far: World) -> None:
    far.lose_after.add(RelocateVm)
    [outcome] = do((MOVE,))
    assert outcome.verdict is Verdict.DONE
    assert far.requests == [MOVE]
    assert far.vms["vm-92"].host == "host-2"


def test_a_move_that_never_arrived_is_sent_once_more_after_looking(do: Do, far: World) -> None:
    far.lose_before.add(RelocateVm)
    [outcome] = do((MOVE,))
    assert outcome.verdict is Verdict.DONE
    assert far.requests == [MOVE] * 2
    assert len(far.ledger) == 1


def test_a_lost_move_is_not_repeated_over_somebody_elses(do: Do, far: World) -> None:
    far.lose_before.add(RelocateVm)
    far.on_submit = lambda step: far.set("vm-92", host="host-3")
    [outcome] = do((MOVE,))
    assert outcome.verdict is Verdict.UNKNOWN
    assert far.requests == [MOVE]


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


def test_an_ml_vm_that_somebody_else_started_just_before_is_not_the_nights(world: World, journal: Journal) -> None:
    """Its morning leaves it alone: what runs there is not what the night asked for."""
    world._set_power("vm-1", PowerState.SUSPENDED)
    world._set_power("vm-2", PowerState.SUSPENDED)
    world.on_submit = lambda step: world._set_power("vm-91", PowerState.ON)
    night = journal.begin("night", night="2026-11-20")
    plan = Plan(waves=(Wave("start", (PowerOnVm("vm-91", "host-1"),)),))
    [outcome] = execute(plan, VmExecutor(SmallVcenter(world), journal, night, world.snapshot()), LIMITS, lambda _: None)
    assert (outcome.verdict, outcome.reason) == (Verdict.ALREADY, "somebody else started it just before")
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
    """Who starts the VM meanwhile keeps it: the run that goes on finds it running, and nothing left open."""
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
    asked: list[Step] = []

    def refuse(step: Step) -> None:
        asked.append(step)
        if len(asked) == 2:
            world.down_until = world.now + timedelta(minutes=5)
            raise StepFailed("no host is compatible")

    world.on_submit = refuse
    night = journal.begin("night", night="2026-11-20")
    plan = Plan(waves=(Wave("start", (PowerOnVm("vm-91", "host-1"),)),))
    vcenter = SmallVcenter(world)
    with pytest.raises(NotConnected):
        execute(plan, VmExecutor(vcenter, journal, night, world.snapshot()), LIMITS, lambda _: None)
    assert [intent.step for intent in journal.open_intents(night)] == [PowerOnVm("vm-91", "host-1")]


@pytest.mark.parametrize("answer", ["refused", "lost", "lost, and old values are told"])
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
    assert (outcome.verdict, outcome.reason) == (Verdict.ALREADY, "somebody else started it just before")
    assert journal.state.takes["2026-11-20", "vm-91"] == 0


@pytest.mark.parametrize(
    ("started_by", "verdict"),
    [
        pytest.param("gpuops-late", Verdict.DONE, id="this login"),
        pytest.param("", Verdict.ALREADY, id="somebody else"),
        pytest.param(None, Verdict.ALREADY, id="nobody knows"),
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
    asked: list[Step] = []

    def started_late(step: Step) -> None:
        asked.append(step)
        if len(asked) == 2:
            world._set_power("vm-91", PowerState.ON)

    world.on_submit = started_late
    night = journal.begin("night", night="2026-11-20")
    plan = Plan(waves=(Wave("start", (PowerOnVm("vm-91", "host-1"),)),))
    [outcome] = execute(plan, VmExecutor(SmallVcenter(world), journal, night, world.snapshot()), LIMITS, lambda _: None)
    assert (outcome.verdict, len(asked)) == (Verdict.DONE, 2)
    assert journal.state.takes["2026-11-20", "vm-91"] == 1


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


def test_an_ml_vm_does_not_start_where_a_desktop_stayed(do: Do, world: World) -> None:
    world.failing["vm-1"] = StepFailed("no space on ssd")
    outcomes = do((SuspendVm("vm-1"),), (PowerOnVm("vm-91", "host-1"), PowerOnVm("vm-92", "host-2")))
    assert verdicts(outcomes) == {"vm-1": Verdict.FAILED, "vm-91": Verdict.SKIPPED, "vm-92": Verdict.DONE}
    assert "desktop-01 was not suspended on its host" in outcomes[1].reason


def test_a_desktop_in_use_is_not_suspended_whatever_the_plan_says(do: Do, world: World) -> None:
    run = do
    world.set("vm-1", console_connections=1)
    [outcome] = run((SuspendVm("vm-1"),))
    assert (outcome.verdict, outcome.reason) == (Verdict.SKIPPED, "1 console connection(s) open")
    assert world.requests == []


@pytest.mark.parametrize(
    ("step", "power", "reason"),
    [
        (ResumeVm("vm-1"), PowerState.OFF, "is powered off: its suspended state was discarded"),
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
    """A task that hangs takes half an hour of waiting: whoever starts the other VM meanwhile is not the cut-off run."""
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


def test_progress_is_told_step_by_step(world: World, journal: Journal) -> None:
    told: list[Outcome] = []
    plan = Plan(waves=(Wave("", (SuspendVm("vm-1"), SuspendVm("vm-2"))),))
    executor = VmExecutor(SmallVcenter(world), journal, journal.begin("test"), world.snapshot())
    assert execute(plan, executor, Limits(), told.append) == tuple(told)


def test_what_is_in_flight_is_told_before_each_wait(world: World, journal: Journal) -> None:
    in_flight: list[list[Step]] = []
    stops = (PowerOffVm("vm-1"), PowerOffVm("vm-2"))
    steps: tuple[Step, ...] = (SetAttribute("vm-1", "marker", "x"), *stops)
    plan = Plan(waves=(Wave("", steps),))
    executor = VmExecutor(SmallVcenter(world), journal, journal.begin("test"), world.snapshot())
    limits = Limits(in_flight=1)
    execute(plan, executor, limits, lambda _: None, in_flight=lambda sent: in_flight.append([*sent]))
    assert [sent for sent in in_flight if sent] == [[each] for each in stops]
    assert in_flight[-1] in ([], [stops[-1]])


def test_who_counts_towards_a_floor_is_looked_at_pool_by_pool(world: World, journal: Journal) -> None:
    """A look before a step of one pool, or before a marker is set, tells nothing of the other pools."""
    pools = (
        Pool("first", Selector(name="desktop-0[12]"), IdleRule(500), parked=True, floor=1),
        Pool("second", Selector(name="desktop-0[34]"), IdleRule(500), parked=True, floor=1),
    )
    guard = Guard(Policy("small", pools), StepCounts(4), CATALOG)
    executor = VmExecutor(SmallVcenter(world), journal, journal.begin("test"), world.snapshot(), guard=guard)
    world.now += 2 * FRESH
    executor.look(["vm-1"])  # vCenter's time is known now
    for ref in ("vm-2", "vm-4"):
        world.set(ref, name=f"{executor.planned.vm(ref).name}-renamed")
    executor.look_before([SuspendVm("vm-1")])
    executor.look_before([SetAttribute("vm-3", "gpuops.rotation", "x")])
    assert executor.inventory.vm("vm-2").name == "desktop-02-renamed"
    assert executor.inventory.vm("vm-4").name == "desktop-04"
    executor.look_before([SuspendVm("vm-3")])
    assert executor.inventory.vm("vm-4").name == "desktop-04-renamed"


def test_desktops_that_wake_up_while_the_night_goes_on_stop_it_in_their_pool(world: World, journal: Journal) -> None:
    """Each minute those that the night has taken are looked at too."""
    taken = frozenset({"vm-2", "vm-3", "vm-4"})
    for ref in taken:
        world.set(ref, power=PowerState.SUSPENDED)
    pool = Pool("all", Selector(name="desktop-*"), IdleRule(500), parked=True)
    guard = Guard(Policy("small", (pool,)), StepCounts(4), CATALOG, taken=taken)
    executor = VmExecutor(SmallVcenter(world), journal, journal.begin("test"), world.snapshot(), guard=guard)
    for ref in taken:
        world.set(ref, power=PowerState.ON)
    world.now += 2 * FRESH
    executor.look(["vm-1"])  # vCenter's time is known now
    executor.look_before([SuspendVm("vm-1")])
    outcome = executor.begin(SuspendVm("vm-1"))
    assert isinstance(outcome, Outcome)
    assert (outcome.verdict, outcome.reason) == (
        Verdict.SKIPPED,
        "3 desktops of its pool came back by themselves tonight: no more of it are taken",
    )
    assert world.requests == []


def test_each_of_several_is_looked_at_when_those_before_it_were_sent(world: World, journal: Journal) -> None:
    """Whatever the clocks of this machine say: one that stood still in between has sent one request at most."""
    executor = VmExecutor(
        SmallVcenter(world), journal, journal.begin("test"), world.snapshot(), guard=NIGHT, passed_s=lambda: 0
    )
    executor.look_before([SuspendVm("vm-1"), SuspendVm("vm-2")])
    looks = world.looks
    assert isinstance(executor.begin(SuspendVm("vm-1")), StepInFlight)
    assert world.looks == looks, "one look is enough for one"
    world.set("vm-2", cpu_usage_mhz=5200)
    outcome = executor.begin(SuspendVm("vm-2"))
    assert isinstance(outcome, Outcome)
    assert (outcome.verdict, outcome.reason) == (Verdict.SKIPPED, "uses 5200 MHz, idle is below 500")


@pytest.mark.parametrize("passed_s", [LOOK_S, LOOK_S + 1])
def test_a_look_that_grew_old_is_made_again(world: World, journal: Journal, passed_s: float) -> None:
    passed = [0.0]
    run = journal.begin("test")
    executor = VmExecutor(SmallVcenter(world), journal, run, world.snapshot(), guard=NIGHT, passed_s=lambda: passed[0])
    executor.look_before([SuspendVm("vm-1")])
    world.set("vm-1", cpu_usage_mhz=5200)
    passed[0] += passed_s
    outcome = executor.begin(SuspendVm("vm-1"))
    assert isinstance(outcome, Outcome) is (passed_s > LOOK_S), "what began a moment ago is not seen by anybody"


def test_a_look_at_one_vm_says_nothing_of_another(world: World, journal: Journal) -> None:
    """A return that stops ML VMs one after the other has no guard: each goes by the look at itself."""
    passed = [0.0]
    executor = VmExecutor(
        SmallVcenter(world), journal, journal.begin("test"), world.snapshot(), passed_s=lambda: passed[0]
    )
    executor.look_before([ShutDownGuest("vm-1"), ShutDownGuest("vm-2")])
    passed[0] += LOOK_S
    executor.look_before([ShutDownGuest("vm-1")])
    looks = world.looks
    passed[0] += 1
    assert isinstance(executor.begin(ShutDownGuest("vm-1")), StepInFlight)
    assert world.looks == looks
    assert isinstance(executor.begin(ShutDownGuest("vm-2")), StepInFlight)
    assert world.looks == looks + 1


def test_what_a_desktop_did_in_the_last_quarter_of_an_hour_is_read_before_it_is_taken(
    world: World, journal: Journal
) -> None:
    """Each time anew, whatever an earlier look had told."""
    pool = replace(DESKTOPS, idle=IdleRule(500, for_s=900))
    guard = Guard(Policy("small", (pool,), ml=QUEUE), StepCounts(40), CATALOG)
    executor = VmExecutor(SmallVcenter(world), journal, journal.begin("test"), world.snapshot(), guard=guard)
    ago = partial(lambda now, s: now - timedelta(seconds=s), world.now)
    world.counters["vm-1"] = {CPU_MHZ: CounterWindow(4000, ago(900), ago(0), world.now)}
    executor.look_before([SuspendVm("vm-1")])
    begun = executor.begin(SuspendVm("vm-1"))
    said = "used 4000 MHz within the last 15 min, idle is below 500"
    assert begun == Outcome(SuspendVm("vm-1"), Verdict.SKIPPED, said)
    world.counters["vm-1"] = {CPU_MHZ: CounterWindow(40, ago(900), ago(0), world.now)}
    executor.share_no_look()
    executor.look_before([SuspendVm("vm-1"), SuspendVm("vm-2")])
    assert isinstance(executor.begin(SuspendVm("vm-1")), StepInFlight)
    unknown = executor.begin(SuspendVm("vm-2"))
    assert isinstance(unknown, Outcome)
    assert unknown.reason == "vCenter has no samples of its cpu.usagemhz.average"
    assert [step.vm for step in world.requests] == ["vm-1"]


def test_sessions_are_asked_for_anew_before_a_desktop_is_taken(world: World, journal: Journal) -> None:
    """A desktop whose sessions must be known and are not is kept, as is one in which somebody works."""
    used: dict[str, bool | None] = {"vm-1": True}
    asked: list[list[str]] = []

    class Told:
        def sessions(self, vms: Sequence[Vm], at: datetime) -> Mapping[str, SessionCount]:
            asked.append([vm.ref for vm in vms])
            return {vm.ref: SessionCount(None, used.get(vm.ref), at, because="a time-out") for vm in vms}

    pool = replace(DESKTOPS, idle=IdleRule(500, required=frozenset({Source.COMMAND})))
    guard = Guard(Policy("small", (pool,), ml=QUEUE), StepCounts(40), CATALOG)
    executor = VmExecutor(
        SmallVcenter(world),
        journal,
        journal.begin("test"),
        world.snapshot(),
        guard=guard,
        sources={Source.COMMAND: Told()},
    )
    steps = [SuspendVm("vm-1"), SuspendVm("vm-2")]
    executor.look_before(steps)
    kept = [Outcome(steps[0], Verdict.SKIPPED, "it is used, as the command tells")]
    kept.append(Outcome(steps[1], Verdict.SKIPPED, "its sessions are not known: a time-out"))
    assert [executor.begin(step) for step in steps] == kept
    used["vm-1"] = False
    executor.share_no_look()
    executor.look_before(steps)
    assert isinstance(executor.begin(steps[0]), StepInFlight)
    assert asked == [["vm-1", "vm-2"]] * 2
    assert [step.vm for step in world.requests] == ["vm-1"]


@pytest.mark.parametrize("by_somebody", [True, False], ids=["by somebody", "by vSphere HA"])
@pytest.mark.parametrize("step", [PowerOffVm("vm-1"), ShutDownGuest("vm-1", grace_s=60)])
def test_what_somebody_started_again_since_the_plan_is_theirs(
    world: World, journal: Journal, mocker: MockerFixture, step: Step, by_somebody: bool
) -> None:
    began = world.now
    world.set("vm-1", started_at=began)
    vcenter = SmallVcenter(world)
    executor = VmExecutor(vcenter, journal, journal.begin("test"), world.snapshot())
    asked = mocker.patch.object(vcenter, "started_by_others", return_value=by_somebody)
    world.set("vm-1", started_at=began + timedelta(minutes=5))
    executor.look_before([step])
    begun = executor.begin(step)
    asked.assert_called_with("vm-1", began)
    if by_somebody:
        assert begun == Outcome(step, Verdict.SKIPPED, STARTED_SINCE)
    else:
        assert isinstance(begun, StepInFlight)


def test_a_desktop_whose_user_came_while_the_journal_was_written_is_left_alone(
    world: World, journal: Journal, mocker: MockerFixture
) -> None:
    """A disk may take its time, and a PostgreSQL server more of it."""
    passed = [0.0]
    executor = VmExecutor(
        SmallVcenter(world), journal, journal.begin("test"), world.snapshot(), guard=NIGHT, passed_s=lambda: passed[0]
    )
    written = journal.intend

    def slowly(run: Run, step: Step, inventory: Inventory, predicted: Prediction | None) -> str:
        passed[0] += LOOK_S + 1
        world.set("vm-1", cpu_usage_mhz=5200)
        return written(run, step, inventory, predicted)

    mocker.patch.object(journal, "intend", slowly)
    executor.look_before([SuspendVm("vm-1")])
    outcome = executor.begin(SuspendVm("vm-1"))
    assert isinstance(outcome, Outcome)
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "uses 5200 MHz, idle is below 500")
    assert world.requests == []
    assert journal.open_intents(executor.run) == ()


def test_a_desktop_that_cannot_be_looked_at_in_time_is_left_alone(
    world: World, journal: Journal, mocker: MockerFixture
) -> None:
    passed = [0.0]
    vcenter = SmallVcenter(world)
    executor = VmExecutor(
        vcenter, journal, journal.begin("test"), world.snapshot(), guard=NIGHT, passed_s=lambda: passed[0]
    )
    observe = vcenter.observe

    def slowly(inventory: Inventory, vms: Collection[str]) -> Inventory:
        passed[0] += LOOK_S + 1
        return observe(inventory, vms)

    mocker.patch.object(vcenter, "observe", slowly)
    executor.look_before([SuspendVm("vm-1")])
    outcome = executor.begin(SuspendVm("vm-1"))
    assert isinstance(outcome, Outcome)
    assert outcome.reason == "what was read of it was more than 25 s old before it could be sent, 2 times"
    assert world.requests == []


def test_a_request_that_was_lost_is_not_sent_again_to_a_desktop_whose_user_came(
    world: World, journal: Journal, do: Do
) -> None:
    """The first one may still arrive, so nobody knows how it ends."""
    world.lose_before.add(SuspendVm)
    world.on_submit = lambda step: world.set("vm-1", cpu_usage_mhz=5200)
    [outcome] = do((SuspendVm("vm-1"),))
    assert world.requests == [SuspendVm("vm-1")]
    assert outcome.verdict is Verdict.UNKNOWN
    assert outcome.reason == "the reply was lost; not sent again: uses 5200 MHz, idle is below 500"


def test_a_tag_that_withdraws_a_desktop_after_the_plan_is_seen(world: World, do: Do) -> None:
    policy = Policy("small", (DESKTOPS,), opt_out=Mark(tag="gpuops:opt-out"))
    guard = Guard(policy, StepCounts(4), CATALOG)
    world.tags["vm-2"] = ("gpuops:opt-out",)
    outcomes = do((SuspendVm("vm-1"), SuspendVm("vm-2")), guard=guard)
    assert {outcome.step.vm: outcome.reason for outcome in outcomes} == {
        "vm-1": "",
        "vm-2": "opted out (tag gpuops:opt-out)",
    }


def test_without_a_rule_no_desktop_is_suspended(world: World, do: Do) -> None:
    [outcome] = do((SuspendVm("vm-1"),), guard=None)
    assert (outcome.verdict, outcome.reason) == (
        Verdict.SKIPPED,
        "is in no pool of a policy: nothing says when it is idle",
    )


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


def test_resume_finds_an_effect_whose_task_vcenter_forgot(world: World, journal: Journal) -> None:
    run = journal.begin("test")
    step = SuspendVm("vm-1")
    op_id = journal.intend(run, step, world.snapshot())
    assert world.apply(op_id, step) is None
    [outcome] = settle_open(VmExecutor(SmallVcenter(world), journal, run, world.snapshot()), timeout_s=60)
    assert (outcome.verdict, outcome.reason) == (Verdict.DONE, "found done after the run was cut off")
    assert journal.open_intents(run) == ()
