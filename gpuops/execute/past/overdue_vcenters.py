"""Which vCenters of a journal nobody seems to return: asks no vCenter, and needs no target."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path

from sqlalchemy import select

from gpuops.errors import StateDamaged
from gpuops.execute.journal import Journal
from gpuops.execute.journal.database import has_journal, heads_table
from gpuops.execute.journal.sql import SqlStore
from gpuops.execute.journal.stores import file_database, open_database
from gpuops.execute.runs.nights import NightVms
from gpuops.plan.rotation.returns.return_time import Overdue, overdue


def overdue_vcenters(
    state_dir: Path,
    url: str,
    clock: Callable[[], datetime],
    *,
    damaged: Callable[[StateDamaged], None],
    only: str | None = None,
) -> tuple[Overdue, ...]:
    """Those of the journal in this directory, or in the PostgreSQL database at `url`. Raises UsageError, StateDamaged.

    `damaged` is told of each vCenter whose journal cannot be read: it hides no other. `only`: the instance uuid of one
    vCenter; no other is read then. Of each as much is read as a run reads when it opens the journal.
    """
    database = open_database(url) if url else file_database(state_dir)
    if database is None:
        return ()
    with closing(database):
        with database.reading() as connection:
            if not has_journal(connection, database):
                return ()
            found_in = sorted(connection.scalars(select(heads_table.c.vcenter)))
            vcenters = [each for each in found_in if only in (None, each)]
        found = []
        for vcenter in vcenters:
            try:
                journal = Journal(SqlStore(database, vcenter), vcenter, clock)
                found.append(overdue(vcenter, NightVms(journal).all(), journal.last_return(), clock()))
            except StateDamaged as error:
                damaged(StateDamaged(f"vCenter {vcenter}: {error.message}", hint=error.hint))
    return tuple(each for each in found if each is not None)
