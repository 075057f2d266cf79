"""Stretches of free time on one GPU, and the one-GPU jobs that fill each best.

`packing.py` calls `fill_stretch`. Which jobs fill a stretch is a subset sum: bit `m` of an integer says whether some of
the jobs take `m` minutes one after the other, adding a job is a shift, and a deadline is a mask when jobs come in the
order of their deadlines. A night is at most some thousand minutes long, so a hundred jobs take microseconds, and the
answer is exact.

Example: jobs of 3 and 5 minutes reach 0, 3, 5 and 8 minutes, bits 0b100101001. A stretch of 7 minutes is best filled by
the job of 5: bit 5 is the highest one that is set up to 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from gpuops.plan.schedule.problem import Job


@dataclass(frozen=True, slots=True)
class StretchJob:
    """A job of a stretch, by number, and how long it runs."""

    job: int
    minutes: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """Time on a GPU from `start` to `end`, and the jobs that run in it, one after the other from its start."""

    gpu: int
    start: int
    end: int
    last: bool
    """Whether the GPU is returned to its desktops at its end, so that a run may be cut off there."""
    stretch_jobs: tuple[StretchJob, ...] = ()

    @property
    def busy_minutes(self) -> int:
        return sum(stretch_job.minutes for stretch_job in self.stretch_jobs)

    @property
    def idle(self) -> int:
        return self.end - self.start - self.busy_minutes


def fill_stretch(stretch: Stretch, jobs: Sequence[Job], pool: Sequence[int]) -> tuple[StretchJob, ...]:
    """The jobs of the pool that fill the stretch best: by priority, the highest first, each as full as can be.

    `pool` holds one-GPU jobs by number, the higher priority first, then by deadline, those without one last. Among
    equally full answers the one with jobs from the end of the pool is taken.
    """
    filled: list[StretchJob] = []
    start = stretch.start
    for _, of_class in groupby(pool, key=lambda number: jobs[number].priority):
        stretch_jobs = _fill_priority(start, stretch.end, stretch.last, jobs, list(of_class))
        filled += stretch_jobs
        start += sum(stretch_job.minutes for stretch_job in stretch_jobs)
        if start == stretch.end:
            break
    return tuple(filled)


def _fill_priority(start: int, end: int, last: bool, jobs: Sequence[Job], pool: Sequence[int]) -> list[StretchJob]:
    length = end - start
    # 1. Only complete jobs: the highest sum that they reach.
    whole, sums = reachable_sums(start, length, jobs, pool)
    best = sums[-1].bit_length() - 1
    if best == length or not last:
        return _jobs_of_sum(start, best, jobs, whole, sums)
    # 2. If the GPU is returned at the end, a run that is cut off there may fill more.
    cut = _cut_off(start, end, best, jobs, pool, sums)
    if cut is None:
        return _jobs_of_sum(start, best, jobs, whole, sums)
    # 3. It does: fill the time before that job with the others.
    number, before = cut
    other_jobs = [candidate for candidate in pool if candidate != number]
    whole, sums = reachable_sums(start, length, jobs, other_jobs)
    before = (sums[-1] & ((2 << before) - 1)).bit_length() - 1
    lasts = min(length - before, jobs[number].minutes, _last_end(jobs[number], end) - start - before)
    return [*_jobs_of_sum(start, before, jobs, whole, sums), StretchJob(number, lasts)]


def reachable_sums(start: int, length: int, jobs: Sequence[Job], pool: Sequence[int]) -> tuple[list[int], list[int]]:
    """The jobs that fit completely, and for the first 0, 1, 2... of them the bits of the minutes that they reach."""
    all_minutes = (2 << length) - 1
    fitting: list[int] = []
    sums = [1]
    reached = 1
    for number in pool:
        job = jobs[number]
        if job.minutes > length:
            continue
        mask = all_minutes if job.deadline is None else (1 << max(0, min(length, job.deadline - start) + 1)) - 1
        reached |= (reached << job.minutes) & mask
        fitting.append(number)
        sums.append(reached)
    return fitting, sums


def _jobs_of_sum(
    start: int, total: int, jobs: Sequence[Job], whole: Sequence[int], sums: Sequence[int]
) -> list[StretchJob]:
    """The jobs that make up this sum, in the order of the pool; the latest of the pool are preferred."""
    # Backwards: a job is part of the sum if the jobs before it reach what is left without it.
    chosen: list[StretchJob] = []
    for count in range(len(whole), 0, -1):
        if total == 0:
            break
        job = jobs[whole[count - 1]]
        in_time = job.deadline is None or start + total <= job.deadline
        if in_time and job.minutes <= total and (sums[count - 1] >> (total - job.minutes)) & 1:
            chosen.append(StretchJob(whole[count - 1], job.minutes))
            total -= job.minutes
    return chosen[::-1]


def _cut_off(
    start: int, end: int, best: int, jobs: Sequence[Job], pool: Sequence[int], sums: Sequence[int]
) -> tuple[int, int] | None:
    """The job that the end cuts off and the most minutes before it; None if that fills no more than complete jobs."""
    best_cut: tuple[int, int] | None = None
    most = best
    for number in pool:
        job = jobs[number]
        room = min(end, _last_end(job, end)) - start
        if job.least_minutes is None or room < job.at_least:
            continue
        before = (sums[-1] & ((2 << (room - job.at_least)) - 1)).bit_length() - 1
        filled = before + min(room - before, job.minutes)
        if filled > most:
            most, best_cut = filled, (number, before)
    return best_cut


def _last_end(job: Job, end: int) -> int:
    """The earlier of its deadline and this end."""
    return end if job.deadline is None else min(end, job.deadline)
