"""Pools of GPUs that are lent, and their leases."""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import Boolean, Column, Integer, String

from gpuops.execute.migrations import Contents

revision: Final = "0003"
down_revision: Final = "0002"


def upgrade() -> None:
    if Contents.POOLS not in op.get_context().opts["contents"]:
        return
    op.create_table(
        "pools_schema", Column("version", Integer, primary_key=True, autoincrement=False), if_not_exists=True
    )
    op.execute("INSERT INTO pools_schema (version) SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM pools_schema)")
    op.create_table(
        "pools",
        Column("vcenter", String, primary_key=True),
        Column("name", String, primary_key=True),
        Column("settings", String, nullable=False),
        Column("servers", String, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "pool_leases",
        Column("vcenter", String, primary_key=True),
        Column("pool", String, primary_key=True),
        Column("id", String, primary_key=True),
        Column("open", Boolean, nullable=False),
        Column("asked_at", String, nullable=False),
        Column("body", String, nullable=False),
        if_not_exists=True,
    )
    op.create_index("ix_pool_leases_open", "pool_leases", ["open"], if_not_exists=True)
