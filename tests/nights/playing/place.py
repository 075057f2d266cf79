"""Place: where a night's processes keep their journal, and the lock that keeps a second one away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

from gpuops.errors import StateDamaged
from gpuops.execute.journal.journal import Journal
from gpuops.execute.journal.record import Record
from gpuops.execute.journal.stores import FallbackStore, MemoryStore, Store
from gpuops.execute.site import Site
from gpuops.execute.state.lock import LockedBy, LockHold, locked
from gpuops.model.nights.night_record import LockHolder
from gpuops.sim.world import World
from tests.nights.measuring.stages import RECORDS, Stages

_MEMORY: Final = Path("/dev/shm")


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A temporary folder where a file is no work for a disk: a night's locks are taken hundreds of times."""
    with TemporaryDirectory(prefix="gpuops-night-", dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        yield Path(folder)


class Admission(StrEnum):
    """What the lock of a machine answered a process."""

    NOT_ASKED = "not asked"
    REFUSED = "refused"
    LET_IN = "let in"


class Signed(LockHold):
    """A lock that is in memory: what its run says of itself can be read, and who ends the run takes it away."""

    @property
    def holder(self) -> LockHolder:
        return self._holder


class Turnstile:
    """The lock of a machine on which a process may hang, in memory: no other process gets it before that one ends."""

    def __init__(self) -> None:
        self.held: Signed | None = None

    @contextmanager
    def passed(self, now: datetime, doing: str) -> Iterator[LockHold]:
        """Raises LockedBy."""
        if self.held is not None:
            raise LockedBy("another run holds the lock", hint="", holder=self.held.holder)
        hold = self.held = Signed(None, LockHolder(PID, now, doing))
        try:
            yield hold
        finally:
            if self.held is hold:
                self.held = None


PID: Final = 4711
"""Of a process that is played."""


class NightPlace(Site):
    """A site whose journal is in memory and outlives the processes of a night; `locks` is where they lock each other
    out, None = there is only one at a time. `turnstile` is the lock where one of them may hang."""

    __slots__ = ("_locks", "_store", "_turnstile", "admission")

    def __init__(
        self, *args: Any, store: NightStore, locks: Path | None = None, turnstile: Turnstile | None = None
    ) -> None:
        super().__init__(*args)
        self._store = store
        self._locks = locks
        self._turnstile = turnstile
        self.admission = Admission.NOT_ASKED

    @classmethod
    def on_one_machine(cls, world: World, vcenter: Any, state: Path, store: NightStore) -> Self:
        """For a process that begins now on the only machine there is, whose clocks are those of vCenter."""
        place, began = cls(vcenter, state, world.clock.now, store=store), world.clock.now()
        place.same_time, place.pause = True, world.clock.advance
        place.passed_s = lambda: (world.clock.now() - began).total_seconds()
        return place

    @contextmanager
    def locked_journal(
        self, vcenter: str, *, alone: bool, returning: bool = False, doing: str = ""
    ) -> Iterator[Journal]:
        with ExitStack() as stack:
            self.admission = Admission.REFUSED
            if self._locks is not None:
                stack.enter_context(locked(self._locks, vcenter, self.clock(), alone=alone))
            self.admission = Admission.LET_IN
            journal = Journal(self._opened(vcenter, returning), vcenter, self.clock)
            if self._turnstile is not None:
                journal.hold = stack.enter_context(self._turnstile.passed(self.clock(), doing))
            yield journal

    @contextmanager
    def unlocked_journal(self) -> Iterator[Journal]:
        yield Journal(self._opened(self.vcenter.uuid, returning=False), self.vcenter.uuid, self.clock)

    @contextmanager
    def journal_to_read(self, vcenter: str, *, returning: bool = False) -> Iterator[Journal | None]:
        yield Journal(self._opened(vcenter, returning), vcenter, self.clock)

    def _opened(self, vcenter: str, returning: bool) -> Store:
        store = self._store_of(vcenter)
        return FallbackStore(lambda: store) if returning else store

    def _store_of(self, vcenter: str) -> NightStore:
        return self._store


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
        self.copy: Callable[[Sequence[Record]], None] = lambda records: None
        """Is given each record as it becomes durable."""

    def append(self, records: Sequence[Record]) -> None:
        with self._stages.within(RECORDS[records[0].kind]):
            self._boundary("before an append")
            if self._full():
                raise StateDamaged("the journal cannot be written: no space left on device")
            super().append(records)
            self.copy(records)
            self.lengths += [self._effects()] * len(records)
            self._boundary("after an append")
