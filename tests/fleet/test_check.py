"""The checks of a fleet say of each thing that is broken that it is, and nothing of a night that was whole."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.fleet.check import FleetSeen, SiteSeen, violations
from tests.fleet.door import Door

FIRST, SECOND = "aaa", "bbb"


def record(seq: int, run: str, kind: str, minute: int, op: str = "") -> dict[str, Any]:
    body = {"op": op} if op else {"kind": "rotate night" if run == FIRST else "rotate day"}
    return {"seq": seq, "run": run, "kind": kind, "at": f"2026-11-02T22:{minute:02}:00+00:00", "body": body}


def effect(run: str, number: int, minute: int, method: str, name: str, **after: str) -> dict[str, Any]:
    return {
        "at": f"2026-11-02T22:{minute:02}:30+00:00",
        "operation_id": f"gpuops-{run}-{number}",
        "method": method,
        "object_type": "VirtualMachine",
        "moid": f"vm-{name}",
        "name": name,
        "before": {},
        "after": after,
    }


def whole() -> FleetSeen:
    """One desktop was marked and suspended by a run that died, and resumed by the one that took over. The mark of
    another one was past its check then."""
    kinds = (("intent", 1), ("submitted", 1), ("intent", 2), ("submitted", 2), ("intent", 3))
    journal = [
        record(1, FIRST, "begun", 1),
        *(record(seq, FIRST, kind, 1, f"gpuops-{FIRST}-{op}") for seq, (kind, op) in enumerate(kinds, 2)),
        record(7, SECOND, "begun", 5),
        *(record(7 + op, SECOND, "intent", 5, f"gpuops-{SECOND}-{op}") for op in (1, 2, 3)),
    ]
    ledger = [
        effect(FIRST, 1, 1, "SetField", "vdi-1", mark="tonight"),
        effect(FIRST, 2, 5, "SuspendVM_Task", "vdi-1", power="suspended"),
        effect(FIRST, 3, 6, "SetField", "vdi-2", mark="tonight"),
        effect(SECOND, 1, 7, "PowerOnVM_Task", "vdi-1", power="poweredOn"),
        effect(SECOND, 2, 7, "SetField", "vdi-1", mark=""),
        effect(SECOND, 3, 8, "SetField", "vdi-2", mark=""),
    ]
    return FleetSeen([SiteSeen("site-0", ["vdi-1", "vdi-2"], "mark", ledger, journal)], taken_over_s=[18.0])


def test_a_whole_night_is_whole() -> None:
    assert violations(whole()) == []


def test_a_desktop_that_is_named_is_not_lost() -> None:
    fleet_seen = whole()
    del fleet_seen.sites[0].ledger[3:5]
    assert len(violations(fleet_seen)) == 2
    fleet_seen.said = "not done: vdi-1"
    assert violations(fleet_seen) == []


LOST = "warning: the journal cannot be used: went by vCenter's markers; no night begins"


def without_journal() -> FleetSeen:
    """The return began, and then it lost its journal."""
    fleet_seen = whole()
    fleet_seen.sites[0].journal = fleet_seen.sites[0].journal[:7]
    return fleet_seen


def test_a_return_that_says_that_it_lost_its_journal_goes_on_without_intents() -> None:
    fleet_seen = without_journal()
    assert len(violations(fleet_seen)) == 3
    fleet_seen.said = f"site-0: {LOST}"
    assert violations(fleet_seen) == []


def test_one_that_lost_it_before_it_began_is_not_in_the_journal() -> None:
    fleet_seen = without_journal()
    del fleet_seen.sites[0].journal[6]
    assert len(violations(fleet_seen)) == 3
    fleet_seen.said = f"site-0: {LOST}"
    assert violations(fleet_seen) == []
    fleet_seen.sites[0].ledger[3]["method"] = "SuspendVM_Task"
    assert any("I15: SuspendVM_Task on vdi-1" in violation for violation in violations(fleet_seen)), (
        "a return suspends no VM"
    )


@pytest.mark.parametrize("output", [LOST, f"site-1: {LOST}", "site-0: rotate day of nights-0 ended with 7"])
def test_another_vcenter_s_lost_journal_excuses_nothing(output: str) -> None:
    fleet_seen = without_journal()
    fleet_seen.said = output
    assert len(violations(fleet_seen)) == 3


def test_a_night_is_not_excused_by_a_return_without_its_journal() -> None:
    fleet_seen = whole()
    fleet_seen.said = f"site-0: {LOST}"
    unknown_to_the_journal(fleet_seen)
    assert [violation.partition(":")[2].strip() for violation in violations(fleet_seen)] == [
        "I15: SetField on vdi-1 has no intent in the journal: gpuops-aaa-9"
    ]


def test_what_a_return_sent_while_it_had_its_journal_is_not_excused() -> None:
    fleet_seen = whole()
    fleet_seen.said = f"site-0: {LOST}"
    journal = fleet_seen.sites[0].journal
    journal.append(record(11, SECOND, "intent", 9, f"gpuops-{SECOND}-4"))
    del journal[8]
    assert [
        violation for violation in violations(fleet_seen) if "I15" in violation and f"gpuops-{SECOND}-2" in violation
    ]


def test_what_the_next_run_settles_is_no_sign_that_a_return_had_its_journal() -> None:
    fleet_seen = without_journal()
    fleet_seen.said = f"site-0: {LOST}"
    journal = fleet_seen.sites[0].journal
    journal.append(record(8, SECOND, "intent", 5, f"gpuops-{SECOND}-1"))
    journal.append(record(9, SECOND, "settled", 12, f"gpuops-{SECOND}-1"))
    assert violations(fleet_seen) == []


def test_a_return_that_lost_its_journal_may_act_beside_the_next() -> None:
    """Only with what it sent without its journal: what it intended there has the check."""
    fleet_seen = whole()
    site, third = fleet_seen.sites[0], "ccc"
    site.journal = [*site.journal[:8], record(9, third, "begun", 6)]
    assert any("I6" in violation for violation in violations(fleet_seen))
    fleet_seen.said = f"site-0: {LOST}"
    assert violations(fleet_seen) == []
    site.journal[-1:] = [record(9, SECOND, "intent", 5, f"gpuops-{SECOND}-2"), record(10, third, "begun", 6)]
    assert [violation for violation in violations(fleet_seen) if "I6: 2 requests took effect" in violation], (
        "both were intended there"
    )


def lose_desktop(fleet_seen: FleetSeen) -> None:
    del fleet_seen.sites[0].ledger[3]


def left_marked(fleet_seen: FleetSeen) -> None:
    del fleet_seen.sites[0].ledger[5]


def intended_late(fleet_seen: FleetSeen) -> None:
    fleet_seen.sites[0].journal.append(record(11, FIRST, "intent", 6, f"gpuops-{FIRST}-4"))


def two_late_requests(fleet_seen: FleetSeen) -> None:
    fleet_seen.sites[0].journal = [record for record in fleet_seen.sites[0].journal if record["kind"] != "submitted"]


def suspended_again(fleet_seen: FleetSeen) -> None:
    fleet_seen.sites[0].ledger.insert(2, effect(FIRST, 1, 2, "SuspendVM_Task", "vdi-1", power="suspended"))


def sent_twice(fleet_seen: FleetSeen) -> None:
    fleet_seen.sites[0].ledger.insert(1, fleet_seen.sites[0].ledger[0])


def unknown_to_the_journal(fleet_seen: FleetSeen) -> None:
    fleet_seen.sites[0].ledger[0]["operation_id"] = f"gpuops-{FIRST}-9"


def powered_off(fleet_seen: FleetSeen) -> None:
    fleet_seen.sites[0].ledger.insert(3, effect(SECOND, 1, 6, "PowerOffVM_Task", "vdi-1", power="poweredOff"))


def slow(fleet_seen: FleetSeen) -> None:
    fleet_seen.taken_over_s.append(30.5)


def never(fleet_seen: FleetSeen) -> None:
    fleet_seen.not_taken_over.append("site-0")


def add_traceback(fleet_seen: FleetSeen) -> None:
    fleet_seen.said = "Traceback (most recent call last)"


@pytest.mark.parametrize(
    ("breaks", "problem_start"),
    [
        (lose_desktop, "site-0: I1: vdi-1 is suspended, and nobody says so"),
        (left_marked, "site-0: I1: vdi-2 still has its marker"),
        (intended_late, "site-0: I6: gpuops-aaa-4 was intended after run bbb had begun"),
        (two_late_requests, "site-0: I6: 2 requests took effect after run bbb had begun"),
        (suspended_again, "site-0: I17: SuspendVM_Task 2 times on vdi-1"),
        (sent_twice, "site-0: I16: gpuops-aaa-1 took effect 2 times"),
        (unknown_to_the_journal, "site-0: I15: SetField on vdi-1 has no intent in the journal: gpuops-aaa-9"),
        (powered_off, "site-0: I11: PowerOffVM_Task powered off vdi-1"),
        (slow, "a turn was taken over after 30.5 s"),
        (never, "site-0: nobody took the turn over"),
        (add_traceback, "a traceback: Traceback"),
    ],
)
def test_what_is_broken_is_told(breaks: Callable[[FleetSeen], None], problem_start: str) -> None:
    fleet_seen = whole()
    breaks(fleet_seen)
    problems = violations(fleet_seen)
    assert any(problem.startswith(problem_start) for problem in problems), problems


def test_a_door_that_was_shut_twice_opens_with_the_second_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as behind:
        door = Door(behind.getsockname()[1])
        try:
            door.shut()
            door.shut()
            door.reopen()
            with socket.socket() as socket_refused:
                assert socket_refused.connect_ex(("127.0.0.1", door.port)) == errno.ECONNREFUSED
            with socket.socket() as socket_refused, pytest.raises(OSError, match=str(errno.EADDRINUSE)):
                socket_refused.bind(("127.0.0.1", door.port))
            door.reopen()
            with socket.create_connection(("127.0.0.1", door.port), timeout=10) as connection:
                inside, _ = behind.accept()
                with inside:
                    connection.sendall(b"up?")
                    assert inside.recv(3) == b"up?"
                    door.shut()
                    assert connection.recv(3) == b"", "a door that is shut ends what went through it"
        finally:
            door.close()
