"""The books of a vCenter's pools, kept in a database: read, and changed in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec
from sqlalchemy import Connection, delete, insert, select, text
from sqlalchemy.exc import SQLAlchemyError

from gpuops.config.file import NOT_PARSED
from gpuops.errors import Locked, StateDamaged, UsageError
from gpuops.execute.journal.database import Database
from gpuops.execute.pool.tables import alone, found_database, leases_table, made_database, pools_table
from gpuops.model.stored import to_stored, with_field_names
from gpuops.model.workloads.lease_book import GpuLease, LeaseBook, LendingPool, PoolServer

SHOWN_ENDED: Final = 20
"""Leases that are over, the latest of them, which a book shows beside the open ones."""
_LOST_AFTER: Final = text(
    "SELECT set_config(name, CASE name WHEN 'tcp_keepalives_count' THEN '3' WHEN 'tcp_keepalives_idle' THEN '30' "
    "WHEN 'tcp_keepalives_interval' THEN '10' ELSE '300000' END, false) FROM pg_settings WHERE name IN "
    "('tcp_keepalives_count', 'tcp_keepalives_idle', 'tcp_keepalives_interval', 'idle_session_timeout')"
)
"""The server ends the session of a machine that is silent for a minute, which would be two hours, and that of a process
that asks nothing for five (a script in a guest takes two), as PostgreSQL 14 and later can."""
_SESSION: Final = text("SELECT pg_backend_pid()")
_NOT_ALONE: Final = "this machine was silent for too long: another one may work in the guests of pool {}"
_GOES_ON: Final = "the same again goes on, gpuops pool reclaim --due too"
Value = TypeVar("Value")
Decision = Callable[[LeaseBook | None], LeaseBook]
Look = Callable[[LeaseBook | None, LeaseBook, tuple[LeaseBook, ...]], None]
"""Told of a book before and after, and of the vCenter's other pools; what it raises leaves everything as it was."""


