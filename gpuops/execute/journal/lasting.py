"""A store for returning: when the disk or the database fails, records go on in memory.

Taking without a durable journal could lose a desktop, so it is refused. Returning without one cannot: the marker in
vCenter says what to return, and is cleared only when the VM is seen back. So a morning outlives its journal, and says
so at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuops.errors import StateDamaged
from gpuops.execute.journal.memory import MemoryStore
from gpuops.execute.journal.record import Record
from gpuops.execute.journal.store import Store


class LastingStore:
    """Implements `Store`. `lost` is why the durable one is not used any more; None while it is."""

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
