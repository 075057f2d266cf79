"""Filed: the night of a seed with its journal in a real SQLite file, opened anew by each process, and read back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from gpuops.execute.journal.record import Record, text_of
from gpuops.execute.journal.stores import open_store
from tests.nights.checkers import violations
from tests.nights.event import Event
from tests.nights.night import MEMORY, Nightly

_VCENTER: Final = "vc-1"


class FiledNightly(Nightly):
    """What the file tells is what the engine reads; the records in memory are what it should tell."""

    def __init__(self, seed: int, events: Sequence[Event] | None, folder: Path) -> None:
        super().__init__(seed, events)
        self._folder = folder
        self.file = open_store(folder, "", _VCENTER)
        kept: Any = self._store
        keep = kept.append

        def append(records: Sequence[Record]) -> None:
            keep(records)
            self.file.append(records)

        kept.append = append
        kept.read = self._read

    def _read(self, after: int | None) -> Sequence[Record]:
        if after is None:  # a process that begins
            self.file.close()
            self.file = open_store(self._folder, "", _VCENTER)
        return self.file.read(after)


def _told(record: Record) -> tuple[Any, ...]:
    """As it is written down: a list and a tuple are the same there."""
    return record.seq, record.run, record.kind, record.at, text_of(record.body)


def filed_violations(seed: int, events: Sequence[Event] | None) -> list[str]:
    """What does not hold of that night, its file among it."""
    with TemporaryDirectory(prefix="gpuops-filed-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
        night = FiledNightly(seed, events, Path(folder) / "state")
        try:
            said = violations(night.play())
            wrong = [*map(_told, night.file.read(0))] != [*map(_told, night._store.records)]
        finally:
            night.file.close()
    return [*said, *(["journal: the file does not tell what was written into it"] if wrong else [])]
