"""The books of a vCenter's pools, kept in a database: read, and changed in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Connection, delete, insert, select

from gpuops.errors import StateDamaged, UsageError
from gpuops.execute.journal.database import Database
from gpuops.execute.pool.tables import alone, found_database, leases_table, made_database, pools_table
from gpuops.files.file import NOT_PARSED
from gpuops.model.stored import to_stored, with_field_names
from gpuops.model.workloads.lease_book import GpuLease, LeaseBook, LendingPool, PoolServer

_LEAVING: Final = '"state":"leaving"', '"state":"draining"'
"""An earlier gpuops kept servers that it was removing; its requests for a later lease are not read at all."""
Value = TypeVar("Value")
Decision = Callable[[LeaseBook | None], LeaseBook]
Look = Callable[[LeaseBook | None, LeaseBook, tuple[LeaseBook, ...]], None]
"""Called with a book before and after, and the vCenter's other pools; if it raises, nothing is changed."""


class PoolBooks:
    """The books of one vCenter. Every method raises StateDamaged."""

    def __init__(self, database: Database | None, vcenter: str) -> None:
        """`database`: None = there is no database, and no pool."""
        self._database = database
        self._vcenter = vcenter

    @classmethod
    @contextmanager
    def to_write(cls, state_dir: Path, url: str, vcenter: str) -> Iterator[Self]:
        """`url` empty = the file in the state directory. Raises UsageError too."""
        database = made_database(state_dir, url)
        with closing(database):
            yield cls(database, vcenter)

    @classmethod
    @contextmanager
    def to_read(cls, state_dir: Path, url: str, vcenter: str) -> Iterator[Self]:
        """As `to_write`, but nothing is made or changed."""
        database = found_database(state_dir, url)
        try:
            yield cls(database, vcenter)
        finally:
            if database is not None:
                database.close()

    def names(self) -> tuple[str, ...]:
        """Return the names of all pools, in order."""
        if self._database is None:
            return ()
        query = select(pools_table.c.name).where(pools_table.c.vcenter == self._vcenter).order_by(pools_table.c.name)
        with self._database.reading() as connection:
            return tuple(map(str, connection.scalars(query)))

    def read(self, name: str, ended: int = 0) -> LeaseBook | None:
        """Return the book with its open leases and the `ended` newest closed ones; None = there is no such pool."""
        if self._database is None:
            return None
        with self._database.reading() as connection:
            return self._read(connection, name, ended)

    def foresee(self, name: str, decide: Decision, look: Look) -> tuple[LeaseBook | None, LeaseBook]:
        """Return the book before and after, as `change` does; writes nothing. Raises what `decide` or `look` raises."""
        before = self.read(name)
        after = decide(before)
        if self._database is not None:
            with self._database.reading() as connection:
                look(before, after, self._others(connection, name))
        return before, after

    def change(self, name: str, decide: Decision, look: Look) -> tuple[LeaseBook | None, LeaseBook]:
        """Change the book, and return it before and after.

        While `decide` runs, no other process changes a pool of this vCenter. The change is on disk when this returns.
        If `decide` or `look` raises, nothing is changed.
        """
        with self._to_write().writing() as connection:
            alone(connection, self._vcenter)
            before = self._read(connection, name, 0)
            after = decide(before)
            look(before, after, self._others(connection, name))
            if after != before:
                self._write(connection, before, after)
        return before, after

    def remove(self, name: str) -> None:
        """Take the pool out of the book with its closed leases, unless it has servers or open leases again."""
        database = self._to_write()
        with database.writing() as connection:
            alone(connection, self._vcenter)
            book = self._read(connection, name, 0)
            if book is None or book.servers or book.leases:
                return
            of_pool = (leases_table.c.vcenter == self._vcenter, leases_table.c.pool == name)
            connection.execute(delete(leases_table).where(*of_pool))
            connection.execute(delete(pools_table).where(*self._pool(name)))

    def _to_write(self) -> Database:
        if self._database is None:
            raise StateDamaged("the book of pools was opened to read", hint="this is a fault of gpuops: report it")
        return self._database

    def _pool(self, name: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        return pools_table.c.vcenter == self._vcenter, pools_table.c.name == name

    def _others(self, connection: Connection, name: str) -> tuple[LeaseBook, ...]:
        """Return the books of all other pools of this vCenter, with their open leases."""
        is_other = (pools_table.c.vcenter == self._vcenter, pools_table.c.name != name)
        names = connection.scalars(select(pools_table.c.name).where(*is_other)).all()
        return tuple(book for other in names if (book := self._read(connection, other, 0)) is not None)

    def _read(self, connection: Connection, name: str, ended: int) -> LeaseBook | None:
        row = connection.execute(select(pools_table).where(*self._pool(name))).one_or_none()
        if row is None:
            return None
        of_pool = (leases_table.c.vcenter == self._vcenter, leases_table.c.pool == name)
        bodies = select(leases_table.c.body)
        is_request = leases_table.c.body.like('%"state":"asked"%') | leases_table.c.body.like('%"state":"waiting"%')
        leases = list(connection.scalars(bodies.where(*of_pool, leases_table.c.open.is_(True), ~is_request)))
        if ended:
            over = bodies.where(*of_pool, leases_table.c.open.is_(False))
            leases += connection.scalars(over.order_by(leases_table.c.asked_at.desc()).limit(ended))
        pool = _decoded(row.settings, LendingPool, name)
        servers = _decoded(row.servers.replace(*_LEAVING), tuple[PoolServer, ...], name)
        return LeaseBook(pool, servers).with_leases(_decoded(body, GpuLease, name) for body in leases)

    def _write(self, connection: Connection, before: LeaseBook | None, after: LeaseBook) -> None:
        """Write the pool and the leases that changed."""
        name = after.pool.name
        if before is None or (before.pool, before.servers) != (after.pool, after.servers):
            connection.execute(delete(pools_table).where(*self._pool(name)))
            row = {"name": name, "settings": _encoded(after.pool), "servers": _encoded(after.servers)}
            connection.execute(insert(pools_table).values(vcenter=self._vcenter, **row))
        known = set(before.leases) if before is not None else set()
        changed = [lease for lease in after.leases if lease not in known]
        if changed:
            of_pool = (leases_table.c.vcenter == self._vcenter, leases_table.c.pool == name)
            ids = [lease.id for lease in changed]
            connection.execute(delete(leases_table).where(*of_pool, leases_table.c.id.in_(ids)))
            connection.execute(insert(leases_table), [self._row(name, lease) for lease in changed])

    def _row(self, name: str, lease: GpuLease) -> dict[str, Any]:
        return {
            "vcenter": self._vcenter,
            "pool": name,
            "id": lease.id,
            "open": lease.holds,
            "asked_at": lease.asked_at.isoformat(),
            "body": _encoded(lease),
        }


def known_book(book: LeaseBook | None, name: str) -> LeaseBook:
    """Return the book. Raises UsageError if it is None."""
    if book is None:
        raise UsageError(f"there is no pool {name!r}", hint="gpuops pool create --file templates/pool.yaml makes one")
    return book


def _encoded(value: object) -> str:
    return msgspec.json.encode(to_stored(value)).decode()


def _decoded(body: str, kind: type[Value], pool: str) -> Value:
    try:
        return msgspec.convert(with_field_names(kind, msgspec.json.decode(body)), type=kind)
    except (*NOT_PARSED, msgspec.MsgspecError) as error:
        raise StateDamaged(
            f"the book of pool {pool} cannot be read: {error}", hint="bring it back from a backup; nothing is lent"
        ) from error
