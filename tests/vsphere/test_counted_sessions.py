"""How many sessions what runs in a guest is of: by explorer.exe, and by the systemd of users."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.model.desktops.evidence import SessionCount
from gpuops.vsphere.guests.guest_sessions import GuestProcess, count_sessions

NOW = datetime(2026, 11, 2, 20, tzinfo=UTC)
LOGIN = "gpuops"
ALONE = "the login of gpuops in its guest sees only its own processes"


def windows(owner: str, name: str = "explorer.exe", minutes: int | None = 90) -> GuestProcess:
    return GuestProcess(name, owner, name, None if minutes is None else NOW - timedelta(minutes=minutes))


def linux(owner: str, command: str = "/usr/lib/systemd/systemd --user") -> GuestProcess:
    return GuestProcess("systemd", owner, command, NOW - timedelta(minutes=5))


SYSTEM = windows("NT AUTHORITY\\SYSTEM", "winlogon.exe")
ROOT = linux("root", "/sbin/init")


@pytest.mark.parametrize(
    ("running", "count"),
    [
        ([SYSTEM], 0),
        ([SYSTEM, windows("DESKTOPS\\alice")], 1),
        ([SYSTEM, windows("DESKTOPS\\alice", "Explorer.EXE"), windows("DESKTOPS\\bob")], 2),
        ([SYSTEM, windows("DESKTOPS\\alice"), windows("desktops\\ALICE")], 1),
        ([SYSTEM, windows("ONE\\alice"), windows("OTHER\\alice")], 2),
        ([SYSTEM, windows(""), windows("")], 2),
        ([SYSTEM, windows(LOGIN)], 1),
        ([SYSTEM, windows("DESKTOPS\\alice", "notepad.exe")], 0),
        ([ROOT], 0),
        ([ROOT, linux("alice"), linux("gdm"), linux("Debian-gdm")], 1),
        ([ROOT, linux("alice", "bash --user")], 1),
        ([ROOT, linux("alice", "/usr/lib/systemd/systemd --userland")], 0),
    ],
)
def test_each_owner_of_a_shell_counts_once(running: list[GuestProcess], count: int) -> None:
    session_count = count_sessions(running, LOGIN, NOW)
    assert (session_count.count, session_count.used) == (count, bool(count))


@pytest.mark.parametrize("running", [[], [windows("")], [windows(LOGIN)], [windows("DESKTOPS\\GpuOps"), windows("")]])
def test_a_login_that_sees_its_own_processes_alone_tells_nothing(running: list[GuestProcess]) -> None:
    assert count_sessions(running, LOGIN, NOW) == SessionCount(None, None, NOW, because=ALONE)


def test_ages_are_those_of_the_oldest_and_the_youngest_session() -> None:
    running = [SYSTEM, windows("alice", minutes=90), windows("alice", minutes=5), windows("bob", minutes=30)]
    session_count = count_sessions([*running, windows("carol", minutes=None)], LOGIN, NOW)
    assert (session_count.count, session_count.oldest_s, session_count.youngest_s, session_count.disconnected_s) == (
        3,
        5400,
        1800,
        None,
    )
    assert count_sessions([SYSTEM, windows("alice", minutes=-3)], LOGIN, NOW).youngest_s == 0, (
        "a guest's clock may be ahead"
    )


@given(
    st.lists(
        st.sampled_from(["alice", "bob", "NT AUTHORITY\\SYSTEM", "", LOGIN, "gdm"]).flatmap(
            lambda owner: st.sampled_from(
                [windows(owner), windows(owner, "svchost.exe"), linux(owner), linux(owner, "init")]
            )
        )
    )
)
def test_no_name_is_kept_and_a_shell_of_another_is_never_overlooked(running: list[GuestProcess]) -> None:
    session_count = count_sessions(running, LOGIN, NOW)
    assert not any(name in repr(session_count) for name in ("alice", "bob", "SYSTEM"))
    if any(
        process.owner in ("alice", "bob") and (process.name == "explorer.exe" or "--user" in process.command)
        for process in running
    ):
        assert session_count.used
