"""Find vCenters in a journal whose desktops are overdue. Sends no request to vCenter, and needs no target."""

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
    """Return the overdue vCenters of the journal in this directory, or in the PostgreSQL database at `url`.

    `damaged` is called with an error for each vCenter whose journal cannot be read; the others are still returned.
    `only`: the instance uuid of the one vCenter to read. For each vCenter, the same records are read as when a run
    opens the journal. Raises UsageError, StateDamaged.
    """
    database = open_database(url) if url else file_database(state_dir)
    if database is None:
        return ()
    with closing(database):
        with database.reading() as connection:
            if not has_journal(connection, database):
                return ()
            journal_vcenters = sorted(connection.scalars(select(heads_table.c.vcenter)))
            vcenters = [vcenter for vcenter in journal_vcenters if only in (None, vcenter)]
        overdue_or_none = []
        for vcenter in vcenters:
            try:
                journal = Journal(SqlStore(database, vcenter), vcenter, clock)
                overdue_or_none.append(overdue(vcenter, NightVms(journal).all(), journal.last_return(), clock()))
            except StateDamaged as error:
                damaged(StateDamaged(f"vCenter {vcenter}: {error.message}", hint=error.hint))
    return tuple(late for late in overdue_or_none if late is not None)
