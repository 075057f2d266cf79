"""Stores submitted jobs in the book, each with its records; and what jobs wrote, in a table of the journal's database.

Records are only appended, each after the last one that its writer has read. If two writers append at once, one of them
gets JobChanged and must read again. The state of a job follows from its records only (`job`).

Output is a stream, of which old pieces are removed: the audited chain would grow by an entry with each piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from sqlalchemy import Column, Connection, Integer, LargeBinary, MetaData, String, Table, insert, inspect, select
from sqlalchemy import delete as deleting
from sqlalchemy import text as sql_text

from gpuops.errors import Locked, Refused
from gpuops.execute.journal.book import Book, BookKind, BookView
from gpuops.execute.journal.database import Database, bring_up
from gpuops.execute.journal.stores import file_database, make_file, open_database
from gpuops.execute.migrations import Contents
from gpuops.execute.state.lock import DatabaseLock, hold_to_the_end
from gpuops.extras.jobs.dependencies import required_numbers
from gpuops.extras.jobs.job import ContainerJob, JobEvent, JobRecord, SubmittedJob

MOST_OUTPUT_BYTES: Final = 1 << 20
"""The output that is kept of a job, the newest part. Older output is removed, with a note."""
JOB: Final = BookKind("job", SubmittedJob, "the jobs of this vCenter", "use the gpuops that wrote them")
"""By number."""

_metadata = MetaData()
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
            hint="run the same command again",
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
        with self._book(write=False) as book, book.reading() as records:
            return _in_order(records)

    def role(self) -> str:
        """Return the role of this process in a PostgreSQL database; empty for the file."""
        if not self.url:
            return ""
        with closing(open_database(self.url)) as database, database.reading() as connection:
            return str(connection.scalar(sql_text("SELECT session_user")))

    def submit(self, jobs: Sequence[ContainerJob], by: str, now: datetime) -> Submission:
        """Add all of these jobs, or none. Return the added jobs, and the identical ones that exist already.

        An identical job exists if it has not ended. Raises Refused if a different job with this name has not ended.
        """
        added, existing = list[SubmittedJob](), list[SubmittedJob]()
        with self._book(write=True) as book, book.changing() as records:
            submitted = _in_order(records)
            open_jobs = {job.job.name: job for job in submitted if not job.ended}
            number = submitted[-1].number if submitted else 0
            for spec in jobs:
                open_job = open_jobs.get(spec.name)
                if open_job is not None and open_job.job == spec:
                    existing.append(open_job)
                    continue
                if open_job is not None:
                    raise another_unended(open_job)
                number += 1
                added.append(SubmittedJob(number, spec, now, by))
            together = (*existing, *added)  # an `after` may name jobs of the same submission
            added = [replace(job, after=required_numbers(job.job, together, submitted)) for job in added]
            for job in added:
                records.put(JOB, str(job.number), job)
        return Submission(tuple(added), tuple(existing))

    def add(self, latest: SubmittedJob, record: JobRecord) -> SubmittedJob:
        """Add a record to the job and return the job. The record is durable when this returns. Raises JobChanged."""
        with self._book(write=True) as book, book.changing() as records:
            stored = records.read(JOB, str(latest.number))
            if stored is None or len(stored.records) != len(latest.records) or not latest.may_have(record.event):
                raise JobChanged(latest, record.event)
            changed = latest.with_record(record)
            records.put(JOB, str(latest.number), changed)
        return changed

    def add_output(self, job: SubmittedJob, begins: int, piece: bytes) -> None:
        """Store output of the job's last attempt; `begins` is the position of its first byte in the output.

        Storing the same piece again changes nothing. Then removes the oldest pieces of the job beyond
        `MOST_OUTPUT_BYTES`.
        """
        attempt = job.attempt
        if attempt is None or not piece:
            return
        with self._writing() as connection:
            of_job = (_output.c.vcenter == self.vcenter, _output.c.number == job.number)
            of_piece = (*of_job, _output.c.attempt == attempt.number, _output.c.begins == begins)
            connection.execute(deleting(_output).where(*of_piece))
            row = {"number": job.number, "attempt": attempt.number, "begins": begins, "piece": piece}
            connection.execute(insert(_output).values(vcenter=self.vcenter, **row))
            kept_bytes = 0
            order = (_output.c.attempt.desc(), _output.c.begins.desc())
            for stored in connection.execute(select(_output).where(*of_job).order_by(*order)).all():
                kept_bytes += len(stored.piece)
                # the newest piece stays even if it alone is larger than the limit
                if kept_bytes > MOST_OUTPUT_BYTES and kept_bytes > len(stored.piece):
                    old = (*of_job, _output.c.attempt == stored.attempt, _output.c.begins == stored.begins)
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
        """Return the position after the last stored byte of the last attempt's output; 0 if nothing is stored."""
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

    def _book(self, *, write: bool) -> AbstractContextManager[Book]:
        return Book.open(self.state_dir, self.url, self.vcenter, write=write)

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
        f"job {name}: another job with this name has not ended (number {before.number})",
        hint=f"choose another name, or first run gpuops job cancel {name}",
    )


def _in_order(records: BookView) -> tuple[SubmittedJob, ...]:
    return tuple(sorted(records.every(JOB).values(), key=lambda job: job.number))
