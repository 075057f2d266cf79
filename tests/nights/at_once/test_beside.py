"""Nights with another process beside the one at work: what is only the other one's, or somebody's, is not held against
it; what is its own is."""

from __future__ import annotations

import pytest

from gpuops.errors import LoginRefused
from gpuops.sim.fault_injection.rule import rules_of
from tests.nights.faults.event import Event
from tests.nights.judging.checkers import one_session, violations
from tests.nights.playing.night import play
from tests.nights.playing.place import Admission
from tests.nights.world.direct import DirectVcenter
from tests.nights.world.session import USER

pytestmark = pytest.mark.long

LEASED = 810039
"""Of a world with a lock VM."""

PAUSED = Event("K6", point=13, at_s=400.0)
RESTARTED = Event("N7", rules_of("N7", {"method": "*_Task", "at_s": 78.0}))


def test_a_vcenter_that_restarts_while_the_machine_is_paused_leaves_its_run_one_session() -> None:
    night = play(LEASED, [RESTARTED, PAUSED])
    assert night.struck["K6"] == night.struck["N7"] == 1
    assert violations(night) == []
    assert night.most_sessions == 1


def test_a_second_session_is_seen_beside_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    logs_in = DirectVcenter._login

    def twice(vcenter: DirectVcenter) -> None:
        logs_in(vcenter)
        vcenter._world.sessions.open(USER)

    monkeypatch.setattr(DirectVcenter, "_login", twice)
    night = play(LEASED, [PAUSED])
    assert night.struck["K6"] == 1
    assert list(one_session(night)) == ["I19: a run had 2 sessions at once", "I19: a run left 1 sessions behind"]


def test_a_run_that_cannot_read_vcenter_does_not_ask_for_the_lock() -> None:
    refused = {"method": "*", "target": "ml-01", "skip": 5, "times": 10, "property": "runtime.powerState"}
    night = play(840184, [Event("N2", rules_of("N2", refused)), Event("K5", point=49)])
    assert [(type(process.error), process.lock, process.sent) for process in night.beside] == [
        (LoginRefused, Admission.NOT_ASKED, 0)
    ]
    assert violations(night) == []


def test_what_somebody_does_meanwhile_was_not_sent_by_the_run_beside() -> None:
    deleted = Event("A12", rules_of("A12", {"method": "RetrievePropertiesEx", "target": "ml-01", "skip": 5}))
    night = play(7000384, [deleted, Event("K5", point=1)])
    assert night.struck["A12"] == 1
    assert [(process.lock, process.sent) for process in night.beside] == [(Admission.REFUSED, 0)]
    assert violations(night) == []
