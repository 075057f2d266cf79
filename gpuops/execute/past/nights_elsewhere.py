"""Read the open nights of the other vCenters in the same journal. Sends no request to vCenter."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from sqlalchemy import select

from gpuops.errors import StateDamaged
from gpuops.execute.journal import Journal
from gpuops.execute.journal.database import has_journal, heads_table
from gpuops.execute.journal.sql import SqlStore
from gpuops.execute.journal.stores import file_database, open_database
from gpuops.execute.runs.nights import NightVms
from gpuops.execute.site import Site
from gpuops.plan.rotation.returns.foreign_nights import NightsElsewhere


def nights_elsewhere(site: Site, *, damaged: Callable[[StateDamaged], None]) -> tuple[NightsElsewhere, ...]:
    """Return the open nights of each other vCenter that has some.

    `damaged` is called with the error for each vCenter whose journal cannot be read, and once if the database cannot be
    read; these nights are left out, so that a return can continue without them.
    """
    try:
        database = open_database(site.journal_url) if site.journal_url else file_database(site.state_dir)
        if database is None:
            return ()
        with closing(database):
            with database.reading() as connection:
                if not has_journal(connection, database):
                    return ()
                vcenters = sorted(connection.scalars(select(heads_table.c.vcenter)))
            other_vcenters = [vcenter for vcenter in vcenters if vcenter != site.vcenter.uuid]
            nights = []
            for vcenter in other_vcenters:
                try:
                    journal = Journal(SqlStore(database, vcenter), vcenter, site.clock)
                    originals = NightVms(journal).all()
                except StateDamaged as error:
                    damaged(StateDamaged(f"vCenter {vcenter}: {error.message}", hint=error.hint))
                    continue
                taken_originals = tuple(original for original in originals if original.taken)
                if taken_originals:
                    nights.append(NightsElsewhere(vcenter, taken_originals))
            return tuple(nights)
    except StateDamaged as error:
        damaged(error)
        return ()
