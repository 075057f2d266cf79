"""Databases as gpuops made them before it had revisions. This text stays as it is, whatever the tables become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from alembic import command
from sqlalchemy import text

from gpuops.execute.journal.database import Database, _alembic_config
from gpuops.execute.migrations import Contents

JOURNAL: Final = (
    "CREATE TABLE schema_version (version INTEGER NOT NULL, PRIMARY KEY (version))",
    (
        "CREATE TABLE journal (vcenter VARCHAR NOT NULL, seq BIGINT NOT NULL, run VARCHAR NOT NULL, "
        "kind VARCHAR NOT NULL, at VARCHAR NOT NULL, body VARCHAR NOT NULL, "
        "checksum VARCHAR NOT NULL, PRIMARY KEY (vcenter, seq))"
    ),
    (
        "CREATE TABLE journal_heads (vcenter VARCHAR NOT NULL, seq BIGINT NOT NULL, checksum VARCHAR NOT NULL, "
        "checkpoint BIGINT NOT NULL, PRIMARY KEY (vcenter))"
    ),
    "INSERT INTO schema_version (version) VALUES (2)",
)

REQUESTS: Final = (
    (
        "CREATE TABLE site_requests (name VARCHAR NOT NULL, vcenter VARCHAR NOT NULL, site VARCHAR NOT NULL, "
        "team VARCHAR NOT NULL, gpus FLOAT NOT NULL, until VARCHAR, begun BOOLEAN NOT NULL, version INTEGER NOT NULL, "
        "at VARCHAR NOT NULL, PRIMARY KEY (name))"
    ),
    "INSERT INTO site_requests VALUES ('ml-1', 'vc-1', 'prod', 'vision', 2.0, NULL, true, 3, '2026-11-20T21:00:00Z')",
)

MEASUREMENTS: Final = (
    "CREATE TABLE measurements_schema (version INTEGER NOT NULL, PRIMARY KEY (version))",
    (
        'CREATE TABLE measurements (step_s INTEGER NOT NULL, "begin" BIGINT NOT NULL, vcenter VARCHAR NOT NULL, '
        "entity VARCHAR NOT NULL, rolled_up BOOLEAN NOT NULL, packed {blob} NOT NULL, "
        'PRIMARY KEY (step_s, "begin", vcenter, entity))'
    ),
    (
        'CREATE TABLE measurements_observed (vcenter VARCHAR NOT NULL, "begin" BIGINT NOT NULL, until BIGINT NOT NULL, '
        'PRIMARY KEY (vcenter, "begin"))'
    ),
    "INSERT INTO measurements_schema (version) VALUES (2)",
    "INSERT INTO measurements_observed VALUES ('vc-1', 1764000000, 1764000300)",
)

VGPUS: Final = (
    (
        "CREATE TABLE measurements_vgpus (vcenter VARCHAR NOT NULL, day INTEGER NOT NULL, profile VARCHAR NOT NULL, "
        "most INTEGER NOT NULL, PRIMARY KEY (vcenter, day, profile))"
    ),
    "INSERT INTO measurements_vgpus VALUES ('vc-1', 20000, 'nvidia_a40-8q', 3)",
)

RUNNERS: Final = (
    (
        "CREATE TABLE runner_targets (site VARCHAR NOT NULL, configuration VARCHAR NOT NULL, "
        "policies VARCHAR NOT NULL, is_left BOOLEAN NOT NULL, "
        "played_at TIMESTAMP WITH TIME ZONE NOT NULL, PRIMARY KEY (site))"
    ),
    "INSERT INTO runner_targets VALUES ('prod', '', '{{}}', false, now())",
)


def make(database: Database, *statements: str) -> None:
    """Runs them as they stand; blobs by the name that this database has for them."""
    with database.writing() as connection:
        blob = "BYTEA" if connection.dialect.name == "postgresql" else "BLOB"
        for statement in statements:
            connection.execute(text(statement.format(blob=blob)))


ROWS: Final = Path(__file__).with_name("rows_0004.json")
"""Rows as gpuops wrote them with tables of revision 0004, by table: some of a version that was old already."""
OF: Final = {
    Contents.POOLS: ("pools", "pool_leases"),
    Contents.JOURNAL: ("container_jobs", "container_job_records", "container_job_output"),
}


def make_revision(database: Database, revision: str, contents: Contents) -> None:
    """Makes the tables of this revision."""
    with database.writing() as connection:
        command.upgrade(_alembic_config(connection, contents), revision)


def fill(database: Database, contents: Contents) -> None:
    """Writes the rows; the tables have revision 0004."""
    rows = json.loads(ROWS.read_text(encoding="utf-8"))
    with database.writing() as connection:
        for table in OF[contents]:
            for row in rows[table]:
                values = {key: bytes.fromhex(row[key]) if key == "piece" else row[key] for key in row}
                names = ", ".join(f'"{key}"' for key in values)
                places = ", ".join(f":{key}" for key in values)
                connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({places})"), values)
