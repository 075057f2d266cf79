"""One step at a time: what is done is not sent, nothing is sent without an intent on disk, success is read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.errors import LoginRefused, StepFailed
from gpuops.execute.journal import IntentState, Journal
from gpuops.execute.steps.step_executor import StepInFlight
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.steps import Step, SuspendVm
from tests.execute.small_vcenter import SmallVcenter, World
from tests.execute.steps.guarded_steps import NIGHT, Do


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
