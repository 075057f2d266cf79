"""A journal's database: its tables, their upgrade, and transactions whose failures become StateDamaged.

Stores of measurements use it too. `upgrade` brings the tables to the revision of this gpuops by alembic, in one
transaction.

Signals that end the process by an exception are delayed until a transaction has begun or ended (`uninterrupted`). A
handler (SIGINT's own, the command line's for SIGTERM and SIGHUP) may raise it between any two instructions, and in the
middle of a commit, or of closing a database, the code could not handle it.
"""

from __future__ import annotations

import logging
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from io import StringIO
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    column,
    create_engine,
    event,
    inspect,
    select,
    table,
    text,
)
from sqlalchemy.exc import SQLAlchemyError

from gpuops import clock
from gpuops.errors import StateDamaged
from gpuops.execute import migrations
from gpuops.execute.migrations import HEAD, REVISIONS, VERSION_TABLE, Contents
from gpuops.execute.state.lock import DatabaseLock, hold_to_the_end

if TYPE_CHECKING:
    from alembic.config import Config

T = TypeVar("T")

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a process of gpuops."""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Run the block to its end. An ending signal that arrives meanwhile is handled after it.

    Does nothing in any thread but the main one, since Python runs handlers only there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    postponed_calls: list[Callable[[], object]] = []
    try:
        with ExitStack() as stack:
            for number in ENDING:
                handler = signal.getsignal(number)
                if callable(handler):
                    stack.callback(signal.signal, number, handler)
                    signal.signal(number, _postpone(handler, postponed_calls))
            yield
    finally:
        for handle in postponed_calls:
            handle()


@contextmanager
def with_uninterrupted_ends(block: AbstractContextManager[T]) -> Iterator[T]:
    """Return the block with its beginning and end protected; the part between them may be interrupted."""

    def exit_uninterrupted(*raised: Any) -> bool | None:
        with uninterrupted():
            return block.__exit__(*raised)

    with ExitStack() as stack:
        with uninterrupted():
            entered = block.__enter__()
            stack.push(exit_uninterrupted)
        yield entered


def _postpone(
    handler: Callable[[int, FrameType | None], object], postponed_calls: list[Callable[[], object]]
) -> Callable[[int, FrameType | None], None]:
    """Return a handler that only adds the call of this handler to `postponed_calls`."""

    def postpone(number: int, frame: FrameType | None) -> None:
        postponed_calls.append(lambda: handler(number, frame))

    return postpone


SCHEMA_VERSION: Final = 2
"""Increase it for a new word in `Kind`, with a revision (`execute/migrations`) that writes it; tables are changed only
by revisions."""

metadata = MetaData()

_revision_column: Final = column("version_num", String)
_REVISION: Final = select(_revision_column).select_from(table(VERSION_TABLE, _revision_column))

schema_table = Table("schema_version", metadata, Column("version", Integer, primary_key=True, autoincrement=False))

records_table = Table(
    "journal",
    metadata,
    Column("vcenter", String, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),  # of two processes that append at once, one fails
    Column("run", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("at", String, nullable=False),
    Column("body", String, nullable=False),
    Column("checksum", String, nullable=False),
)

heads_table = Table(
    "journal_heads",
    metadata,
    Column("vcenter", String, primary_key=True),
    Column("seq", BigInteger, nullable=False),  # shows whether rows are missing at the end
    Column("checksum", String, nullable=False),
    Column("checkpoint", BigInteger, nullable=False),  # where reading may begin; 0 = at the first record
)
"""Written with each append, in its transaction."""

book_table = Table(
    "book_records",
    metadata,
    Column("vcenter", String, primary_key=True),
    Column("kind", String, primary_key=True),
    Column("key", String, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("body", String, nullable=False),
    Column("changed_at", DateTime(timezone=True), nullable=False),  # or confirmed; by the database's clock
)
"""Records that live longer than a run; see `book`."""

BOOK_OF: Final = "book of "
"""The name of the chain with the changes of a vCenter's book: this text, then the vCenter's uuid."""

RETURN_HINT: Final = "gpuops rotate day --policy FILE returns every desktop from vCenter's markers alone"
MARKERS_HINT: Final = (
    "gpuops rotate restore --from-markers --policy FILE returns every desktop from vCenter's markers alone"
)
"""For data that a later version of gpuops wrote: no repair makes it readable here."""
NOTHING_TAKEN: Final = (
    "nothing is taken without it: free the disk, start the server, or move what is damaged aside; " + RETURN_HINT
)
_WRITING: Final = "gpuops_writing"
BUSY_S: Final = 10.0
"""How long a process waits for another one that writes."""
_WAL_RETRY_S: Final = 0.05


class Database:
    """A database of a journal, or of measurements. `name` is used in messages and contains no password."""

    def __init__(self, engine: Engine, name: str, *, keeps: str = "journal", hint: str = NOTHING_TAKEN) -> None:
        """`keeps` and `hint` are used in its errors: what cannot be used, and the next move."""
        self.engine = engine
        self.name = name
        self._keeps = keeps
        self._hint = hint
        self._has_head = False
        """Whether its tables were seen to have the revision `HEAD`."""
        self._writing = engine.execution_options(**{_WRITING: True})
        # PostgreSQL would give each statement a view of its own
        one_view = {"isolation_level": "REPEATABLE READ"} if engine.dialect.name == "postgresql" else {}
        self._reading = engine.execution_options(**one_view)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open one consistent view of the database for the whole block."""
        with self._errors_as_damage(), with_uninterrupted_ends(self._reading.begin()) as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open one transaction; what it wrote is durable when the block ends."""
        with uninterrupted(), self._errors_as_damage(), self._writing.begin() as connection:
            yield connection

    def revision(self, connection: Connection) -> str | None:
        """Return which of `REVISIONS` its tables have; None if they predate revisions or do not exist.

        Raises StateDamaged for a revision that this gpuops does not know: a later version made it.
        """
        if self._has_head:  # tables are never downgraded
            return HEAD
        if not inspect(connection).has_table(VERSION_TABLE):
            return None
        names = connection.scalars(_REVISION).all()
        if not names:
            return None
        if len(names) == 1 and names[0] in REVISIONS:
            self._has_head = names[0] == HEAD
            return str(names[0])
        raise StateDamaged(
            f"the {self._keeps} {self.name} has tables of revision {', '.join(map(str, names))}, which is newer than "
            f"this gpuops: it knows them up to {HEAD}",
            hint=f"use the gpuops that made them, or a later one; until then {MARKERS_HINT}",
        )

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """Open a connection without a transaction: for locks that last longer than a transaction may."""
        with self._errors_as_damage(), self.engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    def close(self) -> None:
        with uninterrupted():
            self.engine.dispose()

    @contextmanager
    def _errors_as_damage(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, UnicodeDecodeError) as error:  # bytes that are not valid text any more: a flipped bit
            # SQLAlchemy's own text repeats the statement and its parameters; the driver's text states the problem
            lines = str(getattr(error, "orig", None) or error).split("\n")
            raise StateDamaged(f"the {self._keeps} {self.name} cannot be used: {lines[0]}", hint=self._hint) from error


def sqlite_engine(path: str, page_bytes: int | None = None) -> Engine:
    """Return SQLite in WAL mode, synchronous FULL: committed data survives `kill -9` and a power cut.

    A new file has pages of `page_bytes`; None: SQLite's default. An existing file keeps its page size.
    """
    engine = create_engine(f"sqlite:///{path}")
    if page_bytes is not None:
        event.listen(engine, "connect", partial(_size_pages, page_bytes))
    event.listen(engine, "connect", _make_durable)
    event.listen(engine, "begin", _begin)
    return engine


def _size_pages(page_bytes: int, connection: sqlite3.Connection, _record: object) -> None:
    connection.execute(f"PRAGMA page_size={page_bytes}").close()


def _make_durable(connection: object, _record: object) -> None:
    # `_begin` begins transactions. The driver would begin them late and let a reader become a writer, which fails if
    # another process has written meanwhile.
    connection.isolation_level = None  # type: ignore[attr-defined]
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute(f"PRAGMA busy_timeout={BUSY_S * 1000:.0f}")
    _switch_to_wal(cursor)
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _switch_to_wal(cursor: sqlite3.Cursor) -> None:
    """Switch to WAL mode, retrying while another process switches a new file or closes it last.

    SQLite refuses this at once in those cases, whatever the timeout (sqlite.org/wal.html, Sometimes Queries Return
    SQLITE_BUSY In WAL Mode).
    """
    for remaining_s in clock.rounds((_WAL_RETRY_S,), BUSY_S):
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            # the low byte is the primary code: extended codes such as SQLITE_BUSY_RECOVERY add higher bits
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or not remaining_s:
                raise
        else:
            return


def _begin(connection: Connection) -> None:
    writing = connection.get_execution_options().get(_WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def vcenters_in(connection: Connection) -> list[str]:
    """Return the instance uuids of the vCenters with a journal, in order."""
    names = connection.scalars(select(heads_table.c.vcenter))
    return sorted(name for name in names if not name.startswith(BOOK_OF))


def has_journal(connection: Connection, database: Database) -> bool:
    """Return whether this database holds a journal. Raises StateDamaged if it has another schema."""
    if database.revision(connection) is None and not inspect(connection).has_table(schema_table.name):
        return False
    versions = connection.scalars(select(schema_table.c.version)).all()
    if versions == [SCHEMA_VERSION]:
        return True
    version = f"schema {versions[-1]}" if versions else "no schema"
    raise StateDamaged(
        f"the journal {database.name} has {version}, this version reads only schema {SCHEMA_VERSION}",
        hint=f"use the gpuops that wrote it; until then {MARKERS_HINT}",
    )


HasTables = Callable[[Connection, Database], bool]
"""Whether a database has tables of this kind. Raises StateDamaged where this gpuops cannot read them."""
_INSUFFICIENT_PRIVILEGE: Final = "42501"
"""PostgreSQL's insufficient_privilege."""
_LOG: Final = logging.getLogger(__name__)
_SITE_REQUESTS: Final = text("SELECT name, site FROM site_requests ORDER BY name")
_ALEMBIC: Final = Lock()
"""Alembic keeps its context in module variables: a process runs one upgrade at a time."""
_ALEMBIC_WAIT_S: Final = 30
"""How long to wait for the upgrade of another thread: its database may not answer."""


