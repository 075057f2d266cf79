"""Stores submitted jobs in the database of the journal: one row for each job, and one for each of its records.

Records are only appended, each after the last one that its writer has read. If two writers append at once, one of them
gets JobChanged and must read again. The state of a job follows from its records only (`model/workloads/job_record`).
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
from gpuops.extras.jobs.job import ContainerJob, ContainerRuntime, JobEvent, JobRecord, Mount, SubmittedJob
from gpuops.files.file import NOT_PARSED
from gpuops.model.stored import from_stored, to_stored
from gpuops.model.time_text import format_iso_utc

MOST_OUTPUT_BYTES: Final = 1 << 20
"""The output that is kept of a job, the newest part. Older output is removed, with a note."""

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
    """Another run has changed the job since it was read; nothing was written."""

    def __init__(self, job: SubmittedJob, event: JobEvent) -> None:
        super().__init__(
            f"job {job.job.name}: changed by another run since this one looked ({event} was not written)",
            hint="the next call looks anew",
        )


@dataclass(frozen=True, slots=True)
class Submission:
    """The outcome of a submission of jobs."""

    added: tuple[SubmittedJob, ...]
    existing: tuple[SubmittedJob, ...]
    """Identical jobs that were submitted before and have not ended. They are not added again."""


@dataclass(frozen=True, slots=True)
class JobStore:
    """Reads and adds to the jobs of one vCenter, in a file of the state directory or a PostgreSQL database by URL.

    Raises StateDamaged for a database that cannot be used, UsageError for an invalid URL.
    """

    vcenter: str
    state_dir: Path
    url: str = ""

    def read(self) -> tuple[SubmittedJob, ...]:
        """Return all jobs, sorted by number. Creates nothing."""
        with self._reading() as connection:
            return () if connection is None else self._read(connection)

    def role(self) -> str:
        """Return the role of this process in a PostgreSQL database; empty for the file."""
        if not self.url:
            return ""
        with closing(open_database(self.url)) as database, database.reading() as connection:
            return str(connection.scalar(sql_text("SELECT session_user")))

    def submit(self, jobs: Sequence[ContainerJob], by: str, now: datetime) -> Submission:
        """Add all of these jobs, or none. An identical job that has not ended is not added again.

        Raises Refused if a different job of that name has not ended.
        """
        added, existing = list[SubmittedJob](), list[SubmittedJob]()
        with self._writing() as connection:
            open_jobs = {submitted.job.name: submitted for submitted in self._read(connection) if not submitted.ended}
            last = connection.scalar(select(func.max(_jobs.c.number)).where(_jobs.c.vcenter == self.vcenter)) or 0
            for job in jobs:
                before = open_jobs.get(job.name)
                if before is not None and before.job == job:
                    existing.append(before)
                    continue
                if before is not None:
                    raise another_unended(before)
                last += 1
                submitted = SubmittedJob(last, job, now, by)
                row = {"number": last, "name": job.name, "at": format_iso_utc(now), "by": by, "body": _job_text(job)}
                connection.execute(insert(_jobs).values(vcenter=self.vcenter, **row))
                added.append(submitted)
        return Submission(tuple(added), tuple(existing))

    def add(self, latest: SubmittedJob, record: JobRecord) -> SubmittedJob:
        """Add a record to the job and return the job. The record is durable when this returns. Raises JobChanged."""
        if not latest.may_have(record.event):
            raise JobChanged(latest, record.event)
        seq = len(latest.records) + 1
        of_job = (_records.c.vcenter == self.vcenter, _records.c.number == latest.number)
        with self._writing() as connection:
            if (connection.scalar(select(func.max(_records.c.seq)).where(*of_job)) or 0) != len(latest.records):
                raise JobChanged(latest, record.event)
            row = {
                "seq": seq,
                "event": record.event.value,
                "at": format_iso_utc(record.at),
                "body": _record_text(record),
            }
            connection.execute(insert(_records).values(vcenter=self.vcenter, number=latest.number, **row))
        return latest.with_record(record)

    def add_output(self, job: SubmittedJob, begins: int, piece: bytes) -> None:
        """Store output of the last attempt from the byte `begins` on. Storing the same again changes nothing."""
        attempt = job.attempt
        if attempt is None or not piece:
            return
        with self._writing() as connection:
            mine = (_output.c.vcenter == self.vcenter, _output.c.number == job.number)
            of_piece = (*mine, _output.c.attempt == attempt.number, _output.c.begins == begins)
            connection.execute(deleting(_output).where(*of_piece))
            row = {"number": job.number, "attempt": attempt.number, "begins": begins, "piece": piece}
            connection.execute(insert(_output).values(vcenter=self.vcenter, **row))
            kept_bytes = 0
            order = (_output.c.attempt.desc(), _output.c.begins.desc())
            for stored in connection.execute(select(_output).where(*mine).order_by(*order)).all():
                kept_bytes += len(stored.piece)
                if kept_bytes > MOST_OUTPUT_BYTES and kept_bytes > len(stored.piece):
                    old = (*mine, _output.c.attempt == stored.attempt, _output.c.begins == stored.begins)
                    connection.execute(deleting(_output).where(*old))

    def output(self, job: SubmittedJob) -> tuple[bytes, int]:
        """Return the stored output of all attempts in order, and the number of bytes that were removed before it."""
        with self._reading() as connection:
            if connection is None:
                return b"", 0
            mine = (_output.c.vcenter == self.vcenter, _output.c.number == job.number)
            order = (_output.c.attempt, _output.c.begins)
            rows = connection.execute(select(_output).where(*mine).order_by(*order)).all()
        return b"".join(row.piece for row in rows), rows[0].begins if rows else 0

    def output_end(self, job: SubmittedJob) -> int:
        """Return the number of bytes of the last attempt's output that are stored."""
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
        record_rows = connection.execute(
            select(_records).where(_records.c.vcenter == self.vcenter).order_by(*order)
        ).all()
        try:
            by_number: dict[int, list[JobRecord]] = {}
            for row in record_rows:
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
        """Yield a connection, or None if no job was ever submitted."""
        database = open_database(self.url) if self.url else file_database(self.state_dir)
        if database is None:
            yield None
            return
        with closing(database), database.reading() as connection:
            database.revision(connection)  # raises if a later gpuops wrote it
            yield connection if inspect(connection).has_table(_output.name) else None

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with closing(self._database()) as database:
            bring_up(database, Contents.JOURNAL)
            with database.writing() as connection:
                hold_to_the_end(connection, DatabaseLock.JOBS)  # two machines add one after the other
                yield connection

    def _database(self) -> Database:
        return open_database(self.url) if self.url else make_file(self.state_dir)


def another_unended(before: SubmittedJob) -> Refused:
    """Return the error for a job whose name is in use."""
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
"""The stored fields of a record that are in its body; the others are columns."""


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
