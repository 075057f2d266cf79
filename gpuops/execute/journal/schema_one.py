"""Schema 1: three tables whose rows were updated in place, read as the records that this schema would have written.

A night that began under the gpuops before this one is gone on with and returned by this one. The old tables are set
aside under other names, not dropped: a process of the old version that still runs finds none, and stops before it
sends anything more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, select, text, update

from gpuops.errors import StateDamaged
from gpuops.execute.journal import tables
from gpuops.execute.journal import tables_one as one
from gpuops.execute.journal.record import Kind, Record
from gpuops.execute.journal.sql import append_all

_ORDER: Final = (Kind.BEGUN, Kind.ORIGINAL, Kind.INTENT, Kind.SUBMITTED, Kind.SETTLED, Kind.RETURNED, Kind.ENDED)
"""Of what happened in one moment, as a run does it."""

_Found = tuple[datetime, Kind, str, dict[str, Any]]


def migrate(connection: Connection) -> None:
    """Copies a journal of schema 1 into this schema's tables and sets its own aside, in the caller's transaction."""
    tables.metadata.create_all(connection)
    named = set(connection.scalars(select(one.runs.c.vcenter).union(select(one.originals.c.vcenter))))
    for vcenter in sorted(named):
        append_all(connection, vcenter, records(connection, vcenter))
    for table in (one.runs, one.intents, one.originals):
        connection.execute(text(f"ALTER TABLE {table.name} RENAME TO {table.name}_of_schema_1"))
    connection.execute(update(tables.schema).values(version=tables.SCHEMA_VERSION))


def records(connection: Connection, vcenter: str) -> Sequence[Record]:
    """What the journal of this vCenter tells, in order. Raises StateDamaged."""
    try:
        found = [*_runs(connection, vcenter), *_originals(connection, vcenter), *_intents(connection, vcenter)]
    except (ValueError, KeyError, TypeError) as error:
        raise StateDamaged(f"the journal holds a row of schema 1 that cannot be read: {error}") from error
    if not found:
        return ()
    found.sort(key=lambda each: (each[0], _ORDER.index(each[1])))
    begin = Record(1, "", Kind.IMPORTED, found[0][0], {"schema": 1, "records": len(found)})
    return (begin, *(Record(seq, run, kind, at, body) for seq, (at, kind, run, body) in enumerate(found, 2)))


def _runs(connection: Connection, vcenter: str) -> Iterator[_Found]:
    for row in connection.execute(select(one.runs).where(one.runs.c.vcenter == vcenter)):
        began = {"kind": row.kind, "night": row.night, "policy": row.policy, "pid": row.pid}
        yield _moment(row.started), Kind.BEGUN, row.id, {**began, "digest": row.policy_digest}
        if row.ended is not None:
            yield _moment(row.ended), Kind.ENDED, row.id, {}


def _originals(connection: Connection, vcenter: str) -> Iterator[_Found]:
    for row in connection.execute(select(one.originals).where(one.originals.c.vcenter == vcenter)):
        of = {"night": row.night, "vm": row.vm}
        was = {"role": row.role, "uuid": row.uuid, "name": row.name, "host": row.host}
        yield _moment(row.saved), Kind.ORIGINAL, "", {**of, **was, "profiles": json.loads(row.profiles)}
        if row.returned is not None:
            yield _moment(row.returned), Kind.RETURNED, "", of


def _intents(connection: Connection, vcenter: str) -> Iterator[_Found]:
    runs, intents = one.runs, one.intents
    query = select(intents, runs.c.started).join(runs, runs.c.id == intents.c.run)
    for row in connection.execute(query.where(runs.c.vcenter == vcenter).order_by(intents.c.seq)):
        yield from _intent(row)


def _intent(row: Row[Any]) -> Iterator[_Found]:
    """An effect's records. When its task was named was not kept: it counts as named at once.

    No intent comes before its run, even where somebody set the clock back in between.
    """
    intended = max(_moment(row.intended), _moment(row.started))
    what = {"step": json.loads(row.step), "seen": row.seen, "before": json.loads(row.before)}
    yield intended, Kind.INTENT, row.run, {"op": row.op_id, **what}
    if row.task is not None:
        yield intended, Kind.SUBMITTED, row.run, {"op": row.op_id, "task": row.task}
    if row.ended is not None:
        outcome = {"state": row.state, "reason": row.reason, "duration_s": row.duration_s}
        yield _moment(row.ended), Kind.SETTLED, row.run, {"op": row.op_id, **outcome}


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
