"""Packs the jobs of one host: jobs of several GPUs first, then one-GPU jobs in the stretches that remain.

`schedule_search.py` calls `pack_host` and `fill_stretches` again and again, and keeps what is better.

A stretch is free time on one GPU. Which one-GPU jobs fill it best is a subset sum: bit `m` of an integer says whether
some of the jobs take `m` minutes one after the other, adding a job is a shift, and a deadline is a mask when jobs come
in the order of their deadlines. A night is at most some thousand minutes long, so a hundred jobs take microseconds, and
the answer is exact.

Example: jobs of 3 and 5 minutes reach 0, 3, 5 and 8 minutes, bits 0b100101001. A stretch of 7 minutes is best filled by
the job of 5: bit 5 is the highest one that is set up to 7.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, groupby
from math import comb
from typing import Final, TypeVar

import numpy as np

from gpuops.plan.schedule.problem import GpuWindow, Job, JobTable


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
    ends_with_return: bool
    """Whether the GPU is returned to its desktops at its end, so that a run may be cut off there."""
    stretch_jobs: tuple[StretchJob, ...] = ()

    @property
    def busy_minutes(self) -> int:
        return sum(stretch_job.minutes for stretch_job in self.stretch_jobs)

    @property
    def idle_minutes(self) -> int:
        return self.end - self.start - self.busy_minutes


def fill_stretch(stretch: Stretch, jobs: Sequence[Job], pool: Sequence[int]) -> tuple[StretchJob, ...]:
    """Return the jobs of the pool that fill the stretch best: by priority, the highest first, each as full as can be.

    `pool` holds one-GPU jobs by number, the higher priority first, then by deadline, those without one last. Among
    equally full answers the one with jobs from the end of the pool is taken.

    >>> jobs = [Job("a", 1, minutes=40), Job("b", 1, minutes=30), Job("c", 1, minutes=20)]
    >>> fill_stretch(Stretch(gpu=0, start=0, end=60, ends_with_return=False), jobs, pool=[0, 1, 2])
    (StretchJob(job=0, minutes=40), StretchJob(job=2, minutes=20))
    """
    filled: list[StretchJob] = []
    start = stretch.start
    for _, of_priority in groupby(pool, key=lambda number: jobs[number].priority):
        stretch_jobs = _fill_priority(start, stretch.end, stretch.ends_with_return, jobs, list(of_priority))
        filled += stretch_jobs
        start += sum(stretch_job.minutes for stretch_job in stretch_jobs)
        if start == stretch.end:
            break
    return tuple(filled)


def _fill_priority(
    start: int, end: int, is_returned: bool, jobs: Sequence[Job], pool: Sequence[int]
) -> list[StretchJob]:
    """Return the jobs of one priority that fill the time from `start` to `end` best.

    `is_returned`: whether the GPU is returned at `end`, which may cut a job off.
    """
    length = end - start
    # 1. Only complete jobs: the most minutes that they reach. Bit m of the last sum is set if some jobs take m minutes.
    complete_jobs, sums = reachable_sums(start, length, jobs, pool)
    best = sums[-1].bit_length() - 1
    if best == length or not is_returned:
        return _jobs_of_sum(start, best, jobs, complete_jobs, sums)
    # 2. If the GPU is returned at the end, a run that is cut off there may fill more.
    cut_off_run = _cut_off(start, end, best, jobs, pool, sums)
    if cut_off_run is None:
        return _jobs_of_sum(start, best, jobs, complete_jobs, sums)
    # 3. It does: fill the time before that job with the others.
    number, minutes_before = cut_off_run
    other_jobs = [candidate for candidate in pool if candidate != number]
    complete_jobs, sums = reachable_sums(start, length, jobs, other_jobs)
    # The most minutes, up to `minutes_before`, that the other jobs reach.
    minutes_before = (sums[-1] & ((2 << minutes_before) - 1)).bit_length() - 1
    time_left = jobs[number].last_end(end) - start - minutes_before
    minutes = min(time_left, jobs[number].minutes)
    return [*_jobs_of_sum(start, minutes_before, jobs, complete_jobs, sums), StretchJob(number, minutes)]


def reachable_sums(start: int, length: int, jobs: Sequence[Job], pool: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the jobs that fit completely, and for the first 0, 1, 2... of them bits of the minutes that they reach.

    Jobs of 2 and 3 minutes reach 0, 2, 3 and 5 minutes, which are bits 0, 2, 3 and 5.

    >>> fitting, sums = reachable_sums(0, 10, [Job("a", 1, minutes=2), Job("b", 1, minutes=3)], [0, 1])
    >>> [bin(bits) for bits in sums]
    ['0b1', '0b101', '0b101101']
    """
    all_minutes = (2 << length) - 1
    fitting: list[int] = []
    sums = [1]
    reached = 1
    for number in pool:
        job = jobs[number]
        if job.minutes > length:
            continue
        in_time = all_minutes if job.deadline is None else (1 << max(0, min(length, job.deadline - start) + 1)) - 1
        reached |= (reached << job.minutes) & in_time
        fitting.append(number)
        sums.append(reached)
    return fitting, sums


