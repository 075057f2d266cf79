"""The targets that runners play, in their common database, so that another runner can return them.

It has one row for each target that a runner plays, or that was removed from the configuration file and is not returned
yet: the text of that file, with the policies. It holds no password, because the file has none. After a complete return
any runner removes the row.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    DateTime,
    MetaData,
    String,
    Table,
    delete,
    func,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from gpuops.execute.journal.stores import open_database
from gpuops.execute.journal.upgrading import bring_up
from gpuops.execute.migrations import Contents
from gpuops.execute.state.lock_names import DatabaseLock, hold_to_the_end

HELP: Final = "gpuops help sites"
UNPLAYED: Final = timedelta(minutes=30)
"""A target that no runner has played for this time may be taken by another runner."""

_metadata = MetaData()
_table: Final = Table(
    "runner_targets",
    _metadata,
    Column("site", String, primary_key=True),
    Column("configuration", String, nullable=False),
    Column("policies", String, nullable=False),  # JSON: path of the file -> its text
    Column("is_left", Boolean, nullable=False),
    Column("played_at", DateTime(timezone=True), nullable=False),  # by the database's clock alone
)


@dataclass(frozen=True, slots=True)
class SharedTarget:
    """A target as a runner knew it."""

    configuration: str
    """The text of the configuration file."""
    policies: str
    """JSON: text of each policy, by the path of its file."""


def shared_target(configuration: str, policies: Mapping[Path, str]) -> SharedTarget:
    """`policies`: text of each, by the path of its file."""
    return SharedTarget(configuration, json.dumps({str(file): text for file, text in policies.items()}, sort_keys=True))


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The state of the database afterwards."""

    known: frozenset[str]
    """All sites in it."""
    nobodys: Mapping[str, SharedTarget]
    """Targets that were removed from their runner's file, or that no runner has played for `UNPLAYED`."""
    unplayed: frozenset[str]
    """Those of them that were not removed from a file: after an outage of the database their runner may report soon."""


def exchange(
    url: str, played: Mapping[str, SharedTarget], left_file: Mapping[str, SharedTarget], ended: Collection[str]
) -> Exchanged:
    """Store the targets that a runner plays or that left its file, remove `over`, and read those without a runner.

    Raises StateDamaged where the database does not answer.
    """
    target_database = open_database(url, keeps="database of runners", hint=HELP)
    with closing(target_database) as database:
        bring_up(database, Contents.RUNNERS)
        with database.writing() as connection:
            # of two runners one waits for the other: each may write rows of any target
            hold_to_the_end(connection, DatabaseLock.RUNNER_TARGETS)
            connection.execute(delete(_table).where(_table.c.site.in_(ended)))
            for is_left, targets in ((False, played), (True, left_file)):
                for site in sorted(targets):
                    _put(connection, site, targets[site], is_left=is_left)
            sites = frozenset(connection.scalars(select(_table.c.site)))
            nobodys = select(_table).where(_table.c.is_left | (_table.c.played_at < func.now() - UNPLAYED))
            rows = connection.execute(nobodys).all()
    return Exchanged(
        sites,
        {row.site: SharedTarget(row.configuration, row.policies) for row in rows},
        frozenset(row.site for row in rows if not row.is_left),
    )


def _put(connection: Connection, site: str, target: SharedTarget, *, is_left: bool) -> None:
    """Write a row; of an unchanged row only the time."""
    texts = {"configuration": target.configuration, "policies": target.policies}
    state: dict[str, Any] = {"is_left": is_left, "played_at": func.now()}
    same = update(_table).where(_table.c.site == site, *(_table.c[name] == text for name, text in texts.items()))
    if connection.execute(same.values(state)).rowcount == 0:
        row = insert(_table).values(site=site, **texts, **state)
        connection.execute(row.on_conflict_do_update(index_elements=[_table.c.site], set_={**texts, **state}))
