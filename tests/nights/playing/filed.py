"""Filed: the night of a seed with its journal in a real SQLite file, opened anew by each process, and read back."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from gpuops.execute.journal.record import Record, text_of
from gpuops.execute.journal.stores import open_store
from gpuops.execute.runs import RunKind
from gpuops.plan.rotation.returns.day import RotateDay
from tests.nights.faults.event import Event
from tests.nights.judging.checkers import violations
from tests.nights.playing.night import Nightly
from tests.nights.playing.place import folder_in_memory
from tests.nights.world.worlds import EVENING

_VCENTER: Final = "vc-1"
_CHANGED: Final = "was changed by a program other than gpuops"
FEW: Final = 3
"""Records, in which there is nothing to change."""


class FiledNightly(Nightly):
    """What the file tells is what the engine reads; the records in memory are what it should tell."""

    def __init__(self, seed: int, events: Sequence[Event] | None, folder: Path) -> None:
        super().__init__(seed, events)
        self._folder = folder
        self.file = open_store(folder, "", _VCENTER)
        store: Any = self._store
        store.copy = lambda records: self.file.append(records)
        store.read = self._read

    def _read(self, after: int | None) -> Sequence[Record]:
        if after is None:  # a process that begins
            self.file.close()
            self.file = open_store(self._folder, "", _VCENTER)
        return self.file.read(after)


def _as_written(record: Record) -> tuple[Any, ...]:
    """As it is written down: a list and a tuple are the same there."""
    return record.seq, record.run, record.kind, record.at, text_of(record.body)


class DamagedNightly(FiledNightly):
    """In the night the file is changed from outside: its last record, the digest of that, or an earlier record."""

    def __init__(self, seed: int, folder: Path) -> None:
        # no record of a return that goes on without its journal is durable: `K3` says so to the checkers
        super().__init__(seed, [Event("K3", state="damaged")], folder)
        self._rng = random.Random(f"{seed}:damaged")
        self._path = folder
        self._in_the_morning = self.site.policy  # markers alone are believed where the policy names them
        self.damaged = False

    def _evening(self) -> Iterator[tuple[RunKind, datetime]]:
        yield RunKind.NIGHT, EVENING
        self.file.close()
        [path] = self._path.glob("*.sqlite*")
        with closing(sqlite3.connect(path)) as database, database:
            [[records]] = database.execute("SELECT count(*) FROM journal")
            self.damaged = records > FEW
            if self.damaged:
                database.execute(self._rng.choice(_DAMAGES))
        self.file = open_store(self._path, "", _VCENTER)


_DAMAGES: Final = (
    "UPDATE journal_heads SET checksum = substr(checksum, 2) || 'x'",
    "UPDATE journal_heads SET seq = seq + 1",
    "UPDATE journal_heads SET seq = seq - 1",
    "DELETE FROM journal_heads",
    "DELETE FROM journal WHERE seq = (SELECT max(seq) FROM journal)",
    "DELETE FROM journal WHERE seq = 2",
    "UPDATE journal SET body = replace(body, 'desktop', 'desk') WHERE seq = 2",
    "UPDATE journal SET seq = seq + 1000 WHERE seq = 3",
)
"""What changes the file without breaking it as a database."""


def damaged_violations(seed: int, _events: Sequence[Event] | None = None) -> list[str]:
    """What does not hold of a night whose journal was changed before its morning: each return says that it is damaged,
    and brings everybody back by the markers."""
    with folder_in_memory() as folder:
        night = DamagedNightly(seed, folder / "state")
        try:
            problems = violations(night.play())
        finally:
            night.file.close()
    returns = [report for report, _ in night.played.told if isinstance(report.request, RotateDay)]
    believed = [report for report in returns if not any(_CHANGED in warning for warning in report.plan.warnings)]
    wrong = believed if night.damaged else []
    return [*problems, *(f"journal: {len(wrong)} returns do not tell that it was changed" for _ in wrong[:1])]


def filed_violations(seed: int, events: Sequence[Event] | None) -> list[str]:
    """What does not hold of that night, its file among it."""
    with folder_in_memory() as folder:
        night = FiledNightly(seed, events, folder / "state")
        try:
            problems = violations(night.play())
            wrong = [*map(_as_written, night.file.read(0))] != [*map(_as_written, night._store.records)]
        finally:
            night.file.close()
    return [*problems, *(["journal: the file does not tell what was written into it"] if wrong else [])]