def _jobs_of_sum(
    start: int, total: int, jobs: Sequence[Job], complete_jobs: Sequence[int], sums: Sequence[int]
) -> list[StretchJob]:
    """Return the jobs that make up this sum, in the order of the pool; the latest of the pool are preferred."""
    # Backwards: a job is part of the sum if the jobs before it reach the remaining minutes without it.
    chosen: list[StretchJob] = []
    for count in range(len(complete_jobs), 0, -1):
        if total == 0:
            break
        job = jobs[complete_jobs[count - 1]]
        in_time = job.deadline is None or start + total <= job.deadline
        if in_time and job.minutes <= total and (sums[count - 1] >> (total - job.minutes)) & 1:
            chosen.append(StretchJob(complete_jobs[count - 1], job.minutes))
            total -= job.minutes
    return chosen[::-1]


def _cut_off(
    start: int, end: int, best: int, jobs: Sequence[Job], pool: Sequence[int], sums: Sequence[int]
) -> tuple[int, int] | None:
    """Return the job that the end cuts off, and the most minutes before it; None = no such job fills more than `best`.

    `best`: the most minutes that complete jobs fill.
    """
    best_cut: tuple[int, int] | None = None
    most_filled = best
    for number in pool:
        job = jobs[number]
        room = job.last_end(end) - start
        if job.least_minutes is None or room < job.at_least:
            continue  # it must run completely, or its cut-off run would be too short
        # The most minutes before it, so that at least `at_least` remain for it.
        before = (sums[-1] & ((2 << (room - job.at_least)) - 1)).bit_length() - 1
        filled = before + min(room - before, job.minutes)
        if filled > most_filled:
            most_filled, best_cut = filled, (number, before)
    return best_cut


Item = TypeVar("Item")

_RANDOM_BLOCK: Final = 4096
"""Random numbers that are drawn at once: one at a time costs a call each."""
_GPU_SETS_TRIED: Final = 6
"""Sets of GPUs that are tried for a job of several GPUs."""


