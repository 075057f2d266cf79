"""The kinds of run in journals, and the runs of a rotation (night, day, restore) that did not end."""

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
    """The kinds of run of a rotation and of a watch. Their names are stored in journals."""

    NIGHT = "rotate night"
    WATCH = "rotate watch"
    """Starts of a watch on slots beyond the reserve. A restore of single VMs stops ML VMs for desktops."""
    DAY = "rotate day"
    RESTORE = "rotate restore"
    """A return of some VMs, at any hour; the other VMs still belong to the night."""

    @property
    def takes(self) -> bool:
        """Whether the run may take GPUs; all other runs only bring VMs back."""
        return self in (RunKind.NIGHT, RunKind.WATCH)


ROTATION_RUNS = tuple(RunKind)
CHANGE: Final = "change"
"""The kind of run that a rolling change, or a defrag, is in journals."""
EXCLUSIVE_RUNS: Final = (*ROTATION_RUNS, CHANGE)
"""A vCenter has at most one of these at a time."""
RESUME: Final = "gpuops rotate resume"
RESUME_CHANGE: Final = "gpuops change resume"
CUT_OFF_HINT: Final = f"{RESUME} finishes it, or gpuops rotate day"
"""The commands that finish a night or a return that was cut off."""


def left_open_runs(journal: Journal | None, site: Site) -> tuple[LockHolder | None, tuple[Run, ...]]:
    """Return the process that rotates now, or None, and the runs that did not end.

    A run holds the lock from its first line in the journal to its last. So a run that is open before and after a moment
    in which the lock was free was cut off.
    """
    runs = journal.open_runs(ROTATION_RUNS) if journal else ()
    holder = rotating(site.state_dir, site.vcenter.uuid)
    if journal is None or holder is not None or not runs:
        return holder, runs
    still_open = {run.id for run in journal.open_runs(ROTATION_RUNS)}
    return None, tuple(run for run in runs if run.id in still_open)


def morning_first(kind: RunKind, left_open: Sequence[Run]) -> None:
    """Raise Refused if a night would begin before a return that was cut off: it would take the same VMs again."""
    cut_off = next((run for run in left_open if not RunKind(run.kind).takes), None)
    if kind.takes and cut_off is not None:
        run_noun = "morning" if cut_off.kind == RunKind.DAY else "restore"
        raise Refused(
            f"the {run_noun} that began at {format_zoned_minute(cut_off.started)} did not end", hint=CUT_OFF_HINT
        )
