"""Lock: at most one rotation at a time per vCenter, and no other change beside it.

A rotation holds the lock alone; single changes (attach, detach) share it, so that many of them can run at once.
The kernel drops a flock when its process ends, however it ends: a lock is never left behind.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gpuops import clock
from gpuops.errors import Locked, StateDamaged
from gpuops.execute.state import prepare_state_dir, private_file
from gpuops.model.rotation import LockHolder

TRIES: Final = 5
PAUSE_S: Final = 0.02
"""Whoever asks for the holder shares the lock for an instant: a run that meets it tries again before it gives up."""

_HOLDER: Final = re.compile(r"pid (\d+) since (\S+)")


@contextmanager
def locked(state_dir: Path, vcenter: str, now: datetime, *, alone: bool) -> Iterator[None]:
    """Holds the lock of one vCenter on this machine.

    Raises Locked, naming who holds it, without waiting, and StateDamaged where there is nothing to lock.
    """
    descriptor = _open(state_dir, vcenter)
    try:
        if not _taken(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
            raise Locked(
                f"{_written_in(descriptor)} is changing this vCenter",
                hint="wait for it to end; gpuops rotate status shows a rotation",
            )
        _sign(descriptor, now)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked_to_return(state_dir: Path, vcenter: str, now: datetime) -> Iterator[StateDamaged | None]:
    """The same, alone, for a run that only brings back: it goes on where the lock's file cannot be used.

    Yields why it cannot, None where it can. On a disk that takes nothing more the file as it is, or the directory
    itself, keeps other returns of this machine away; where nothing can be locked, nothing does, for no desktop stays
    away for that. Raises Locked.
    """
    with ExitStack() as stack:
        damaged = None
        try:
            stack.enter_context(locked(state_dir, vcenter, now, alone=True))
        except StateDamaged as found:
            damaged = found
            stack.enter_context(_locked_as_it_is(_path(state_dir, vcenter), state_dir))
        yield damaged


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


def _sign(descriptor: int, now: datetime) -> None:
    """Says who holds it, for others to read. On a full disk it is held all the same: a morning must go on."""
    holder = f"pid {os.getpid()} since {now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode("ascii"), 0)


def rotating(state_dir: Path, vcenter: str) -> LockHolder | None:
    """Who rotates this vCenter from this machine now; None = nobody does. Raises StateDamaged."""
    if not _path(state_dir, vcenter).exists():
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


def _path(state_dir: Path, vcenter: str) -> Path:
    return state_dir / f"{re.sub(r'[^A-Za-z0-9-]', '_', vcenter)}.lock"


def _open(state_dir: Path, vcenter: str) -> int:
    prepare_state_dir(state_dir)
    path = _path(state_dir, vcenter)
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
    found = _HOLDER.match(os.pread(descriptor, 200, 0).decode("ascii", "replace"))
    try:
        return LockHolder(int(found[1]), datetime.fromisoformat(found[2])) if found else LockHolder(None, None)
    except ValueError:
        return LockHolder(None, None)