def bring_up(database: Database, contents: Contents) -> None:
    """Create or change the tables so that they have the revision of this gpuops. Raises StateDamaged.

    The database stays open. While another process upgrades it, this one waits. An interrupted upgrade changes nothing.
    """
    with database.reading() as connection:
        is_current = database.revision(connection) == HEAD
    if not is_current:
        upgrade(database, contents)


def to_write(database: Database, contents: Contents, check: HasTables) -> Database:
    """Return the database after its tables were checked and upgraded. Raises StateDamaged, and closes it then."""
    try:
        with database.reading() as connection:
            check(connection, database)
        bring_up(database, contents)
    except BaseException:
        database.close()
        raise
    return database


def to_read(database: Database, check: HasTables) -> Database | None:
    """Return the database unchanged; if `check` finds no tables, close it and return None. Raises StateDamaged."""
    try:
        with database.reading() as connection:
            has_tables = check(connection, database)
    except BaseException:
        database.close()
        raise
    if has_tables:
        return database
    database.close()
    return None


def upgrade(database: Database, contents: Contents) -> str | None:
    """Upgrade the tables, and return the revision that they had; None if they had none. Raises StateDamaged.

    Rows of features that gpuops no longer has are dropped, and a warning in the log names them. Without a configured
    log Python prints the warning on stderr, also with `--quiet`.
    """
    from alembic import command  # imported before the lock is taken: it takes a while

    try:
        with database.writing() as connection:
            hold_to_the_end(connection, DatabaseLock.TABLES)
            revision_before = database.revision(connection)
            dropped = ""
            if revision_before != HEAD:
                dropped = _dropped_requests(connection)
                with _one_upgrade_at_a_time(database):
                    command.upgrade(_alembic_config(connection, contents), "head")
        if dropped:
            _LOG.warning("warning: %s: %s", database.name, dropped)
        return revision_before
    except StateDamaged as failed:
        # an account that may not change tables gets an error with the command for one that may
        raise _missing_privilege_error(database, failed) or failed from failed.__cause__


