"""Where the records of one vCenter are stored: in memory, in an SQLite file of the state directory, or in PostgreSQL.

`SqlStore` chains records when it writes them and checks them when it reads them. A PostgreSQL database, which several
machines share, needs psycopg (`pip install 'gpuops-vsphere[postgresql]'`). The database decides which process may write
next: the head of a vCenter moves only from where the writer saw it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from sqlalchemy import (
    URL,
    BindParameter,
    Connection,
    Engine,
    Row,
    bindparam,
    create_engine,
    event,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from gpuops.config.vcenter.journal_url import parsed
from gpuops.errors import StateDamaged, UsageError
from gpuops.execute.journal.database import (
    RETURN_HINT,
    Database,
    has_journal,
    heads_table,
    records_table,
    sqlite_engine,
    to_read,
    upgrade,
)
from gpuops.execute.journal.record import GENESIS, Kind, Record, checksum, text_of
from gpuops.execute.migrations import HEAD, Contents
from gpuops.execute.state.state_dir import prepare_state_dir, private_file


class Overtaken(Exception):
    """Another process appended first: read the new records, and try again."""


class Store(Protocol):
    """The only interface between the journal and the disk. Every method raises only StateDamaged, `append` Overtaken
    too."""

    def read(self, after: int | None) -> Sequence[Record]:
        """Return the records after that one, in order; None: from the last checkpoint on, or from the first record."""
        ...

    def append(self, records: Sequence[Record]) -> None:
        """Append the records, and return when all of them are durable; on Overtaken none of them is stored.

        After StateDamaged they may be stored or not, as after a power cut.
        """
        ...

    def close(self) -> None: ...


class MemoryStore:
    """Implements `Store`. It is as durable as its process; several journals may share one.

    Used for simulated nights, and when a disk fails during a return.
    """

    def __init__(self, records: Iterable[Record] = (), *, after: int = 0) -> None:
        """`after` is the number of records that are stored elsewhere."""
        self.records = list(records)
        self._after = after
        self._checkpoint = 0
        for record in self.records:
            self._note(record)

    def read(self, after: int | None) -> Sequence[Record]:
        begin = max(self._checkpoint - 1, self._after) if after is None else after
        return self.records[begin - self._after :]

    def append(self, records: Sequence[Record]) -> None:
        if records[0].seq != self._after + len(self.records) + 1:
            raise Overtaken
        self.records.extend(records)
        for record in records:
            self._note(record)

    def close(self) -> None:
        pass

    def _note(self, record: Record) -> None:
        if record.kind is Kind.CHECKPOINT:
            self._checkpoint = record.seq


class FallbackStore:
    """Implements `Store` for a run that returns: when the disk or the database fails, records continue in memory.

    Taking without a durable journal could lose a desktop, so it is refused. Returning without one cannot: the marker in
    vCenter names what to return, and is cleared only when the VM is seen back. So a return continues without its
    journal, and reports that at its end. `lost` is why the durable store is no longer used; None while it is used.
    """

    def __init__(self, opening: Callable[[], Store]) -> None:
        self.lost: StateDamaged | None = None
        try:
            self._store = opening()
        except StateDamaged as damaged:
            self._store, self.lost = MemoryStore(), damaged

    def read(self, after: int | None) -> Sequence[Record]:
        try:
            return self._store.read(after)
        except StateDamaged as damaged:
            return self._continue_in_memory(after or 0, damaged).read(after)

    def append(self, records: Sequence[Record]) -> None:
        try:
            self._store.append(records)
        except StateDamaged as damaged:
            self._continue_in_memory(records[0].seq - 1, damaged).append(records)

    def close(self) -> None:
        self._store.close()

    def abandon(self, damaged: StateDamaged, after: int) -> None:
        """Continue in memory after that record: the stored records cannot be trusted."""
        self._continue_in_memory(after, damaged)

    def _continue_in_memory(self, after: int, damaged: StateDamaged) -> MemoryStore:
        self._store.close()
        self.lost = damaged
        self._store = spare = MemoryStore(after=after)
        return spare


_OF_VCENTER: Final[BindParameter[str]] = bindparam("of_vcenter")
_HEAD: Final = select(heads_table).where(heads_table.c.vcenter == _OF_VCENTER)
_FIRST: Final = select(func.min(records_table.c.seq)).where(records_table.c.vcenter == _OF_VCENTER)
_CHECKSUM: Final = select(records_table.c.checksum).where(
    records_table.c.vcenter == _OF_VCENTER, records_table.c.seq == bindparam("at_seq")
)
_ROWS: Final = (
    select(records_table)
    .where(records_table.c.vcenter == _OF_VCENTER, records_table.c.seq > bindparam("after_seq"))
    .order_by(records_table.c.seq)
)
_ADVANCE: Final = update(heads_table).where(
    heads_table.c.vcenter == _OF_VCENTER,
    heads_table.c.seq == bindparam("was_seq"),
    heads_table.c.checksum == bindparam("was_checksum"),
)
"""Statements are built once: each step of a night appends three records."""


class SqlStore:
    """Implements `Store` over one database, for one vCenter."""

    def __init__(self, database: Database, vcenter: str) -> None:
        self._database = database
        self._vcenter = vcenter
        self._last = (0, GENESIS)
        """The last record that this process has read or written, and its checksum."""

    def read(self, after: int | None) -> Sequence[Record]:
        try:
            with self._database.reading() as connection:
                head = head_of(connection, self._vcenter)
                chain = Chain(self._vcenter, *self._start_of_read(connection, after, head.checkpoint))
                records = [chain.follow(row) for row in rows_of(connection, self._vcenter, chain.seq)]
                chain.ends_at(head.seq, head.checksum)
        except Broken as broken:
            raise StateDamaged(
                f"the journal {self._database.name} was changed by a program other than gpuops: {broken}",
                hint=f"gpuops rotate audit verify shows how far it can be trusted; {RETURN_HINT}",
            ) from broken
        self._last = (chain.seq, chain.checksum)
        return records

    def append(self, records: Sequence[Record]) -> None:
        seq, previous = self._last
        if records[0].seq != seq + 1:
            raise Overtaken
        rows, head = _chain_rows(self._vcenter, previous, records)
        try:
            with self._database.writing() as connection:
                _advance(connection, self._vcenter, self._last, head)
                connection.execute(insert(records_table), rows)
        except StateDamaged as failed:
            if isinstance(failed.__cause__, IntegrityError):  # another process wrote the first record of this vCenter
                raise Overtaken from failed
            raise
        self._last = (rows[-1]["seq"], rows[-1]["checksum"])

    def close(self) -> None:
        self._database.close()

    def _start_of_read(self, connection: Connection, after: int | None, checkpoint: int) -> tuple[int, str]:
        """Return the record after which to read, and its checksum."""
        if after == self._last[0]:
            return self._last
        begin = after if after is not None else max(checkpoint - 1, 0)  # the record before the checkpoint
        if begin == 0:
            return 0, GENESIS
        checksum = connection.scalar(_CHECKSUM, {"of_vcenter": self._vcenter, "at_seq": begin})
        if checksum is None:
            raise Broken(begin, "it is missing")
        return begin, checksum


def append_entry(connection: Connection, chain: str, at: datetime, body: Mapping[str, Any]) -> None:
    """Append an entry to a chain that is not a vCenter's, in a transaction in which no other process appends to it.

    Raises Broken where the head is missing.
    """
    head = head_of(connection, chain)
    row = _row(chain, head.seq + 1, "", "entry", at, body, head.checksum)
    _advance(connection, chain, (head.seq, head.checksum), {key: row[key] for key in ("seq", "checksum")})
    connection.execute(insert(records_table), row)


class Broken(Exception):
    """The first record that does not match the ones before it."""

    def __init__(self, seq: int, reason: str) -> None:
        super().__init__(f"record {seq}: {reason}")
        self.seq = seq
        self.reason = reason


class Head(Protocol):
    """The database's own entry about its last record."""

    @property
    def seq(self) -> int: ...
    @property
    def checksum(self) -> str: ...
    @property
    def checkpoint(self) -> int: ...


