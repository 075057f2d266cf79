"""Originals: VMs as they were before a night touched them; what the morning must restore."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.dialects.sqlite import insert as insert_or_keep

from gpuops.execute import tables
from gpuops.execute.journal import IntentState, Journal
from gpuops.model.rotation import Original, Role


class Originals:
    """The originals in a journal, of its vCenter."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def save(self, originals: Sequence[Original]) -> None:
        """Keeps what the morning must restore. What is already saved of this night stays as it was saved."""
        if not originals:
            return
        saved = self._journal.clock().isoformat()
        rows = [
            {
                "vcenter": self._journal.vcenter,
                "night": original.night,
                "vm": original.vm,
                "role": str(original.role),
                "uuid": original.uuid,
                "name": original.name,
                "host": original.host,
                "profiles": json.dumps(original.profiles),
                "saved": saved,
            }
            for original in originals
        ]
        with self._journal.transaction() as connection:
            connection.execute(insert_or_keep(tables.originals).on_conflict_do_nothing(), rows)

    def returned(self, original: Original) -> None:
        """The VM was seen as it was before the night."""
        table = tables.originals
        mine = (table.c.vcenter == self._journal.vcenter, table.c.night == original.night, table.c.vm == original.vm)
        with self._journal.transaction() as connection:
            connection.execute(
                update(table)
                .where(*mine, table.c.returned.is_(None))
                .values(returned=self._journal.clock().isoformat())
            )

    def all(self, night: str | None = None) -> tuple[Original, ...]:
        """What nights have saved and not seen returned; with `night`, that night's returned ones too."""
        table, intents, runs = tables.originals, tables.intents, tables.runs
        # An effect that failed for certain did not take the VM; any other intent may have.
        took = (
            select(intents.c.op_id)
            .join(runs, runs.c.id == intents.c.run)
            .where(
                runs.c.vcenter == table.c.vcenter,
                runs.c.night == table.c.night,
                intents.c.vm == table.c.vm,
                intents.c.kind.in_(["SuspendVm", "PowerOnVm", "ShutDownGuest"]),
                intents.c.state != IntentState.FAILED,
            )
            .exists()
        )
        wanted = table.c.returned.is_(None) if night is None else table.c.returned.is_(None) | (table.c.night == night)
        query = select(table, took.label("taken")).where(table.c.vcenter == self._journal.vcenter, wanted)
        with self._journal.transaction() as connection:
            rows = connection.execute(query.order_by(table.c.night, table.c.name)).all()
        return tuple(
            Original(
                night=row.night,
                role=Role(row.role),
                vm=row.vm,
                uuid=row.uuid,
                name=row.name,
                host=row.host,
                profiles=tuple(json.loads(row.profiles)),
                taken=bool(row.taken),
                returned=row.returned is not None,
            )
            for row in rows
        )
