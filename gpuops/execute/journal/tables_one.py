"""The journal's tables. A change here is a new SCHEMA_VERSION."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Float, ForeignKey, Integer, MetaData, String, Table

SCHEMA_VERSION: Final = 1

metadata = MetaData()

schema = Table("schema_version", metadata, Column("version", Integer, primary_key=True))

runs = Table(
    "runs",
    metadata,
    Column("id", String, primary_key=True),
    Column("vcenter", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("night", String),
    Column("policy", String, nullable=False),  # the policy file's text: a resumed run obeys what it began with
    Column("policy_digest", String, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started", String, nullable=False),
    Column("ended", String),  # null while it runs, and for ever when it was killed
)

intents = Table(
    "intents",
    metadata,
    Column("op_id", String, primary_key=True),  # goes with the request to vCenter, and into its log
    Column("run", String, ForeignKey("runs.id"), nullable=False, index=True),
    Column("seq", Integer, nullable=False),
    Column("vm", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("step", String, nullable=False),
    Column("before", String, nullable=False),
    Column("state", String, nullable=False),
    Column("task", String),
    Column("reason", String, nullable=False, default=""),
    Column("seen", String, nullable=False),  # vCenter's clock
    Column("intended", String, nullable=False),  # our clock
    Column("ended", String),
    Column("duration_s", Float),
)

originals = Table(
    "originals",
    metadata,
    Column("vcenter", String, primary_key=True),
    Column("night", String, primary_key=True),
    Column("vm", String, primary_key=True),
    Column("role", String, nullable=False),
    Column("uuid", String),
    Column("name", String, nullable=False),
    Column("host", String),
    Column("profiles", String, nullable=False),
    Column("saved", String, nullable=False),
    Column("returned", String),
)
