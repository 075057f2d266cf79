"""Lock a vCenter for one rotation of this machine at a time. A return first ends a run that hangs.

Only the process that holds the lock is signalled. It is opened as a pidfd before it is checked, it must belong to this
user, and the kernel must report that it locks this file. A process id that was reused meanwhile is never signalled."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from gpuops.errors import Locked, StateDamaged
from gpuops.execute.journal import Journal
from gpuops.execute.runs.run_kind import RunKind
from gpuops.execute.site import Site
from gpuops.execute.state.audit_log import append
from gpuops.execute.state.lock import LockedBy, rotating, vcenter_lock
from gpuops.model.nights.night_record import LockHolder
from gpuops.plan.core.plan import Report
from gpuops.plan.rotation.returns.return_time import ends_at, holder_advice, holder_text

GRACE_S: Final = 60.0
"""How long a process may take to end after SIGTERM."""
KILLED_S: Final = 10.0
"""How long the kernel may take to end a process after SIGKILL."""


def end_hung_run(holder: LockHolder, site: Site) -> bool:
    """End the process that holds the lock if it hangs or its night is over. Return whether it has ended."""
    now, hung_at = site.clock(), ends_at(holder)
    if holder.pid is None or holder.pid == os.getpid() or hung_at is None or now < hung_at:
        return False
    try:
        # the signals go to this process even if it ends and another one gets its pid
        process = os.pidfd_open(holder.pid)
    except OSError:  # it has ended by itself
        return True
    try:
        if not _holds_lock(holder.pid, vcenter_lock(site.state_dir, site.vcenter.uuid)):
            return False
        run_text = holder_text(holder, now)
        _report_signal(site, f"{run_text}: ended, so that desktops can come back", holder, "SIGTERM")
        if _ends_after_signal(process, signal.SIGTERM, GRACE_S):
            return True
        _report_signal(site, f"pid {holder.pid} did not end within {GRACE_S:.0f} s: killed", holder, "SIGKILL")
        return _ends_after_signal(process, signal.SIGKILL, KILLED_S)
    finally:
        os.close(process)


def _holds_lock(pid: int, lock: Path) -> bool:
    """Return whether the process belongs to this user and holds an exclusive lock on the file."""
    try:
        proc_dir, lock_stat = Path(f"/proc/{pid}"), lock.stat()
        is_our_process = proc_dir.stat().st_uid == os.geteuid()
        return is_our_process and any(
            _has_locked(descriptor, proc_dir / "fdinfo" / descriptor.name, lock_stat)
            for descriptor in (proc_dir / "fd").iterdir()
        )
    except OSError:
        return False


def _has_locked(opened: Path, fdinfo: Path, lock_stat: os.stat_result) -> bool:
    with suppress(OSError):
        opened_stat = opened.stat()
        if (opened_stat.st_dev, opened_stat.st_ino) == (lock_stat.st_dev, lock_stat.st_ino):
            lines = fdinfo.read_text(encoding="ascii", errors="replace").splitlines()
            return any("FLOCK" in line and "WRITE" in line for line in lines if line.startswith("lock:"))
    return False


def _ends_after_signal(process: int, number: signal.Signals, within_s: float) -> bool:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, number)
    return bool(select.select([process], [], [], within_s)[0])  # readable once it has ended


def _report_signal(site: Site, line: str, holder: LockHolder, signal_name: str) -> None:
    site.say(line)
    facts = {"pid": holder.pid, "doing": holder.doing, "signal": signal_name, "uid": os.getuid()}
    with suppress(StateDamaged):  # an audit line that cannot be written does not stop a return
        append(site.state_dir, site.clock().isoformat(timespec="seconds"), "run-ended", **facts)


@contextmanager
def locked_journal(site: Site, kind: RunKind) -> Iterator[Journal]:
    """Yield the journal, locked. A return first ends a run of this machine that hangs or whose night is over.

    Raises Locked with what the other run does, and when a return will end it.
    """
    returning = not kind.takes
    with ExitStack() as stack:
        for second_try in (False, True):
            changing = site.locked_journal(site.vcenter.uuid, alone=True, returning=returning, doing=kind.value)
            try:
                journal = stack.enter_context(changing)
                break
            except LockedBy as held:
                if second_try or not returning or not end_hung_run(held.holder, site):
                    raise locked_out(held.holder, site) from held
        yield journal


def require_no_rotation(site: Site) -> None:
    """Raise Locked if another run of this machine holds the lock."""
    holder = rotating(site.state_dir, site.vcenter.uuid)
    if holder is not None:
        raise locked_out(holder, site)


def locked_out(holder: LockHolder, site: Site) -> Locked:
    """Return the error for a lock that another run of this machine holds."""
    now = site.clock()
    message = f"{holder_text(holder, now)} is changing this vCenter: it is not interrupted"
    return Locked(message, hint=holder_advice(holder, now))


def without_journal(report: Report, journal: Journal | None) -> Report:
    """Return the report, with a warning if the journal or the lock file was lost during the run."""
    warnings = _warn_of_lost_files(journal) if journal is not None else ()
    if not warnings:
        return report
    plan = replace(report.plan, warnings=(*report.plan.warnings, *warnings))
    return replace(report, plan=plan, journal_lost=True)


def _warn_of_lost_files(journal: Journal) -> tuple[str, ...]:
    unlocked, lost = journal.hold.damaged if journal.hold is not None else journal.unlocked, journal.lost
    warnings = []
    if unlocked is not None and (lost is None or lost.message != unlocked.message):
        warnings.append(f"{unlocked.line}: another gpuops on this machine may run at the same time")
    if lost is not None:
        why = lost.message
        warnings.append(f"{why}: went by vCenter's markers; no night begins before it is repaired or moved aside")
    return tuple(warnings)
