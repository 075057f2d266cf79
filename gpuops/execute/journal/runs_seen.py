"""Which runs a plan knew of: a run may not begin on a plan that is older than the last of them.

The lock of a machine keeps its own runs apart. Where machines share a journal, a process that was stopped between its
look and its first line there (SIGSTOP, a machine that slept) would act on a plan of a moment long gone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuops.errors import Locked
from gpuops.execute.journal.journal_state import JournalState


class BegunSince(Locked):
    """Another run has begun since this one looked; nothing was sent."""

    def __init__(self) -> None:
        super().__init__(
            "another gpuops has begun on this vCenter since this one looked: nothing was sent",
            hint="gpuops rotate status shows what is under way",
        )


@dataclass(frozen=True, slots=True)
class RunsSeen:
    """How many runs of these kinds had begun, as far as one process has read the journal."""

    kinds: tuple[str, ...]
    begun: int = 0

    def of(self, state: JournalState) -> RunsSeen:
        """The same kinds, as the journal says now."""
        return replace(self, begun=sum(state.begun[kind] for kind in self.kinds))
