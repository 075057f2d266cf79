"""One table for what lives longer than a run. It takes over the pools and their leases, whose tables are dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from alembic import op
from sqlalchemy import BigInteger, Column, DateTime, String, func

from gpuops.execute.migrations import Contents

revision: Final = "0005"
down_revision: Final = "0004"

_POOLS: Final = """
SELECT vcenter, 'pool' AS kind, name AS key, '{"pool":' || settings || ',"servers":'
    || replace(servers, '"state":"leaving"', '"state":"draining"') || ',"leases":[' || coalesce((
        SELECT JOIN_TEXTS FROM (
            SELECT replace(body, '"state":"broken"', '"state":"ending"') AS body FROM pool_leases
            WHERE pool_leases.vcenter = pools.vcenter AND pool_leases.pool = pools.name AND "open"
                AND FIND(body, '"state":"asked"') = 0 AND FIND(body, '"state":"waiting"') = 0
            ORDER BY asked_at, id
        ) AS leases
    ), '') || ']}' AS body
FROM pools
"""
"""Servers that an earlier version was removing drain, and leases whose server died end; requests for a later lease and
leases that ended are left out."""
EARLIER: Final[Mapping[str, tuple[Contents, str]]] = {"pools": (Contents.POOLS, _POOLS)}
"""By table: what reads its rows as records of the book. Commands that only read use it before an upgrade."""
_DROPPED: Final = {"pools": ("pool_leases", "pools", "pools_schema")}


def dialect_sql(statement: str, dialect: str) -> str:
    """Return the statement with the functions of this dialect."""
    is_sqlite = dialect == "sqlite"
    join, find = ("group_concat(body, ',')", "instr") if is_sqlite else ("string_agg(body, ',')", "strpos")
    return statement.replace("JOIN_TEXTS", join).replace("FIND", find)


def upgrade() -> None:
    context = op.get_context()
    contents = context.opts["contents"]
    if Contents.JOURNAL not in contents:
        return
    op.create_table(
        "book_records",
        Column("vcenter", String, primary_key=True),
        Column("kind", String, primary_key=True),
        Column("key", String, primary_key=True),
        Column("version", BigInteger, nullable=False),
        Column("body", String, nullable=False),
        Column("changed_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
        if_not_exists=True,
    )
    for table, (content, select) in EARLIER.items():
        if content in contents:
            rows = dialect_sql(select, context.dialect.name)
            op.execute(
                "INSERT INTO book_records (vcenter, kind, key, version, body) "  # noqa: S608 - text of this file alone
                f"SELECT vcenter, kind, key, 0, body FROM ({rows}) AS earlier"
            )
            for name in _DROPPED[table]:
                op.drop_table(name)
