"""A return ends a hung run that holds the lock once its time has come; a pid alone is not enough for that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuops.errors import Locked
from gpuops.execute.rotation import rotation_lock
from gpuops.execute.rotation.rotation import resume, rotate
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.execute.state.lock import locked, rotating, vcenter_lock
from gpuops.model.nights.night_record import LockHolder
from gpuops.plan.rotation.returns.return_time import (
    FINISHES_WITHIN,
    HANGS_AFTER,
    HANGS_AFTER_DUE,
    ends_at,
    holder_advice,
)
from tests.execute.nights import POLICY, Night, morning_is_good
from tests.execute.small_vcenter import SmallVcenter

SINCE = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)
UNTIL = datetime(2026, 11, 21, 5, 15, tzinfo=UTC)
HOLDER = LockHolder(4711, SINCE, "rotate night", until=UNTIL)

HOLDING = """
import signal, sys, time
from datetime import datetime
from pathlib import Path
from gpuops.execute.state.lock import locked
state_dir, doing, since, until, ignores = sys.argv[1:]
if ignores == "ignores":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with locked(Path(state_dir), "vc-uuid", datetime.fromisoformat(since), alone=True, doing=doing) as hold:
    if until:
        hold.takes_until(datetime.fromisoformat(until))
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def holding(
    state_dir: Path, *, doing: str = "rotate night", until: datetime | None = UNTIL, ignores: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that holds the lock, and hangs."""
    arguments = [
        str(state_dir),
        doing,
        SINCE.isoformat(),
        until.isoformat() if until else "",
        "ignores" if ignores else "",
    ]
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, *arguments], stdout=subprocess.PIPE, encoding="utf-8"
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    """After a night. A process that ignores SIGTERM gets one second."""
    monkeypatch.setattr(rotation_lock, "GRACE_S", 1.0)
    night = Night(tmp_path / "state")
    night.run(RunKind.NIGHT)
    return night


def day(night: Night, messages: list[str] | None = None) -> int:
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    site.say = (messages if messages is not None else []).append
    return rotate(RunKind.DAY, POLICY, site, apply=True, consent=agreed).exit_code


@pytest.mark.parametrize(
    ("ignores", "stopped", "signals"),
    [(False, False, [signal.SIGTERM]), (True, False, [signal.SIGTERM, signal.SIGKILL]),
     (False, True, [signal.SIGTERM, signal.SIGKILL])],
    ids=["ends when told", "ignores it", "is stopped"],
)  # fmt: skip
def test_a_hung_night_keeps_no_desktop_away(
    night: Night, ignores: bool, stopped: bool, signals: list[signal.Signals]
) -> None:
    night.world.now = UNTIL + timedelta(minutes=1)
    with holding(night.state_dir, ignores=ignores) as hung:
        if stopped:
            hung.send_signal(signal.SIGSTOP)
        messages: list[str] = []
        assert day(night, messages) == 0
        assert hung.wait(10) == -signals[-1]
    assert len(messages) == len(signals)
    assert messages[0].startswith(
        f"pid {hung.pid} since 2026-11-20 21:00:00 UTC (rotate night, last sign of life 496 min ago"
    )
    audited = (night.state_dir / "audit.jsonl").read_text(encoding="ascii").splitlines()
    assert ["SIGTERM" in line or "SIGKILL" in line for line in audited] == [True] * len(signals)
    morning_is_good(night)


def test_before_its_time_a_night_is_left_alone_and_named(night: Night) -> None:
    night.world.now = UNTIL - timedelta(minutes=30)
    with holding(night.state_dir) as hung:
        with pytest.raises(Locked) as locked:
            day(night)
        assert hung.poll() is None
        assert f"pid {hung.pid} since 2026-11-20 21:00:00 UTC (rotate night, last sign of life" in locked.value.message
        assert "from 2026-11-21 05:15 UTC on gpuops rotate day ends it" in locked.value.hint
        hung.terminate()  # as the hint advises
        hung.wait(10)
        assert f"kill {hung.pid}" in locked.value.hint
    assert day(night) == 0
    morning_is_good(night)


def test_a_return_that_hangs_is_ended_by_the_next(night: Night) -> None:
    night.world.now = SINCE + HANGS_AFTER - timedelta(minutes=1)
    with holding(night.state_dir, doing="rotate day", until=None) as hung:
        with pytest.raises(Locked):
            day(night)
        night.world.now = SINCE + HANGS_AFTER
        assert day(night) == 0
        assert hung.wait(10) == -signal.SIGTERM
    morning_is_good(night)


def test_what_is_no_rotation_is_never_ended(night: Night) -> None:
    night.world.now = UNTIL + timedelta(days=1)
    with holding(night.state_dir, doing="", until=None) as other_process:
        with pytest.raises(Locked) as locked:
            day(night)
        assert other_process.poll() is None
        assert f"wait for pid {other_process.pid} to end" in locked.value.hint


def test_a_process_that_has_the_number_of_the_holder_and_not_the_lock_is_left_alone(night: Night) -> None:
    """The file names a process that is not the one that holds the lock: its number was given anew."""
    night.world.now = UNTIL + timedelta(minutes=1)
    path = vcenter_lock(night.state_dir, "vc-uuid")
    with (
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as stranger,
        locked(night.state_dir, "vc-uuid", SINCE, alone=True),
    ):
        try:
            path.write_text(f"pid {stranger.pid} since 2026-11-20T21:00:00Z doing rotate-night", encoding="ascii")
            with pytest.raises(Locked):
                day(night)
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_resume_that_finds_a_run_under_way_says_what_to_do(night: Night) -> None:
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    with site.locked_journal("vc-uuid", alone=True) as journal:
        journal.begin("rotate night", night="2026-11-20", policy=POLICY.text)
    night.world.now = UNTIL + timedelta(minutes=1)
    with holding(night.state_dir) as hung, pytest.raises(Locked) as locked:
        resume(site, apply=True, consent=agreed)
    assert f"kill {hung.pid}, then gpuops rotate day" in locked.value.hint


def test_signs_of_life_are_read_by_others(tmp_path: Path) -> None:
    with locked(tmp_path, "vc-1", SINCE, alone=True, doing="rotate night") as hold:
        for seconds in (4, 9, 12, 20):
            hold.alive(SINCE + timedelta(seconds=seconds))
        hold.takes_until(UNTIL)
        last_sign = SINCE + timedelta(seconds=12)
        assert rotating(tmp_path, "vc-1") == LockHolder(os.getpid(), SINCE, "rotate night", last_sign, UNTIL)


@pytest.mark.parametrize(
    ("holder", "at"),
    [
        (HOLDER, UNTIL),
        (replace(HOLDER, seen=UNTIL + timedelta(minutes=2)), UNTIL + timedelta(minutes=2) + HANGS_AFTER_DUE),
        (replace(HOLDER, seen=UNTIL + timedelta(hours=2)), UNTIL + FINISHES_WITHIN),
        (replace(HOLDER, until=None), SINCE + HANGS_AFTER),
        (replace(HOLDER, doing="rotate restore", seen=UNTIL), UNTIL + HANGS_AFTER),
        (replace(HOLDER, doing=""), None),
        (LockHolder(None, None), None),
    ],
    ids=["silent", "silent later", "active", "no window", "a return", "another command", "unknown"],
)
def test_when_it_is_ended(holder: LockHolder, at: datetime | None) -> None:
    assert ends_at(holder) == at
    assert holder_advice(holder, UNTIL)
