"""What `gpuops job plan` prints: each job with its GPU and its time, each GPU with its jobs; and the JSON document."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Annotated, Self

from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.time_text import format_minute, format_minutes
from gpuops.plan.jobs.container_command import checkpoint_words, run_words
from gpuops.plan.jobs.job_plan import BusySource, JobsAnswer, JobsOnGpu, PlannedJob
from gpuops.plan.jobs.template_vms import JobVmRoom
from gpuops.plan.queue.one_workload import Refusal
from gpuops.report.advice.placement import refused_lines
from gpuops.report.document import DocumentRecord, Moment, NamedRecord, SiteDocument, printed
from gpuops.report.layout import Column, Shown, Text, TextTable, table_of
from gpuops.report.plan_json import RejectionRecord
from gpuops.report.text import count


def jobs_text(found: JobsAnswer, *, commands: bool = False) -> Shown:
    """Jobs, GPUs, what has no place, what it stands on, and one closing line."""
    parts: list[Shown] = []
    if found.planned:
        parts += [_jobs(found), Text(), _gpus(found)]
    parts += [line for refusal in found.refused for line in refused_lines(refusal)]
    parts += [Text("refused: ", "bold red").append(f"{job.name}: {why}") for job, why in found.forbidden]
    parts += [Text("too long: ", "bold red").append(_too_long(each, found)) for each in found.planned if each.too_long]
    parts += [
        Text("warning: ", "yellow").append(text)
        for text in (*(text for each in found.placements.placed for text in each.warnings), *found.placements.warnings)
    ]
    if commands:
        parts += [line for each in found.planned for line in _commands(each)]
    parts += [Text(note, "dim") for note in _notes(found)]
    parts += [Text(line) for line in _vms(found)]
    return (*parts, Text(_summary(found), "bold"))


def _jobs(found: JobsAnswer) -> TextTable:
    return table_of(
        found.planned,
        Column("job", lambda plan: plan.job.name, whole=True),
        Column("owner", lambda plan: plan.job.owner or "-"),
        Column("host", lambda plan: plan.host.name),
        Column("GPU", lambda plan: str(plan.gpu)),
        Column("on GPU", lambda plan: str(plan.sharers), right=True),
        Column("busy", lambda plan: f"{plan.busy.share:.0%}" if plan.shares_time else "-", right=True),
        Column("by", lambda plan: plan.busy.source.value if plan.shares_time else "MIG"),
        Column("alone", lambda plan: format_minutes(plan.job.run_time), right=True),
        Column("slowdown", lambda plan: f"{plan.slowdown[plan.policy]:.2f}", right=True),
        Column("takes", lambda plan: format_minutes(plan.takes), right=True),
        Column("nights", lambda plan: "-" if plan.nights is None else str(plan.nights)),
    )


def _gpus(found: JobsAnswer) -> TextTable:
    policies = [policy.replace("-", " ") for policy in SchedulerPolicy]
    table = TextTable("host", "GPU", "profile", "jobs", "VMs", "at most", "scheduler", *policies, right=(3, 4, 5, 7, 8))
    for each in found.gpus:
        times = [
            Text(format_minutes(each.last[policy]), "green")
            if policy is each.shortest
            else format_minutes(each.last[policy])
            for policy in SchedulerPolicy
        ]
        table.add_row(
            each.host.name,
            str(each.gpu),
            each.profile,
            str(each.jobs),
            str(each.sharers),
            "-" if each.most is None else str(each.most),
            _scheduler(each),
            *(times if each.shares_time else ("-",) * len(times)),
        )
    return table


def _scheduler(each: JobsOnGpu) -> str:
    if not each.shares_time:
        return "MIG"
    return each.policy.replace("-", " ") + ("" if each.known else " (not told)")


def _too_long(each: PlannedJob, found: JobsAnswer) -> str:
    night = found.question.night
    assert night is not None and each.nights is not None, "only nights make a job too long"
    hours = format_minutes(night.closes - night.opens)
    may = f"may be resumed {each.job.resumes} times" if each.job.checkpoint else "has no checkpoint"
    return (
        f"{each.job.name}: takes {format_minutes(each.takes)}, a night has {hours}: {each.nights} nights, and it {may}"
    )


def _commands(each: PlannedJob) -> Iterator[Text]:
    yield Text(f"{each.job.name}: ", "bold").append(shlex.join(run_words(each.job)))
    if words := checkpoint_words(each.job):
        yield Text("  checkpoint: ").append(shlex.join(words))


def _notes(found: JobsAnswer) -> Iterator[str]:
    night, desktops = found.question.night, found.question.desktops
    if desktops is not None:
        when = "a night without hours, as the policy has it"
        if night is not None:
            opens, closes = (each.astimezone(night.zone) for each in (night.opens, night.closes))
            when = f"the night from {format_minute(opens)} to {format_minute(closes)}"
        yield f"of {when}, for which {count(desktops, 'desktop')} may be suspended"
    if not found.planned:
        return
    yield "on GPU: VMs on its GPU, itself counted; slowdown: times as long as alone, under the scheduler that is set"
    yield "below each scheduler: until the last job of that GPU ends"
    if any(not each.known and each.shares_time for each in found.gpus):
        yield "not told: a host did not tell its scheduler; best effort is the driver's default"
    if any(each.busy.source is BusySource.ASSUMED and each.shares_time for each in found.planned):
        yield "assumed: nobody says how busy, so all of the time; `busy` or `like` in the file says it"
    others = sum(found.beside.values())
    if others:
        unknown = found.beside.get(BusySource.ASSUMED, 0)
        yield f"{count(others, 'VM')} on these GPUs anyway; without a history, and counted as always busy: {unknown}"


def _vms(found: JobsAnswer) -> Iterator[str]:
    room = found.vms
    if room is None:
        return
    jobs = count(len(room.there) + len(room.of_template) + len(room.without), "job")
    made = f"of template {room.template}" if room.template is not None else "of a template, which none is"
    yield f"VMs of the policy: of {jobs} {len(room.there)} get one that is there, {len(room.of_template)} one {made}"
    for name, why in room.without:
        yield f"  {name} waits: {why}"


def _summary(found: JobsAnswer) -> str:
    done, total = len(found.planned), len(found.question.jobs)
    on = f" on {count(len(found.gpus), 'GPU')}" if found.gpus else ""
    return f"{done} of {count(total, 'job')} fit at once{on}; nothing was changed"


class JobNightRecord(DocumentRecord, frozen=True):
    """The night that was asked about."""

    opens: Moment
    closes: Moment


class JobThatWaitsRecord(DocumentRecord, frozen=True):
    """A job that gets no VM, and why."""

    name: str
    reason: str


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
    gpu: Annotated[str, "PCI address"]
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
    scheduler_known: Annotated[bool, "false = nobody told, it is the driver's default"]
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
        JobVmRoomRecord | None, "who gets a VM of the policy; null = no policy was said, or it says nothing of jobs"
    ]
    warnings: list[str]

    @classmethod
    def made_of(cls, answer: JobsAnswer) -> Self:
        before, placed = answer.placements.before, answer.placements.placed
        return cls.from_attributes(
            answer,
            answer.question,
            vcenter=before.vcenter,
            read_at=before.taken_at,
            jobs=answer.planned,
            without_place=answer.refused,
            forbidden=[ForbiddenJobRecord(job.name, why) for job, why in answer.forbidden],
            beside={source: answer.beside.get(source, 0) for source in BusySource},
            warnings=[*(text for each in placed for text in each.warnings), *answer.placements.warnings],
        )
