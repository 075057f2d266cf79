"""One table for what lives longer than a run. It takes over pools with their leases, jobs with their records and
targets of runners, whose tables are dropped."""

from __future__ import annotations

import re
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
_JOBS: Final = """
SELECT vcenter, 'job' AS kind, CAST(number AS VARCHAR) AS key, '{"number":' || number || ',"job":'
    || replace(replace(body, '"run_time": ', '"run_time": "PT'), ', "runtime": ', 'S", "runtime": ')
    || ',"at":"' || at || '","by":' || QUOTED("by") || ',"records":[' || coalesce((
        SELECT JOIN_TEXTS FROM (
            SELECT '{"event":"' || event || '","at":"' || at || '",' || CASE
                WHEN FIND(body, '"ran_s": null') > 0 THEN substr(body, 2)
                ELSE replace(substr(body, 2, length(body) - 2), '"ran_s": ', '"ran_s": "PT') || 'S"}'
            END AS body
            FROM container_job_records AS records
            WHERE records.vcenter = container_jobs.vcenter AND records.number = container_jobs.number
            ORDER BY seq
        ) AS records
    ), '') || ']}' AS body
FROM container_jobs
"""
"""Seconds become durations like `PT420.5S`. The replaced keys cannot be in a text, where quotes are escaped."""
_TARGETS: Final = """
SELECT 'runners' AS vcenter, 'target' AS kind, site AS key, '{"configuration":' || QUOTED(configuration)
    || ',"policies":' || QUOTED(policies) || ',"is_left":' || CASE WHEN is_left THEN 'true' ELSE 'false' END
    || '}' AS body
FROM runner_targets
"""
EARLIER: Final[Mapping[str, tuple[Contents, str]]] = {
    "pools": (Contents.POOLS, _POOLS),
    "container_jobs": (Contents.JOURNAL, _JOBS),
    "runner_targets": (Contents.RUNNERS, _TARGETS),
}
"""By table: who has it, and the query that reads its rows as records of the book, which reads before an upgrade use."""
_DROPPED: Final = {
    "pools": ("pool_leases", "pools", "pools_schema"),
    "container_jobs": ("container_job_records", "container_jobs"),
    "runner_targets": ("runner_targets",),
}


def dialect_sql(statement: str, dialect: str) -> str:
    """Return the statement with the functions of this dialect."""
    is_sqlite = dialect == "sqlite"
    join, find = ("group_concat(body, ',')", "instr") if is_sqlite else ("string_agg(body, ',')", "strpos")
    quoted = r"json_quote(\1)" if is_sqlite else r"CAST(to_json(\1) AS VARCHAR)"
    return re.sub(r"QUOTED\((.*?)\)", quoted, statement.replace("JOIN_TEXTS", join).replace("FIND", find))


def upgrade() -> None:
    context = op.get_context()
    contents = context.opts["contents"]
    if Contents.JOURNAL not in contents:
        return  # the book is in the journal's database; `take_over` (journal/book.py) moves records of other files
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