class PoolBooks:
    """The books of one vCenter. Every method raises StateDamaged."""

    def __init__(self, database: Database | None, vcenter: str) -> None:
        """`database`: None = there is none yet, and no pool."""
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
        """The same; nothing is made or changed."""
        database = found_database(state_dir, url)
        try:
            yield cls(database, vcenter)
        finally:
            if database is not None:
                database.close()

    def names(self) -> tuple[str, ...]:
        """Of all pools, in order."""
        if self._database is None:
            return ()
        query = select(pools_table.c.name).where(pools_table.c.vcenter == self._vcenter).order_by(pools_table.c.name)
        with self._database.reading() as connection:
            return tuple(map(str, connection.scalars(query)))

    def read(self, name: str, ended: int = 0) -> LeaseBook | None:
        """The book with its open leases, and so many of those that are over; None = there is none."""
        if self._database is None:
            return None
        with self._database.reading() as connection:
            return self._read(connection, name, ended)

    def foresee(self, name: str, decide: Decision, look: Look) -> tuple[LeaseBook | None, LeaseBook]:
        """What `change` would come to; nothing is written."""
        before = self.read(name)
        after = decide(before)
        if self._database is not None:
            with self._database.reading() as connection:
                look(before, after, self._others(connection, name))
        return before, after

    def change(self, name: str, decide: Decision, look: Look | None = None) -> tuple[LeaseBook | None, LeaseBook]:
        """The book before and after. `decide` is given the book as it is while nobody else changes one of this vCenter,
        and what it returns is durable when this returns; what it or `look` raises leaves everything as it was."""
        if self._database is None:
            raise StateDamaged("the book of pools was opened to read", hint="this is a fault of gpuops: report it")
        with self._database.writing() as connection:
            alone(connection, self._vcenter)
            before = self._read(connection, name, 0)
            after = decide(before)
            if look is not None:
                look(before, after, self._others(connection, name))
            if after != before:
                self._write(connection, before, after)
        return before, after

    def remove(self, name: str, may_go: Callable[[LeaseBook], bool]) -> bool:
        """Whether there is no such pool any more: it and its leases that are over are taken out, where it may go."""
        if self._database is None:
            raise StateDamaged("the book of pools was opened to read", hint="this is a fault of gpuops: report it")
        with self._database.writing() as connection:
            alone(connection, self._vcenter)
            book = self._read(connection, name, 0)
            if book is not None and not may_go(book):
                return False
            of_pool = (leases_table.c.vcenter == self._vcenter, leases_table.c.pool == name)
            connection.execute(delete(leases_table).where(*of_pool))
            mine = (pools_table.c.vcenter == self._vcenter, pools_table.c.name == name)
            connection.execute(delete(pools_table).where(*mine))
        return True

    @contextmanager
    def alone(self, name: str) -> Iterator[Callable[[], None]]:
        """While this lasts no process of another machine works in the guests of this pool, where the database is one
        that machines share. Raises Locked.

        What it gives is called before each thing that is done: a machine that stood still, or was cut off, for minutes
        is alone no more once it goes on, and is told so by Locked.
        """
        if self._database is None or self._database.engine.dialect.name != "postgresql":
            yield lambda: None
            return
        told = {"lock": f"gpuops pool guests {self._vcenter} {name}"}
        # a lock of the session: a transaction would be idle for longer than the database lets one be
        with self._database.session() as connection:
            if not connection.scalar(text("SELECT pg_try_advisory_lock(hashtext(:lock))"), told):
                raise Locked(f"another machine works in the guests of pool {name}", hint="wait for it to end")
            connection.execute(_LOST_AFTER)
            session = connection.scalar(_SESSION)

            def still_alone() -> None:
                try:
                    is_same = connection.scalar(_SESSION) == session
                except SQLAlchemyError as error:
                    raise Locked(_NOT_ALONE.format(name), hint=_GOES_ON) from error
                if not is_same:
                    raise Locked(_NOT_ALONE.format(name), hint=_GOES_ON)

            try:
                yield still_alone
            finally:
                if not connection.invalidated:  # with its session the lock is gone too
                    connection.execute(text("SELECT pg_advisory_unlock(hashtext(:lock))"), told)

    def _others(self, connection: Connection, name: str) -> tuple[LeaseBook, ...]:
        """The books of all pools of this vCenter but the one of that name, with their open leases."""
        mine = (pools_table.c.vcenter == self._vcenter, pools_table.c.name != name)
        names = connection.scalars(select(pools_table.c.name).where(*mine)).all()
        return tuple(book for each in names if (book := self._read(connection, each, 0)) is not None)

    def _read(self, connection: Connection, name: str, ended: int) -> LeaseBook | None:
        mine = (pools_table.c.vcenter == self._vcenter, pools_table.c.name == name)
        row = connection.execute(select(pools_table).where(*mine)).one_or_none()
        if row is None:
            return None
        of_pool = (leases_table.c.vcenter == self._vcenter, leases_table.c.pool == name)
        bodies = select(leases_table.c.body)
        found = list(connection.scalars(bodies.where(*of_pool, leases_table.c.open.is_(True))))
        if ended:
            over = bodies.where(*of_pool, leases_table.c.open.is_(False))
            found += connection.scalars(over.order_by(leases_table.c.asked_at.desc()).limit(ended))
        pool = _decoded(row.settings, LendingPool, name)
        servers = _decoded(row.servers, tuple[PoolServer, ...], name)
        return LeaseBook(pool, servers).with_leases(_decoded(each, GpuLease, name) for each in found)

    def _write(self, connection: Connection, before: LeaseBook | None, after: LeaseBook) -> None:
        """What of the pool and of its leases is another than before."""
        name = after.pool.name
        if before is None or (before.pool, before.servers) != (after.pool, after.servers):
            mine = (pools_table.c.vcenter == self._vcenter, pools_table.c.name == name)
            connection.execute(delete(pools_table).where(*mine))
            row = {"name": name, "settings": _encoded(after.pool), "servers": _encoded(after.servers)}
            connection.execute(insert(pools_table).values(vcenter=self._vcenter, **row))
        known = set(before.leases) if before is not None else set()
        changed = [each for each in after.leases if each not in known]
        if changed:
            of_pool = (leases_table.c.vcenter == self._vcenter, leases_table.c.pool == name)
            ids = [each.id for each in changed]
            connection.execute(delete(leases_table).where(*of_pool, leases_table.c.id.in_(ids)))
            connection.execute(insert(leases_table), [self._row(name, each) for each in changed])

    def _row(self, name: str, lease: GpuLease) -> dict[str, Any]:
        return {
            "vcenter": self._vcenter,
            "pool": name,
            "id": lease.id,
            "open": lease.open,
            "asked_at": lease.asked_at.isoformat(),
            "body": _encoded(lease),
        }


def known_book(found: LeaseBook | None, name: str) -> LeaseBook:
    """The book. Raises UsageError where there is none."""
    if found is None:
        raise UsageError(f"there is no pool {name!r}", hint="gpuops pool create --file templates/pool.yaml makes one")
    return found


def _encoded(value: object) -> str:
    return msgspec.json.encode(to_stored(value)).decode()


def _decoded(body: str, kind: type[Value], pool: str) -> Value:
    try:
        return msgspec.convert(with_field_names(kind, msgspec.json.decode(body)), type=kind)
    except (*NOT_PARSED, msgspec.MsgspecError) as error:
        raise StateDamaged(
            f"the book of pool {pool} cannot be read: {error}", hint="bring it back from a backup; nothing is lent"
        ) from error
