"""Place: where a night's processes keep their journal, and the lock that keeps a second one away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpuops.errors import StateDamaged
from gpuops.execute.journal.journal import Journal
from gpuops.execute.journal.lasting import LastingStore
from gpuops.execute.journal.memory import MemoryStore
from gpuops.execute.journal.record import Record
from gpuops.execute.journal.store import Store
from gpuops.execute.lock import locked
from gpuops.execute.site import Site
from tests.nights.stages import OF_RECORDS, Stages


class Admission(StrEnum):
    """What the lock of a machine answered a process."""

    NOT_ASKED = "not asked"
    REFUSED = "refused"
    LET_IN = "let in"


class NightPlace(Site):
    """A site whose journal is in memory and outlives the processes of a night; `locks` is where they lock each other
    out, None = there is only one at a time."""

    __slots__ = ("_locks", "_store", "admission")

    def __init__(self, *args: Any, store: NightStore, locks: Path | None = None) -> None:
        super().__init__(*args)
        self._store = store
        self._locks = locks
        self.admission = Admission.NOT_ASKED

    @contextmanager
    def changing(self, vcenter: str, *, alone: bool, returning: bool = False, doing: str = "") -> Iterator[Journal]:
        with ExitStack() as stack:
            self.admission = Admission.REFUSED
            if self._locks is not None:
                stack.enter_context(locked(self._locks, vcenter, self.clock(), alone=alone))
            self.admission = Admission.LET_IN
            yield Journal(self._opened(returning), vcenter, self.clock)

    @contextmanager
    def remembering(self, vcenter: str, *, returning: bool = False) -> Iterator[Journal | None]:
        yield Journal(self._opened(returning), vcenter, self.clock)

    def _opened(self, returning: bool) -> Store:
        return LastingStore(lambda: self._store) if returning else self._store


class NightStore(MemoryStore):
    """Records that outlive the processes of a night; a run can be killed before and after each append, and the disk can
    be full."""

    def __init__(
        self,
        boundary: Callable[[str], None],
        effects: Callable[[], int],
        full: Callable[[], bool],
        stages: Stages | None = None,
    ) -> None:
        super().__init__()
        self._stages = stages or Stages()
        self._boundary = boundary
        self._effects = effects
        self._full = full
        self.lengths: list[int] = []
        """Of the ledger, when each record was durable."""

    def append(self, records: Sequence[Record]) -> None:
        with self._stages.within(OF_RECORDS[records[0].kind]):
            self._boundary("before an append")
            if self._full():
                raise StateDamaged("the journal cannot be written: no space left on device")
            super().append(records)
            self.lengths += [self._effects()] * len(records)
            self._boundary("after an append")
