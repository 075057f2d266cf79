"""Stores submitted jobs in the book, each with its records; and what jobs wrote, in a table of the journal's database.

Records are only appended, each after the last one that its writer has read. If two writers append at once, one of them
gets JobChanged and must read again. The state of a job follows from its records only (`job`).

Output is a stream, of which old pieces are removed: the audited chain would grow by an entry with each piece.

Which jobs must have finished before others start: `after` of a job, as Slurm's `afterok`. Pure.

Names become numbers when a job is submitted: those of jobs in the same submission, otherwise of the newest job or
array with that name. A job starts after all of them have finished. If one fails or is cancelled, it never starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from graphlib import CycleError, TopologicalSorter
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
from gpuops.extras.jobs.job import ContainerJob, JobEvent, JobRecord, JobState, SubmittedJob
from gpuops.plan.core.plan import Rejection, some_names

_NEVER_FINISHES: Final = frozenset({JobState.FAILED, JobState.CANCELLED})


def jobs_named(name: str, submitted: Sequence[SubmittedJob]) -> tuple[SubmittedJob, ...]:
    """Return the newest job with this name, or all tasks of the newest array with it; () if no job has it."""
    named = [job for job in submitted if name in job.job.names]
    if not named:
        return ()
    newest = named[-1]
    if newest.job.name == name or newest.job.task is None:
        return (newest,)
    size = newest.job.task.size
    tasks = {job.job.name: job for job in named if job.job.task is not None and job.job.task.size == size}
    return tuple(tasks.values())


def required_numbers(
    job: ContainerJob, submission: Sequence[SubmittedJob], submitted: Sequence[SubmittedJob]
) -> tuple[int, ...]:
    """Return the numbers of the jobs that `job.after` means. `submission`: the jobs that are submitted with it."""
    numbers = dict[int, None]()
    for name in job.after:
        required = [other for other in submission if name in other.job.names] or jobs_named(name, submitted)
        numbers |= dict.fromkeys(other.number for other in required)
    return tuple(numbers)


def dependency_objections(jobs: Sequence[ContainerJob], submitted: Sequence[SubmittedJob]) -> Iterator[Rejection]:
    """Yield why these jobs could never start: unknown names, jobs that failed, and jobs that wait for each other.

    If a job of the same name was submitted and has not ended, that job keeps its dependencies: those on jobs submitted
    before are not judged again.
    """
    unended = {job.job.name for job in submitted if not job.ended}
    names_of_new = dict[str, list[str]]()  # name of a new job or array -> the names of its jobs
    for job in jobs:
        for name in job.names:
            names_of_new.setdefault(name, []).append(job.name)
    graph = dict[str, set[str]]()  # new job -> the new jobs that it waits for
    for job in jobs:
        for name in job.after:
            if name in names_of_new:
                graph.setdefault(job.name, set()).update(names_of_new[name])
            elif job.name not in unended and (
                job.task is None or job.task.index == 0
            ):  # the first task of an array stands for all
                yield from _objections_to_earlier(job.name, name, jobs_named(name, submitted))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = error.args[1]
        reason = f"after: jobs wait for each other: {' after '.join(reversed(circle))}"
        yield Rejection(circle[0], reason, hint="remove one of these `after`")


def _objections_to_earlier(name: str, after: str, earlier: Sequence[SubmittedJob]) -> Iterator[Rejection]:
    if not earlier:
        yield Rejection(name, f"after {after}: no job has this name", hint="gpuops job list shows all jobs")
    for job in earlier:
        if job.state in _NEVER_FINISHES:
            reason = f"after {after}: job {job.job.name} is {job.state}, so this job would never start"
            yield Rejection(name, reason, hint=f"submit {after} again first")
            return


def unmet_dependencies(submitted: Sequence[SubmittedJob]) -> dict[int, str]:
    """Return by number why waiting jobs may not start yet, or never; jobs that may start are left out."""
    by_number = {job.number: job for job in submitted}
    dependent = [job for job in submitted if job.after and job.waits]
    lost = {job.number for job in submitted if job.state in _NEVER_FINISHES}
    # `lost`: numbers of jobs that never finish. A job after one of these never starts, so it is lost too, and so on
    while stuck := [job.number for job in dependent if job.number not in lost and not lost.isdisjoint(job.after)]:
        lost.update(stuck)
    reasons = dict[int, str]()
    for job in dependent:
        required = [by_number[number] for number in job.after if number in by_number]
        unfinished = [other for other in required if other.state is not JobState.FINISHED]
        first_lost = next((other for other in unfinished if other.number in lost), None)
        if first_lost is not None:
            fate = "never starts either" if first_lost.waits else f"is {first_lost.state}"
            reasons[job.number] = f"it never starts: job {first_lost.job.name}, number {first_lost.number}, {fate}"
        elif unfinished:
            names = some_names([other.job.name for other in unfinished])
            reasons[job.number] = f"starts after {names} finished"
    return reasons


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
