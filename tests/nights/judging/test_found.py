"""Nights that once broke an invariant, with the fewest events that did it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest

from gpuops.execute.journal.record import Kind
from gpuops.plan.core.steps import PowerOnVm, RelocateVm, ResumeVm, SetVmDrs, ShutDownGuest, SuspendVm
from gpuops.plan.rotation.taken_vms import Whereabouts
from gpuops.sim.fault_injection.rule import catalogue, rules_of
from tests.nights.faults.event import Event
from tests.nights.judging.checkers import violations
from tests.nights.measuring.aiming import aimed_event
from tests.nights.measuring.stages import ADOPT, LEASE, LOOK, RECORDS, SUBMIT, SUBMITS, WAIT
from tests.nights.playing.night import Nightly, play
from tests.nights.world.prepared import prepared_site

DISCARDED: Final = (
    Event("K1", state=SUBMIT, point=1),
    Event("T2", rules_of("T2", {"method": "SuspendVM_Task", "times": 3})),
    Event("T12", rules_of("T12"), state=ADOPT, point=1),
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


UNKNOWN_LEASE: Final = (
    Event("V7", rules_of("V7"), state=SUBMITS[ResumeVm], at_s=600.0),
    Event("K11", point=6),
)
"""The lock VM is reverted before a machine has set any marker, and another one has its night; in the morning somebody
powers a desktop off that is about to be resumed."""

REVERTED: Final = (
    Event("V11", rules_of("V11", {"target": "desktop-002", "at_s": 32532.0, "happening": "vm.reverted_to_running"})),
)
"""A desktop with a DirectPath device, whose guest a night has shut down, is reverted to a suspended snapshot."""

DELETED: Final = (
    Event("N3", rules_of("N3")),
    Event("T13", rules_of("T13", {"method": "SetField", "skip": 2})),
    Event("V4", rules_of("V4", {"target": "desktop-001", "at_s": 32831.0, "happening": "vm.recreated"})),
)
"""vCenter shows another certificate when a guest was asked to shut down; that does, and its VM is deleted and made anew
before anybody looks."""

STARTED_LATER: Final = (
    Event("C1", rules_of("C1", {"target": "esx-03", "for_s": 600.0})),
    Event("G1", rules_of("G1", {"target": "ml-02", "at_s": 20077.0})),
)
"""What becomes of a start is not known, for its host is lost; hours later somebody else starts the VM."""


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("seed", "events"),
    [
        pytest.param(2, RENAMED, id="what the queue does not mean any more is not started"),
        pytest.param(2100226, PAUSED, id="one request of a machine that was paused may come late"),
        pytest.param(13786, ONE_AFTER_ANOTHER, id="ML VMs of a host start in the order of the plan"),
        pytest.param(612, DISCARDED, id="a desktop whose suspended state was discarded is named"),
        pytest.param(2300065, (), id="a hook that needs longer than it is given is not done"),
        pytest.param(3872, STARTED_BY_SOMEBODY, id="another machine goes by the marker"),
        pytest.param(12347, REVERTED, id="a desktop that was shut down and is suspended now comes back"),
        pytest.param(10219, DELETED, id="a desktop that was shut down unseen and is gone is named"),
        pytest.param(10692, STARTED_LATER, id="whose start was lost and who is started by somebody else is left"),
        pytest.param(202000, UNKNOWN_LEASE, id="no two machines have leases of one number"),
    ],
)
def test_a_night_that_broke_holds(seed: int, events: Sequence[Event]) -> None:
    night = play(seed, events)
    assert night.reached or not events, "something struck"
    assert violations(night) == []


def _aimed(fault: str, state: str, point: int = 0, at_s: float = 0.0, **changes: Any) -> Event:
    return Event(fault, rules_of(fault, changes) if fault in catalogue() else (), state=state, point=point, at_s=at_s)


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "aims"),
    [
        pytest.param(
            1040,
            (
                _aimed("V7", Whereabouts.AWAY, 2),
                _aimed("K6", Whereabouts.LOST, at_s=600.0),
                _aimed("N1", Whereabouts.UNTOUCHED),
                _aimed("T1", WAIT, 1),
                _aimed("T1", Whereabouts.UNTOUCHED),
                _aimed("V7", Whereabouts.AWAY),
                _aimed("N2", Whereabouts.LOST),
            ),
            id="met by the other machine",
        ),
        pytest.param(678, (_aimed("K2", RECORDS[Kind.SETTLED]), _aimed("V6", LEASE)), id="the lock VM is renamed"),
        pytest.param(
            122,
            (
                _aimed("V7", Whereabouts.AWAY, 3),
                _aimed("K2", Whereabouts.LOST),
                _aimed("T13", RECORDS[Kind.INTENT]),
            ),
            id="a suspend given up on the last morning",
        ),
        pytest.param(
            1540,
            (
                _aimed("V5", Whereabouts.AWAY, 3),
                _aimed("N6", Whereabouts.UNKNOWN, 1),
                _aimed("V7", Whereabouts.AWAY, 1),
                _aimed("C5", Whereabouts.LOST, 1, for_s=600),
                _aimed("A1", LOOK, 3),
            ),
            id="a start given up on the last morning",
        ),
        pytest.param(
            30118,
            (
                _aimed("G2", Whereabouts.AWAY),
                _aimed("T2", WAIT, 3),
                _aimed("A3", Whereabouts.AWAY, 3),
                _aimed("T8", Whereabouts.UNTOUCHED, 3),
            ),
            id="a desktop that was to be taken cannot be read",
        ),
        pytest.param(
            528,
            (
                _aimed("V5", SUBMITS[ShutDownGuest], at_s=60.0),
                _aimed("T9", SUBMITS[ShutDownGuest], at_s=600.0),
            ),
            id="a guest shut down after its step was called failed, and its desktop is inaccessible in the morning",
        ),
    ],
)
def test_an_aimed_night_is_judged_by_what_the_engine_does(seed: int, aims: Sequence[Event]) -> None:
    beside = Nightly(seed).played.events if seed in (678, 122, 30118) else ()
    night = play(seed, [*aims, *beside])
    assert night.reached, "something struck"
    assert violations(night) == []


@pytest.mark.quick_cases(3)
@pytest.mark.quick_cases(9)
@pytest.mark.parametrize(
    ("seed", "leased", "crowded", "events"),
    [
        pytest.param(
            127,
            False,
            True,
            (
                Event("A9", rules_of("A9", {"method": "PowerOnVM_Task", "target": "desktop-003"})),
                _aimed("V7", Whereabouts.CHANGING, at_s=600.0),
            ),
            id="a task that asked is not waited for, also when somebody has answered",
        ),
        pytest.param(
            269,
            True,
            False,
            (
                _aimed("G1", Whereabouts.BACK, at_s=60.0),
                _aimed("T12", Whereabouts.BACK, at_s=600.0),
                _aimed("A8", SUBMITS[PowerOnVm], at_s=600.0),
            ),
            id="a start that was refused is not the night's",
        ),
        pytest.param(
            316,
            False,
            True,
            (
                Event("V7", rules_of("V7", {"target": "desktop-006", "at_s": 3600.0})),
                Event("V5", rules_of("V5", {"target": "desktop-003", "at_s": 3600.0})),
                _aimed("A11", Whereabouts.LOST, at_s=1.0),
                _aimed("C1", Whereabouts.UNKNOWN, at_s=1.0),
            ),
            id="old values are as old as they are said to be",
        ),
        pytest.param(
            1,
            False,
            False,
            (
                Event("A11", rules_of("A11", {"target": "desktop-004", "at_s": 32420.0})),
                Event("V7", rules_of("V7", {"target": "desktop-004", "at_s": 32421.0})),
            ),
            id="a desktop that vCenter shows suspended is resumed",
        ),
        pytest.param(
            100002,
            False,
            False,
            (
                _aimed("A11", SUBMITS[PowerOnVm], at_s=600.0),
                _aimed("G1", SUBMITS[PowerOnVm], at_s=1.0),
                _aimed("T1", SUBMITS[PowerOnVm], at_s=60.0),
            ),
            id="a start that somebody else asked for is not the night's, though it is not seen yet",
        ),
        pytest.param(
            102030,
            True,
            False,
            (
                _aimed("A11", SUBMITS[PowerOnVm], at_s=600.0),
                _aimed("V6", SUBMITS[PowerOnVm], at_s=60.0),
                _aimed("A1", SUBMITS[PowerOnVm], at_s=600.0),
            ),
            id="a name that is told late is known late",
        ),
        pytest.param(
            201131,
            True,
            False,
            (
                _aimed("C4", WAIT, at_s=60.0),
                aimed_event("K7", WAIT, at_s=1.0),
                _aimed("V6", WAIT, at_s=600.0),
                _aimed("V4", LEASE, at_s=60.0),
            ),
            id="a lock VM made anew and renamed is the lock VM",
        ),
        pytest.param(
            200600,
            False,
            False,
            (
                _aimed("A11", SUBMITS[ResumeVm], at_s=600.0),
                _aimed("C3", SUBMITS[ResumeVm], at_s=1.0),
                _aimed("A1", SUBMITS[ResumeVm], at_s=600.0),
            ),
            id="a move that is told late is known late",
        ),
        pytest.param(
            100980,
            True,
            False,
            (_aimed("V6", LEASE, at_s=600.0), _aimed("K5", LEASE, at_s=600.0)),
            id="a run beside another one does not find the lock VM",
        ),
        pytest.param(
            102524,
            False,
            False,
            (
                _aimed("V11", Whereabouts.BACK, at_s=60.0, happening="vm.reverted_to_off"),
                _aimed("K1", SUBMITS[SuspendVm], at_s=1.0),
            ),
            id="what a killed run had not sent yet may have been sent, for all that it left",
        ),
        pytest.param(
            100871,
            False,
            True,
            (
                Event("P2", target="desktop-901", at_s=34560.0),
                _aimed("G1", Whereabouts.FOREIGN, at_s=60.0),
                _aimed("C5", Whereabouts.FOREIGN, at_s=1.0, for_s=600),
                _aimed("K3", Whereabouts.FOREIGN, at_s=60.0),
            ),
            id="when a marker was first seen is noted on a full disk too",
        ),
        pytest.param(
            102559,
            True,
            False,
            (
                _aimed("G1", SUBMITS[PowerOnVm], at_s=1.0),
                _aimed("T9", SUBMITS[PowerOnVm], at_s=1.0),
                _aimed("T13", Whereabouts.AWAY, at_s=1.0),
            ),
            id="whose a start is whose reply was lost, the task history tells long after",
        ),
        pytest.param(
            300483,
            False,
            False,
            (
                _aimed("G1", SUBMITS[PowerOnVm], at_s=60.0),
                _aimed("K1", SUBMITS[PowerOnVm], at_s=600.0),
                _aimed("T13", Whereabouts.UNTOUCHED, at_s=600.0),
            ),
            id="whose a start is that a killed run had asked for, the task history tells long after",
        ),
        pytest.param(
            1,
            False,
            False,
            (Event("G1", rules_of("G1", {"target": "ml-01", "at_s": 32_500.0})),),
            id="an ML VM that somebody starts while desktops resume is not stopped by the next return",
        ),
        pytest.param(
            2244,
            True,
            False,
            (_aimed("C4", SUBMITS[ResumeVm], at_s=1.0), _aimed("T1", SUBMITS[ResumeVm], at_s=60.0)),
            id="a resume that is asked for once more is of the host that the VM has been moved to",
        ),
        pytest.param(
            3233,
            False,
            False,
            (_aimed("A4", SUBMITS[SetVmDrs], at_s=60.0), _aimed("K1", SUBMITS[SetVmDrs], at_s=600.0)),
            id="a task that hangs may be what a killed run had asked for",
        ),
        pytest.param(
            2488,
            True,
            False,
            (
                _aimed("A1", SUBMITS[RelocateVm], at_s=1.0),
                _aimed("G1", SUBMITS[RelocateVm], at_s=600.0),
                _aimed("V6", SUBMITS[PowerOnVm], at_s=60.0),
            ),
            id="a lock VM that somebody starts keeps its lease",
        ),
        pytest.param(
            1,
            False,
            False,
            (_aimed("H4", SUBMITS[SuspendVm], at_s=1.0), _aimed("T11", SUBMITS[SuspendVm], at_s=1.0)),
            id="a request that is a minute late takes its own time too",
        ),
    ],
)
def test_a_night_of_the_prepared_site_that_broke_holds(
    seed: int, leased: bool, crowded: bool, events: Sequence[Event]
) -> None:
    night = Nightly(seed, events, site=prepared_site(seed, leased=leased, crowded=crowded)).play()
    assert night.reached, "something struck"
    assert violations(night) == []


@pytest.mark.long
@pytest.mark.parametrize("fault", [pytest.param("V10", id="moved"), pytest.param("V4", id="made anew")])
def test_a_lock_vm_that_is_not_as_it_was_is_known(fault: str) -> None:
    site = prepared_site(1, leased=True, crowded=False)
    night = Nightly(1, [_aimed(fault, LEASE)], site=site).play()
    assert (fault, LEASE) in night.reached
    assert violations(night) == []
