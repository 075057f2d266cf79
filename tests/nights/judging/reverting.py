"""Reverting: desktops that an admin reverts to another suspended snapshot while they are away, and the report of it.

I24, by the ledger and the journal's own records: the suspend is noted as done, then the desktop is reverted, then a
return looks, and resumes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from gpuops.execute.journal.record import IntentState, Kind
from gpuops.plan.core.plan import Report
from gpuops.sim.core.ledger import Entry
from tests.nights.judging.doings import START, SUSPEND, is_desktop, is_ours
from tests.nights.playing.played import Played

REVERT = "RevertToSnapshot_Task"


class Replaced(NamedTuple):
    """A desktop that comes back in a suspended state that is not the one of its night."""

    moid: str
    then: datetime
    """When the night suspended it."""
    now: datetime
    """When it was suspended in the state that it comes back in."""
    reverted: Entry
    resumed: Entry


def replaced_states(night: Played) -> Iterator[Replaced]:
    """Each of them that a journal has noted as suspended before it was reverted."""
    noted = dict(_noted_suspends(night))
    ours: dict[str, Entry] = {}
    reverted: dict[str, Entry] = {}
    for change in night.world.ledger:
        moid, moment = change.moid, change.after.get("suspend_time")
        if change.method == SUSPEND and is_ours(change) and is_desktop(night, moid, change.name):
            ours[moid] = change
            reverted.pop(moid, None)
        elif change.method == REVERT and moment is not None and noted.get(moid, change.sequence) < change.sequence:
            reverted[moid] = change
        elif moment is not None or change.after.get("power") == "poweredOff":
            ours.pop(moid, None)
        elif change.method == START and is_ours(change) and moid in ours and moid in reverted:
            then, now = ours.pop(moid).after["suspend_time"], reverted[moid].after["suspend_time"]
            yield Replaced(moid, datetime.fromisoformat(then), datetime.fromisoformat(now), reverted[moid], change)


def _noted_suspends(night: Played) -> Iterator[tuple[str, int]]:
    """Desktops of which one suspend alone is in the journal, and how long the ledger was when it was noted as done."""
    suspends = {
        record.body["op"]: str(record.body["step"]["SuspendVm"]["vm"])
        for record, _ in night.kept
        if record.kind is Kind.INTENT and "SuspendVm" in record.body["step"]
    }
    vms = list(suspends.values())
    for record, length in night.kept:
        vm = suspends.get(record.body["op"]) if record.kind is Kind.SETTLED else None
        if vm is not None and record.body["state"] == IntentState.DONE and vms.count(vm) == 1:
            yield vm, length


def tells(report: Report, names: Collection[str], replaced: Replaced) -> bool:
    """Whether the report says of it, by one of its names, both moments."""
    moments = [f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}" for moment in (replaced.then, replaced.now)]
    warnings = (warning for warning in report.plan.warnings if warning.partition(": ")[0] in names)
    return any(all(moment in warning for moment in moments) for warning in warnings)
