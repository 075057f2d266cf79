"""Ends a run of this machine that hangs, so that a return can begin. `rotation` calls it.

Only the very process that holds the lock: it is held by a pidfd before it is looked at, it must be ours, and the kernel
must say that it locks this very file. A process id that was given to somebody else meanwhile is never signalled.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpuops.errors import StateDamaged
from gpuops.execute.site import Site
from gpuops.execute.state.audit_log import append
from gpuops.execute.state.lock_names import vcenter_lock
from gpuops.model.nights.night_record import LockHolder
from gpuops.plan.rotation.returns.return_time import ends_at, holder_text

GRACE_S: Final = 60.0
"""So long a process may take to end by itself when it is told to."""
KILLED_S: Final = 10.0
"""So long the kernel may take to end one that it was told to end."""


def end_hung_run(holder: LockHolder, site: Site) -> bool:
    """Whether the process that holds the lock has been ended, because it hangs or its night is over."""
    now, at = site.clock(), ends_at(holder)
    if holder.pid is None or holder.pid == os.getpid() or at is None or now < at:
        return False
    try:
        process = os.pidfd_open(holder.pid)
    except OSError:  # it has ended by itself
        return True
    try:
        if not _holds(holder.pid, vcenter_lock(site.state_dir, site.vcenter.uuid)):
            return False
        who = holder_text(holder, now)
        _tell(site, f"{who}: ended, for desktops are to come back", holder, "SIGTERM")
        if _ends(process, signal.SIGTERM, GRACE_S):
            return True
        _tell(site, f"pid {holder.pid} did not end within {GRACE_S:.0f} s: killed", holder, "SIGKILL")
        return _ends(process, signal.SIGKILL, KILLED_S)
    finally:
        os.close(process)


def _holds(pid: int, lock: Path) -> bool:
    """Whether the process is of this user and, as the kernel shows, the one that has locked this file alone."""
    try:
        here, file = Path(f"/proc/{pid}"), lock.stat()
        ours = here.stat().st_uid == os.geteuid()
        return ours and any(_locks(each, here / "fdinfo" / each.name, file) for each in (here / "fd").iterdir())
    except OSError:
        return False


def _locks(opened: Path, told: Path, file: os.stat_result) -> bool:
    with suppress(OSError):
        found = opened.stat()
        if (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino):
            lines = told.read_text(encoding="ascii", errors="replace").splitlines()
            return any("FLOCK" in line and "WRITE" in line for line in lines if line.startswith("lock:"))
    return False


def _ends(process: int, number: signal.Signals, within_s: float) -> bool:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, number)
    return bool(select.select([process], [], [], within_s)[0])  # readable once it has ended


def _tell(site: Site, line: str, holder: LockHolder, sent: str) -> None:
    site.say(line)
    facts = {"pid": holder.pid, "doing": holder.doing, "signal": sent, "uid": os.getuid()}
    with suppress(StateDamaged):  # a disk that takes no line keeps no desktop away
        append(site.state_dir, site.clock().isoformat(timespec="seconds"), "run-ended", **facts)
