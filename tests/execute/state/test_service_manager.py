"""A run tells systemd that it goes on where it gives its sign of life, and stands or falls with no answer."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuops.console.running import vcenter_wait_under
from gpuops.errors import VcenterUnreachable
from gpuops.execute.state.lock import SIGNS_EVERY, locked
from gpuops.execute.state.service_manager import BEGUN, tell_systemd

NOW = datetime(2026, 11, 20, 21, 5, tzinfo=UTC)


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
    waiting = vcenter_wait_under(None)
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
