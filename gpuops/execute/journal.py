"""Journal: what gpuops intends, durable before each effect, and what the morning must restore.

The journal says what we *intended*; only vCenter says what *is*. So nothing here is ever a reason not to look.
One commit, one fsync (SQLite in WAL mode, synchronous FULL): a row that was written survives `kill -9` and a power cut.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event, func, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from gpuops.errors import StateDamaged
from gpuops.execute import tables
from gpuops.execute.state import prepare_state_dir, private_file
from gpuops.execute.step_json import dump_step, load_step
from gpuops.model.inventory import Inventory
from gpuops.plan.steps import Step

FILE_NAME = "journal.sqlite"
DURATIONS_KEPT = 10_000
"""What steps took longer ago says little of the next night."""


class IntentState(StrEnum):
    INTENT = "intent"
    """Durable; the request may or may not have left this machine."""
    SUBMITTED = "submitted"
    """vCenter took it and named a task."""
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The reply was lost, or the task outlived its time."""


OPEN_STATES = (IntentState.INTENT, IntentState.SUBMITTED, IntentState.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the doer."""

    id: str
    vcenter: str
    kind: str
    night: str | None
    policy: str
    """Text of the policy file; empty for a run without one."""
    pid: int
    started: datetime


@dataclass(frozen=True, slots=True)
class Intent:
    """One effect that was intended."""

    op_id: str
    step: Step
    state: IntentState
    task: str | None
    seen: datetime
    """When vCenter was last looked at before it was sent, by vCenter's clock: its task is younger."""


class Journal:
    """The journal of one vCenter on this machine. Every method that writes returns when the row is on disk.

    Raises StateDamaged for a file that is no journal, has another schema, or cannot be written.
    """

    def __init__(self, engine: Engine, vcenter: str, clock: Callable[[], datetime]) -> None:
        self._engine = engine
        self.vcenter = vcenter
        self.clock = clock

    @classmethod
    def open(cls, state_dir: Path, vcenter: str, clock: Callable[[], datetime]) -> Journal:
        """The journal in this directory, made if there is none."""
        prepare_state_dir(state_dir)
        path = state_dir / FILE_NAME
        private_file(path)
        engine = create_engine(f"sqlite:///{path}")
        event.listen(engine, "connect", _make_durable)
        journal = cls(engine, vcenter, clock)
        with journal.transaction() as connection:
            tables.metadata.create_all(connection)
            found = connection.scalars(select(tables.schema.c.version)).all()
            if not found:
                connection.execute(insert(tables.schema).values(version=tables.SCHEMA_VERSION))
            elif found != [tables.SCHEMA_VERSION]:
                raise StateDamaged(
                    f"the journal {path} has schema {found[-1]}, this version reads {tables.SCHEMA_VERSION}",
                    hint="use the gpuops that wrote it, or move it aside: rotate day returns from vCenter's markers",
                )
        return journal

    def close(self) -> None:
        self._engine.dispose()

    # runs

    def begin(self, kind: str, *, night: str | None = None, policy: str = "", policy_digest: str = "") -> Run:
        """A run that is open until `end`."""
        run = Run(uuid.uuid4().hex[:12], self.vcenter, kind, night, policy, os.getpid(), self.clock())
        with self.transaction() as connection:
            connection.execute(
                insert(tables.runs).values(
                    id=run.id,
                    vcenter=run.vcenter,
                    kind=kind,
                    night=night,
                    policy=policy,
                    policy_digest=policy_digest,
                    pid=run.pid,
                    started=run.started.isoformat(),
                )
            )
        return run

    def end(self, run: Run) -> None:
        with self.transaction() as connection:
            connection.execute(
                update(tables.runs).where(tables.runs.c.id == run.id).values(ended=self.clock().isoformat())
            )

    def open_runs(self, kinds: Sequence[str]) -> tuple[Run, ...]:
        """Runs of these kinds that began and did not end, oldest first: killed, or cut off from vCenter."""
        table = tables.runs
        query = select(table).where(
            table.c.vcenter == self.vcenter, table.c.kind.in_(list(kinds)), table.c.ended.is_(None)
        )
        with self.transaction() as connection:
            rows = connection.execute(query.order_by(table.c.started)).all()
        return tuple(
            Run(row.id, row.vcenter, row.kind, row.night, row.policy, row.pid, datetime.fromisoformat(row.started))
            for row in rows
        )

    def last_policy(self, preferred: str) -> str | None:
        """The text of the policy that the last run of the preferred kind had; where there is none, of any kind."""
        table = tables.runs
        query = select(table.c.policy).where(table.c.vcenter == self.vcenter, table.c.policy != "")
        with self.transaction() as connection:
            return connection.scalar(
                query.order_by((table.c.kind == preferred).desc(), table.c.started.desc()).limit(1)
            )

    def last_change(self) -> datetime | None:
        """When a run on this vCenter last began, ended or was given an outcome."""
        runs, intents = tables.runs, tables.intents
        mine = select(runs.c.id).where(runs.c.vcenter == self.vcenter)
        query = select(func.max(runs.c.started), func.max(runs.c.ended)).where(runs.c.vcenter == self.vcenter)
        effects = select(func.max(intents.c.ended)).where(intents.c.run.in_(mine))
        with self.transaction() as connection:
            moments = [*connection.execute(query).one(), connection.scalar(effects)]
        found = [moment for moment in moments if moment]
        return datetime.fromisoformat(max(found)) if found else None

    def durations(self) -> Mapping[tuple[str, str, str], Sequence[float]]:
        """How long the latest steps took, in seconds, by kind of step, profiles of the VM (joined by `+`) and host."""
        intents, runs = tables.intents, tables.runs
        query = (
            select(intents.c.kind, intents.c.before, intents.c.duration_s)
            .join(runs, runs.c.id == intents.c.run)
            .where(runs.c.vcenter == self.vcenter, intents.c.state == IntentState.DONE)
            .where(intents.c.duration_s.is_not(None))
            .order_by(intents.c.ended.desc())
            .limit(DURATIONS_KEPT)
        )
        found: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
        with self.transaction() as connection:
            for row in connection.execute(query):
                was = json.loads(row.before)
                key = (row.kind, "+".join(sorted(was.get("profiles", ()))), was.get("host") or "")
                found[key].append(row.duration_s)
        return found

    # intents

    def intend(self, run: Run, step: Step, before: Inventory) -> str:
        """The op id of an effect about to be sent. The caller sends nothing when this raises."""
        vm = before.vms.get(step.vm)
        was = {} if vm is None else {"host": vm.host, "power": vm.power, "profiles": vm.profiles, "name": vm.name}
        with self.transaction() as connection:
            intents = tables.intents
            seq = connection.scalar(select(func.count()).select_from(intents).where(intents.c.run == run.id)) or 0
            op_id = f"gpuops-{run.id}-{seq + 1}"
            connection.execute(
                insert(intents).values(
                    op_id=op_id,
                    run=run.id,
                    seq=seq + 1,
                    vm=step.vm,
                    kind=type(step).__name__,
                    step=dump_step(step),
                    before=json.dumps(was),
                    state=IntentState.INTENT,
                    seen=before.taken_at.isoformat(),
                    intended=self.clock().isoformat(),
                )
            )
        return op_id

    def submitted(self, op_id: str, task: str) -> None:
        self._update(op_id, state=IntentState.SUBMITTED, task=task)

    def settled(self, op_id: str, state: IntentState, reason: str = "", duration_s: float | None = None) -> None:
        self._update(op_id, state=state, reason=reason, duration_s=duration_s, ended=self.clock().isoformat())

    def _update(self, op_id: str, **values: object) -> None:
        with self.transaction() as connection:
            connection.execute(update(tables.intents).where(tables.intents.c.op_id == op_id).values(**values))

    def open_intents(self, run: Run) -> tuple[Intent, ...]:
        """Effects of the run whose end nobody saw, in order."""
        table = tables.intents
        query = select(table).where(table.c.run == run.id, table.c.state.in_([str(state) for state in OPEN_STATES]))
        with self.transaction() as connection:
            rows = connection.execute(query.order_by(table.c.seq)).all()
        return tuple(
            Intent(
                row.op_id,
                load_step(row.step),
                IntentState(row.state),
                row.task,
                datetime.fromisoformat(row.seen),
            )
            for row in rows
        )

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One commit; what it wrote is on disk when the block ends."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            raise StateDamaged(
                f"the journal cannot be used: {cause}",
                hint="nothing is sent without it; free the disk, or move the file aside: "
                "rotate day then returns from vCenter's markers",
            ) from error


def _make_durable(connection: object, _record: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()
