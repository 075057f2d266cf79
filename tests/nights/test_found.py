"""Nights that once broke an invariant, with the fewest events that did it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from gpuops.plan.rotation.ours import Whereabouts
from gpuops.sim.trouble.catalogue import rules_of
from tests.nights.checkers import violations
from tests.nights.coverage import aimed_night
from tests.nights.event import Event
from tests.nights.night import play
from tests.nights.stages import Stage

DISCARDED: Final = (
    Event("K1", state=Stage.SUBMIT, point=1),
    Event("T2", rules_of("T2", {"method": "SuspendVM_Task", "times": 3})),
    Event("T12", rules_of("T12"), state=Stage.ADOPT, point=1),
    Event("V7", rules_of("V7"), state=Whereabouts.AWAY, point=3),
)
"""The reply of a suspend is lost, vCenter goes away until its task is forgotten, and somebody powers the VM off."""

STARTED_BY_SOMEBODY: Final = (
    Event("G1", rules_of("G1", {"target": "ml-06", "at_s": 18044.0})),
    Event("K11", point=49),
    Event("K6", point=20, at_s=200.0),
)
"""A night marks an ML VM and is ended by a lock VM that was reverted; somebody else starts the VM, and in the morning
another machine, without the journal, stops it: it has the marker alone to go by."""

ONE_AFTER_ANOTHER: Final = (Event("N3", rules_of("N3", {"skip": 2})), Event("N3", rules_of("N3", {"skip": 2})))
"""Two waits break off, and of two ML VMs of a host the one that was to start last is ready first."""

PAUSED: Final = (Event("H4", target="desktop-001", at_s=236.0), Event("K6", point=55, at_s=900.0))
"""A user begins to work while the machine is paused, whose next suspend was past its check."""

RENAMED: Final = (Event("V6", rules_of("V6", {"target": "ml-06", "at_s": 112.0})),)
"""An ML VM that is about to start is renamed, so that the queue does not mean it any more."""


@pytest.mark.parametrize(
    ("seed", "events"),
    [
        pytest.param(2, RENAMED, id="what the queue does not mean any more is not started"),
        pytest.param(2100226, PAUSED, id="one request of a machine that was paused may come late"),
        pytest.param(13786, ONE_AFTER_ANOTHER, id="ML VMs of a host start in the order of the plan"),
        pytest.param(612, DISCARDED, id="a desktop whose suspended state was discarded is named"),
        pytest.param(2300065, (), id="a hook that needs longer than it is given is not done"),
        pytest.param(3872, STARTED_BY_SOMEBODY, id="another machine goes by the marker"),
    ],
)
def test_a_night_that_broke_holds(seed: int, events: Sequence[Event]) -> None:
    night = play(seed, events)
    assert night.reached or not events, "something struck"
    assert violations(night) == []


@pytest.mark.parametrize(
    ("seed", "pairs"),
    [
        pytest.param(
            520,
            (("K6", "lost"), ("N1", "untouched"), ("T1", "wait"), ("T1", "untouched"), ("N2", "lost")),
            id="met by the other machine",
        ),
        pytest.param(339, (("K2", "settle"), ("V6", "lease write")), id="the lock VM is renamed"),
        pytest.param(
            5105,
            (("G5", "submit"), ("V10", "lost"), ("A12", "submit"), ("H1", "given up"), ("V10", "look")),
            id="the lock VM is moved",
        ),
        pytest.param(
            5545,
            (("T5", "gone"), ("T9", "away"), ("V10", "gone"), ("A1", "given up"), ("T3", "unknown")),
            id="the lock VM is made anew",
        ),
        pytest.param(
            15059,
            (("G2", "away"), ("T2", "wait"), ("A3", "away"), ("V7", "given up"), ("T8", "untouched")),
            id="a desktop that was to be taken cannot be read",
        ),
        pytest.param(61, (("K2", "lost"), ("T13", "intend")), id="a suspend given up on the last morning"),
        pytest.param(
            770,
            (("N6", "unknown"), ("C5", "lost"), ("A1", "look"), ("G6", "changing"), ("K11", "given up")),
            id="a start given up on the last morning",
        ),
    ],
)
def test_an_aimed_night_is_judged_by_what_the_engine_does(seed: int, pairs: Sequence[tuple[str, str]]) -> None:
    assert violations(aimed_night(seed, pairs)) == []
