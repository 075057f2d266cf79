"""The journal's tables. A change here, or a new word in `Kind`, is a new SCHEMA_VERSION."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table

SCHEMA_VERSION: Final = 2

metadata = MetaData()

schema = Table("schema_version", metadata, Column("version", Integer, primary_key=True, autoincrement=False))

records = Table(
    "journal",
    metadata,
    Column("vcenter", String, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),  # two that append at once: one of them loses
    Column("run", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("at", String, nullable=False),
    Column("body", String, nullable=False),
    Column("checksum", String, nullable=False),
)

heads = Table(
    "journal_heads",
    metadata,
    Column("vcenter", String, primary_key=True),
    Column("seq", BigInteger, nullable=False),  # rows that are missing at the end are missed here
    Column("checksum", String, nullable=False),
    Column("checkpoint", BigInteger, nullable=False),  # where reading may begin; 0 = at the first record
)
"""Written with each append, in its transaction."""
