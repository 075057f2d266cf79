"""Store: where records of one vCenter are kept. SQLite, PostgreSQL and memory implement it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpuops.execute.journal.record import Record


class Overtaken(Exception):
    """Somebody else appended first: read what there is, and try again."""


class Store(Protocol):
    """The one seam between the journal and the disk. Every method raises only StateDamaged, `append` Overtaken too."""

    def read(self, after: int | None) -> Sequence[Record]:
        """The records behind that one, in order; None = from the last checkpoint on, or from the first record."""
        ...

    def append(self, records: Sequence[Record]) -> None:
        """Returns when all of them are durable; none of them is kept when it raises Overtaken.

        After StateDamaged they may be there or not: as after a power cut.
        """
        ...

    def close(self) -> None: ...
