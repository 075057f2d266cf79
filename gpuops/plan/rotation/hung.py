"""Rotation, hung: when a run of this machine that holds the lock must end for a return, and what is said until then.

Ending it harms no desktop: whatever it has in flight goes on in vCenter, and the return settles it by its journal.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from gpuops.model.rotation import LockHolder
from gpuops.plan.rotation.ours import RETURN_COMMAND

SILENT: Final = timedelta(minutes=20)
"""A run that has given no sign of life for so long hangs: no wait of ours is so long."""
SILENT_LATE: Final = timedelta(minutes=5)
"""The same of a night whose return must begin."""
ENDING: Final = timedelta(minutes=15)
"""So long after that moment a night may still look after what it has in flight."""
NIGHT: Final = "rotate night"
STATUS: Final = "gpuops rotate status shows it"


def ends_at(holder: LockHolder) -> datetime | None:
    """From when on a return ends it, if it goes on as it does now; None = a return never does, for it is no rotation.

    A night that knows when its return must begin is left alone until then, however long it is silent.
    """
    last = holder.seen or holder.since
    if holder.pid is None or last is None or not holder.doing:
        return None
    if holder.doing != NIGHT or holder.until is None:
        return last + SILENT
    return max(holder.until, min(last + SILENT_LATE, holder.until + ENDING))


def shown(holder: LockHolder, now: datetime) -> str:
    """Who it is, and in brackets what it does and when it last gave a sign of life, as far as that is known."""
    last = holder.seen or holder.since
    if not holder.doing or last is None:
        return f"{holder}"
    minutes = int((now - last).total_seconds()) // 60
    return f"{holder} ({holder.doing}, last sign of life {minutes} min ago)"


def advice(holder: LockHolder, now: datetime) -> str:
    """What to do for whoever finds the lock held, and may not end it."""
    if holder.pid is None:
        return f"wait for it to end; {STATUS}"
    at = ends_at(holder)
    if at is None:
        return f"wait for pid {holder.pid} to end; where it hangs, `kill {holder.pid}` ends it: nothing is lost by that"
    by_itself = f"from {at.astimezone(UTC):%Y-%m-%d %H:%M UTC} on {RETURN_COMMAND} ends it by itself, if it hangs"
    return f"wait for pid {holder.pid} to end; {by_itself}; sooner: kill {holder.pid}, then {RETURN_COMMAND}"
