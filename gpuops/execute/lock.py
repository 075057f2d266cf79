"""Lock: at most one rotation at a time per vCenter, and no other change beside it.

A rotation holds the lock alone; single changes (attach, detach) share it, so that many of them can run at once.
The kernel drops a flock when its process ends, however it ends: a lock is never left behind.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from gpuops.errors import Locked
from gpuops.execute.state import prepare_state_dir, private_file


@contextmanager
def locked(state_dir: Path, vcenter: str, now: datetime, *, alone: bool) -> Iterator[None]:
    """Holds the lock of one vCenter on this machine. Raises Locked, naming who holds it, without waiting."""
    prepare_state_dir(state_dir)
    path = state_dir / f"{re.sub(r'[^A-Za-z0-9-]', '_', vcenter)}.lock"
    private_file(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode("ascii", "replace").strip() or "another run"
            raise Locked(
                f"{holder} is changing this vCenter", hint="wait for it to end; gpuops rotate status shows a rotation"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} since {now:%Y-%m-%dT%H:%M:%SZ}".encode("ascii"), 0)
        yield
    finally:
        os.close(descriptor)
