"""The book: records that live longer than a run, such as pools with their leases, in the database of the journal.

Problem: commands, nights and several machines read such a record, decide, and write it. None may overwrite what another
has written since, a crash may leave nothing half written, and an auditor must see who else changed a record.

Choice: one table. A record has a kind, a key that is unique in its vCenter, and a body: the JSON of one frozen value. A
change reads, decides and writes in one transaction, and only one such transaction of a vCenter runs at a time. Crash
rule: a change is stored completely or not at all, and it is durable when the block ends. Each change also adds an entry
with the checksum of the body to a chain of the journal's tables, which `rotate audit verify` compares with the table.

The book has its own chain for each vCenter: a night appends to the journal all the time, and a change of a pool by
another command must not come in between.

Versions count the changes of a record from 1. Version 0 was taken over from the tables of an earlier gpuops, and is in
the chain from its first change on.

Not in the book is what belongs to one machine or must work without the journal: files of the state directory, each of
whose modules gives the reason, and all of which `write_private` replaces in one step; and streams of measurements and
of output, which have tables of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Generic, Self, TypeVar

import msgspec
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    FromClause,
    String,
    delete,
    func,
    insert,
    inspect,
    select,
    text,
    union_all,
    update,
)

from gpuops import clock
from gpuops.errors import StateDamaged
from gpuops.execute.journal.database import BOOK_OF, Database, book_table, bring_up
from gpuops.execute.journal.stores import (
    FILE_NAME,
    Broken,
    Overtaken,
    append_entry,
    file_database,
    make_file,
    open_database,
)
from gpuops.execute.migrations import HEAD, Contents
from gpuops.execute.state.lock import DatabaseLock, hold_to_the_end
from gpuops.files.file import NOT_PARSED
from gpuops.model.stored import to_stored
from gpuops.model.stored_json import decode_stored

Body = TypeVar("Body")


@dataclass(frozen=True, slots=True)
class BookKind(Generic[Body]):
    """One kind of record."""

    name: str
    """Its name in the table, which never changes."""
    type: type[Body]
    """A dataclass with stored names."""
    called: str
    """The name of a record in messages: a text with `{key}`."""
    hint: str
    """The next step of the admin if a record cannot be read."""


class BookView:
    """The records of one vCenter at one moment. Methods raise StateDamaged."""

    def __init__(self, connection: Connection | None, source: FromClause | None, vcenter: str) -> None:
        """`source`: the table, or a query in its place; None = there are no records."""
        self._connection, self._source, self._vcenter = connection, source, vcenter

    def keys(self, kind: BookKind[Body]) -> tuple[str, ...]:
        """Return all keys, in order."""
        return tuple(sorted(self._bodies(kind)))

    def every(self, kind: BookKind[Body]) -> dict[str, Body]:
        """Return all records by key, in the order of the keys."""
        return {key: _decode(kind, key, body) for key, body in sorted(self._bodies(kind).items())}

    def read(self, kind: BookKind[Body], key: str) -> Body | None:
        """Return the record; None = there is none."""
        body = self._bodies(kind, key).get(key)
        return None if body is None else _decode(kind, key, body)

    def _bodies(self, kind: BookKind[Body], key: str | None = None) -> dict[str, str]:
        if self._connection is None or self._source is None:
            return {}
        columns = self._source.c
        query = select(columns.key, columns.body).where(columns.vcenter == self._vcenter, columns.kind == kind.name)
        rows = self._connection.execute(query if key is None else query.where(columns.key == key))
        return {str(row.key): str(row.body) for row in rows}


class BookChange(BookView):
    """One transaction that may change the records of a vCenter."""

    def __init__(self, connection: Connection, vcenter: str) -> None:
        super().__init__(connection, book_table, vcenter)
        self._writes_to = connection

    def put(self, kind: BookKind[Body], key: str, record: Body) -> None:
        """Write the record, unless it is stored exactly like this."""
        body = msgspec.json.encode(to_stored(record)).decode()
        is_this = self._matches(kind, key)
        stored = self._writes_to.execute(select(book_table.c.version, book_table.c.body).where(*is_this)).one_or_none()
        if stored is not None and stored.body == body:
            return
        version = 1 if stored is None else stored.version + 1
        fields = {"version": version, "body": body, "changed_at": func.now()}
        if stored is None:
            place = {"vcenter": self._vcenter, "kind": kind.name, "key": key}
            self._writes_to.execute(insert(book_table).values(**place, **fields))
        else:
            self._writes_to.execute(update(book_table).where(*is_this).values(**fields))
        self._append_entry(kind, key, version, sha256_of(body))  # `rotate audit verify` compares the record with this

    def remove(self, kind: BookKind[Body], key: str) -> None:
        """Delete the record, if there is one."""
        if self._writes_to.execute(delete(book_table).where(*self._matches(kind, key))).rowcount:
            self._append_entry(kind, key, 0, "")

    def confirm(self, kind: BookKind[Body], key: str) -> None:
        """Note that the record still holds, without a change."""
        self._writes_to.execute(update(book_table).where(*self._matches(kind, key)).values(changed_at=func.now()))

    def unconfirmed(self, kind: BookKind[Body], time: timedelta) -> frozenset[str]:
        """Return the keys of records that were neither changed nor confirmed for this time, by the database's clock."""
        query = select(book_table.c.key, book_table.c.changed_at, func.now().label("now"))
        rows = self._writes_to.execute(
            query.where(book_table.c.vcenter == self._vcenter, book_table.c.kind == kind.name)
        )
        return frozenset(str(row.key) for row in rows if row.changed_at < row.now - time)

    def _matches(self, kind: BookKind[Body], key: str) -> tuple[ColumnElement[bool], ...]:
        return book_table.c.vcenter == self._vcenter, book_table.c.kind == kind.name, book_table.c.key == key

    def _append_entry(self, kind: BookKind[Body], key: str, version: int, sha256: str) -> None:
        """Append the entry about this change to the chain. Raises StateDamaged."""
        entry = {"kind": kind.name, "key": key, "version": version, "sha256": sha256}
        try:
            append_entry(self._writes_to, f"{BOOK_OF}{self._vcenter}", clock.wall_clock(), entry)
        except (Broken, Overtaken) as error:
            raise StateDamaged(
                f"the entries about the book were changed by a program other than gpuops: {error}",
                hint="gpuops rotate audit verify shows how far they can be trusted",
            ) from error


