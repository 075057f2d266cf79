"""The tables as they were before alembic. Those of a database that has some stay as they are, with what is in them."""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, DateTime, Float, Integer, LargeBinary, String

from gpuops.execute.migrations import Contents

revision: Final = "0001"
down_revision: Final = None


def upgrade() -> None:
    contents = op.get_context().opts["contents"]
    if Contents.JOURNAL in contents:
        _make_journal()
        _make_requests_across_sites()
    if Contents.MEASUREMENTS in contents:
        _make_measurements()
    if Contents.RUNNERS in contents:
        _make_targets_of_runners()


def _make_journal() -> None:
    op.create_table(
        "schema_version", Column("version", Integer, primary_key=True, autoincrement=False), if_not_exists=True
    )
    op.execute("INSERT INTO schema_version (version) SELECT 2 WHERE NOT EXISTS (SELECT 1 FROM schema_version)")
    op.create_table(
        "journal",
        Column("vcenter", String, primary_key=True),
        Column("seq", BigInteger, primary_key=True, autoincrement=False),
        Column("run", String, nullable=False),
        Column("kind", String, nullable=False),
        Column("at", String, nullable=False),
        Column("body", String, nullable=False),
        Column("checksum", String, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "journal_heads",
        Column("vcenter", String, primary_key=True),
        Column("seq", BigInteger, nullable=False),
        Column("checksum", String, nullable=False),
        Column("checkpoint", BigInteger, nullable=False),
        if_not_exists=True,
    )


def _make_requests_across_sites() -> None:
    op.create_table(
        "site_requests",
        Column("name", String, primary_key=True),
        Column("vcenter", String, nullable=False),
        Column("site", String, nullable=False),
        Column("team", String, nullable=False),
        Column("gpus", Float, nullable=False),
        Column("until", String),
        Column("begun", Boolean, nullable=False),
        Column("version", Integer, nullable=False),
        Column("at", String, nullable=False),
        if_not_exists=True,
    )


def _make_measurements() -> None:
    op.create_table(
        "measurements_schema", Column("version", Integer, primary_key=True, autoincrement=False), if_not_exists=True
    )
    op.execute(
        "INSERT INTO measurements_schema (version) SELECT 2 WHERE NOT EXISTS (SELECT 1 FROM measurements_schema)"
    )
    op.execute("UPDATE measurements_schema SET version = 2 WHERE version < 2")  # schema 1 had no measurements_vgpus
    op.create_table(
        "measurements",
        Column("step_s", Integer, primary_key=True, autoincrement=False),
        Column("begin", BigInteger, primary_key=True, autoincrement=False),
        Column("vcenter", String, primary_key=True),
        Column("entity", String, primary_key=True),
        Column("rolled_up", Boolean, nullable=False),
        Column("packed", LargeBinary, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "measurements_observed",
        Column("vcenter", String, primary_key=True),
        Column("begin", BigInteger, primary_key=True, autoincrement=False),
        Column("until", BigInteger, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "measurements_vgpus",
        Column("vcenter", String, primary_key=True),
        Column("day", Integer, primary_key=True, autoincrement=False),
        Column("profile", String, primary_key=True),
        Column("most", Integer, nullable=False),
        if_not_exists=True,
    )


def _make_targets_of_runners() -> None:
    op.create_table(
        "runner_targets",
        Column("site", String, primary_key=True),
        Column("configuration", String, nullable=False),
        Column("policies", String, nullable=False),
        Column("is_left", Boolean, nullable=False),
        Column("played_at", DateTime(timezone=True), nullable=False),
        if_not_exists=True,
    )
