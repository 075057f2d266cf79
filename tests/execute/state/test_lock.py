"""One rotation at a time, single changes side by side, and a run that tells systemd that it goes on."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from gpuops.console.running import vcenter_wait_for
from gpuops.errors import Locked, VcenterUnreachable
from gpuops.execute.state.lock import SIGNS_EVERY, locked, rotating
from gpuops.execute.state.service_manager import BEGUN, tell_systemd
from gpuops.model.nights.night_record import LockHolder

NOW = datetime(2026, 11, 20, 21, 5, tzinfo=UTC)


def test_a_second_rotation_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    with (
        locked(tmp_path, "vc-1", NOW, alone=True),
        pytest.raises(Locked) as refused,
        locked(tmp_path, "vc-1", NOW, alone=True),
    ):
        pass
    assert refused.value.message == f"pid {os.getpid()} since 2026-11-20 21:05:00 UTC is changing this vCenter"
    assert refused.value.exit_code == 6


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True)])
def test_a_rotation_and_a_single_change_exclude_each_other(tmp_path: Path, first: bool, second: bool) -> None:
    with (
        locked(tmp_path, "vc-1", NOW, alone=first),
        pytest.raises(Locked),
        locked(tmp_path, "vc-1", NOW, alone=second),
    ):
        pass


def test_single_changes_go_side_by_side(tmp_path: Path) -> None:
    with locked(tmp_path, "vc-1", NOW, alone=False), locked(tmp_path, "vc-1", NOW, alone=False):
        pass


def test_vcenters_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with locked(tmp_path, "vc-1", NOW, alone=True), locked(tmp_path, "vc-2", NOW, alone=True):
        pass


def test_the_lock_is_free_again_afterwards(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path, "vc-1", NOW, alone=True):
            pass


def test_who_rotates_is_told_to_whoever_asks(tmp_path: Path) -> None:
    assert rotating(tmp_path, "vc-1") is None
    with locked(tmp_path, "vc-1", NOW, alone=True):
        assert rotating(tmp_path, "vc-1") == LockHolder(os.getpid(), NOW)
        assert rotating(tmp_path, "vc-2") is None
    assert rotating(tmp_path, "vc-1") is None, "what the file says is of a run that ended"
    with locked(tmp_path, "vc-1", NOW, alone=False):
        assert rotating(tmp_path, "vc-1") is None, "a single change is no rotation"


def test_a_question_in_the_same_instant_does_not_stop_a_rotation(tmp_path: Path, mocker: MockerFixture) -> None:
    """A query shares the lock for an instant; a run that meets it tries again."""
    with locked(tmp_path, "vc-1", NOW, alone=False):
        pass
    asking = os.open(next(tmp_path.iterdir()), os.O_RDWR)
    fcntl.flock(asking, fcntl.LOCK_SH)
    mocker.patch("time.sleep", side_effect=lambda seconds: os.close(asking))
    with locked(tmp_path, "vc-1", NOW, alone=True):
        assert rotating(tmp_path, "vc-1") is not None


@pytest.mark.parametrize("written", ["pid 1 since 2036-01-01T00:00:00Z", "pid 999999999 since yesterday", "\0" * 99])
def test_what_stands_in_a_planted_lock_file_keeps_nobody_away(tmp_path: Path, written: str) -> None:
    with locked(tmp_path, "vc-1", NOW, alone=True):
        pass
    (tmp_path / "vc-1.lock").write_text(written)
    assert rotating(tmp_path, "vc-1") is None
    with locked(tmp_path, "vc-1", NOW, alone=True):
        assert rotating(tmp_path, "vc-1") == LockHolder(os.getpid(), NOW)


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from datetime import UTC, datetime\n"
        "from pathlib import Path\n"
        "from gpuops.execute.state.lock import locked\n"
        "with locked(Path(sys.argv[1]), 'vc-1', datetime(2026, 1, 1, tzinfo=UTC), alone=True):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    with locked(tmp_path, "vc-1", NOW, alone=True):
        pass


def test_a_vcenter_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    with locked(tmp_path / "state", "../../evil", NOW, alone=True):
        assert [path.name for path in (tmp_path / "state").iterdir()] == ["______evil.lock"]


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of the service manager, as a file or without one."""
    named = str(tmp_path / "notify") if request.param == "path" else f"@gpuops-test-{os.getpid()}-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{named[1:]}" if named.startswith("@") else named)
        listening.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", named)
        yield listening


def received_messages(systemd: socket.socket) -> list[str]:
    messages = []
    while True:
        try:
            messages.append(systemd.recv(100).decode("ascii"))
        except BlockingIOError:
            return messages


def test_each_sign_of_life_is_told_and_nothing_between_them(systemd: socket.socket, tmp_path: Path) -> None:
    tell_systemd(BEGUN)
    with locked(tmp_path / "state", "vc-1", NOW, alone=True) as hold:
        assert received_messages(systemd) == ["READY=1"], "a lock that is held is no progress"
        for seconds in range(0, 31, 5):
            hold.alive(NOW + timedelta(seconds=seconds))
    assert received_messages(systemd) == ["WATCHDOG=1"] * (30 // SIGNS_EVERY.seconds)


def test_a_return_that_waits_for_a_vcenter_goes_on(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuops.console.running.pause", lambda seconds: None)
    waiting = vcenter_wait_for(None)
    tries = iter([False, False, True])

    def attempt() -> str:
        if not next(tries):
            raise VcenterUnreachable("nothing answers")
        return "back"

    assert waiting.reach_vcenter(attempt) == "back"
    assert received_messages(systemd) == ["WATCHDOG=1"] * 2


@pytest.mark.parametrize("address", ["", "relative", "/there/is/none", "@nobody-hears-this", "@" + "x" * 200])
def test_nobody_hears_it_and_the_run_goes_on(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    tell_systemd(BEGUN)
