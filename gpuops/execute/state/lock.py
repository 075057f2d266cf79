"""The lock of one vCenter on this machine: one rotation at a time, and no other change beside it.

A rotation holds the lock alone; single changes (attach, detach) share it, so that many of them can run at once.
The kernel drops a flock when its process ends, however it ends: a lock is never left behind.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from gpuops import clock
from gpuops.errors import Locked, StateDamaged
from gpuops.execute.state.lock_names import vcenter_lock
from gpuops.execute.state.service_manager import GOES_ON, tell_systemd
from gpuops.execute.state.state_dir import prepare_state_dir, private_file
from gpuops.model.nights.night_record import LockHolder
from gpuops.model.time_text import format_stamp

TRIES: Final = 5
PAUSE_S: Final = 0.02
"""Whoever asks for the holder shares the lock for an instant: a run that meets it tries again before it gives up."""

SIGNS_EVERY: Final = timedelta(seconds=10)
"""Between two signs of life of a run."""

_HOLDER: Final = re.compile(
    r"pid (?P<pid>\d+) since (?P<since>\S+)(?: doing (?P<doing>\S+))?(?: seen (?P<seen>\S+))?(?: until (?P<until>\S+))?"
)
_WIDTH: Final = 200
"""Every text is so long, so that one is written over another in one piece."""


class LockedBy(Locked):
    """Another process of this machine holds the lock."""

    def __init__(self, message: str, *, hint: str, holder: LockHolder) -> None:
        super().__init__(message, hint=hint)
        self.holder = holder


class LockHold:
    """The lock, while it is held."""

    def __init__(self, descriptor: int | None, holder: LockHolder, damaged: StateDamaged | None = None) -> None:
        self._descriptor = descriptor
        self._holder = holder
        self.damaged = damaged
        """Why a run that only brings back goes on without the file of the lock, or without a word in it."""

    def alive(self, now: datetime) -> None:
        """Writes into the lock's file that its run goes on, for others to read, and tells systemd."""
        seen = self._holder.seen or self._holder.since
        if seen is None or abs(now - seen) >= SIGNS_EVERY:
            self._holder = replace(self._holder, seen=now)
            self.sign()
            tell_systemd(GOES_ON)

    def takes_until(self, moment: datetime) -> None:
        """Writes from when on the night that holds it takes nothing more."""
        self._holder = replace(self._holder, until=moment)
        self.sign()

    def sign(self) -> None:
        """Says who holds it, for others to read. On a full disk it is held all the same: a morning must go on."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.pwrite(self._descriptor, _text(self._holder).ljust(_WIDTH).encode("ascii"), 0)


@contextmanager
def locked(state_dir: Path, vcenter: str, now: datetime, *, alone: bool, doing: str = "") -> Iterator[LockHold]:
    """Holds the lock of one vCenter on this machine. `doing` tells others which half of a rotation it is.

    Raises LockedBy, naming who holds it, without waiting, and StateDamaged where there is nothing to lock.
    """
    descriptor = _open(state_dir, vcenter)
    try:
        if not _taken(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
            raise _held_by(_written_in(descriptor))
        hold = LockHold(descriptor, LockHolder(os.getpid(), now.replace(microsecond=0), doing))
        hold.sign()
        yield hold
    finally:
        os.close(descriptor)


@contextmanager
def locked_to_return(state_dir: Path, vcenter: str, now: datetime, *, doing: str = "") -> Iterator[LockHold]:
    """The same, alone, for a run that only brings back: it goes on where the lock's file cannot be used, and says why
    (`LockHold.damaged`).

    On a disk that takes nothing more the file as it is, or the directory itself, keeps other returns of this machine
    away; where nothing can be locked, nothing does, for no desktop stays away for that. Raises Locked.
    """
    with ExitStack() as stack:
        try:
            hold = stack.enter_context(locked(state_dir, vcenter, now, alone=True, doing=doing))
        except StateDamaged as damaged:
            stack.enter_context(_locked_as_it_is(vcenter_lock(state_dir, vcenter), state_dir))
            hold = LockHold(None, LockHolder(os.getpid(), now, doing), damaged)
        yield hold


def _held_by(holder: LockHolder) -> LockedBy:
    return LockedBy(
        f"{holder} is changing this vCenter",
        hint="wait for it to end; gpuops rotate status shows a rotation",
        holder=holder,
    )


@contextmanager
def _locked_as_it_is(*paths: Path) -> Iterator[None]:
    """Holds the first of these that is ours and can be locked, if any, without a word written. Raises Locked."""
    with ExitStack() as stack:
        for path in paths:
            with suppress(OSError, StateDamaged):
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                stack.callback(os.close, descriptor)
                if os.fstat(descriptor).st_uid != os.geteuid():
                    continue
                if not _taken(descriptor, fcntl.LOCK_EX):
                    raise Locked("another gpuops is changing this vCenter", hint="wait for it to end")
                break
        yield


def _text(holder: LockHolder) -> str:
    doing = holder.doing.replace(" ", "-")
    told = {"doing": doing, "seen": _moment(holder.seen), "until": _moment(holder.until)}
    others = (f" {word} {value}" for word, value in told.items() if value)
    return f"pid {holder.pid} since {_moment(holder.since)}" + "".join(others)


def _moment(moment: datetime | None) -> str:
    return format_stamp(moment) if moment is not None else ""


def rotating(state_dir: Path, vcenter: str) -> LockHolder | None:
    """Who rotates this vCenter from this machine now; None = nobody does. Raises StateDamaged."""
    if not vcenter_lock(state_dir, vcenter).exists():
        return None
    descriptor = _open(state_dir, vcenter)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _written_in(descriptor)
    except OSError as error:
        raise _unlockable(error) from error
    finally:
        os.close(descriptor)
    return None


def _open(state_dir: Path, vcenter: str) -> int:
    prepare_state_dir(state_dir)
    path = vcenter_lock(state_dir, vcenter)
    private_file(path)
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)


def _taken(descriptor: int, kind: int) -> bool:
    for _ in range(TRIES):
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            clock.pause(PAUSE_S)
        except OSError as error:
            raise _unlockable(error) from error
        else:
            return True
    return False


def _unlockable(error: OSError) -> StateDamaged:
    """A network file system without a lock server, perhaps."""
    return StateDamaged(
        f"the lock in the state directory cannot be taken: {error.strerror}",
        hint="set GPUOPS_STATE_DIR to a directory on a disk of this machine",
    )


def _written_in(descriptor: int) -> LockHolder:
    found = _HOLDER.match(os.pread(descriptor, _WIDTH, 0).decode("ascii", "replace"))
    if found is None:
        return LockHolder(None, None)
    told = ("since", "seen", "until")
    try:
        since, seen, until = (datetime.fromisoformat(text) if (text := found[name]) else None for name in told)
    except ValueError:
        return LockHolder(None, None)
    return LockHolder(int(found["pid"]), since, (found["doing"] or "").replace("-", " "), seen, until)
