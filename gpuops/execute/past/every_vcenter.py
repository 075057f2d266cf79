"""Read the open nights of every vCenter in one journal. Sends no request to vCenter."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from gpuops.errors import StateDamaged
from gpuops.execute.journal import Journal
from gpuops.execute.journal.database import has_journal, vcenters_in
from gpuops.execute.journal.stores import SqlStore, file_database, open_database
from gpuops.execute.runs import NightVms
from gpuops.execute.site import Site
from gpuops.plan.rotation.returns.foreign_nights import NightsElsewhere
from gpuops.plan.rotation.returns.return_time import Overdue, overdue

Read = TypeVar("Read")


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
    overdue_by_vcenter = _read_vcenters(
        state_dir,
        url,
        clock,
        lambda journal: overdue(journal.vcenter, NightVms(journal).all(), journal.last_return(), clock()),
        selected=lambda vcenter: only in (None, vcenter),
        damaged=damaged,
    )
    return tuple(late for late in overdue_by_vcenter if late is not None)


def nights_elsewhere(site: Site, *, damaged: Callable[[StateDamaged], None]) -> tuple[NightsElsewhere, ...]:
    """Return the open nights of each other vCenter that has some.

    `damaged` is called with the error for each vCenter whose journal cannot be read, and once if the database cannot be
    read; these nights are left out, so that a return can continue without them.
    """

    def read_nights(journal: Journal) -> NightsElsewhere:
        taken = tuple(original for original in NightVms(journal).all() if original.taken)
        return NightsElsewhere(journal.vcenter, taken)

    try:
        nights = _read_vcenters(
            site.state_dir,
            site.journal_url,
            site.clock,
            read_nights,
            selected=lambda vcenter: vcenter != site.vcenter.uuid,
            damaged=damaged,
        )
    except StateDamaged as error:
        damaged(error)
        return ()
    return tuple(nights_of_vcenter for nights_of_vcenter in nights if nights_of_vcenter.originals)


def _read_vcenters(
    state_dir: Path,
    url: str,
    clock: Callable[[], datetime],
    read: Callable[[Journal], Read],
    *,
    selected: Callable[[str], bool],
    damaged: Callable[[StateDamaged], None],
) -> list[Read]:
    """Return what `read` returns for the journal of each selected vCenter, without journals that cannot be read."""
    database = open_database(url) if url else file_database(state_dir)
    if database is None:
        return []
    with closing(database):
        with database.reading() as connection:
            if not has_journal(connection, database):
                return []
            vcenters = vcenters_in(connection)
        answers = []
        for vcenter in filter(selected, vcenters):
            try:
                answers.append(read(Journal(SqlStore(database, vcenter), vcenter, clock)))
            except StateDamaged as error:
                damaged(StateDamaged(f"vCenter {vcenter}: {error.message}", hint=error.hint))
    return answers