class Chain:
    """Follows rows in order, and checks each against the one before."""

    def __init__(self, vcenter: str, seq: int = 0, previous: str = GENESIS) -> None:
        self._vcenter = vcenter
        self.seq = seq
        self.checksum = previous

    def follow(self, row: Row[Any]) -> Record:
        """Return the record in this row. Raises Broken."""
        self.check(row)
        try:
            return Record(row.seq, row.run, Kind(row.kind), datetime.fromisoformat(row.at), json.loads(row.body))
        except (ValueError, RecursionError) as error:
            raise Broken(row.seq, f"this version cannot read it: {error}") from error

    def check(self, row: Row[Any]) -> None:
        """Raise Broken unless this row comes next and is as it was written."""
        expected = self.seq + 1
        if row.seq != expected:
            raise Broken(expected, f"it is missing; record {row.seq} comes after {self.seq}")
        if not all(isinstance(field, str) for field in (row.run, row.kind, row.at, row.body)):
            raise Broken(expected, "a field is not text")
        computed = checksum(self.checksum, self._vcenter, row.seq, row.run, row.kind, row.at, row.body)
        if computed != row.checksum:
            raise Broken(expected, "its text does not fit its checksum: it was changed, or moved here")
        self.seq, self.checksum = expected, computed

    def ends_at(self, seq: int, last: str) -> None:
        """Raise Broken unless the last row that was followed is the last one that was written."""
        if self.seq < seq:
            raise Broken(self.seq + 1, f"it is missing; {seq} records were written")
        if self.seq > seq:
            raise Broken(seq + 1, f"only {seq} records were written by gpuops")
        if self.checksum != last:
            raise Broken(seq, "its checksum is not the one that was written last")


