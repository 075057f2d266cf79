"""Reads every record of a journal from the first, for each vCenter in it, and checks each one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, select

from gpuops.errors import StateDamaged
from gpuops.execute.journal.database import RETURN_HINT, has_journal, heads_table
from gpuops.execute.journal.record import Record
from gpuops.execute.journal.sql import Broken, Chain, head_of, rows_of
from gpuops.execute.journal.stores import FILE_NAME, file_database, open_database


@dataclass(frozen=True, slots=True)
class OpenedJournal:
    """A complete journal, open for reading."""

    name: str
    """The file, or the database without its password."""
    vcenters: tuple[str, ...] = ()
    """Their instance uuids; empty if nothing was ever recorded."""
    connection: Connection | None = None

    def records(self, vcenter: str) -> Iterator[Record]:
        """Yield all records of this vCenter in order. Raises StateDamaged at the first that was changed or is
        missing."""
        if self.connection is None:
            return
        try:
            end, chain = head_of(self.connection, vcenter), Chain(vcenter)
            for row in rows_of(self.connection, vcenter, 0):
                yield chain.follow(row)
            chain.ends_at(end.seq, end.checksum)
        except Broken as broken:
            raise StateDamaged(
                f"the journal {self.name} was changed by something else than gpuops: {broken}",
                hint=f"gpuops rotate audit verify shows how far it can be trusted; {RETURN_HINT}",
            ) from broken


@contextmanager
def opened_journal(state_dir: Path, url: str = "") -> Iterator[OpenedJournal]:
    """Open the file in the state directory, or the PostgreSQL database at the URL, in one view; change nothing.

    Raises UsageError, StateDamaged.
    """
    database = open_database(url) if url else file_database(state_dir)
    if database is None:
        yield OpenedJournal(str(state_dir / FILE_NAME))
        return
    with closing(database), database.reading() as connection:
        if not has_journal(connection, database):
            yield OpenedJournal(database.name)
            return
        vcenters = connection.scalars(select(heads_table.c.vcenter))
        yield OpenedJournal(database.name, tuple(sorted(vcenters)), connection)
