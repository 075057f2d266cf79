"""The output of `gpuops job plan`: each job with its GPU and its time, each GPU with its jobs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Annotated, Self

from gpuops.extras.jobs.container_command import checkpoint_words, run_words
from gpuops.extras.jobs.job_plan import BusySource, JobsAnswer, JobsOnGpu, PlannedJob
from gpuops.extras.jobs.submitted_view import JobThatWaitsRecord
from gpuops.extras.jobs.template_vms import JobVmRoom
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.time_text import format_minute, format_minutes
from gpuops.plan.queue.one_workload import Refusal
from gpuops.report.advice.placement_view import refused_lines
from gpuops.report.document import DocumentRecord, Moment, NamedRecord, SiteDocument, printed
from gpuops.report.layout import Column, Shown, Text, TextTable, table_of
from gpuops.report.plan_json import RejectionRecord
from gpuops.report.text import count, optional_figure


def jobs_text(answer: JobsAnswer, *, commands: bool = False) -> Shown:
    """Return tables of the jobs and the GPUs, then refusals, warnings and notes, and one line with the summary."""
    parts: list[Shown] = []
    if answer.planned:
        parts += [_job_table(answer), Text(), _gpu_table(answer)]
    parts += [line for refusal in answer.refused for line in refused_lines(refusal)]
    parts += [Text("refused: ", "bold red").append(f"{job.name}: {why}") for job, why in answer.forbidden]
    too_long = [_too_long_text(planned, answer) for planned in answer.planned if planned.too_long]
    parts += [Text("too long: ", "bold red").append(text) for text in too_long]
    parts += [Text("warning: ", "yellow").append(text) for text in _warnings(answer)]
    if commands:
        parts += [line for planned in answer.planned for line in _commands(planned)]
    parts += [Text(note, "dim") for note in _notes(answer)]
    parts += [Text(line) for line in _vm_lines(answer)]
    return (*parts, Text(_summary(answer), "bold"))


def _warnings(answer: JobsAnswer) -> list[str]:
    return [*(text for placed in answer.placements.placed for text in placed.warnings), *answer.placements.warnings]


def _job_table(answer: JobsAnswer) -> TextTable:
    return table_of(
        answer.planned,
        Column("job", lambda plan: plan.job.name, whole=True),
        Column("owner", lambda plan: plan.job.owner or "-"),
        Column("host", lambda plan: plan.host.name),
        Column("GPU", lambda plan: f"{plan.gpu} and {plan.job.gpus - 1} more" if plan.job.gpus > 1 else str(plan.gpu)),
        Column("on GPU", lambda plan: str(plan.sharers), right=True),
        Column("busy", lambda plan: f"{plan.busy.share:.0%}" if plan.shares_time else "-", right=True),
        Column("by", lambda plan: plan.busy.source.value if plan.shares_time else "MIG"),
        Column("alone", lambda plan: format_minutes(plan.job.run_time), right=True),
        Column("slowdown", lambda plan: f"{plan.slowdown[plan.policy]:.2f}", right=True),
        Column("takes", lambda plan: format_minutes(plan.takes), right=True),
        Column("nights", lambda plan: optional_figure(plan.nights, unknown="-")),
    )


def _gpu_table(answer: JobsAnswer) -> TextTable:
    policies = [policy.replace("-", " ") for policy in SchedulerPolicy]
    table = TextTable("host", "GPU", "profile", "jobs", "VMs", "at most", "scheduler", *policies, right=(3, 4, 5, 7, 8))
    for gpu_jobs in answer.gpus:
        times = [
            Text(format_minutes(gpu_jobs.last[policy]), "green")
            if policy is gpu_jobs.shortest
            else format_minutes(gpu_jobs.last[policy])
            for policy in SchedulerPolicy
        ]
        table.add_row(
            gpu_jobs.host.name,
            str(gpu_jobs.gpu),
            gpu_jobs.profile,
            str(gpu_jobs.jobs),
            str(gpu_jobs.sharers),
            optional_figure(gpu_jobs.most, unknown="-"),
            _scheduler(gpu_jobs),
            *(times if gpu_jobs.shares_time else ("-",) * len(times)),
        )
    return table


def _scheduler(gpu_jobs: JobsOnGpu) -> str:
    if not gpu_jobs.shares_time:
        return "MIG"
    return gpu_jobs.policy.replace("-", " ") + ("" if gpu_jobs.known else " (unknown)")


def _too_long_text(planned: PlannedJob, answer: JobsAnswer) -> str:
    night = answer.question.night
    assert night is not None and planned.nights is not None, "only nights make a job too long"
    hours = format_minutes(night.closes - night.opens)
    may = f"may be resumed {planned.job.resumes} times" if planned.job.checkpoint else "has no checkpoint"
    takes = format_minutes(planned.takes)
    return f"{planned.job.name}: takes {takes}, a night has {hours}: {planned.nights} nights, and it {may}"


def _commands(planned: PlannedJob) -> Iterator[Text]:
    yield Text(f"{planned.job.name}: ", "bold").append(shlex.join(run_words(planned.job)))
    if words := checkpoint_words(planned.job):
        yield Text("  checkpoint: ").append(shlex.join(words))


def _notes(answer: JobsAnswer) -> Iterator[str]:
    """Yield the notes that explain the night, the columns of the tables, and assumed values."""
    night, desktops = answer.question.night, answer.question.desktops
    if desktops is not None:
        when = "a night without hours, as the policy has it"
        if night is not None:
            opens, closes = (moment.astimezone(night.zone) for moment in (night.opens, night.closes))
            when = f"the night from {format_minute(opens)} to {format_minute(closes)}"
        yield f"of {when}, for which {count(desktops, 'desktop')} may be suspended"
    if not answer.planned:
        return
    yield "on GPU: VMs on its GPU, itself counted; slowdown: times as long as alone, under the scheduler that is set"
    yield "below each scheduler: until the last job of that GPU ends"
    if any(not gpu_jobs.known and gpu_jobs.shares_time for gpu_jobs in answer.gpus):
        yield "unknown: a host did not report its scheduler; best effort is the driver's default"
    if any(planned.busy.source is BusySource.ASSUMED and planned.shares_time for planned in answer.planned):
        yield "assumed: unknown how busy, so it counts as always busy; set `busy` or `like` in the file"
    other_vms = sum(answer.beside.values())
    if other_vms:
        unknown = answer.beside.get(BusySource.ASSUMED, 0)
        yield f"{count(other_vms, 'VM')} on these GPUs anyway; without a history, and counted as always busy: {unknown}"


def _vm_lines(answer: JobsAnswer) -> Iterator[str]:
    room = answer.vms
    if room is None:
        return
    jobs = count(len(room.there) + len(room.of_template) + len(room.without), "job")
    origin = (
        f"of template {room.template}" if room.template is not None else "of a template: the policy has no template"
    )
    yield f"VMs of the policy: of {jobs} {len(room.there)} get one that is there, {len(room.of_template)} one {origin}"
    for name, why in room.without:
        yield f"  {name} waits: {why}"


def _summary(answer: JobsAnswer) -> str:
    placed, total = len(answer.planned), len(answer.question.jobs)
    on = f" on {count(len(answer.gpus), 'GPU')}" if answer.gpus else ""
    return f"{placed} of {count(total, 'job')} fit at once{on}; nothing was changed"


class JobNightRecord(DocumentRecord, frozen=True):
    """The night that was asked about."""

    opens: Moment
    closes: Moment


class JobVmRoomRecord(DocumentRecord, frozen=True):
    """Which jobs get a VM, by name, in the order in which they are served."""

    template: Annotated[str | None, "of which VMs are made by day; null = of none"]
    there: Annotated[list[str], "jobs that get a VM that is there"]
    of_template: Annotated[list[str], "jobs that get one that is made"]
    without: list[JobThatWaitsRecord]

    @classmethod
    def made_of(cls, room: JobVmRoom) -> Self:
        return cls.from_attributes(room, without=[JobThatWaitsRecord(name, why) for name, why in room.without])


class PlannedJobRecord(DocumentRecord, frozen=True):
    """A job, its GPU and its time there."""

    name: str
    owner: str | None
    image: str
    host: NamedRecord
    gpu: Annotated[str, "PCI address; of several, that of the one on which it takes longest"]
    gpus: Annotated[int, "vGPUs of its VM"]
    sharers: Annotated[int, "VMs on its GPU, itself counted"]
    busy: Annotated[float, "the share of the time that it keeps a GPU busy alone"]
    busy_by: BusySource
    scheduler: Annotated[SchedulerPolicy, "in force on its GPU"]
    run_time_s: Annotated[float, "with the GPU alone"]
    takes_s: Annotated[float, "beside the others, under that scheduler"]
    slowdown: Annotated[dict[str, float], "times as long as alone, by scheduler"]
    nights: Annotated[int | None, "in how many it ends; null = no hours of a night were said"]
    too_long: Annotated[bool, "whether it needs more nights than it may be resumed for"]
    command: Annotated[list[str], "what runs it in its guest, word by word"]
    checkpoint: Annotated[list[str], "what saves its state meanwhile; empty = it has no checkpoint"]

    @classmethod
    def made_of(cls, planned: PlannedJob) -> Self:
        job = planned.job
        return cls.from_attributes(
            planned,
            job,
            gpu=str(planned.gpu),
            busy=planned.busy.share,
            busy_by=planned.busy.source,
            scheduler=planned.policy,
            run_time_s=job.run_time,
            takes_s=planned.takes,
            command=run_words(job),
            checkpoint=checkpoint_words(job),
        )


class JobsOnGpuRecord(DocumentRecord, frozen=True):
    """A GPU with jobs on it."""

    host: NamedRecord
    gpu: Annotated[str, "PCI address"]
    profile: Annotated[str, "of its first job"]
    jobs: int
    sharers: Annotated[int, "VMs on it, the jobs counted"]
    most: Annotated[int | None, "vGPUs of that profile that a GPU holds"]
    scheduler: SchedulerPolicy
    scheduler_known: Annotated[bool, "false = the host did not report it, it is the driver's default"]
    shares_time: Annotated[bool, "false = MIG-backed vGPUs"]
    last_ends_s: Annotated[dict[str, float], "when the last of its jobs ends, by scheduler"]
    shortest: Annotated[SchedulerPolicy | None, "under which that is soonest; null = as it is"]

    @classmethod
    def made_of(cls, gpu: JobsOnGpu) -> Self:
        ends = {policy: length.total_seconds() for policy, length in gpu.last.items()}
        scheduler = {"scheduler": gpu.policy, "scheduler_known": gpu.known, "last_ends_s": ends}
        return cls.from_attributes(gpu, gpu=str(gpu.gpu), **scheduler)


class JobWithoutPlaceRecord(DocumentRecord, frozen=True):
    """A job for which there is no place, and why."""

    name: str
    rejections: list[RejectionRecord]
    nearest: Annotated[str, "the nearest that could be met; empty = none is known"]
    after_moves: Annotated[str, "the vMotions that would make room; empty = none are known"]

    @classmethod
    def made_of(cls, refusal: Refusal) -> Self:
        return cls.from_attributes(refusal, name=refusal.workload.name, after_moves=refusal.moves)


class ForbiddenJobRecord(DocumentRecord, frozen=True):
    """A job with a mount that is not allowed."""

    name: str
    reason: str


@printed("job-plan", by="gpuops job plan")
class JobPlanDocument(SiteDocument, frozen=True):
    """Where jobs in containers fit, and how long each then takes."""

    exit_code: int
    desktops: Annotated[int | None, "how many may be suspended for the night; null = no policy was said"]
    night: Annotated[JobNightRecord | None, "its hours; null = no policy was said, or it has none"]
    jobs: Annotated[list[PlannedJobRecord], "those that have a place, in the order of the file"]
    gpus: list[JobsOnGpuRecord]
    without_place: list[JobWithoutPlaceRecord]
    forbidden: list[ForbiddenJobRecord]
    beside: Annotated[dict[str, int], "how many VMs run on these GPUs anyway, by where their busy share is from"]
    vms: Annotated[
        JobVmRoomRecord | None,
        "which jobs get a VM of the policy; null = no policy was said, or it says nothing of jobs",
    ]
    warnings: list[str]

    @classmethod
    def made_of(cls, answer: JobsAnswer) -> Self:
        before = answer.placements.before
        return cls.from_attributes(
            answer,
            answer.question,
            vcenter=before.vcenter,
            read_at=before.taken_at,
            jobs=answer.planned,
            without_place=answer.refused,
            forbidden=[ForbiddenJobRecord(job.name, why) for job, why in answer.forbidden],
            beside={source: answer.beside.get(source, 0) for source in BusySource},
            warnings=_warnings(answer),
        )
