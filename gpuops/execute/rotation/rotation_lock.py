"""Lock a vCenter for one rotation of this machine at a time, and report if a run lost its lock or journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from gpuops.errors import Locked
from gpuops.execute.journal import Journal
from gpuops.execute.rotation.hung_run import end_hung_run
from gpuops.execute.runs.run_kind import RunKind
from gpuops.execute.site import Site
from gpuops.execute.state.lock import LockedBy, rotating
from gpuops.model.nights.night_record import LockHolder
from gpuops.plan.core.plan import Report
from gpuops.plan.rotation.returns.return_time import holder_advice, holder_text


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
    message = f"{holder_text(holder, now)} is changing this vCenter: nothing is cut off"
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
