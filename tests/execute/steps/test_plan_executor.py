"""A plan as a whole: what is in flight at once, what goes on after a failure, tasks that hang, progress."""

from __future__ import annotations

import pytest

from gpuops.errors import StepFailed
from gpuops.execute.journal import Journal
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.step_queue import HUNG_S
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.nights.rotation import Limits
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Outcome, Plan, Verdict, Wave
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, ResumeVm, SetAttribute, Step, SuspendVm
from tests.execute.small_vcenter import SmallVcenter, World
from tests.execute.steps.guarded_steps import Do, verdicts


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
