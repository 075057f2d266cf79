"""Opening: a database as a store of this schema, whatever schema it holds."""

from __future__ import annotations

from sqlalchemy import insert, text

from gpuops.execute.journal import tables
from gpuops.execute.journal.database import Database, schema_of
from gpuops.execute.journal.memory import MemoryStore
from gpuops.execute.journal.schema_one import migrate, records
from gpuops.execute.journal.sql import SqlStore
from gpuops.execute.journal.store import Store


def prepared(database: Database, vcenter: str) -> Store:
    """To write into: the tables are made if there are none, and an earlier schema is brought to this one."""
    try:
        with database.reading() as connection:
            schema = schema_of(connection, database.name)
        if schema != tables.SCHEMA_VERSION:
            _prepare(database)
    except BaseException:
        database.close()
        raise
    return SqlStore(database, vcenter)


def remembered(database: Database, vcenter: str) -> Store | None:
    """To read from: nothing is made and nothing changed; None = the database holds no journal."""
    try:
        with database.reading() as connection:
            schema = schema_of(connection, database.name)
            old = records(connection, vcenter) if schema == 1 else ()
    except BaseException:
        database.close()
        raise
    if schema == tables.SCHEMA_VERSION:
        return SqlStore(database, vcenter)
    database.close()
    return None if schema is None else MemoryStore(old)


def _prepare(database: Database) -> None:
    with database.writing() as connection:
        if connection.dialect.name == "postgresql":  # two machines that both find no tables: one of them makes them
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('gpuops journal'))"))
        schema = schema_of(connection, database.name)
        if schema is None:
            tables.metadata.create_all(connection)
            connection.execute(insert(tables.schema).values(version=tables.SCHEMA_VERSION))
        elif schema == 1:
            migrate(connection)
