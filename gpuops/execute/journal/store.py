"""Where records of one vCenter are kept: the protocol, records in memory, and a store that outlives its disk.

`sql.SqlStore` implements the protocol for SQLite and PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from gpuops.errors import StateDamaged
from gpuops.execute.journal.record import Kind, Record


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


class MemoryStore:
    """Implements `Store`; it is as durable as its process. Several journals may share one.

    For simulated nights by the thousand, and for a disk that fails during a return.
    """

    def __init__(self, records: Iterable[Record] = (), *, after: int = 0) -> None:
        """`after` is the number of records that lie elsewhere."""
        self.records = list(records)
        self._after = after
        self._checkpoint = 0
        for record in self.records:
            self._note(record)

    def read(self, after: int | None) -> Sequence[Record]:
        begin = max(self._checkpoint - 1, self._after) if after is None else after
        return self.records[begin - self._after :]

    def append(self, records: Sequence[Record]) -> None:
        if records[0].seq != self._after + len(self.records) + 1:
            raise Overtaken
        self.records.extend(records)
        for record in records:
            self._note(record)

    def close(self) -> None:
        pass

    def _note(self, record: Record) -> None:
        if record.kind is Kind.CHECKPOINT:
            self._checkpoint = record.seq


class FallbackStore:
    """Implements `Store` for a run that returns: when the disk or the database fails, records go on in memory.

    Taking without a durable journal could lose a desktop, so it is refused. Returning without one cannot: the marker in
    vCenter says what to return, and is cleared only when the VM is seen back. So a morning outlives its journal, and
    says so at its end. `lost` is why the durable store is not used any more; None while it is.
    """

    def __init__(self, opening: Callable[[], Store]) -> None:
        self.lost: StateDamaged | None = None
        try:
            self._store = opening()
        except StateDamaged as damaged:
            self._store, self.lost = MemoryStore(), damaged

    def read(self, after: int | None) -> Sequence[Record]:
        try:
            return self._store.read(after)
        except StateDamaged as damaged:
            return self._goes_on(after or 0, damaged).read(after)

    def append(self, records: Sequence[Record]) -> None:
        try:
            self._store.append(records)
        except StateDamaged as damaged:
            self._goes_on(records[0].seq - 1, damaged).append(records)

    def close(self) -> None:
        self._store.close()

    def abandon(self, damaged: StateDamaged, after: int) -> None:
        """Goes on in memory behind that record: what was kept, there or behind it, cannot be believed."""
        self._goes_on(after, damaged)

    def _goes_on(self, after: int, damaged: StateDamaged) -> MemoryStore:
        self._store.close()
        self.lost = damaged
        self._store = spare = MemoryStore(after=after)
        return spare
