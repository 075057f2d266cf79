"""Nights for the scheduler, and a checker that knows nothing of how a schedule was made."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from gpuops.plan.schedule.problem import Desktop, Job, NightGpu, NightProblem, OperationLimits
from gpuops.plan.schedule.schedule import DesktopOperation, Schedule, ScheduledJob


def gpu(name: str, host: str, *idle_from: int | None, minutes: int = 2, store: str = "store") -> NightGpu:
    """A GPU whose desktops are idle from these minutes on."""
    desktops = (Desktop(f"{name}-{at}", idle, minutes, minutes, (store,)) for at, idle in enumerate(idle_from))
    return NightGpu(name, host, tuple(desktops))


def made_up(seed: int) -> NightProblem:
    """A night by chance: mixed sizes, durations, priorities, deadlines, runs that may be cut off."""
    chance = random.Random(seed)
    ends = chance.choice((60, 200, 500))
    gpus = tuple(
        gpu(
            f"gpu-{number}",
            f"host-{chance.randrange(3)}",
            *(
                None if chance.random() < 0.05 else chance.randrange(ends // 2)
                for _ in range(chance.choice((0, 1, 3, 5)))
            ),
            minutes=chance.choice((1, 2, 5)),
            store=f"store-{chance.randrange(2)}",
        )
        for number in range(chance.choice((1, 3, 8)))
    )
    jobs = tuple(_job(number, ends, gpus, chance) for number in range(chance.choice((0, 1, 5, 20))))
    limits = OperationLimits(chance.choice((None, 1, 4)), chance.choice((None, 2, 8)), chance.choice((None, 3)))
    return NightProblem(ends, gpus, jobs, limits, chance.choice((1.0, 1.5)), chance.choice((0, 0, 15)))


def _job(number: int, ends: int, gpus: tuple[NightGpu, ...], chance: random.Random) -> Job:
    minutes = chance.randrange(5, ends)
    return Job(
        f"job-{number}",
        chance.choice((1, 1, 1, 2, 4)),
        minutes,
        least_minutes=chance.choice((None, None, max(1, minutes // 2))),
        priority=chance.choice((0, 0, 1)),
        deadline=chance.choice((None, None, chance.randrange(1, ends))),
        allowed=None if chance.random() < 0.8 else frozenset(gpu.name for gpu in gpus if chance.random() < 0.5),
    )


def broken(problem: NightProblem, night_schedule: Schedule) -> list[str]:
    """Every rule that a schedule breaks."""
    return [
        *_moves(problem, night_schedule),
        *_lanes(problem, night_schedule),
        *_jobs(problem, night_schedule),
        *_gpus(problem, night_schedule),
    ]


def _moves(problem: NightProblem, night_schedule: Schedule) -> Iterator[str]:
    desktops = {desktop.name: desktop for gpu in problem.gpus for desktop in gpu.desktops}
    used = {name for run in night_schedule.runs for name in run.gpus}
    moved_desktops = {desktop.name for gpu in problem.gpus if gpu.name in used for desktop in gpu.desktops}
    for moves in (night_schedule.suspends, night_schedule.resumes):
        if Counter(move.desktop for move in moves) != Counter(moved_desktops):
            yield "other desktops than those of the GPUs that are used"
    for move in night_schedule.suspends:
        idle_from = desktops[move.desktop].idle_from
        if idle_from is None or move.start < idle_from or move.minutes != desktops[move.desktop].suspend_minutes:
            yield f"{move.desktop} is suspended while it is used"
    for move in night_schedule.resumes:
        if move.end > problem.ends or move.minutes < desktops[move.desktop].resume_minutes * problem.slowdown:
            yield f"{move.desktop} is late"


def _lanes(problem: NightProblem, night_schedule: Schedule) -> Iterator[str]:
    stores = {desktop.name: desktop.datastores for gpu in problem.gpus for desktop in gpu.desktops}
    lane_use: Counter[tuple[str, str, int]] = Counter()
    for move in (*night_schedule.suspends, *night_schedule.resumes):
        for minute in range(move.start, move.end):
            lane_use["host", move.host, minute] += 1
            lane_use["all", "", minute] += 1
            for store in stores[move.desktop]:
                lane_use["store", store, minute] += 1
    limits = problem.limits
    most = {"host": limits.per_host, "store": limits.per_datastore, "all": limits.in_total}
    for (kind, name, minute), count in lane_use.items():
        limit = most[kind]
        if limit is not None and count > limit:
            yield f"{count} at once at {kind} {name}, minute {minute}"


def _jobs(problem: NightProblem, night_schedule: Schedule) -> Iterator[str]:
    jobs = {job.name: job for job in problem.jobs}
    hosts = {gpu.name: gpu.host for gpu in problem.gpus}
    if sorted([run.job for run in night_schedule.runs] + list(night_schedule.left_out)) != sorted(jobs):
        yield "a job runs twice, or is forgotten"
    for run in night_schedule.runs:
        job = jobs[run.job]
        if len(set(run.gpus)) != job.gpus or len({hosts[name] for name in run.gpus}) != 1:
            yield f"{job.name} is not on {job.gpus} GPUs of one host"
        if job.allowed is not None and not job.allowed.issuperset(run.gpus):
            yield f"{job.name} runs where it may not"
        if job.deadline is not None and run.end > job.deadline:
            yield f"{job.name} ends after its deadline"
        if not job.at_least <= run.minutes <= job.minutes:
            yield f"{job.name} runs {run.minutes} of {job.minutes} minutes"


def _gpus(problem: NightProblem, night_schedule: Schedule) -> Iterator[str]:
    suspends = {move.desktop: move for move in night_schedule.suspends}
    resumes = {move.desktop: move for move in night_schedule.resumes}
    for of in problem.gpus:
        runs = sorted((run for run in night_schedule.runs if of.name in run.gpus), key=lambda run: run.start)
        if not runs:
            continue
        if any(earlier.end > two.start for earlier, two in pairwise(runs)):
            yield f"two jobs at once on {of.name}"
        if any(runs[0].start < suspends[desktop.name].end for desktop in of.desktops):
            yield f"a job runs on {of.name} before it is free"
        if any(runs[-1].end > resumes[desktop.name].start for desktop in of.desktops) or runs[-1].end > problem.ends:
            yield f"a job runs on {of.name} when it is given back"


def moves(operations: tuple[DesktopOperation, ...]) -> dict[str, int]:
    """Desktop -> start."""
    return {move.desktop: move.start for move in operations}


def run_of(night_schedule: Schedule, job: str) -> ScheduledJob:
    return next(run for run in night_schedule.runs if run.job == job)
