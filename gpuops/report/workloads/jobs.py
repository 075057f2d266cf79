"""What `gpuops job plan` prints: each job with its GPU and its time, each GPU with its jobs; and the JSON document."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import timedelta

from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.plan.jobs.container_command import checkpoint_words, run_words
from gpuops.plan.jobs.job_plan import BusySource, JobsAnswer, JobsOnGpu, PlannedJob
from gpuops.plan.queue.one_workload import Refusal
from gpuops.report.advice.placement import refused_lines
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.plan_json import rejection_document
from gpuops.report.text import count, visible


def jobs_text(found: JobsAnswer, *, commands: bool = False) -> Shown:
    """Jobs, GPUs, what has no place, what it stands on, and one closing line."""
    parts: list[Shown] = []
    if found.planned:
        parts += [_jobs(found), Text(), _gpus(found)]
    parts += [line for refusal in found.refused for line in refused_lines(refusal)]
    parts += [Text("refused: ", "bold red").append(f"{job.name}: {visible(why)}") for job, why in found.forbidden]
    parts += [Text("too long: ", "bold red").append(_too_long(each, found)) for each in found.planned if each.too_long]
    parts += [
        Text("warning: ", "yellow").append(visible(text))
        for text in (*(text for each in found.placements.placed for text in each.warnings), *found.placements.warnings)
    ]
    if commands:
        parts += [line for each in found.planned for line in _commands(each)]
    parts += [Text(note, "dim") for note in _notes(found)]
    parts += [Text(line) for line in _vms(found)]
    return (*parts, Text(_summary(found), "bold"))


def _jobs(found: JobsAnswer) -> TextTable:
    table = TextTable(
        *("job", "owner", "host", "GPU", "on GPU", "busy", "by", "alone", "slowdown", "takes", "nights"),
        right=(4, 5, 7, 8, 9),
        whole=(0,),
    )
    for each in found.planned:
        factor = each.slowdown[each.policy]
        table.add_row(
            each.job.name,
            visible(each.job.owner or "-"),
            visible(each.host.name),
            str(each.gpu),
            str(each.sharers),
            f"{each.busy.share:.0%}" if each.shares_time else "-",
            each.busy.source.value if each.shares_time else "MIG",
            _time(each.job.run_time),
            f"{factor:.2f}",
            _time(each.takes),
            "-" if each.nights is None else str(each.nights),
        )
    return table


def _gpus(found: JobsAnswer) -> TextTable:
    policies = [policy.replace("-", " ") for policy in SchedulerPolicy]
    table = TextTable("host", "GPU", "profile", "jobs", "VMs", "at most", "scheduler", *policies, right=(3, 4, 5, 7, 8))
    for each in found.gpus:
        times = [
            Text(_time(each.last[policy]), "green") if policy is each.shortest else _time(each.last[policy])
            for policy in SchedulerPolicy
        ]
        table.add_row(
            visible(each.host.name),
            str(each.gpu),
            visible(each.profile),
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


def _time(length: timedelta) -> str:
    """`3 h 30 min`, `45 min`."""
    hours, minutes = divmod(round(length.total_seconds() / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def _too_long(each: PlannedJob, found: JobsAnswer) -> str:
    night = found.question.night
    assert night is not None and each.nights is not None, "only nights make a job too long"
    hours = _time(night.closes - night.opens)
    may = f"may be resumed {each.job.resumes} times" if each.job.checkpoint else "has no checkpoint"
    return f"{each.job.name}: takes {_time(each.takes)}, a night has {hours}: {each.nights} nights, and it {may}"


def _commands(each: PlannedJob) -> Iterator[Text]:
    yield Text(f"{each.job.name}: ", "bold").append(visible(shlex.join(run_words(each.job))))
    if words := checkpoint_words(each.job):
        yield Text("  checkpoint: ").append(visible(shlex.join(words)))


def _notes(found: JobsAnswer) -> Iterator[str]:
    night, desktops = found.question.night, found.question.desktops
    if desktops is not None:
        when = "a night without hours, as the policy has it"
        if night is not None:
            opens, closes = (each.astimezone(night.zone) for each in (night.opens, night.closes))
            when = f"the night from {opens:%Y-%m-%d %H:%M} to {closes:%Y-%m-%d %H:%M}"
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
    made = f"of template {visible(room.template)}" if room.template is not None else "of a template, which none is"
    yield f"VMs of the policy: of {jobs} {len(room.there)} get one that is there, {len(room.of_template)} one {made}"
    for name, why in room.without:
        yield f"  {name} waits: {visible(why)}"


def _summary(found: JobsAnswer) -> str:
    done, total = len(found.planned), len(found.question.jobs)
    on = f" on {count(len(found.gpus), 'GPU')}" if found.gpus else ""
    return f"{done} of {count(total, 'job')} fit at once{on}; nothing was changed"


def jobs_document(found: JobsAnswer) -> Document:
    """The same for programs, with the command lines as lists of words. Times in seconds; null = not said, not known."""
    night, before = found.question.night, found.placements.before
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "job-plan",
        "vcenter": before.vcenter,
        "read_at": before.taken_at.isoformat(),
        "exit_code": found.exit_code,
        "desktops": found.question.desktops,
        "night": None if night is None else {"opens": night.opens.isoformat(), "closes": night.closes.isoformat()},
        "jobs": [_job_document(each) for each in found.planned],
        "gpus": [_gpu_document(each) for each in found.gpus],
        "without_place": [_refusal_document(each) for each in found.refused],
        "forbidden": [{"name": job.name, "reason": why} for job, why in found.forbidden],
        "beside": {source.value: found.beside.get(source, 0) for source in BusySource},
        "vms": _vms_document(found),
        "warnings": [
            *(text for each in found.placements.placed for text in each.warnings),
            *found.placements.warnings,
        ],
    }


def _vms_document(found: JobsAnswer) -> Document | None:
    room = found.vms
    if room is None:
        return None
    without = [{"name": name, "reason": why} for name, why in room.without]
    return {"template": room.template, "there": [*room.there], "of_template": [*room.of_template], "without": without}


def _job_document(each: PlannedJob) -> Document:
    return {
        "name": each.job.name,
        "owner": each.job.owner,
        "image": each.job.image,
        "host": {"ref": each.host.ref, "name": each.host.name},
        "gpu": str(each.gpu),
        "sharers": each.sharers,
        "busy": each.busy.share,
        "busy_by": each.busy.source.value,
        "scheduler": each.policy.value,
        "run_time_s": each.job.run_time.total_seconds(),
        "takes_s": each.takes.total_seconds(),
        "slowdown": {policy.value: factor for policy, factor in each.slowdown.items()},
        "nights": each.nights,
        "too_long": each.too_long,
        "command": list(run_words(each.job)),
        "checkpoint": list(checkpoint_words(each.job)),
    }


def _gpu_document(each: JobsOnGpu) -> Document:
    return {
        "host": {"ref": each.host.ref, "name": each.host.name},
        "gpu": str(each.gpu),
        "profile": each.profile,
        "jobs": each.jobs,
        "sharers": each.sharers,
        "most": each.most,
        "scheduler": each.policy.value,
        "scheduler_known": each.known,
        "shares_time": each.shares_time,
        "last_ends_s": {policy.value: length.total_seconds() for policy, length in each.last.items()},
        "shortest": None if each.shortest is None else each.shortest.value,
    }


def _refusal_document(refusal: Refusal) -> Document:
    return {
        "name": refusal.workload.name,
        "rejections": [rejection_document(one) for one in refusal.rejections],
        "nearest": refusal.nearest,
        "after_moves": refusal.moves,
    }
