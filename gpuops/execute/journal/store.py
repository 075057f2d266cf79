"""Where the records of one vCenter are stored: the protocol, records in memory, and a store that continues after its
disk fails.

`sql.SqlStore` implements the protocol for SQLite and PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from gpuops.errors import StateDamaged
from gpuops.execute.journal.record import Kind, Record


class Overtaken(Exception):
    """Another process appended first: read the new records, and try again."""


class Store(Protocol):
    """The only interface between the journal and the disk. Every method raises only StateDamaged, `append` Overtaken
    too."""

    def read(self, after: int | None) -> Sequence[Record]:
        """Return the records after that one, in order; None: from the last checkpoint on, or from the first record."""
        ...

    def append(self, records: Sequence[Record]) -> None:
        """Append the records, and return when all of them are durable; on Overtaken none of them is stored.

        After StateDamaged they may be stored or not, as after a power cut.
        """
        ...

    def close(self) -> None: ...


class MemoryStore:
    """Implements `Store`. It is as durable as its process; several journals may share one.

    Used for simulated nights, and when a disk fails during a return.
    """

    def __init__(self, records: Iterable[Record] = (), *, after: int = 0) -> None:
        """`after` is the number of records that are stored elsewhere."""
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
    """Implements `Store` for a run that returns: when the disk or the database fails, records continue in memory.

    Taking without a durable journal could lose a desktop, so it is refused. Returning without one cannot: the marker in
    vCenter names what to return, and is cleared only when the VM is seen back. So a return continues without its
    journal, and reports that at its end. `lost` is why the durable store is no longer used; None while it is used.
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
            return self._continue_in_memory(after or 0, damaged).read(after)

    def append(self, records: Sequence[Record]) -> None:
        try:
            self._store.append(records)
        except StateDamaged as damaged:
            self._continue_in_memory(records[0].seq - 1, damaged).append(records)

    def close(self) -> None:
        self._store.close()

    def abandon(self, damaged: StateDamaged, after: int) -> None:
        """Continue in memory after that record: the stored records cannot be trusted."""
        self._continue_in_memory(after, damaged)

    def _continue_in_memory(self, after: int, damaged: StateDamaged) -> MemoryStore:
        self._store.close()
        self.lost = damaged
        self._store = spare = MemoryStore(after=after)
        return spare
