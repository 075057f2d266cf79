"""The books of a vCenter's pools: in their own SQLite file next to the journal, or in the journal's PostgreSQL.

There is one row for each pool and one for each open lease. A change reads and writes a pool in one transaction, and
only one such transaction runs at a time, so the second of two commands decides by what the first has written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

import msgspec
import sqlalchemy as sql
from sqlalchemy import Column, Connection, String, Table

from gpuops.errors import StateDamaged, UsageError
from gpuops.execute.journal.database import Database
from gpuops.execute.journal.stores import make_file, open_database
from gpuops.execute.journal.upgrading import to_read, to_write
from gpuops.execute.migrations import Contents
from gpuops.execute.state.lock_names import DatabaseLock, hold_to_the_end
from gpuops.extras.lending.lease_book import GpuLease, LeaseBook, LendingPool, PoolServer
from gpuops.extras.lending.lending import Decision
from gpuops.files.file import NOT_PARSED
from gpuops.model.stored import to_stored, with_field_names

FILE_NAME: Final = "pools.sqlite"
_MESSAGES: Final = {
    "keeps": "book of pools",
    "hint": "nothing is lent without it: free the disk, start the server, or bring the book back from a backup",
}
_LEAVING: Final = '"state":"leaving"', '"state":"draining"'
_BROKEN: Final = '"state":"broken"', '"state":"ending"'
"""An earlier gpuops kept servers that it was removing, and leases whose server died; its requests for a later lease are
not read at all."""
metadata: Final = sql.MetaData()
Table("pools_schema", metadata, Column("version", sql.Integer, primary_key=True, autoincrement=False))  # now unused
pools_table: Final = Table(
    "pools",
    metadata,
    Column("vcenter", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("settings", String, nullable=False),  # JSON of `LendingPool`
    Column("servers", String, nullable=False),  # JSON of its `PoolServer`s
)
leases_table: Final = Table(
    "pool_leases",
    metadata,
    Column("vcenter", String, primary_key=True),
    Column("pool", String, primary_key=True),
    Column("id", String, primary_key=True),
    Column("open", sql.Boolean, nullable=False, index=True),  # False only in rows of an earlier gpuops
    Column("asked_at", String, nullable=False),
    Column("body", String, nullable=False),  # JSON of `GpuLease`
)
Value = TypeVar("Value")
Decide = Callable[[LeaseBook | None, tuple[LeaseBook, ...]], Decision]
"""Returns the changed book, or why it stays as it is; gets the present book and the other pools of the vCenter."""


@dataclass(frozen=True, slots=True)
class PoolBooks:
    """The books of one vCenter. Every method raises StateDamaged."""

    _database: Database | None
    """None = there is no database, and no pool."""
    _vcenter: str

    @classmethod
    @contextmanager
    def open(cls, state_dir: Path, url: str, vcenter: str, *, write: bool) -> Iterator[Self]:
        """Yield the books; without `write` nothing is made or changed. `url`: empty = the file in the state directory.

        Raises UsageError too.
        """
        database = opened_database(state_dir, url, write=write)
        try:
            yield cls(database, vcenter)
        finally:
            if database is not None:
                database.close()

    def read(self) -> dict[str, LeaseBook]:
        """Return the books of all pools by name, in order."""
        with self._transaction(write=False) as connection:
            return self._read(connection)

    def change(self, name: str, decide: Decide, *, write: bool = True) -> tuple[LeaseBook | None, Decision]:
        """Change the book, and return it before and after, with the leases that ended. Without `write` only compute it.

        While `decide` runs, no other process changes a pool of this vCenter. The change is on disk when this returns.
        If `decide` raises or refuses, nothing is changed.
        """
        with self._transaction(write=write) as connection:
            books = self._read(connection)
            before = books.pop(name, None)
            after, rejections = decide(before, tuple(books.values()))
            if write and connection is not None and not rejections:
                self._write(connection, before, after)
        return before, (after, rejections)

    def remove_empty(self, name: str) -> None:
        """Take the pool out of the book if it has neither servers nor leases."""
        with self._transaction(write=True) as connection:
            book = self._read(connection).get(name)
            if connection is not None and book is not None and not book.servers and not book.leases:
                # an earlier gpuops kept ended ones
                connection.execute(sql.delete(leases_table).where(*self._leases(name)))
                connection.execute(sql.delete(pools_table).where(*self._pool(name)))

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Connection | None]:
        """Yield a transaction; None = there is no database. Until one that writes ends, no other one writes pools of
        this vCenter."""
        if self._database is None:
            yield None
            return
        with self._database.writing() if write else self._database.reading() as connection:
            if write:
                hold_to_the_end(connection, DatabaseLock.POOLS, self._vcenter)
            yield connection

    def _pool(self, name: str) -> tuple[sql.ColumnElement[bool], sql.ColumnElement[bool]]:
        return pools_table.c.vcenter == self._vcenter, pools_table.c.name == name

    def _leases(self, pool: str) -> tuple[sql.ColumnElement[bool], sql.ColumnElement[bool]]:
        return leases_table.c.vcenter == self._vcenter, leases_table.c.pool == pool

    def _read(self, connection: Connection | None) -> dict[str, LeaseBook]:
        if connection is None:
            return {}
        body, is_open = leases_table.c.body, leases_table.c.open.is_(True)
        is_request = body.like('%"state":"asked"%') | body.like('%"state":"waiting"%')
        pools = sql.select(pools_table).where(pools_table.c.vcenter == self._vcenter).order_by(pools_table.c.name)
        books = dict[str, LeaseBook]()
        for row in connection.execute(pools).all():
            pool = _decode(row.settings, LendingPool, row.name)
            servers = _decode(row.servers.replace(*_LEAVING), tuple[PoolServer, ...], row.name)
            bodies = connection.scalars(sql.select(body).where(*self._leases(row.name), is_open, ~is_request))
            leases = (_decode(text.replace(*_BROKEN), GpuLease, row.name) for text in bodies)
            books[row.name] = LeaseBook(pool, servers).with_leases(leases)
        return books

    def _write(self, connection: Connection, before: LeaseBook | None, after: LeaseBook) -> None:
        """Write the pool and the leases that changed; those that ended leave the book."""
        name = after.pool.name
        if before is None or (before.pool, before.servers) != (after.pool, after.servers):
            connection.execute(sql.delete(pools_table).where(*self._pool(name)))
            row = {"name": name, "settings": _encode(after.pool), "servers": _encode(after.servers)}
            connection.execute(sql.insert(pools_table).values(vcenter=self._vcenter, **row))
        for lease in (lease for lease in after.leases if before is None or lease not in before.leases):
            connection.execute(sql.delete(leases_table).where(*self._leases(name), leases_table.c.id == lease.id))
            if lease.holds:
                row = {"id": lease.id, "asked_at": lease.asked_at.isoformat(), "body": _encode(lease)}
                connection.execute(sql.insert(leases_table).values(vcenter=self._vcenter, pool=name, open=True, **row))


def known_book(book: LeaseBook | None, name: str) -> LeaseBook:
    """Return the book. Raises UsageError if it is None: another command has deleted the pool meanwhile."""
    if book is None:
        raise UsageError(f"there is no pool {name!r}", hint="gpuops pool create --file templates/pool.yaml makes one")
    return book


def opened_database(state_dir: Path, url: str, *, write: bool) -> Database | None:
    """Return the database, with `write` after its tables were created or upgraded; None = there is nothing to read.

    Raises UsageError, StateDamaged.
    """
    if not write and not url and not os.path.lexists(state_dir / FILE_NAME):
        return None
    database = open_database(url, **_MESSAGES) if url else make_file(state_dir, FILE_NAME, None, **_MESSAGES)
    return to_write(database, Contents.POOLS, _has_tables) if write else to_read(database, _has_tables)


def _has_tables(connection: Connection, database: Database) -> bool:
    database.revision(connection)  # raises if a later gpuops wrote it
    return sql.inspect(connection).has_table(pools_table.name)


def _encode(record: object) -> str:
    return msgspec.json.encode(to_stored(record)).decode()


def _decode(body: str, kind: type[Value], pool: str) -> Value:
    try:
        return msgspec.convert(with_field_names(kind, msgspec.json.decode(body)), type=kind)
    except (*NOT_PARSED, msgspec.MsgspecError) as error:
        hint = "bring it back from a backup; nothing is lent"
        raise StateDamaged(f"the book of pool {pool} cannot be read: {error}", hint=hint) from error
