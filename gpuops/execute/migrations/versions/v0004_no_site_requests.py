"""Drop requests across sites, which gpuops no longer has. `database.py` names those that a database still holds."""

from __future__ import annotations

from typing import Final

from alembic import op

from gpuops.execute.migrations import Contents

_DROP_QUEUED_TURN: Final = """
DO $$ BEGIN
    IF to_regclass('procrastinate_jobs') IS NOT NULL THEN
        DELETE FROM procrastinate_jobs WHERE args->>'site' = 'requests across sites';
    END IF;
END $$
"""
"""The turn in which a runner of an earlier version assigned requests: no runner takes it any more."""

revision: Final = "0004"
down_revision: Final = "0003"


def upgrade() -> None:
    contents = op.get_context().opts["contents"]
    if Contents.JOURNAL in contents:
        op.drop_table("site_requests", if_exists=True)
    if Contents.RUNNERS in contents:  # a PostgreSQL
        op.execute(_DROP_QUEUED_TURN)
