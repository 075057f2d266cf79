"""The output of `gpuops job submit`, `list`, `show`, `logs`, `cancel` and `run`, as text and JSON.

The output of jobs, and names that were chosen by users, are printed with control characters written out (CWE-150).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Self

from gpuops.extras.clusters.view import ProgramLines
from gpuops.extras.jobs.job import ContainerJob, JobEvent, JobRecord, JobState, SubmittedJob
from gpuops.extras.jobs.job_turns import JobDeed, JobListing, JobsRun, JobSubmission, JobTurn, JobVmDeed
from gpuops.model.time_text import format_minute, format_minutes
from gpuops.model.vcenter.target import Secret
from gpuops.plan.core.rejection import some_names
from gpuops.report.document import DocumentRecord, Moment, VcenterDocument, printed
from gpuops.report.layout import Column, Shown, Text, TextTable, table_of
from gpuops.report.plan_json import RejectionRecord
from gpuops.report.text import count

_STYLES: Final = {
    JobState.QUEUED: "",
    JobState.RUNNING: "cyan",
    JobState.INTERRUPTED: "yellow",
    JobState.FINISHED: "green",
    JobState.FAILED: "bold red",
    JobState.CANCELLED: "dim",
}


def submission_text(submission: JobSubmission) -> Shown:
    """Return one line for each job, or every reason for the refusal."""
    if submission.rejections:
        refused = [Text("refused: ", "bold red").append(rejection.line) for rejection in submission.rejections]
        return (*refused, Text("no job was submitted", "bold"))
    lines = [Text(f"{job.job.name}: ", "bold").append(f"waits, number {job.number}") for job in submission.added]
    lines += [Text(f"{job.job.name}: is there already, {job.state}, number {job.number}") for job in submission.there]
    return (*lines, Text(f"{count(len(submission.added), 'job')} submitted", "bold"))


def queue_text(listing: JobListing) -> Shown:
    """Return a table of the jobs: those that have not ended in the order in which they are served, then the others.

    Tasks of an array that are alike, and have no VM, share a row.
    """
    if not listing.jobs:
        return (Text("no job was submitted here", "dim"),)
    table = table_of(
        _rows(listing),
        Column("place", lambda row: str(listing.places.get(row[0].number, "-")), right=True),
        Column("number", lambda row: _ranges([job.number for job in row]), right=True),
        Column("job", _row_name),
        Column("owner", lambda row: row[0].job.owner or "-"),
        Column("state", lambda row: Text(row[0].state.value, _STYLES[row[0].state])),
        Column("profile", lambda row: _profile_text(row[0].job)),
        Column("run time", lambda row: format_minutes(row[0].job.run_time)),
        Column("ran", lambda row: format_minutes(ran) if (ran := sum((job.ran for job in row), timedelta())) else "-"),
        Column("VM", lambda row: _vm_of(row[0], listing) if len(row) == 1 else "-"),
        Column("starts", lambda row: _moment_text(listing.starts_at.get(row[0].number))),
    )
    open_jobs = (job for job in listing.jobs if not job.ended)
    reasons = _reason_lines((job, listing.reasons[job.number]) for job in open_jobs if listing.reasons.get(job.number))
    waits = sum(job.waits for job in listing.jobs)
    runs = sum(job.state is JobState.RUNNING for job in listing.jobs)
    return (table, *reasons, Text(f"{count(len(listing.jobs), 'job')}: {waits} wait, {runs} run", "bold"))


def _rows(listing: JobListing) -> list[list[SubmittedJob]]:
    """Return the jobs of each row of the list."""
    rows = dict[object, list[SubmittedJob]]()
    for job in _in_serving_order(listing):
        task = job.job.task
        is_alike = task is not None and (job.ended or (job.waits and _vm_of(job, listing) == "-"))
        key = (job.submitted_at, task.array, job.state) if task is not None and is_alike else job.number
        rows.setdefault(key, []).append(job)
    return list(rows.values())


def _row_name(row: Sequence[SubmittedJob]) -> str:
    tasks = [job.job.task for job in row if job.job.task is not None]
    return row[0].job.name if len(row) == 1 else f"{tasks[0].array}-[{_ranges([task.index for task in tasks])}]"


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers as ranges, for example `1-3,7`."""
    ranges = list[list[int]]()
    for number in sorted(numbers):
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return ",".join("-".join(map(str, ends)) for ends in ranges)


