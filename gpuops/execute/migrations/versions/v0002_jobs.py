"""Jobs in containers: what was submitted, its records, and what it wrote."""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import Column, Integer, LargeBinary, String

from gpuops.execute.migrations import Contents

revision: Final = "0002"
down_revision: Final = "0001"


def upgrade() -> None:
    if Contents.JOURNAL not in op.get_context().opts["contents"]:
        return
    op.create_table(
        "container_jobs",
        Column("vcenter", String, primary_key=True),
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("name", String, nullable=False),
        Column("at", String, nullable=False),
        Column("by", String, nullable=False),
        Column("body", String, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "container_job_records",
        Column("vcenter", String, primary_key=True),
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("seq", Integer, primary_key=True, autoincrement=False),
        Column("event", String, nullable=False),
        Column("at", String, nullable=False),
        Column("body", String, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "container_job_output",
        Column("vcenter", String, primary_key=True),
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("attempt", Integer, primary_key=True, autoincrement=False),
        Column("begins", Integer, primary_key=True, autoincrement=False),
        Column("piece", LargeBinary, nullable=False),
        if_not_exists=True,
    )