def statements(database: Database) -> str:
    """Return the SQL that upgrades this PostgreSQL database; "" if it is up to date. Changes nothing, closes it.

    Raises StateDamaged.
    """
    from alembic import command

    with closing(database), database.reading() as connection:
        before = database.revision(connection)
        if before == HEAD:
            return ""
        printed = StringIO()
        if dropped := _dropped_requests(connection):
            printed.write(f"-- warning: {dropped}\n")
        configured = _alembic_config(connection, Contents.JOURNAL, printed)
        with _one_upgrade_at_a_time(database):
            command.upgrade(configured, f"{before}:head" if before else "head", sql=True)
    return printed.getvalue().strip() + "\n"


def _dropped_requests(connection: Connection) -> str:
    """Return one line about the requests across sites that the next revision drops; "" if it drops none."""
    if not inspect(connection).has_table("site_requests"):
        return ""
    assigned = [f"{row.name!r} was assigned to {row.site!r}" for row in connection.execute(_SITE_REQUESTS)]
    if not assigned:
        return ""
    return (
        f"requests across sites are no longer supported, and their assignments are dropped: {', '.join(assigned)}; "
        "next: name each of these VMs in the queue of one vCenter's policy, and remove `across_sites`"
    )


@contextmanager
def _one_upgrade_at_a_time(database: Database) -> Iterator[None]:
    """Keep other threads of this process from upgrading during the block. Raises StateDamaged after a long wait."""
    if not _ALEMBIC.acquire(timeout=_ALEMBIC_WAIT_S):
        raise StateDamaged(
            f"the tables of {database.name} were not upgraded: another upgrade takes longer than {_ALEMBIC_WAIT_S} s",
            hint=f"run the command again later; until then {RETURN_HINT}",
        )
    try:
        yield
    finally:
        _ALEMBIC.release()


def _alembic_config(connection: Connection, contents: Contents, output: StringIO | None = None) -> Config:
    from alembic.config import Config

    has_all_tables = connection.dialect.name == "postgresql"
    configured = Config(output_buffer=output, attributes={
        "connection": connection, "contents": frozenset(Contents) if has_all_tables else {contents}
    })  # fmt: skip
    folder = str(Path(migrations.__file__).parent)
    configured.set_main_option("script_location", folder.replace("%", "%%"))
    return configured


def _missing_privilege_error(database: Database, failed: StateDamaged) -> StateDamaged | None:
    """Return the error for an account that may not change tables; None if the upgrade failed for another reason."""
    if getattr(getattr(failed.__cause__, "orig", None), "sqlstate", None) != _INSUFFICIENT_PRIVILEGE:
        return None
    return StateDamaged(
        f"{failed.message}: this account may not make or change the tables of {database.name}",
        hint=f"gpuops runner init --sql prints the statements for an account that may; until then {RETURN_HINT}",
    )