def _profile_text(job: ContainerJob) -> str:
    return job.profile if job.gpus == 1 else f"{job.gpus} x {job.profile}"


def job_text(job: SubmittedJob) -> Shown:
    """Return all about one job: what it runs, its state, and its history."""
    spec = job.job
    rows = [
        ("job", f"{spec.name}, number {job.number}"),
        ("state", job.state.value + (f", exit code {job.exit_code}" if job.exit_code is not None else "")),
        ("submitted", f"{_moment_text(job.submitted_at)} by {job.by}"),
        ("owner", spec.owner or "-"),
        ("image", spec.image),
        ("command", shlex.join(spec.command)),
        ("checkpoint", shlex.join(spec.checkpoint) or "-"),
        ("size", f"{_profile_text(spec)}, {spec.vcpus} vCPUs, {spec.memory_mib} MiB"),
        ("environment", shlex.join(f"{name}={text}" for name, text in spec.env.items()) or "-"),
        ("secrets", shlex.join(f"{name}={path}" for name, path in spec.secrets.items()) or "-"),
        ("shm", f"{spec.shm_size_mib} MiB"),
        ("workdir", spec.workdir or "that of the image"),
        ("after", ", ".join(spec.after) or "-"),
        ("run time", f"{format_minutes(spec.run_time)} alone; ran {format_minutes(job.ran)}"),
        ("interrupted", f"{job.interruptions} times, may go on {spec.resumes} times"),
    ]
    if job.cancel_wanted and not job.ended:
        rows.append(("cancel", "requested: the next gpuops job run that reaches its VM stops it"))
    table = TextTable("when", "what", "VM", "why")
    for record in job.records:
        event = record.event.value + (f" {record.exit_code}" if record.exit_code is not None else "")
        table.add_row(_moment_text(record.at), event, record.vm_name or "-", record.reason or "-")
    if spec.task is not None:
        rows.insert(1, ("array", f"{spec.task.array}, index {spec.task.index} of {spec.task.size}"))
    lines = [Text(f"{key:<12}", "bold").append(text) for key, text in rows]
    return (*lines, Text(), table) if job.records else tuple(lines)


def _vm_of(job: SubmittedJob, listing: JobListing) -> str:
    """Return the name of the VM that the job has or is to get, or else had last."""
    turn = listing.turns.get(job.number)
    return (turn.vm.name if turn is not None and turn.vm is not None else _last_vm(job)) or "-"


def cancel_text(jobs: Sequence[SubmittedJob], deeds: tuple[JobDeed, ...]) -> Shown:
    """Return what was done, and one line for the jobs of each state."""
    by_end = dict[str, list[str]]()
    for job in jobs:
        end = "cancelled" if job.state is JobState.CANCELLED else f"had ended by itself: {job.state}"
        by_end.setdefault(end if job.ended else "is cancelled when its VM answers", []).append(job.job.name)
    return (*_deeds(deeds), *(Text(f"{some_names(names)}: {end}", "bold") for end, names in by_end.items()))


def run_text(run: JobsRun) -> Shown:
    closing = "all jobs are stopped" if run.stopped else f"{count(len(run.deeds), 'job')} looked at"
    vms = [Text(f"{deed.vm}: ", "bold red" if deed.failed else "bold").append(deed.what) for deed in run.vms]
    waiting = _reason_lines((turn.job, turn.reason) for turn in run.waiting)
    closing = closing if run.deeds else "no job runs, and none gets a VM now"
    return (*_deeds(run.deeds), *vms, *waiting, Text(closing, "bold"))


def _reason_lines(reasons: Iterable[tuple[SubmittedJob, str]]) -> list[Text]:
    """Return a line for each reason, with the names of the first jobs that it applies to."""
    names_by_reason = dict[str, list[str]]()
    for job, reason in reasons:
        names_by_reason.setdefault(reason, []).append(job.job.name)
    return [Text(f"{some_names(names)}: ", "bold").append(reason) for reason, names in names_by_reason.items()]


