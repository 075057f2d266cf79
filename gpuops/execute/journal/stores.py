"""Opens the records of one vCenter: in an SQLite file of the state directory, or in a PostgreSQL database by URL.

`Journal` calls it. A PostgreSQL database, which several machines share, needs psycopg
(`pip install 'gpuops-vsphere[postgresql]'`); who may write next is decided by it: the head of a vCenter moves only from
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
"""Files that SQLite keeps beside it, and would follow a link to."""

CONNECT_TIMEOUT_S: Final = "10"
POOLER_TRIES: Final = 5
"""Where others use the pooler too, one of them may take the server process in between."""

SILENCE: Final = {"keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
"""After a minute without an answer the database counts as lost: a run must not wait for one for ever."""


def open_store(state_dir: Path, url: str, vcenter: str) -> Store:
    """To write into: its tables are made, or made those of this version. `url` empty = the file.

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
    """To read from: nothing is made or changed. None = there is none. Raises UsageError, StateDamaged."""
    database = open_database(url) if url else file_database(state_dir)
    found = to_read(database, has_journal) if database is not None else None
    return SqlStore(found, vcenter) if found is not None else None


def file_database(state_dir: Path) -> Database | None:
    """The file, if there is one and nobody else may read it. Raises StateDamaged."""
    if not os.path.lexists(state_dir / FILE_NAME):  # a link to nowhere is no missing journal
        return None
    return make_file(state_dir)


def make_file(state_dir: Path, file_name: str = FILE_NAME, page_bytes: int | None = None, **told: str) -> Database:
    """The file, which nobody else may read; made if there is none, with pages of that size where one is given.

    `told` is for `Database`. Raises StateDamaged.
    """
    path = state_dir / file_name
    prepare_state_dir(state_dir)
    private_file(path)
    for suffix in COMPANIONS:
        private_file(state_dir / f"{file_name}{suffix}", make=False)
    return Database(sqlite_engine(str(path), page_bytes), str(path), **told)


def open_database(text: str, **told: str) -> Database:
    """The database at that URL; nothing is sent to it yet. `told` is for `Database`. Raises UsageError."""
    url = parsed(text)
    engine = create_engine(_patient(url), pool_pre_ping=True)
    event.listen(engine, "first_connect", partial(_refuse_transaction_pooler, engine, shown(url)))
    event.listen(engine, "connect", _make_commits_durable)
    return Database(engine, shown(url), **told)


def refuse_transaction_pooler(text: str) -> None:
    """Raise UsageError where the database at that URL is reached through a pooler in transaction mode, and StateDamaged
    where it does not answer. Changes nothing."""
    with closing(open_database(text)) as database, database.reading():
        pass  # the first connection of a database is checked


def shown(url: URL) -> str:
    """How messages name it: without the password, and without parameters, which may hold one too."""
    return url.set(drivername="postgresql", password=None, query={}).render_as_string()


def _patient(url: URL) -> URL:
    """With what libpq is told of time, where the URL says nothing of it."""
    given = {"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "gpuops", **SILENCE}
    return url.update_query_dict({key: value for key, value in given.items() if key not in url.query})


def _refuse_transaction_pooler(engine: Engine, name: str, connection: Any, _record: object) -> None:
    """Raise UsageError where a pooler gives each transaction another connection of the server.

    Settings, prepared statements, locks and notices of a session would be lost between two transactions. A pooler makes
    up the process id that libpq is told at the start. In transaction mode a second connection then meets the server
    process that the first one has just used, and in session mode it never does.
    """
    if connection.info.backend_pid == _server_pid(connection):
        return
    arguments, options = engine.dialect.create_connect_args(engine.url)
    other = engine.dialect.connect(*arguments, **options)
    try:
        for _ in range(POOLER_TRIES):
            ours = _server_pid(connection)
            if ours == _server_pid(other) or ours != _server_pid(connection):
                raise UsageError(
                    f"{name} is reached through a pooler in transaction mode, and gpuops needs sessions of its own",
                    hint="name the server itself, or a database of the pooler with pool_mode=session",
                )
    finally:
        other.close()


def _server_pid(connection: Any) -> int:
    """The server's process that answers this connection now."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()", prepare=False)
        pid = int(cursor.fetchone()[0])
    connection.commit()
    return pid


def _make_commits_durable(connection: Any, _record: object) -> None:
    """A server may be set to answer before a commit is on its disk; ours must be."""
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit TO on")
        cursor.execute("SET statement_timeout TO '60s'")
        cursor.execute("SET lock_timeout TO '20s'")
        # of a process that was stopped in the middle of one: nobody waits for it as long as for a lock
        cursor.execute("SET idle_in_transaction_session_timeout TO '10s'")
    connection.commit()
