"""Records in memory: for simulated nights by the thousand, and for a disk that fails during a return."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuops.execute.journal.record import Kind, Record
from gpuops.execute.journal.store import Overtaken


class MemoryStore:
    """Implements `Store`; it is as durable as its process. Several journals may share one."""

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