def _in_serving_order(listing: JobListing) -> list[SubmittedJob]:
    last = len(listing.jobs) + 1
    return sorted(
        listing.jobs,
        key=lambda job: (job.ended, job.waits, listing.places.get(job.number, last), job.number),
    )


def _last_vm(job: SubmittedJob) -> str:
    return job.attempt.vm_name if job.attempt is not None else ""


def _moment_text(moment: datetime | None) -> str:
    return "-" if moment is None else f"{format_minute(moment)} UTC"


def _deeds(deeds: tuple[JobDeed, ...]) -> Iterator[Text]:
    for deed in deeds:
        yield Text(f"{deed.job.job.name}: ", "bold red" if deed.failed else "bold").append(deed.what)


class JobRecordRecord(DocumentRecord, frozen=True):
    """One thing that happened to a job."""

    event: JobEvent
    at: Moment
    vm: Annotated[str, "name of the VM, where it was begun"]
    exit_code: int | None
    saved: Annotated[bool, "whether its checkpoint command did well"]
    reason: str

    @classmethod
    def made_of(cls, record: JobRecord) -> Self:
        return cls.from_attributes(record, vm=record.vm_name)


class SubmittedJobRecord(DocumentRecord, frozen=True):
    """A job and all that happened to it."""

    number: Annotated[int, "of its vCenter"]
    name: str
    owner: str | None
    state: JobState
    exit_code: Annotated[int | None, "null = it has not ended by itself"]
    submitted_at: Moment
    by: Annotated[str, "USER@MACHINE, with ` as role NAME` where PostgreSQL has the jobs"]
    image: str
    command: list[str]
    profile: str
    vcpu: int
    memory_mib: int
    run_time_s: Annotated[float, "as stated, with the GPU alone"]
    ran_s: Annotated[float, "in all its attempts, as far as that is known"]
    priority: int
    resumes: Annotated[int, "how often it may go on"]
    interruptions: Annotated[int, "how often it was stopped"]
    gpus: Annotated[int, "vGPUs of its profile in its VM"]
    env: Annotated[dict[str, str], "environment variables"]
    secrets: Annotated[dict[str, str], "by name, the file of job run's machine; never its content"]
    shm_mib: Annotated[int, "size of /dev/shm"]
    workdir: Annotated[str | None, "null = that of the image"]
    after: Annotated[list[str], "jobs and arrays that must have finished before"]
    array: Annotated[str | None, "the array of which it is a task; null = none"]
    array_index: Annotated[int | None, "from 0 on"]
    array_size: int | None
    cancel_wanted: Annotated[bool, "somebody wants it cancelled while it runs"]
    records: list[JobRecordRecord]

    @classmethod
    def made_of(cls, job: SubmittedJob) -> Self:
        return cls.from_attributes(job.job, job, **_other_fields(job))


class QueuedJobRecord(SubmittedJobRecord, frozen=True):
    """A submitted job with its place in the queue."""

    place: Annotated[int | None, "among those that wait, from 1 on; null = it does not wait"]
    next_vm: Annotated[str | None, "the VM that it gets, or has"]
    starts_at: Annotated[Moment | None, "when that VM is expected to start; null = not in the next night, or not known"]
    why_not: Annotated[str, "why it does not start in the next night; empty = it does, or it is not known"]


class JobDeedRecord(DocumentRecord, frozen=True):
    """What a pass did with one job."""

    name: str
    number: int
    what: str
    failed: Annotated[bool, "a guest refused something"]

    @classmethod
    def made_of(cls, deed: JobDeed) -> Self:
        return cls.from_attributes(deed, name=deed.job.job.name, number=deed.job.number)


class JobVmDeedRecord(DocumentRecord, frozen=True):
    """What a pass did with one VM of the template."""

    name: str
    what: str
    failed: bool

    @classmethod
    def made_of(cls, deed: JobVmDeed) -> Self:
        return cls.from_attributes(deed, name=deed.vm)


