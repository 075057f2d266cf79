"""The jobs of one host: jobs of several GPUs first, at places that leave fillable stretches; then one-GPU jobs.

`search.py` calls `pack_host` and `fill_stretches` again and again, and keeps what is better.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import comb
from typing import Final, TypeVar

import numpy as np

from gpuops.plan.schedule.jobs import JobTable
from gpuops.plan.schedule.stretches import Stretch, fill_stretch, reachable_sums
from gpuops.plan.schedule.windows import GpuWindow

Item = TypeVar("Item")

_BLOCK: Final = 4096
"""Random numbers that are drawn at once: one at a time costs a call each."""
_SETS: Final = 6
"""Sets of GPUs that are tried for a job of several GPUs."""


class SeededRandom:
    """Random numbers from a seed, the same in every run."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._block: list[float] = []

    def uniform(self) -> float:
        """A number from 0 up to, and without, 1."""
        if not self._block:
            self._block = self._source.random(_BLOCK).tolist()
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
    """A random packing of the host whose GPUs have these windows; the `staying_runs` keep their places.

    `leave_out`: the share of the jobs of several GPUs that are not tried.
    """
    pool = list(pool)
    one_gpu = table.pool(pool, multi_gpu=False)
    free = _FreeTime(windows)
    longest = max((window.minutes for window in windows.values()), default=0)
    fillable_minutes = reachable_sums(0, longest, table.jobs, one_gpu)[1][-1]
    # 1. Jobs of several GPUs in the order of priority, then of a size that chance changes by up to a half, so that
    #    repeated calls try different orders.
    drawn = [number for number in table.pool(pool, multi_gpu=True) if not leave_out or random.uniform() >= leave_out]
    areas = {
        number: table.jobs[number].gpus * table.jobs[number].minutes * (0.5 + random.uniform()) for number in drawn
    }
    drawn.sort(key=lambda number: (-table.jobs[number].priority, -areas[number]))
    # 2. Each where there is room, at a start before which one-GPU jobs can fill the time completely.
    multi_gpu = list(staying_runs)
    for run in staying_runs:
        free.take(run)
    for number in drawn:
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
        self._of = {number: [(window.free_from, window.back_from)] for number, window in windows.items()}

    def stretches(self) -> list[Stretch]:
        """The free times as stretches without jobs."""
        return [
            Stretch(number, start, end, end == self._windows[number].back_from)
            for number, free in self._of.items()
            for start, end in free
        ]

    def take(self, run: JobRun) -> None:
        """Take the time of the run from its GPUs."""
        for number in run.gpus:
            still_free = []
            for start, end in self._of[number]:
                if start <= run.start and run.end <= end:
                    still_free += [(a, b) for a, b in ((start, run.start), (run.end, end)) if b > a]
                else:
                    still_free.append((start, end))
            self._of[number] = still_free

    def place_for(self, number: int, table: JobTable, fillable_minutes: int, random: SeededRandom) -> JobRun | None:
        """A random place for a job of several GPUs; None = no tried set of GPUs has one.

        `fillable_minutes`: bits of the lengths of time before it that one-GPU jobs can fill exactly.
        """
        job = table.jobs[number]
        allowed_gpus = [gpu for gpu in self._of if table.may_run_on(number, gpu)]
        for gpus in _some_sets(allowed_gpus, job.gpus, random):
            times = [(start, end) for start, end in self._common(gpus) if end - start >= job.at_least]
            if times:
                start, end = random.choice(times)
                until = end if job.deadline is None else min(end, job.deadline)
                # A run is cut off only where the GPUs are given back at its end, and only if it lasts long enough.
                fits_completely = until - start >= job.minutes
                if not fits_completely and not (until - start >= job.at_least and self._given_back(gpus, end)):
                    continue
                if not fits_completely:
                    return JobRun(number, start, min(job.minutes, until - start), gpus)
                return JobRun(
                    number, self._start(gpus, start, until - job.minutes, fillable_minutes, random), job.minutes, gpus
                )
        return None

    def _given_back(self, gpus: Sequence[int], at: int) -> bool:
        """Whether `at` is when the first of the GPUs is given back to its desktops."""
        return at == min(self._windows[gpu].back_from for gpu in gpus)

    def _start(self, gpus: Sequence[int], first: int, last: int, fillable_minutes: int, random: SeededRandom) -> int:
        """A start from `first` to `last` before which no GPU need stay idle, if there is one; else `first`."""
        # Bit m: the free time of every GPU before minute m can be filled by one-GPU jobs exactly.
        fillable_starts = (1 << (last + 1)) - 1
        for gpu in gpus:
            fillable_starts &= fillable_minutes << next(start for start, end in self._of[gpu] if start <= first < end)
        drawn = first + random.integer_below(last - first + 1)
        # The first such start from a drawn minute on, else from the first possible one on.
        for earliest in (drawn, first):
            later = fillable_starts >> earliest
            if later:
                return earliest + (later & -later).bit_length() - 1
        return first

    def _common(self, gpus: Sequence[int]) -> list[tuple[int, int]]:
        """The times in which all of these GPUs are free."""
        common = self._of[gpus[0]]
        for gpu in gpus[1:]:
            common = [(max(a, c), min(b, d)) for a, b in common for c, d in self._of[gpu] if min(b, d) > max(a, c)]
        return common


def _some_sets(gpus: Sequence[int], size: int, random: SeededRandom) -> list[tuple[int, ...]]:
    """Some sets of `size` GPUs in a random order; all sets where they are few."""
    if comb(len(gpus), size) <= _SETS:
        return random.shuffle(list(combinations(gpus, size)))
    return [tuple(sorted(random.shuffle(gpus)[:size])) for _ in range(_SETS)]