class SeededRandom:
    """Random numbers from a seed, the same in every run."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._block: list[float] = []

    def uniform(self) -> float:
        """A number from 0 up to, and without, 1."""
        if not self._block:
            self._block = self._source.random(_RANDOM_BLOCK).tolist()
        return self._block.pop()

    @cached_property
    def _source(self) -> np.random.Generator:
        """The generator. Made at the first call: most nights are decided without random numbers."""
        return np.random.default_rng(self._seed)

    def integer_below(self, most: int) -> int:
        """A whole number from 0 up to, and without, `most`."""
        return int(self.uniform() * most)

    def choice(self, candidates: Sequence[Item]) -> Item:
        """One of the candidates."""
        return candidates[self.integer_below(len(candidates))]

    def shuffle(self, candidates: Sequence[Item]) -> list[Item]:
        """The candidates in a random order."""
        return sorted(candidates, key=lambda _: self.uniform())


@dataclass(frozen=True, slots=True)
class JobRun:
    """A job and the GPUs it runs on, both by number."""

    job: int
    start: int
    minutes: int
    gpus: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + self.minutes


@dataclass(frozen=True, slots=True)
class HostPacking:
    """What runs on one host: its jobs of several GPUs, and the stretches of free time between them."""

    multi_gpu: tuple[JobRun, ...] = ()
    stretches: tuple[Stretch, ...] = ()

    def jobs(self) -> list[int]:
        """The numbers of the jobs that run."""
        one_gpu = [stretch_job.job for stretch in self.stretches for stretch_job in stretch.stretch_jobs]
        return [*(run.job for run in self.multi_gpu), *one_gpu]

    def runs(self) -> list[JobRun]:
        """Every run, of jobs of several GPUs and of one."""
        runs = list(self.multi_gpu)
        for stretch in self.stretches:
            start = stretch.start
            for stretch_job in stretch.stretch_jobs:
                runs.append(JobRun(stretch_job.job, start, stretch_job.minutes, (stretch.gpu,)))
                start += stretch_job.minutes
        return runs

    def on(self, gpus: Collection[int]) -> HostPacking:
        """The packing without the stretches of other GPUs."""
        return replace(self, stretches=tuple(stretch for stretch in self.stretches if stretch.gpu in gpus))

    def worth(self, table: JobTable) -> int:
        """The worth of everything that runs: minutes times GPUs times the weight of the job."""
        filled = (stretch_job for stretch in self.stretches for stretch_job in stretch.stretch_jobs)
        one_gpu = sum(stretch_job.minutes * table.weights[stretch_job.job] for stretch_job in filled)
        return one_gpu + sum(run.minutes * len(run.gpus) * table.weights[run.job] for run in self.multi_gpu)


def pack_host(
    windows: dict[int, GpuWindow],
    table: JobTable,
    pool: Iterable[int],
    random: SeededRandom,
    leave_out: float = 0.0,
    staying_runs: Sequence[JobRun] = (),
) -> HostPacking:
    """Return a random packing of the host whose GPUs have these windows; the `staying_runs` keep their places.

    `leave_out`: the share of the jobs of several GPUs that are not tried, 0 to 1.
    """
    pool = list(pool)
    one_gpu = table.pool(pool, multi_gpu=False)
    free = _FreeTime(windows)
    longest = max((window.minutes for window in windows.values()), default=0)
    fillable_minutes = reachable_sums(0, longest, table.jobs, one_gpu)[1][-1]
    # 1. Jobs of several GPUs in the order of priority, then of a size that chance changes by up to a half, so that
    #    repeated calls try different orders.
    tried_jobs = [
        number for number in table.pool(pool, multi_gpu=True) if not leave_out or random.uniform() >= leave_out
    ]
    areas = {
        number: table.jobs[number].gpus * table.jobs[number].minutes * (0.5 + random.uniform()) for number in tried_jobs
    }
    tried_jobs.sort(key=lambda number: (-table.jobs[number].priority, -areas[number]))
    # 2. Each where there is room, at a start before which one-GPU jobs can fill the time completely.
    multi_gpu = list(staying_runs)
    for run in staying_runs:
        free.take(run)
    for number in tried_jobs:
        place = free.place_for(number, table, fillable_minutes, random)
        if place is not None:
            free.take(place)
            multi_gpu.append(place)
    # 3. Fill the remaining time with one-GPU jobs.
    return HostPacking(tuple(multi_gpu), tuple(fill_stretches(free.stretches(), table, one_gpu, random)))


def fill_stretches(
    stretches: Sequence[Stretch], table: JobTable, one_gpu: Sequence[int], random: SeededRandom
) -> list[Stretch]:
    """The stretches, filled one after the other in a random order with one-GPU jobs, each as full as can be."""
    waiting = list(one_gpu)
    filled = list(stretches)
    for index in random.shuffle(range(len(filled))):
        stretch_jobs = fill_stretch(filled[index], table.jobs, table.allowed_on(waiting, filled[index].gpu))
        filled[index] = replace(filled[index], stretch_jobs=stretch_jobs)
        placed_jobs = {stretch_job.job for stretch_job in stretch_jobs}
        waiting = [number for number in waiting if number not in placed_jobs]
    return filled


class _FreeTime:
    """The time that is still free on each GPU of a host, as (start, end) in the order of time."""

    def __init__(self, windows: dict[int, GpuWindow]) -> None:
        self._windows = windows
        self._free_by_gpu = {number: [(window.free_from, window.back_from)] for number, window in windows.items()}

    def stretches(self) -> list[Stretch]:
        """The free times as stretches without jobs."""
        return [
            Stretch(number, start, end, end == self._windows[number].back_from)
            for number, free in self._free_by_gpu.items()
            for start, end in free
        ]

    def take(self, run: JobRun) -> None:
        """Take the time of the run from its GPUs."""
        for number in run.gpus:
            still_free = []
            for start, end in self._free_by_gpu[number]:
                if start <= run.start and run.end <= end:
                    remainders = ((start, run.start), (run.end, end))
                    still_free += [(begin, finish) for begin, finish in remainders if finish > begin]
                else:
                    still_free.append((start, end))
            self._free_by_gpu[number] = still_free

    def place_for(self, number: int, table: JobTable, fillable_minutes: int, random: SeededRandom) -> JobRun | None:
        """Return a random place for a job of several GPUs; None = no tried set of GPUs has one.

        `fillable_minutes`: bits of the lengths of time before it that one-GPU jobs can fill exactly.
        """
        job = table.jobs[number]
        allowed_gpus = [gpu for gpu in self._free_by_gpu if table.may_run_on(number, gpu)]
        for gpus in _some_sets(allowed_gpus, job.gpus, random):
            times = [(start, end) for start, end in self._common(gpus) if end - start >= job.at_least]
            if not times:
                continue
            start, end = random.choice(times)
            last_end = job.last_end(end)
            if last_end - start >= job.minutes:
                begin = self._choose_start(gpus, start, last_end - job.minutes, fillable_minutes, random)
                return JobRun(number, begin, job.minutes, gpus)
            # A run is cut off only where the first of the GPUs is given back, and only if it lasts long enough.
            given_back = min(self._windows[gpu].back_from for gpu in gpus)
            if last_end - start >= job.at_least and end == given_back:
                return JobRun(number, start, last_end - start, gpus)
        return None

    def _choose_start(
        self, gpus: Sequence[int], first: int, last: int, fillable_minutes: int, random: SeededRandom
    ) -> int:
        """Return a start from `first` to `last` before which no GPU must stay idle, if there is one; else `first`."""
        # Bit m: the free time of every GPU before minute m can be filled by one-GPU jobs exactly.
        fillable_starts = (1 << (last + 1)) - 1
        for gpu in gpus:
            fillable_starts &= fillable_minutes << next(
                start for start, end in self._free_by_gpu[gpu] if start <= first < end
            )
        random_start = first + random.integer_below(last - first + 1)
        # The first such start from the random minute on, else from the first possible one on.
        for earliest in (random_start, first):
            from_earliest = fillable_starts >> earliest
            if from_earliest:
                return earliest + (from_earliest & -from_earliest).bit_length() - 1  # the lowest bit
        return first

    def _common(self, gpus: Sequence[int]) -> list[tuple[int, int]]:
        """Return the times in which all of these GPUs are free. 0-60 and 80-90 with 10-85 give 10-60 and 80-85."""
        common = self._free_by_gpu[gpus[0]]
        for gpu in gpus[1:]:
            overlaps = [
                (max(start, other_start), min(end, other_end))
                for start, end in common
                for other_start, other_end in self._free_by_gpu[gpu]
            ]
            common = [(start, end) for start, end in overlaps if end > start]
        return common


def _some_sets(gpus: Sequence[int], size: int, random: SeededRandom) -> list[tuple[int, ...]]:
    """Return some sets of `size` GPUs in a random order; all sets if there are few."""
    if comb(len(gpus), size) <= _GPU_SETS_TRIED:
        return random.shuffle(list(combinations(gpus, size)))
    return [tuple(sorted(random.shuffle(gpus)[:size])) for _ in range(_GPU_SETS_TRIED)]
