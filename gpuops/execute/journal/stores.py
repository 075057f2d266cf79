"""Opens the records of one vCenter: in an SQLite file of the state directory, or in a PostgreSQL database by URL.

`Journal` calls it. A PostgreSQL database, which several machines share, needs psycopg (`pip install
'gpuops-vsphere[postgresql]'`). The database decides which process may write next: the head of a vCenter moves only from
where the writer saw it.
"""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Engine, create_engine, event

from gpuops.config.vcenter.journal_url import parsed
from gpuops.errors import UsageError
from gpuops.execute.journal.database import Database, has_journal, sqlite_engine
from gpuops.execute.journal.sql import SqlStore
from gpuops.execute.journal.store import Store
from gpuops.execute.journal.upgrading import to_read, upgrade
from gpuops.execute.migrations import HEAD, Contents
from gpuops.execute.state.state_dir import prepare_state_dir, private_file

FILE_NAME: Final = "journal.sqlite"
COMPANIONS: Final = ("-wal", "-shm", "-journal")
"""Files that SQLite keeps next to it, and for which it would follow a symbolic link."""

CONNECT_TIMEOUT_S: Final = "10"
POOLER_TRIES: Final = 5
"""If other clients use the pooler too, one of them may take the server process in between."""

SILENCE: Final = {"keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
"""After a minute without an answer the database counts as lost: a run must not wait for one for ever."""


def open_store(state_dir: Path, url: str, vcenter: str) -> Store:
    """Open the store for writing: create its tables, or upgrade them to this version. `url` "": use the file.

    Raises UsageError, StateDamaged.
    """
    database = open_database(url) if url else make_file(state_dir)
    try:
        with database.reading() as connection:
            is_there = has_journal(connection, database) and database.revision(connection) == HEAD
        if not is_there:
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
    defaults = {"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "gpuops", **SILENCE}
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