class _NoHead:
    """The head of a chain without records."""

    seq = 0
    checksum = GENESIS
    checkpoint = 0


def head_of(connection: Connection, vcenter: str) -> Head:
    """Return the head of this vCenter; for a new vCenter, the position before the first record.

    Raises Broken if there are records and no head.
    """
    head = connection.execute(_HEAD, {"of_vcenter": vcenter}).one_or_none()
    if head is not None:
        return head
    first = connection.scalar(_FIRST, {"of_vcenter": vcenter})
    if first is not None:
        raise Broken(first, "the journal has records of this vCenter without a head, which gpuops never writes")
    return _NoHead()


def rows_of(connection: Connection, vcenter: str, after: int) -> Iterator[Row[Any]]:
    """Yield the rows of this vCenter after that position, in order, reading a thousand at a time."""
    parameters = {"of_vcenter": vcenter, "after_seq": after}
    with connection.execute(_ROWS, parameters, execution_options={"yield_per": 1000}) as rows:
        yield from rows


def _chain_rows(vcenter: str, previous: str, records: Iterable[Record]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of these records, and the new values of the head."""
    rows: list[dict[str, Any]] = []
    head: dict[str, Any] = {}
    for record in records:
        rows.append(_row(vcenter, record.seq, record.run, str(record.kind), record.at, record.body, previous))
        previous = rows[-1]["checksum"]
        head |= {"seq": record.seq, "checksum": previous}
        if record.kind is Kind.CHECKPOINT:
            head["checkpoint"] = record.seq
    return rows, head


def _row(
    vcenter: str, seq: int, run: str, kind: str, at: datetime, body: Mapping[str, Any], previous: str
) -> dict[str, Any]:
    at_text, body_text = at.isoformat(), text_of(body)
    fields = {"vcenter": vcenter, "seq": seq, "run": run, "kind": kind, "at": at_text, "body": body_text}
    return {**fields, "checksum": checksum(previous, vcenter, seq, run, kind, at_text, body_text)}


def _advance(connection: Connection, vcenter: str, last: tuple[int, str], head: dict[str, Any]) -> None:
    """Move the head forward if it is still at `last`. Raises Overtaken."""
    seq, previous = last
    if seq == 0:
        connection.execute(insert(heads_table).values({"vcenter": vcenter, "checkpoint": 0, **head}))
        return
    mine = {"of_vcenter": vcenter, "was_seq": seq, "was_checksum": previous}
    if connection.execute(_ADVANCE, {**mine, **head}).rowcount != 1:
        raise Overtaken


FILE_NAME: Final = "journal.sqlite"
COMPANIONS: Final = ("-wal", "-shm", "-journal")
"""Files that SQLite keeps next to it, and for which it would follow a symbolic link."""

CONNECT_TIMEOUT_S: Final = "10"
POOLER_TRIES: Final = 5
"""How often a pooler is looked for: another client of it may take the server process in between."""

KEEPALIVES: Final = {"keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
"""After a minute without an answer the database counts as lost: a run must not wait for one for ever."""


def open_store(state_dir: Path, url: str, vcenter: str) -> Store:
    """Open the store for writing: create its tables, or upgrade them to this version. `url` "": use the file.

    Raises UsageError, StateDamaged.
    """
    database = open_database(url) if url else make_file(state_dir)
    try:
        with database.reading() as connection:
            is_current = has_journal(connection, database) and database.revision(connection) == HEAD
        if not is_current:
            upgrade(database, Contents.JOURNAL)
    except BaseException:
        database.close()
        raise
    return SqlStore(database, vcenter)


def look_into_store(state_dir: Path, url: str, vcenter: str) -> Store | None:
    """Open the store for reading; change nothing. Return None if it does not exist. Raises UsageError, StateDamaged."""
    database = open_database(url) if url else file_database(state_dir)
    readable = to_read(database, has_journal) if database is not None else None
    return SqlStore(readable, vcenter) if readable is not None else None


def file_database(state_dir: Path, **names: str) -> Database | None:
    """Return the file's database; None if there is no file. `names` is for `Database`.

    Raises StateDamaged if the file cannot be used or other users may read it.
    """
    if not os.path.lexists(state_dir / FILE_NAME):  # a link to nowhere is no missing journal
        return None
    return make_file(state_dir, FILE_NAME, None, **names)


def make_file(state_dir: Path, file_name: str = FILE_NAME, page_bytes: int | None = None, **names: str) -> Database:
    """Open the file, which no other user may read; create it if it is missing, with pages of this size if given.

    `names` is for `Database`. Raises StateDamaged.
    """
    path = state_dir / file_name
    prepare_state_dir(state_dir)
    private_file(path)
    for suffix in COMPANIONS:
        private_file(state_dir / f"{file_name}{suffix}", make=False)
    return Database(sqlite_engine(str(path), page_bytes), str(path), **names)


def open_database(text: str, **names: str) -> Database:
    """Return the database at that URL; nothing is sent to it yet. `names` is for `Database`. Raises UsageError."""
    url = parsed(text)
    engine = create_engine(_with_time_limits(url), pool_pre_ping=True)
    event.listen(engine, "first_connect", partial(_refuse_transaction_pooler, engine, url_for_messages(url)))
    event.listen(engine, "connect", _make_commits_durable)
    return Database(engine, url_for_messages(url), **names)


def refuse_transaction_pooler(text: str) -> None:
    """Raise UsageError where the database at that URL is reached through a pooler in transaction mode, and StateDamaged
    where it does not answer. Changes nothing."""
    with closing(open_database(text)) as database, database.reading():
        pass  # the first connection of a database is checked


def url_for_messages(url: URL) -> str:
    """Return the URL for messages: without the password, and without parameters, which may hold one too."""
    return url.set(drivername="postgresql", password=None, query={}).render_as_string()


def _with_time_limits(url: URL) -> URL:
    """Return the URL with libpq's time limits added, unless the URL sets them."""
    defaults = {"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "gpuops", **KEEPALIVES}
    return url.update_query_dict({key: setting for key, setting in defaults.items() if key not in url.query})


def _refuse_transaction_pooler(engine: Engine, name: str, connection: Any, _record: object) -> None:
    """Raise UsageError where a pooler gives each transaction another connection of the server.

    Settings, prepared statements, locks and notices of a session would be lost between two transactions. A pooler makes
    up the process id that libpq receives at the start. In transaction mode a second connection then meets the server
    process that the first one has just used, and in session mode it never does.
    """
    if connection.info.backend_pid == _server_pid(connection):  # no pooler
        return
    arguments, options = engine.dialect.create_connect_args(engine.url)
    second = engine.dialect.connect(*arguments, **options)
    try:
        for _ in range(POOLER_TRIES):
            ours = _server_pid(connection)
            # the second connection was given our server process, or our next statement another one
            if ours == _server_pid(second) or ours != _server_pid(connection):
                raise UsageError(
                    f"{name} is reached through a pooler in transaction mode, and gpuops needs sessions of its own",
                    hint="name the server itself, or a database of the pooler with pool_mode=session",
                )
    finally:
        second.close()


def _server_pid(connection: Any) -> int:
    """Return the process id of the server that answers this connection now."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()", prepare=False)
        pid = int(cursor.fetchone()[0])
    connection.commit()
    return pid


def _make_commits_durable(connection: Any, _record: object) -> None:
    """Require durable commits: a server may be configured to answer before a commit is on its disk."""
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit TO on")
        cursor.execute("SET statement_timeout TO '60s'")
        cursor.execute("SET lock_timeout TO '20s'")
        # for a process that was paused inside a transaction: other processes must not wait long for it
        cursor.execute("SET idle_in_transaction_session_timeout TO '10s'")
    connection.commit()
