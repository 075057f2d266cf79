"""Counts the runs that a plan knew of: a run must not begin on a plan that is older than the last of them.

The lock of a machine keeps its own runs apart. If machines share a journal, a process that was paused between its look
and its first record (SIGSTOP, a machine that slept) would act on an outdated plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuops.errors import Locked
from gpuops.execute.journal.journal_state import JournalState


class BegunSince(Locked):
    """Another run has begun since this one read the vCenter; nothing was sent."""

    def __init__(self) -> None:
        super().__init__(
            "another gpuops has begun on this vCenter since this one looked: nothing was sent",
            hint="gpuops rotate status shows what is under way",
        )


@dataclass(frozen=True, slots=True)
class RunsSeen:
    """How many runs of these kinds had begun, as far as this process has read the journal."""

    kinds: tuple[str, ...]
    begun: int = 0

    def of(self, state: JournalState) -> RunsSeen:
        """Return the current count for the same kinds."""
        return replace(self, begun=sum(state.begun[kind] for kind in self.kinds))
