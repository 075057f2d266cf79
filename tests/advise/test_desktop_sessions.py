"""The sessions of a VM as a broker reports them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gpuops.advise.desktop_sessions import SessionsRead, match_machines, read_sessions
from gpuops.model.desktops.broker import DesktopMachine, DesktopSession, SessionState
from gpuops.model.desktops.evidence import SessionCount
from gpuops.model.vcenter.vm import Vm

NOW = datetime(2026, 11, 2, 22, 0, tzinfo=UTC)
VMS = (Vm("vm-1", "a", "/dc/vm/a"), Vm("vm-2", "b", "/dc/vm/one/b"), Vm("vm-3", "b", "/dc/vm/two/b"))


def machine(name: str, identity: str = "m") -> DesktopMachine:
    return DesktopMachine(identity, name, "pool")


def read(*sessions: DesktopSession) -> SessionsRead:
    """What is read of a broker whose one machine is the VM `a`."""
    return read_sessions(match_machines(VMS, "vc", [machine("a")], ()), sessions, NOW)


def test_sessions_are_counted_those_that_are_disconnected_too_and_their_ages_told() -> None:
    ago = [NOW - timedelta(minutes=minutes) for minutes in (90, 60, 30)]
    sessions = [
        DesktopSession("1", "m", SessionState.DISCONNECTED, ago[0], ago[1]),
        DesktopSession("2", "m", SessionState.CONNECTED, ago[2], idle_s=240.0),
        DesktopSession("3", "m", None),
        DesktopSession("4", "gone", SessionState.CONNECTED),
        DesktopSession("5", None, SessionState.CONNECTED),
    ]
    counted = read(*sessions)
    assert counted.of("vm-1") == SessionCount(3, True, NOW, oldest_s=5400, youngest_s=1800)
    assert counted.without_machine == 2


DISCONNECTED = DesktopSession("1", "m", SessionState.DISCONNECTED, None, NOW - timedelta(hours=5))


@pytest.mark.parametrize(
    ("more_sessions", "disconnected_s"),
    [
        ((), 18_000),
        ((DesktopSession("2", "m", SessionState.DISCONNECTED, None, NOW - timedelta(minutes=7)),), 420),
        ((DesktopSession("2", "m", SessionState.DISCONNECTED, None, NOW + timedelta(minutes=1)),), 0),
        ((DesktopSession("2", "m", SessionState.DISCONNECTED),), None),
        ((DesktopSession("2", "m", SessionState.CONNECTED, None, NOW - timedelta(hours=9)),), None),
        ((DesktopSession("2", "m", SessionState.PENDING),), None),
        ((DesktopSession("2", "m", None, None, NOW - timedelta(hours=9)),), None),
        ((DesktopSession("2", "elsewhere", SessionState.CONNECTED),), 18_000),
    ],
)
def test_how_long_all_of_them_are_disconnected_is_told_where_it_is_known_of_each(
    more_sessions: tuple[DesktopSession, ...], disconnected_s: int | None
) -> None:
    counted, unused = read(DISCONNECTED, *more_sessions).of("vm-1"), read().of("vm-1")
    assert counted is not None and unused is not None
    assert (counted.disconnected_s, unused.disconnected_s) == (disconnected_s, None)


@pytest.mark.parametrize(
    ("session", "is_used"),
    [
        (DesktopSession("1", "new machine"), True),
        (DesktopSession("1", None), True),
        (DesktopSession("1", None, on_rds_host=True), None),
    ],
)
def test_a_session_on_a_machine_that_no_list_has_keeps_every_vm_that_is_no_machine(
    session: DesktopSession, is_used: bool | None
) -> None:
    """A machine that was made anew after its list was read; sessions on RDS hosts are on no desktop."""
    unknown, on_machine = read(session).of("vm-2"), read(session).of("vm-1")
    assert (unknown.used if unknown is not None else None) is is_used
    assert on_machine is not None and on_machine.used is False
