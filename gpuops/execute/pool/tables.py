"""The tables of pools: in their own SQLite file next to the journal, or in the journal's PostgreSQL.

There is one row for each pool and one for each lease. A change reads and writes a pool in one transaction, and only one
such transaction runs at a time: of two commands the second decides on what the first has written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sqlalchemy import Boolean, Column, Connection, Integer, MetaData, String, Table, inspect, text

from gpuops.execute.journal.database import Database
from gpuops.execute.journal.stores import make_file, open_database
from gpuops.execute.journal.upgrading import to_read, to_write
from gpuops.execute.migrations import Contents

FILE_NAME: Final = "pools.sqlite"
_TOLD: Final = {
    "keeps": "book of pools",
    "hint": "nothing is lent without it: free the disk, start the server, or bring the book back from a backup",
}

metadata = MetaData()

# read by earlier versions only
Table("pools_schema", metadata, Column("version", Integer, primary_key=True, autoincrement=False))

pools_table = Table(
    "pools",
    metadata,
    Column("vcenter", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("settings", String, nullable=False),  # JSON of `LendingPool`
    Column("servers", String, nullable=False),  # JSON of its `PoolServer`s
)

leases_table = Table(
    "pool_leases",
    metadata,
    Column("vcenter", String, primary_key=True),
    Column("pool", String, primary_key=True),
    Column("id", String, primary_key=True),
    Column("open", Boolean, nullable=False, index=True),
    Column("asked_at", String, nullable=False),
    Column("body", String, nullable=False),  # JSON of `GpuLease`
)


def made_database(state_dir: Path, url: str) -> Database:
    """Return the database for writing, with its tables created or upgraded. Raises UsageError, StateDamaged."""
    return to_write(_opened(state_dir, url), Contents.POOLS, _has_tables)


def found_database(state_dir: Path, url: str) -> Database | None:
    """Return the database for reading, unchanged; None = there is none. Raises UsageError, StateDamaged."""
    if not url and not os.path.lexists(state_dir / FILE_NAME):
        return None
    return to_read(_opened(state_dir, url), _has_tables)


def alone(connection: Connection, of: str) -> None:
    """Until this transaction ends nobody else writes pools of this vCenter; SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:lock))"), {"lock": f"gpuops pools {of}"})


def _opened(state_dir: Path, url: str) -> Database:
    return open_database(url, **_TOLD) if url else make_file(state_dir, FILE_NAME, None, **_TOLD)


def _has_tables(connection: Connection, database: Database) -> bool:
    database.revision(connection)  # which refuses that of a later gpuops
    return inspect(connection).has_table(pools_table.name)
