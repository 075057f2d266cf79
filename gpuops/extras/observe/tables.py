"""The tables of measurements, in their own SQLite file next to the journal or in the journal's PostgreSQL.

They are no records of the book: a series gets new values every few minutes and loses old ones, and the audited chain
would grow by an entry with each of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    inspect,
    select,
)

from gpuops.errors import StateDamaged
from gpuops.execute.journal.database import Database, to_read, to_write
from gpuops.execute.journal.stores import make_file, open_database
from gpuops.execute.migrations import Contents

FILE_NAME: Final = "measurements.sqlite"
SCHEMA_VERSION: Final = 2
"""Increase it for another format of blocks, and add a revision (`execute/migrations`) that writes it."""
_READ: Final = (1, 2)
"""Schema 1 has no blocks of format 2 (`packing.py`) and no `vgpus_table`; revision 0001 makes it schema 2."""
PAGE_BYTES: Final = 16 * 1024
"""The page size of a new file. Blocks have one to five kilobytes, and a fifth of smaller pages would stay empty."""
_NEXT: Final = "free disk space, start the server, or move the damaged file aside: the next look begins a new one"
_TOLD: Final = {"keeps": "store of measurements", "hint": _NEXT}

metadata = MetaData()

schema_table = Table("measurements_schema", metadata, Column("version", Integer, primary_key=True, autoincrement=False))

blocks_table = Table(
    "measurements",
    metadata,
    Column("step_s", Integer, primary_key=True, autoincrement=False),
    Column("begin", BigInteger, primary_key=True, autoincrement=False),  # seconds since 1970
    Column("vcenter", String, primary_key=True),
    Column("entity", String, primary_key=True),
    Column("rolled_up", Boolean, nullable=False),
    Column("packed", LargeBinary, nullable=False),
)

spans_table = Table(
    "measurements_observed",
    metadata,
    Column("vcenter", String, primary_key=True),
    Column("begin", BigInteger, primary_key=True, autoincrement=False),
    Column("until", BigInteger, nullable=False),
)
"""The spans of time in which a vCenter was observed."""

vgpus_table = Table(
    "measurements_vgpus",
    metadata,
    Column("vcenter", String, primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),  # days since 1970, by UTC
    Column("profile", String, primary_key=True),
    Column("most", Integer, nullable=False),
)
"""The most vGPUs of a profile that ran at once in the observations of a day. They are counted when vCenter is observed,
because the profile of a VM that was removed is unknown later."""


def made_database(state_dir: Path, url: str) -> Database:
    """Open the database to write to it, with the tables of this version. Raises UsageError, StateDamaged."""
    return to_write(_open_database(state_dir, url), Contents.MEASUREMENTS, _has_tables)


def found_database(state_dir: Path, url: str) -> Database | None:
    """Open the database to read it without changes, or return None if it does not exist.

    Raises UsageError, StateDamaged.
    """
    if not url and not os.path.lexists(state_dir / FILE_NAME):
        return None
    return to_read(_open_database(state_dir, url), _has_tables)


def _open_database(state_dir: Path, url: str) -> Database:
    return open_database(url, **_TOLD) if url else make_file(state_dir, FILE_NAME, PAGE_BYTES, **_TOLD)


def _has_tables(connection: Connection, database: Database) -> bool:
    """Return whether the tables exist. Raises StateDamaged for tables of a version that this gpuops cannot read."""
    if database.revision(connection) is None and not inspect(connection).has_table(schema_table.name):
        return False
    versions = connection.scalars(select(schema_table.c.version)).all()
    if len(versions) == 1 and versions[0] in _READ:
        return True
    version = f"schema {versions[-1]}" if versions else "no schema"
    raise StateDamaged(
        f"the store of measurements {database.name} has {version}, this version reads schema "
        f"{' and '.join(map(str, _READ))}",
        hint="use the gpuops that wrote it",
    )
