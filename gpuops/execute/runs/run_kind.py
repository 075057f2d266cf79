"""The kinds of run that journals know, and which runs of a rotation (night, day, restore) did not end."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from gpuops.errors import Refused
from gpuops.execute.journal import Journal, Run
from gpuops.execute.site import Site
from gpuops.execute.state.lock import rotating
from gpuops.model.nights.night_record import LockHolder
from gpuops.model.time_text import format_zoned_minute


class RunKind(StrEnum):
    """The two halves of a rotation, and what uses spare capacity; their names are kept in journals."""

    NIGHT = "rotate night"
    WATCH = "rotate watch"
    """What `rotate watch` starts where more is free than is kept; ML VMs give way by a restore of these alone."""
    DAY = "rotate day"
    RESTORE = "rotate restore"
    """Some VMs of a morning, at any hour: what it did not return is still of the night."""

    @property
    def takes(self) -> bool:
        """Whether it may take GPUs; the others only bring back."""
        return self in (RunKind.NIGHT, RunKind.WATCH)


ROTATION_RUNS = tuple(RunKind)
CHANGE: Final = "change"
"""The kind of run that a rolling change, or a defrag, is in journals."""
EXCLUSIVE_RUNS: Final = (*ROTATION_RUNS, CHANGE)
"""Of these a vCenter has one at a time."""
RESUME: Final = "gpuops rotate resume"
RESUME_CHANGE: Final = "gpuops change resume"
CUT_OFF_HINT: Final = f"{RESUME} finishes it, or gpuops rotate day"
"""What ends a night or a morning that was cut off."""


def left_open_runs(journal: Journal | None, site: Site) -> tuple[LockHolder | None, tuple[Run, ...]]:
    """Who is rotating now, if anybody, and the runs that did not end.

    A run holds the lock from its first line in the journal to its last: one that is open before and after a moment in
    which nobody held it was cut off.
    """
    runs = journal.open_runs(ROTATION_RUNS) if journal else ()
    holder = rotating(site.state_dir, site.vcenter.uuid)
    if journal is None or holder is not None or not runs:
        return holder, runs
    still_open = {run.id for run in journal.open_runs(ROTATION_RUNS)}
    return None, tuple(run for run in runs if run.id in still_open)


def morning_first(kind: RunKind, left_open: Sequence[Run]) -> None:
    """A night is not begun over a return that was cut off: it would take anew what that one has not returned."""
    cut_off = next((run for run in left_open if not RunKind(run.kind).takes), None)
    if kind.takes and cut_off is not None:
        what = "morning" if cut_off.kind == RunKind.DAY else "restore"
        raise Refused(
            f"the {what} that began at {format_zoned_minute(cut_off.started)} did not end",
            hint=CUT_OFF_HINT,
        )
