"""What `gpuops job submit`, `list`, `show`, `logs`, `cancel` and `run` print, and their JSON documents.

Whatever a job wrote, and every name that a person gave, is printed with control characters written out (CWE-150).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from gpuops.model.vcenter.target import Secret
from gpuops.model.workloads.job_record import JobState, SubmittedJob
from gpuops.plan.jobs.job_answers import JobDeed, JobListing, JobsRun, JobSubmission
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.plan_json import rejection_document
from gpuops.report.text import count, visible
from gpuops.report.workloads.program_lines import ProgramLines

_STYLES: Final = {
    JobState.QUEUED: "",
    JobState.RUNNING: "cyan",
    JobState.INTERRUPTED: "yellow",
    JobState.FINISHED: "green",
    JobState.FAILED: "bold red",
    JobState.CANCELLED: "dim",
}


def submission_text(found: JobSubmission) -> Shown:
    """One line for each job, or every reason against them."""
    if found.rejections:
        refused = [Text("refused: ", "bold red").append(visible(each.line)) for each in found.rejections]
        return (*refused, Text("no job was submitted", "bold"))
    lines = [Text(f"{each.job.name}: ", "bold").append(f"waits, number {each.number}") for each in found.added]
    lines += [Text(f"{each.job.name}: is there already, {each.state}, number {each.number}") for each in found.there]
    return (*lines, Text(f"{count(len(found.added), 'job')} submitted", "bold"))


def submission_document(found: JobSubmission, vcenter: str) -> Document:
    return {
        **_jobs_head("job-submit", vcenter),
        "exit_code": found.exit_code,
        "submitted": [_job_document(each) for each in found.added],
        "there": [_job_document(each) for each in found.there],
        "rejections": [rejection_document(each) for each in found.rejections],
    }


def queue_text(found: JobListing) -> Shown:
    """The jobs that have not ended, in the order in which they are served, then those that have."""
    if not found.jobs:
        return (Text("no job was submitted here", "dim"),)
    table = TextTable(
        "place", "number", "job", "owner", "state", "profile", "run time", "ran", "VM", "starts", right=(0, 1)
    )
    for each in _ordered(found):
        turn = found.turns.get(each.number)
        vm = turn.vm.name if turn is not None and turn.vm is not None else _last_vm(each)
        place = found.places.get(each.number)
        table.add_row(
            "-" if place is None else str(place),
            str(each.number),
            each.job.name,
            visible(each.job.owner or "-"),
            Text(each.state.value, _STYLES[each.state]),
            visible(each.job.profile),
            time_text(each.job.run_time),
            time_text(each.ran) if each.ran else "-",
            visible(vm or "-"),
            _moment_text(found.starts_at.get(each.number)),
        )
    reasons = [
        Text(f"{each.job.name}: ", "bold").append(visible(reason))
        for each in found.jobs
        if not each.ended and (reason := found.reasons.get(each.number, ""))
    ]
    waits = sum(each.waits for each in found.jobs)
    runs = sum(each.state is JobState.RUNNING for each in found.jobs)
    return (table, *reasons, Text(f"{count(len(found.jobs), 'job')}: {waits} wait, {runs} run", "bold"))


def queue_document(found: JobListing, vcenter: str) -> Document:
    return {**_jobs_head("job-list", vcenter), "jobs": [_queued_document(each, found) for each in _ordered(found)]}


def job_text(job: SubmittedJob) -> Shown:
    """One job whole: what it runs, how it is, and what happened to it."""
    spec = job.job
    rows = [
        ("job", f"{spec.name}, number {job.number}"),
        ("state", job.state.value + (f", exit code {job.exit_code}" if job.exit_code is not None else "")),
        ("submitted", f"{_moment_text(job.submitted_at)} by {job.by}"),
        ("owner", spec.owner or "-"),
        ("image", spec.image),
        ("command", shlex.join(spec.command)),
        ("checkpoint", shlex.join(spec.checkpoint) or "-"),
        ("size", f"{spec.profile}, {spec.vcpus} vCPUs, {spec.memory_mib} MiB"),
        ("run time", f"{time_text(spec.run_time)} alone; ran {time_text(job.ran)}"),
        ("interrupted", f"{job.interruptions} times, may go on {spec.resumes} times"),
    ]
    if job.cancel_wanted and not job.ended:
        rows.append(("cancel", "is asked for: the next pass that reaches its VM stops it"))
    table = TextTable("when", "what", "VM", "why")
    for record in job.records:
        what = record.event.value + (f" {record.exit_code}" if record.exit_code is not None else "")
        table.add_row(_moment_text(record.at), what, visible(record.vm_name or "-"), visible(record.reason or "-"))
    lines = [Text(f"{key:<12}", "bold").append(visible(value)) for key, value in rows]
    return (*lines, Text(), table) if job.records else tuple(lines)


def job_document(job: SubmittedJob, vcenter: str) -> Document:
    return {**_jobs_head("job-show", vcenter), "job": _job_document(job)}


def cancel_text(job: SubmittedJob, deeds: tuple[JobDeed, ...]) -> Shown:
    lines = list(_deeds(deeds))
    if job.state is JobState.CANCELLED:
        return (*lines, Text(f"{job.job.name}: cancelled", "bold"))
    if job.ended:
        return (*lines, Text(f"{job.job.name}: had ended by itself: {job.state}", "bold"))
    return (*lines, Text(f"{job.job.name}: is cancelled when its VM answers", "bold"))


def cancel_document(job: SubmittedJob, deeds: tuple[JobDeed, ...], vcenter: str) -> Document:
    return {**_jobs_head("job-cancel", vcenter), "job": _job_document(job), "deeds": list(map(_deed_document, deeds))}


def run_text(found: JobsRun) -> Shown:
    closing = "all jobs are stopped" if found.stopped else f"{count(len(found.deeds), 'job')} looked at"
    vms = [
        Text(f"{visible(deed.vm)}: ", "bold red" if deed.failed else "bold").append(visible(deed.what))
        for deed in found.vms
    ]
    return (*_deeds(found.deeds), *vms, Text(closing if found.deeds else "no job runs, and none gets a VM now", "bold"))


def run_document(found: JobsRun, vcenter: str) -> Document:
    return {
        **_jobs_head("job-run", vcenter),
        "exit_code": found.exit_code,
        "stopped": found.stopped,
        "deeds": list(map(_deed_document, found.deeds)),
        "vms": [{"name": deed.vm, "what": deed.what, "failed": deed.failed} for deed in found.vms],
    }


class JobLog:
    """What a job wrote, as lines that can be shown, piece by piece; `withheld`: passwords, which no line shows."""

    def __init__(self, withheld: Iterable[Secret] = ()) -> None:
        self._lines = ProgramLines(withheld)

    def begin(self, written: bytes, cut_off: int) -> Iterator[str]:
        """The lines that are whole, and how many bytes before them are not kept."""
        if cut_off:
            yield f"({cut_off} bytes before this are not kept)"
        yield from self._lines.hear(written)

    def go_on(self, written: bytes) -> Iterator[str]:
        """The lines that these further bytes have ended."""
        yield from self._lines.hear(written)

    def end(self) -> Iterator[str]:
        """The line that has no end."""
        yield from self._lines.end()


def logs_document(
    job: SubmittedJob, written: bytes, cut_off: int, vcenter: str, withheld: Iterable[Secret] = ()
) -> Document:
    log = JobLog(withheld)
    return {
        **_jobs_head("job-logs", vcenter),
        "name": job.job.name,
        "number": job.number,
        "state": job.state.value,
        "cut_off_bytes": cut_off,
        "lines": [*log.go_on(written), *log.end()],
    }


def time_text(length: timedelta) -> str:
    """`3 h 30 min`, `45 min`."""
    hours, minutes = divmod(round(length.total_seconds() / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def _ordered(found: JobListing) -> list[SubmittedJob]:
    last = len(found.jobs) + 1
    return sorted(
        found.jobs,
        key=lambda each: (each.ended, each.waits, found.places.get(each.number, last), each.number),
    )


def _last_vm(job: SubmittedJob) -> str:
    return job.attempt.vm_name if job.attempt is not None else ""


def _moment_text(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment:%Y-%m-%d %H:%M} UTC"


def _deeds(deeds: tuple[JobDeed, ...]) -> Iterator[Text]:
    for deed in deeds:
        yield Text(f"{deed.job.job.name}: ", "bold red" if deed.failed else "bold").append(visible(deed.what))


def _deed_document(deed: JobDeed) -> Document:
    return {"name": deed.job.job.name, "number": deed.job.number, "what": deed.what, "failed": deed.failed}


def _jobs_head(kind: str, vcenter: str) -> Document:
    return {"schema_version": SCHEMA_VERSION, "kind": kind, "vcenter": vcenter}


def _queued_document(job: SubmittedJob, found: JobListing) -> Document:
    starts_at, turn = found.starts_at.get(job.number), found.turns.get(job.number)
    return {
        **_job_document(job),
        "place": found.places.get(job.number),
        "next_vm": turn.vm.name if turn is not None and turn.vm is not None else None,
        "starts_at": None if starts_at is None else starts_at.isoformat(),
        "why_not": found.reasons.get(job.number, ""),
    }


def _job_document(job: SubmittedJob) -> Document:
    spec = job.job
    return {
        "number": job.number,
        "name": spec.name,
        "owner": spec.owner,
        "state": job.state.value,
        "exit_code": job.exit_code,
        "submitted_at": job.submitted_at.isoformat(),
        "by": job.by,
        "image": spec.image,
        "command": list(spec.command),
        "profile": spec.profile,
        "vcpu": spec.vcpus,
        "memory_mib": spec.memory_mib,
        "run_time_s": spec.run_time.total_seconds(),
        "ran_s": job.ran.total_seconds(),
        "priority": spec.priority,
        "resumes": spec.resumes,
        "interruptions": job.interruptions,
        "cancel_wanted": job.cancel_wanted,
        "records": [
            {
                "event": record.event.value,
                "at": record.at.isoformat(),
                "vm": record.vm_name,
                "exit_code": record.exit_code,
                "saved": record.saved,
                "reason": record.reason,
            }
            for record in job.records
        ],
    }
