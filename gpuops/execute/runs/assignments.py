"""Which site runs each request across sites, in the database of the journal: one row for each, changed only by who has
seen its last version.

Two things change a row. `gpuops queue --site all --assign` says which vCenter a request is for (`change`). A run of
that vCenter says that it starts it (`begin`), after its own beginning is in the journal and before anything is sent. So
a request that was given to another site meanwhile is not started; and who gives it to another site either finds the row
changed, or sees the run open or the VM running, for it reads the rows before it looks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Boolean, Column, Float, Integer, MetaData, String, Table, delete, insert, inspect, select, text
from sqlalchemy import update as updating

from gpuops.errors import Locked
from gpuops.execute.journal.database import Database
from gpuops.execute.journal.stores import file_database, make_file, open_database
from gpuops.execute.journal.upgrading import bring_up
from gpuops.execute.migrations import Contents
from gpuops.model.nights.across_sites import ASSIGN_COMMAND, Assignment

_metadata = MetaData()

_table: Final = Table(
    "site_requests",
    _metadata,
    Column("name", String, primary_key=True),
    Column("vcenter", String, nullable=False),
    Column("site", String, nullable=False),
    Column("team", String, nullable=False),
    Column("gpus", Float, nullable=False),
    Column("until", String),
    Column("begun", Boolean, nullable=False),
    Column("version", Integer, nullable=False),
    Column("at", String, nullable=False),
)


class AssignedElsewhere(Locked):
    """Requests were given to another site since this run looked; nothing was sent."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(
            f"{', '.join(sorted(names))}: assigned to another vCenter since this run looked: nothing was sent",
            hint=f"the next call looks anew; {ASSIGN_COMMAND} shows which site it is for",
        )


@dataclass(frozen=True, slots=True)
class AssignmentStore:
    """Reads and changes the table, in a file of the state directory or in a PostgreSQL database by URL."""

    state_dir: Path
    url: str = ""

    def read(self) -> dict[str, Assignment]:
        """Name -> its assignment; nothing is made. Raises StateDamaged, UsageError."""
        database = open_database(self.url) if self.url else file_database(self.state_dir)
        if database is None:
            return {}
        with closing(database), database.reading() as connection:
            if database.revision(connection) is None and not inspect(connection).has_table(_table.name):
                return {}
            return {row.name: _assignment(row._mapping) for row in connection.execute(select(_table))}

    def change(self, wanted: Iterable[Assignment], dropped: Iterable[Assignment] = ()) -> frozenset[str]:
        """Makes each row what is wanted, or takes it away, where it still has the version that is said (0 = there is
        none). Returns the names of those that somebody else has changed since, which stay as they are."""
        overtaken: set[str] = set()
        with self._writing() as connection:
            for each in wanted:
                if not _put(connection, each):
                    overtaken.add(each.name)
            for each in dropped:
                gone = delete(_table).where(_table.c.name == each.name, _table.c.version == each.version)
                if connection.execute(gone).rowcount == 0:
                    overtaken.add(each.name)
        return frozenset(overtaken)

    def begin(self, vcenter: str, names: Collection[str], now: datetime) -> None:
        """A run of this vCenter starts all of these, or none: raises AssignedElsewhere."""
        if not names:
            return
        with self._writing() as connection:
            lost = []
            for name in sorted(names):
                row = updating(_table).where(_table.c.name == name, _table.c.vcenter == vcenter)
                values: dict[str, Any] = {"begun": True, "version": _table.c.version + 1, "at": _moment(now)}
                if connection.execute(row.values(values)).rowcount == 0:
                    lost.append(name)
            if lost:
                raise AssignedElsewhere(lost)  # which takes back what was written here

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        with closing(self._database()) as database:
            bring_up(database, Contents.JOURNAL)
            with database.writing() as connection:
                if connection.dialect.name == "postgresql":  # of two machines that write one waits for the other
                    connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('gpuops site requests'))"))
                yield connection

    def _database(self) -> Database:
        return open_database(self.url) if self.url else make_file(self.state_dir)


def _put(connection: Any, wanted: Assignment) -> bool:
    row = {
        "vcenter": wanted.vcenter,
        "site": wanted.site,
        "team": wanted.team,
        "gpus": wanted.gpus,
        "until": None if wanted.until is None else _moment(wanted.until),
        "begun": wanted.begun,
        "version": wanted.version + 1,
        "at": _moment(wanted.at),
    }
    if wanted.version:
        seen = updating(_table).where(_table.c.name == wanted.name, _table.c.version == wanted.version)
        return bool(connection.execute(seen.values(row)).rowcount)
    if connection.execute(select(_table.c.name).where(_table.c.name == wanted.name)).first() is not None:
        return False
    connection.execute(insert(_table).values(name=wanted.name, **row))
    return True


def _assignment(row: Mapping[Any, Any]) -> Assignment:
    until = row["until"]
    return Assignment(
        row["name"], row["vcenter"], row["site"], row["team"], row["gpus"],
        None if until is None else datetime.fromisoformat(until),
        bool(row["begun"]), row["version"], datetime.fromisoformat(row["at"]),
    )  # fmt: skip


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()
