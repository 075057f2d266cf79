"""A broker that is away, fails, loses replies or acts late: no desktop stays gated."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

import pytest

from gpuops.broker.horizon import Horizon
from gpuops.clock import machine_time, set_ahead, wall_clock
from gpuops.errors import OutcomeUnknown
from gpuops.model.desktops.broker import DesktopMachine
from gpuops.model.nights.rotation_policy import LATE
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.steps import CloseGate, OpenGate, ResumeVm, SuspendVm
from tests.wire.nights.gated.gates import Gated, steps_of


@pytest.mark.long
def test_without_an_answer_of_the_broker_nothing_is_taken(vdi: Gated) -> None:
    vdi.pod.down = True
    night = vdi.night()
    assert night.outcomes == () and vdi.suspended == set()
    reasons = {choice.reason for choice in night.plan.choices if choice.subject == "vdi-001"}
    assert reasons == {"its sessions are not known: the broker could not be asked"}


@pytest.mark.long
def test_a_broker_that_is_away_in_the_morning_keeps_no_desktop_away(vdi: Gated) -> None:
    vdi.night()
    suspended = vdi.suspended
    vdi.pod.down = True
    first = vdi.day()
    assert vdi.suspended == set() and vdi.gated == suspended
    assert {outcome.verdict for outcome in first.outcomes if isinstance(outcome.step, OpenGate)} == {Verdict.FAILED}
    assert {outcome.verdict for outcome in first.outcomes if isinstance(outcome.step, ResumeVm)} == {Verdict.DONE}
    resumes = [number for number, outcome in enumerate(first.outcomes) if isinstance(outcome.step, ResumeVm)]
    gates = [number for number, outcome in enumerate(first.outcomes) if isinstance(outcome.step, OpenGate)]
    assert len(gates) == len(suspended) and max(resumes) < min(gates), "no desktop waits for the broker"
    vdi.pod.down = False
    second = vdi.day()
    assert set(steps_of(second, OpenGate)) == suspended
    vdi.nothing_is_left()


class LosesReplies(Horizon):
    """Every second change is made, and its reply lost; the others do not arrive."""

    changes = 0

    def _change(self, path: str, machines: Collection[str]) -> Mapping[str, str]:
        LosesReplies.changes += 1
        if LosesReplies.changes % 2:
            super()._change(path, machines)
        raise OutcomeUnknown("the reply was lost")


@pytest.mark.long
def test_lost_replies_of_the_broker_leave_nobody_gated(vdi: Gated) -> None:
    """The last morning is later than any of the lost requests can come."""
    vdi.broker = LosesReplies
    vdi.night()
    assert vdi.suspended <= vdi.gated
    vdi.day()
    vdi.broker = Horizon
    vdi.day()
    assert (vdi.suspended, vdi.gated) == (set(), set())
    set_ahead(wall_clock() - machine_time() + LATE)
    vdi.day()
    vdi.nothing_is_left()


class ComesLate(Horizon):
    """Each request to close a gate is lost, and arrives once `late` releases it."""

    late: ClassVar[list[Collection[str]]] = []

    def enter_maintenance(self, machines: Collection[str]) -> Mapping[str, str]:
        ComesLate.late.append(machines)
        raise OutcomeUnknown("the reply was lost")

    @classmethod
    def let(cls, vdi: Gated) -> None:
        with Horizon(vdi.target) as broker:
            for machines in cls.late:
                broker.enter_maintenance(machines)
        cls.late.clear()


def test_a_gate_that_closes_late_is_opened_again(vdi: Gated) -> None:
    """The night is called off before its requests arrive; each was sent once."""
    ComesLate.late.clear()
    vdi.broker = ComesLate
    night = vdi.night()
    sent = [
        outcome
        for outcome in night.outcomes
        if isinstance(outcome.step, CloseGate) and outcome.verdict is Verdict.UNKNOWN
    ]
    assert len(sent) == len(ComesLate.late) > 0 and (vdi.suspended, vdi.gated) == (set(), set())
    vdi.broker = Horizon
    vdi.day()
    ComesLate.let(vdi)
    assert len(vdi.gated) == len(sent)
    vdi.day()
    assert vdi.gated == set()
    set_ahead(wall_clock() - machine_time() + LATE)
    vdi.day()
    vdi.nothing_is_left()


class ListsNothing(Horizon):
    """Its list of machines is empty, and each of them is there when it is asked for."""

    def machines(self) -> tuple[DesktopMachine, ...]:
        return ()


@pytest.mark.long
def test_a_machine_that_is_missing_from_a_list_is_not_taken_for_gone(vdi: Gated) -> None:
    vdi.night()
    assert vdi.gated
    vdi.broker = ListsNothing
    vdi.day()
    vdi.nothing_is_left()


@pytest.mark.long
def test_a_broker_that_fails_keeps_no_night_going_round(vdi: Gated) -> None:
    """It is away from the first gate on: what waits for a gate is given up, and nothing is taken."""
    rounds: list[int] = []

    def watch(outcome: Outcome) -> None:
        if isinstance(outcome.step, CloseGate):
            vdi.pod.down = True

    night = vdi.night(watch=watch, in_flight=lambda steps: rounds.append(len(steps)))
    assert vdi.suspended == set() and len(rounds) < 100
    assert not any(
        isinstance(outcome.step, SuspendVm) and outcome.verdict is Verdict.DONE for outcome in night.outcomes
    )
    vdi.pod.down = False
    vdi.day()
    assert vdi.gated == set()
