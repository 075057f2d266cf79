"""Which VM is a machine of a broker, and what is told of its sessions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gpuops.advise.desktop_sessions import matched
from gpuops.model.desktops.broker import DesktopMachine, DesktopSession, SessionState
from gpuops.model.desktops.evidence import SessionCount
from gpuops.model.vcenter.vm import Vm

NOW = datetime(2026, 11, 2, 22, 0, tzinfo=UTC)
VMS = (Vm("vm-1", "a", "/dc/vm/a"), Vm("vm-2", "b", "/dc/vm/one/b"), Vm("vm-3", "b", "/dc/vm/two/b"))


def machine(name: str, path: str | None = None, identity: str = "m") -> DesktopMachine:
    return DesktopMachine(identity, name, "pool", path=path)


CASES: dict[str, tuple[list[DesktopMachine], dict[str, str], tuple[str, ...]]] = {
    "by its path": ([machine("b", "/dc/vm/two/b")], {"m": "vm-3"}, ()),
    "by a name that one VM has": ([machine("a")], {"m": "vm-1"}, ()),
    "a name of two VMs": ([machine("b")], {}, ("b",)),
    "a path that leads nowhere": ([machine("a", "/dc/vm/old/a")], {}, ("a",)),
    "two machines of one VM": ([machine("a"), machine("a", "/dc/vm/a", "n")], {}, ("a", "a")),
    "not here": ([machine("elsewhere")], {}, ("elsewhere",)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_machine_is_found_for_certain_or_told(case: str) -> None:
    machines, vm_of, unmatched = CASES[case]
    read = matched(VMS, machines, (), NOW)
    assert (read.vm_of, read.unmatched) == (vm_of, unmatched)
    assert set(read.of_vm) == set(vm_of.values()), "of no other VM is anything known"


def test_sessions_are_counted_those_that_are_disconnected_too_and_their_ages_told() -> None:
    ago = [NOW - timedelta(minutes=minutes) for minutes in (90, 60, 30)]
    sessions = [
        DesktopSession("1", "m", SessionState.DISCONNECTED, ago[0], ago[1]),
        DesktopSession("2", "m", SessionState.CONNECTED, ago[2], idle_s=240.0),
        DesktopSession("3", "m", None),
        DesktopSession("4", "gone", SessionState.CONNECTED),
        DesktopSession("5", None, SessionState.CONNECTED),
    ]
    read = matched(VMS, [machine("a")], sessions, NOW)
    assert read.of_vm == {"vm-1": SessionCount(3, True, NOW, oldest_s=5400, youngest_s=1800)}
    assert read.without_machine == 2


DISCONNECTED = DesktopSession("1", "m", SessionState.DISCONNECTED, None, NOW - timedelta(hours=5))


@pytest.mark.parametrize(
    ("others", "disconnected_s"),
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
    others: tuple[DesktopSession, ...], disconnected_s: int | None
) -> None:
    read = matched(VMS, [machine("a")], (DISCONNECTED, *others), NOW)
    assert read.of_vm["vm-1"].disconnected_s == disconnected_s
    assert matched(VMS, [machine("a")], (), NOW).of_vm["vm-1"].disconnected_s is None
