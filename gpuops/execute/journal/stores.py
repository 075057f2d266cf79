"""Opens the records of one vCenter: in the file of the state directory, or in a PostgreSQL database.

`Journal` calls it.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import insert, text

from gpuops.execute.journal import tables
from gpuops.execute.journal.database import Database, has_journal
from gpuops.execute.journal.postgresql import open_database
from gpuops.execute.journal.sql import SqlStore
from gpuops.execute.journal.sqlite import file_database, make_file
from gpuops.execute.journal.store import Store


def open_store(state_dir: Path, url: str, vcenter: str) -> Store:
    """To write into: its tables are made if there are none. `url` empty = the file. Raises UsageError, StateDamaged."""
    database = open_database(url) if url else make_file(state_dir)
    if not _holds_journal(database):
        try:
            _make_tables(database)
        except BaseException:
            database.close()
            raise
    return SqlStore(database, vcenter)


def look_into_store(state_dir: Path, url: str, vcenter: str) -> Store | None:
    """To read from: nothing is made or changed. None = there is none. Raises UsageError, StateDamaged."""
    database = open_database(url) if url else file_database(state_dir)
    if database is None:
        return None
    if _holds_journal(database):
        return SqlStore(database, vcenter)
    database.close()
    return None


def _holds_journal(database: Database) -> bool:
    """Whether it has the journal's tables; it is closed when that cannot be told, or they are of another schema."""
    try:
        with database.reading() as connection:
            return has_journal(connection, database.name)
    except BaseException:
        database.close()
        raise


def _make_tables(database: Database) -> None:
    with database.writing() as connection:
        if connection.dialect.name == "postgresql":  # two machines that both find no tables: one of them makes them
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('gpuops journal'))"))
        if not has_journal(connection, database.name):
            tables.metadata.create_all(connection)
            connection.execute(insert(tables.schema).values(version=tables.SCHEMA_VERSION))
