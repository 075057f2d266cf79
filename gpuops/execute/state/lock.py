"""The lock of one vCenter on this machine: one rotation at a time, and no other change during it.

A rotation holds the lock exclusively; single changes (attach, detach) share it, so that several can run at once.
The kernel releases a flock when its process ends, in any way: no lock is left behind.

This module has the names of all locks. Several versions of gpuops use them at the same time, so a name never changes.
Locks of one machine are files in the state directory. Locks that machines share are advisory locks of PostgreSQL, which
end with the transaction.
"""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuops import clock
from gpuops.errors import Locked, StateDamaged
from gpuops.execute.state.service_manager import GOES_ON, tell_systemd
from gpuops.execute.state.state_dir import prepare_state_dir, private_file
from gpuops.model.nights.night_record import LockHolder
from gpuops.model.time_text import format_stamp

if TYPE_CHECKING:
    from sqlalchemy import Connection

BUNDLE_NAMES: Final = "bundle-names.lock"


def vcenter_lock(state_dir: Path, vcenter: str) -> Path:
    """Return the file that a run locks while it changes this vCenter."""
    return state_dir / f"{re.sub(r'[^A-Za-z0-9-]', '_', vcenter)}.lock"


def receiver_lock(state_dir: Path, receiver: str) -> Path:
    """Return the file that a process locks while it sends notices to this receiver."""
    return state_dir / f"notices-to-{receiver}.lock"


def notices_of_run_lock(state_dir: Path, run: str) -> Path:
    """Return the file that a run locks as long as it lives. `run`: its id, or the content of a damaged file."""
    return state_dir / f"notices-run-{uuid.uuid5(uuid.NAMESPACE_OID, run).hex[:16]}.lock"


class DatabaseLock(StrEnum):
    """What only one transaction at a time may change."""

    TABLES = "gpuops tables"
    JOBS = "gpuops jobs"
    BOOK = "gpuops book"
    """Of one vCenter."""
    MEASUREMENTS = "gpuops measurements"
    """Of one vCenter."""


def hold_to_the_end(connection: Connection, lock: DatabaseLock, vcenter: str = "") -> None:
    """Wait for the lock, and hold it until the transaction ends. SQLite has one writer, and needs no lock."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy import text

        name = f"{lock} {vcenter}" if vcenter else str(lock)
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": name})


TRIES: Final = 5
PAUSE_S: Final = 0.02
"""A process that reads the holder shares the lock for an instant, so a run tries again before it fails."""

SIGNS_EVERY: Final = timedelta(seconds=10)
"""Time between two signs of life of a run."""

_HOLDER: Final = re.compile(
    r"pid (?P<pid>\d+) since (?P<since>\S+)(?: doing (?P<doing>\S+))?(?: seen (?P<seen>\S+))?(?: until (?P<until>\S+))?"
)
_TEXT_LENGTH: Final = 200
"""The length of the text in a lock file, so that a new text overwrites the old one in one write."""


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
        """Why a return continues without the lock file, or without a text in it; None if it holds the lock."""

    def alive(self, now: datetime) -> None:
        """Write a sign of life into the lock file, for other processes, and notify systemd."""
        signed_at = self._holder.seen or self._holder.since
        if signed_at is None or abs(now - signed_at) >= SIGNS_EVERY:
            self._holder = replace(self._holder, seen=now)
            self.sign()
            tell_systemd(GOES_ON)

    def takes_until(self, moment: datetime) -> None:
        """Write the moment after which the night that holds the lock takes no more VMs."""
        self._holder = replace(self._holder, until=moment)
        self.sign()

    def sign(self) -> None:
        """Write the holder into the lock file, for others to read. A full disk is ignored: a return must continue."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.pwrite(self._descriptor, _format_holder(self._holder).ljust(_TEXT_LENGTH).encode("ascii"), 0)