class Book:
    """The book of one vCenter. Methods raise StateDamaged."""

    def __init__(self, database: Database | None, vcenter: str) -> None:
        """`database`: None = there is no database, and no record."""
        self.database, self._vcenter = database, vcenter

    @classmethod
    @contextmanager
    def open(cls, state_dir: Path, url: str, vcenter: str, *, write: bool, **messages: str) -> Iterator[Self]:
        """Yield the book in the file of the state directory, or in the PostgreSQL database at the URL.

        Without `write` nothing is made or changed; with it, missing tables are made and older ones changed. `messages`
        are for `Database`. Raises UsageError, StateDamaged.
        """
        if url:
            database: Database | None = open_database(url, **messages)
        elif write:
            database = make_file(state_dir, FILE_NAME, None, **messages)
        else:
            database = file_database(state_dir, **messages)
        try:
            if write and database is not None:
                bring_up(database, Contents.JOURNAL)
            yield cls(database, vcenter)
        finally:
            if database is not None:
                database.close()

    @contextmanager
    def reading(self) -> Iterator[BookView]:
        """Yield one consistent view."""
        if self.database is None:
            yield BookView(None, None, self._vcenter)
            return
        with self.database.reading() as connection:
            yield BookView(connection, _records_source(connection, self.database), self._vcenter)

    @contextmanager
    def changing(self) -> Iterator[BookChange]:
        """Yield a transaction. Until it ends, no other one changes the book of this vCenter.

        What it wrote is durable when the block ends. If the block raises, nothing is changed.
        """
        if self.database is None:
            raise StateDamaged(
                "gpuops opened its journal to read, and cannot write to it", hint="this is a fault of gpuops: report it"
            )
        with self.database.writing() as connection:
            hold_to_the_end(connection, DatabaseLock.BOOK, self._vcenter)
            yield BookChange(connection, self._vcenter)


def take_over(earlier: Database, book: Book) -> None:
    """Move the records of an earlier version from a file of their own into the book. Raises StateDamaged.

    After a crash in between they are in both places; the next call keeps those in the book and drops the file's tables.
    """
    with earlier.writing() as connection:  # no other process moves them meanwhile
        source = _earlier_records(connection)
        if source is None or book.database is None:
            return
        rows = connection.execute(select(source)).all()
        with book.database.writing() as target:
            stored = target.execute(select(book_table.c.vcenter, book_table.c.kind, book_table.c.key)).all()
            places = {tuple(row) for row in stored}
            for row in rows:
                if (row.vcenter, row.kind, row.key) not in places:
                    values = {**row._mapping, "version": 0, "changed_at": func.now()}
                    target.execute(insert(book_table).values(values))
        for table in inspect(connection).get_table_names():
            connection.execute(text(f'DROP TABLE "{table}"'))


def has_earlier_records(database: Database) -> bool:
    """Return whether the database has tables of an earlier version. Raises StateDamaged."""
    with database.reading() as connection:
        return _earlier_records(connection) is not None


def _earlier_records(connection: Connection) -> FromClause | None:
    """Return a query that reads the tables of an earlier version as records, or None."""
    from gpuops.execute.migrations.versions import v0005_book  # loads alembic

    tables = inspect(connection).get_table_names()
    columns = [Column(name, String) for name in ("vcenter", "kind", "key", "body")]
    queries = [
        text(v0005_book.dialect_sql(query, connection.dialect.name)).columns(*columns)
        for table, (_, query) in v0005_book.EARLIER.items()
        if table in tables
    ]
    return union_all(*queries).subquery() if queries else None


def sha256_of(body: str) -> str:
    """Return the checksum of a body in the chain."""
    return hashlib.sha256(body.encode()).hexdigest()


def _records_source(connection: Connection, database: Database) -> FromClause | None:
    """Return the table of the book, before an upgrade a query over the earlier tables in its place, or None."""
    return book_table if database.revision(connection) == HEAD else _earlier_records(connection)


def _decode(kind: BookKind[Body], key: str, body: str) -> Body:
    try:
        return decode_stored(kind.type, msgspec.json.decode(body))
    except (*NOT_PARSED, msgspec.MsgspecError) as error:
        raise StateDamaged(f"{kind.called.format(key=key)} cannot be read: {error}", hint=kind.hint) from error