class JobThatWaitsRecord(DocumentRecord, frozen=True):
    """A job that gets no VM, and why."""

    name: str
    reason: str

    @classmethod
    def made_of(cls, turn: JobTurn) -> Self:
        return cls(turn.job.job.name, turn.reason)


@printed("job-submit", by="gpuops job submit")
class JobSubmitDocument(VcenterDocument, frozen=True):
    """Jobs that were submitted, or every reason against them."""

    exit_code: Annotated[int, "3 = refused, no job was submitted"]
    submitted: list[SubmittedJobRecord]
    there: Annotated[list[SubmittedJobRecord], "the same jobs, submitted before and not ended"]
    rejections: list[RejectionRecord]

    @classmethod
    def of_submission(cls, submission: JobSubmission, vcenter: str) -> Self:
        return cls.from_attributes(submission, vcenter=vcenter, submitted=submission.added)


@printed("job-list", by="gpuops job list")
class JobListDocument(VcenterDocument, frozen=True):
    """Submitted jobs, in the order in which those that wait are served."""

    jobs: list[QueuedJobRecord]

    @classmethod
    def of_listing(cls, listing: JobListing, vcenter: str) -> Self:
        return cls(vcenter, [_queued_record(job, listing) for job in _in_serving_order(listing)])


@printed("job-show", by="gpuops job show")
class JobShowDocument(VcenterDocument, frozen=True):
    """One submitted job, and all that happened to it."""

    job: SubmittedJobRecord


@printed("job-logs", by="gpuops job logs")
class JobLogsDocument(VcenterDocument, frozen=True):
    """What a job wrote."""

    name: str
    number: int
    state: JobState
    cut_off_bytes: Annotated[int, "so many before the first line are not kept"]
    lines: Annotated[list[str], "control characters are written out"]

    @classmethod
    def of_job(
        cls, job: SubmittedJob, written: bytes, cut_off: int, vcenter: str, withheld: Iterable[Secret] = ()
    ) -> Self:
        log = ProgramLines(withheld)
        lines = [*log.add_output(written), *log.end()]
        return cls.from_attributes(job, job.job, vcenter=vcenter, cut_off_bytes=cut_off, lines=lines)


@printed("job-cancel", by="gpuops job cancel")
class JobCancelDocument(VcenterDocument, frozen=True):
    """A job that is cancelled."""

    job: Annotated[SubmittedJobRecord, "of an array, the first of `jobs`"]
    jobs: Annotated[list[SubmittedJobRecord], "the job, or the tasks of the array that had not ended"]
    deeds: list[JobDeedRecord]


@printed("job-run", by="gpuops job run")
class JobRunDocument(VcenterDocument, frozen=True):
    """What one pass over the jobs did."""

    exit_code: Annotated[int, "4 = a guest refused something, or a VM of the template could not be made or removed"]
    stopped: Annotated[bool, "whether it was a pass that stops all jobs"]
    deeds: list[JobDeedRecord]
    vms: Annotated[list[JobVmDeedRecord], "of VMs that are made of a template for jobs"]
    waiting: Annotated[list[JobThatWaitsRecord], "jobs that get no VM now"]


def _other_fields(job: SubmittedJob) -> dict[str, Any]:
    """Return the fields of `SubmittedJobRecord` that are no attributes of the job."""
    task = job.job.task
    fields = {"vcpu": job.job.vcpus, "run_time_s": job.job.run_time, "ran_s": job.ran, "shm_mib": job.job.shm_size_mib}
    if task is None:
        return fields | {"array": None, "array_index": None, "array_size": None}
    return fields | {"array": task.array, "array_index": task.index, "array_size": task.size}


def _queued_record(job: SubmittedJob, listing: JobListing) -> QueuedJobRecord:
    turn = listing.turns.get(job.number)
    return QueuedJobRecord.from_attributes(
        job.job,
        job,
        **_other_fields(job),
        place=listing.places.get(job.number),
        next_vm=turn.vm.name if turn is not None and turn.vm is not None else None,
        starts_at=listing.starts_at.get(job.number),
        why_not=listing.reasons.get(job.number, ""),
    )