@contextmanager
def locked(state_dir: Path, vcenter: str, now: datetime, *, alone: bool, doing: str = "") -> Iterator[LockHold]:
    """Hold the lock of one vCenter on this machine: exclusively with `alone`, else shared with other single changes.

    `doing`: the kind of run, shown to other processes.

    Raises LockedBy with the holder, without waiting, and StateDamaged if the lock file cannot be used.
    """
    descriptor = _open_lock_file(state_dir, vcenter)
    try:
        if not _acquire(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
            raise _locked_error(_read_holder(descriptor))
        hold = LockHold(descriptor, LockHolder(os.getpid(), now.replace(microsecond=0), doing))
        hold.sign()
        yield hold
    finally:
        os.close(descriptor)


@contextmanager
def locked_to_return(state_dir: Path, vcenter: str, now: datetime, *, doing: str = "") -> Iterator[LockHold]:
    """Hold the lock exclusively for a return, which continues if the lock file cannot be used (`LockHold.damaged`).

    On a full disk the existing file, or the directory itself, is locked against other returns of this machine. If
    neither can be locked, the return continues without a lock: desktops must come back. Raises Locked.
    """
    with ExitStack() as stack:
        try:
            hold = stack.enter_context(locked(state_dir, vcenter, now, alone=True, doing=doing))
        except StateDamaged as damaged:
            stack.enter_context(_lock_first_usable(vcenter_lock(state_dir, vcenter), state_dir))
            hold = LockHold(None, LockHolder(os.getpid(), now, doing), damaged)
        yield hold


def _locked_error(holder: LockHolder) -> LockedBy:
    return LockedBy(
        f"{holder} is changing this vCenter",
        hint="wait for it to end; gpuops rotate status shows whether it is a rotation",
        holder=holder,
    )


@contextmanager
def _lock_first_usable(*paths: Path) -> Iterator[None]:
    """Lock the first of these paths that this user owns and that can be locked, and write nothing. Raises Locked."""
    with ExitStack() as stack:
        for path in paths:
            with suppress(OSError, StateDamaged):
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                stack.callback(os.close, descriptor)
                if os.fstat(descriptor).st_uid != os.geteuid():
                    continue
                if not _acquire(descriptor, fcntl.LOCK_EX):
                    raise Locked(
                        "another gpuops is changing this vCenter", hint="wait for it to end, then run the command again"
                    )
                break
        yield


def _format_holder(holder: LockHolder) -> str:
    """Return the text for the lock file, which `_HOLDER` reads."""
    doing = holder.doing.replace(" ", "-")
    optional_words = {"doing": doing, "seen": _format_stamp(holder.seen), "until": _format_stamp(holder.until)}
    words = (f" {word} {text}" for word, text in optional_words.items() if text)
    return f"pid {holder.pid} since {_format_stamp(holder.since)}" + "".join(words)


def _format_stamp(moment: datetime | None) -> str:
    return format_stamp(moment) if moment is not None else ""


@contextmanager
def waited_for(path: Path) -> Iterator[None]:
    """Lock a file of the state directory that other processes lock only for a moment, and wait for them.

    Raises StateDamaged if the file cannot be used or locked.
    """
    prepare_state_dir(path.parent)
    private_file(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            raise _unlockable(error) from error
        yield
    finally:
        os.close(descriptor)


def rotating(state_dir: Path, vcenter: str) -> LockHolder | None:
    """Return the process of this machine that rotates this vCenter now, or None. Raises StateDamaged."""
    if not vcenter_lock(state_dir, vcenter).exists():
        return None
    descriptor = _open_lock_file(state_dir, vcenter)
    try:
        # single changes share the lock, so this fails only while a run holds it exclusively
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_holder(descriptor)
    except OSError as error:
        raise _unlockable(error) from error
    finally:
        os.close(descriptor)
    return None


def _open_lock_file(state_dir: Path, vcenter: str) -> int:
    prepare_state_dir(state_dir)
    path = vcenter_lock(state_dir, vcenter)
    private_file(path)
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)


def _acquire(descriptor: int, kind: int) -> bool:
    """Lock the file (`kind`: fcntl.LOCK_EX or LOCK_SH). Return False if another process holds the lock."""
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
    """Return the error for a file that cannot be locked, for example on a network file system without a lock server."""
    return StateDamaged(
        f"the lock in the state directory cannot be taken: {error.strerror}",
        hint="set GPUOPS_STATE_DIR to a directory on a disk of this machine",
    )


def _read_holder(descriptor: int) -> LockHolder:
    """Return the holder that is written in the lock file; without a pid if the text cannot be read."""
    match = _HOLDER.match(os.pread(descriptor, _TEXT_LENGTH, 0).decode("ascii", "replace"))
    if match is None:
        return LockHolder(None, None)
    names = ("since", "seen", "until")
    try:
        since, seen_at, until = (datetime.fromisoformat(text) if (text := match[name]) else None for name in names)
    except ValueError:
        return LockHolder(None, None)
    return LockHolder(int(match["pid"]), since, (match["doing"] or "").replace("-", " "), seen_at, until)
