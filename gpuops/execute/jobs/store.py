"""Jobs that were submitted, in the database of the journal: one row for each job, and one for each of its records.

Records are only added, each behind the last one that its writer has seen: of two that add at once one loses
(JobChanged), and looks anew. What a job is is told by its records alone (`model/workloads/job_record`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Column, Connection, Integer, LargeBinary, MetaData, String, Table, func, insert, inspect, select
from sqlalchemy import delete as deleting
from sqlalchemy import text as sql_text

from gpuops.errors import Locked, Refused, StateDamaged
from gpuops.execute.journal.database import Database
from gpuops.execute.journal.stores import file_database, make_file, open_database
from gpuops.execute.journal.upgrading import bring_up
from gpuops.execute.migrations import Contents
from gpuops.execute.state.lock_names import DatabaseLock, hold_to_the_end
from gpuops.files.file import NOT_PARSED
from gpuops.model.stored import from_stored, to_stored
from gpuops.model.time_text import format_iso_utc
from gpuops.model.workloads.job import ContainerJob, ContainerRuntime, Mount
from gpuops.model.workloads.job_record import JobEvent, JobRecord, SubmittedJob

MOST_OUTPUT_BYTES: Final = 1 << 20
"""Of one job: the newest. What it wrote before is cut off, with a note."""

_metadata = MetaData()

_jobs: Final = Table(
    "container_jobs",
    _metadata,
    Column("vcenter", String, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("name", String, nullable=False),
    Column("at", String, nullable=False),
    Column("by", String, nullable=False),
    Column("body", String, nullable=False),
)
_records: Final = Table(
    "container_job_records",
    _metadata,
    Column("vcenter", String, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("event", String, nullable=False),
    Column("at", String, nullable=False),
    Column("body", String, nullable=False),
)
_output: Final = Table(
    "container_job_output",
    _metadata,
    Column("vcenter", String, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("begins", Integer, primary_key=True, autoincrement=False),  # byte of what the attempt wrote
    Column("piece", LargeBinary, nullable=False),
)


class JobChanged(Locked):
    """Somebody else has changed the job since it was read; nothing was written."""

    def __init__(self, job: SubmittedJob, event: JobEvent) -> None:
        super().__init__(
            f"job {job.job.name}: changed by another run since this one looked ({event} was not written)",
            hint="the next call looks anew",
        )


@dataclass(frozen=True, slots=True)
class Submission:
    """What became of jobs that somebody submits."""

    added: tuple[SubmittedJob, ...]
    there: tuple[SubmittedJob, ...]
    """The same jobs, submitted before and not ended: they are not added again."""


@dataclass(frozen=True, slots=True)
class JobStore:
    """Reads and adds to the jobs of one vCenter, in a file of the state directory or a PostgreSQL database by URL.

    Raises StateDamaged for a database that cannot be used, UsageError for a URL that is none.
    """

    vcenter: str
    state_dir: Path
    url: str = ""

    def read(self) -> tuple[SubmittedJob, ...]:
        """All jobs, by number. Nothing is made."""
        with self._reading() as connection:
            return () if connection is None else self._read(connection)

    def role(self) -> str:
        """As whom the server of a PostgreSQL database knows this process; empty for the file."""
        if not self.url:
            return ""
        with closing(open_database(self.url)) as database, database.reading() as connection:
            return str(connection.scalar(sql_text("SELECT session_user")))

    def submit(self, jobs: Sequence[ContainerJob], by: str, now: datetime) -> Submission:
        """All of them, or none. One that is there already, word for word, and has not ended stays as it is.

        Raises Refused where another job of that name has not ended.
        """
        added, there = list[SubmittedJob](), list[SubmittedJob]()
        with self._writing() as connection:
            known = {each.job.name: each for each in self._read(connection) if not each.ended}
            last = connection.scalar(select(func.max(_jobs.c.number)).where(_jobs.c.vcenter == self.vcenter)) or 0
            for job in jobs:
                before = known.get(job.name)
                if before is not None and before.job == job:
                    there.append(before)
                    continue
                if before is not None:
                    raise another_unended(before)
                last += 1
                submitted = SubmittedJob(last, job, now, by)
                row = {"number": last, "name": job.name, "at": format_iso_utc(now), "by": by, "body": _job_text(job)}
                connection.execute(insert(_jobs).values(vcenter=self.vcenter, **row))
                added.append(submitted)
        return Submission(tuple(added), tuple(there))

    def add(self, seen: SubmittedJob, record: JobRecord) -> SubmittedJob:
        """The job with one more record, durable when this returns. Raises JobChanged."""
        if not seen.may_have(record.event):
            raise JobChanged(seen, record.event)
        seq = len(seen.records) + 1
        of_job = (_records.c.vcenter == self.vcenter, _records.c.number == seen.number)
        with self._writing() as connection:
            if (connection.scalar(select(func.max(_records.c.seq)).where(*of_job)) or 0) != len(seen.records):
                raise JobChanged(seen, record.event)
            row = {
                "seq": seq,
                "event": record.event.value,
                "at": format_iso_utc(record.at),
                "body": _record_text(record),
            }
            connection.execute(insert(_records).values(vcenter=self.vcenter, number=seen.number, **row))
        return seen.with_record(record)

    def add_output(self, job: SubmittedJob, begins: int, piece: bytes) -> None:
        """What its last attempt wrote from that byte on; the same again changes nothing."""
        attempt = job.attempt
        if attempt is None or not piece:
            return
        with self._writing() as connection:
            mine = (_output.c.vcenter == self.vcenter, _output.c.number == job.number)
            here = (*mine, _output.c.attempt == attempt.number, _output.c.begins == begins)
            connection.execute(deleting(_output).where(*here))
            row = {"number": job.number, "attempt": attempt.number, "begins": begins, "piece": piece}
            connection.execute(insert(_output).values(vcenter=self.vcenter, **row))
            kept = 0
            order = (_output.c.attempt.desc(), _output.c.begins.desc())
            for each in connection.execute(select(_output).where(*mine).order_by(*order)).all():
                kept += len(each.piece)
                if kept > MOST_OUTPUT_BYTES and kept > len(each.piece):
                    old = (*mine, _output.c.attempt == each.attempt, _output.c.begins == each.begins)
                    connection.execute(deleting(_output).where(*old))

    def output(self, job: SubmittedJob) -> tuple[bytes, int]:
        """What is kept of what its attempts wrote, in order, and how many bytes of its attempts are cut off before."""
        with self._reading() as connection:
            if connection is None:
                return b"", 0
            mine = (_output.c.vcenter == self.vcenter, _output.c.number == job.number)
            order = (_output.c.attempt, _output.c.begins)
            rows = connection.execute(select(_output).where(*mine).order_by(*order)).all()
        return b"".join(each.piece for each in rows), rows[0].begins if rows else 0

    def output_end(self, job: SubmittedJob) -> int:
        """From which byte on the output of its last attempt is not kept yet."""
        attempt = job.attempt
        if attempt is None:
            return 0
        of_attempt = (
            _output.c.vcenter == self.vcenter, _output.c.number == job.number, _output.c.attempt == attempt.number
        )  # fmt: skip
        with self._reading() as connection:
            if connection is None:
                return 0
            query = select(_output).where(*of_attempt).order_by(_output.c.begins.desc()).limit(1)
            row = connection.execute(query).one_or_none()
        return 0 if row is None else row.begins + len(row.piece)

    def _read(self, connection: Connection) -> tuple[SubmittedJob, ...]:
        rows = connection.execute(select(_jobs).where(_jobs.c.vcenter == self.vcenter).order_by(_jobs.c.number)).all()
        order = (_records.c.number, _records.c.seq)
        found = connection.execute(select(_records).where(_records.c.vcenter == self.vcenter).order_by(*order)).all()
        try:
            by_number: dict[int, list[JobRecord]] = {}
            for row in found:
                by_number.setdefault(row.number, []).append(_record(row._mapping))
            return tuple(
                SubmittedJob(
                    row.number, _job(row.body), datetime.fromisoformat(row.at), row.by,
                    tuple(by_number.get(row.number, ())),
                )
                for row in rows
            )  # fmt: skip
        except (AttributeError, *NOT_PARSED) as error:
            raise StateDamaged(
                f"the jobs of this vCenter cannot be read: {error}", hint="use the gpuops that wrote them"
            ) from error

    @contextmanager
    def _reading(self) -> Iterator[Connection | None]:
        """None = nothing was ever submitted."""
        database = open_database(self.url) if self.url else file_database(self.state_dir)
        if database is None:
            yield None
            return
        with closing(database), database.reading() as connection:
            database.revision(connection)  # which refuses that of a later gpuops
            yield connection if inspect(connection).has_table(_output.name) else None

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with closing(self._database()) as database:
            bring_up(database, Contents.JOURNAL)
            with database.writing() as connection:
                hold_to_the_end(connection, DatabaseLock.JOBS)  # two machines that both add: one after the other
                yield connection

    def _database(self) -> Database:
        return open_database(self.url) if self.url else make_file(self.state_dir)


def another_unended(before: SubmittedJob) -> Refused:
    """Why a job of that name cannot be submitted."""
    name = before.job.name
    return Refused(
        f"job {name}: another one of that name has not ended (number {before.number})",
        hint=f"choose another name, or gpuops job cancel {name} first",
    )


def _job_text(job: ContainerJob) -> str:
    return json.dumps({**to_stored(job), "run_time": job.run_time.total_seconds()})


def _job(text: str) -> ContainerJob:
    body = json.loads(text)
    read = {
        "command": tuple(body["command"]),
        "run_time": timedelta(seconds=body["run_time"]),
        "runtime": ContainerRuntime(body["runtime"]),
        "mounts": tuple(from_stored(Mount, mount) for mount in body["mounts"]),
        "checkpoint": tuple(body["checkpoint"]),
    }
    return from_stored(ContainerJob, {**body, **read})


_IN_BODY: Final = ("vm", "vm_name", "exit_code", "saved", "reason", "ran_s")
"""Stored fields of a record that its body has; the others are columns."""


def _record_text(record: JobRecord) -> str:
    ran_s = None if record.ran is None else record.ran.total_seconds()
    fields = {**to_stored(record), "ran_s": ran_s}
    return json.dumps({name: fields[name] for name in _IN_BODY})


def _record(row: Mapping[Any, Any]) -> JobRecord:
    body = json.loads(row["body"])
    ran_s = body["ran_s"]
    read = {
        "event": JobEvent(row["event"]),
        "at": datetime.fromisoformat(row["at"]),
        "ran_s": None if ran_s is None else timedelta(seconds=ran_s),
    }
    return from_stored(JobRecord, {**body, **read})
