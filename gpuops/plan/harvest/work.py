"""Work: the jobs as the search looks at them, by number, each with the GPUs that it may run on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from gpuops.plan.harvest.problem import Job, Problem
from gpuops.plan.harvest.windows import Window


@dataclass(frozen=True, slots=True)
class Work:
    """Jobs by number."""

    jobs: tuple[Job, ...]
    may_run: tuple[frozenset[int] | None, ...]
    """On which GPUs, by number; None = on any."""
    rank: tuple[int, ...]
    """Place of each job in a pool: the higher priority first, then by deadline, then the shorter first, then those that
    may run on fewer GPUs."""
    weights: tuple[int, ...]
    """What a GPU-minute of each job is worth; the least of one priority outweighs all there is of the lower ones."""
    longest: Mapping[int, int]
    """How long each job could run if the night were its alone; a job that could not at all is missing."""

    def runs_on(self, job: int, gpu: int) -> bool:
        allowed = self.may_run[job]
        return allowed is None or gpu in allowed

    def pool(self, numbers: Iterable[int], *, wide: bool) -> list[int]:
        """Those of the jobs that take several GPUs, or one, in the order of a pool."""
        return sorted((number for number in numbers if (self.jobs[number].gpus > 1) is wide), key=self.rank.__getitem__)

    def here(self, pool: Iterable[int], gpu: int) -> list[int]:
        """Those that may run on this GPU, in the same order."""
        return [number for number in pool if self.runs_on(number, gpu)]

    def gpu_minutes(self) -> int:
        """What all jobs that could run take together."""
        return sum(self.jobs[number].gpus * minutes for number, minutes in self.longest.items())

    def most(self, gpu_minutes: int) -> int:
        """What so many GPU-minutes are worth at most: the best jobs as long as they could run, and part of one."""
        worth = 0
        for number in sorted(self.longest, key=lambda number: -self.weights[number]):
            takes = min(gpu_minutes, self.jobs[number].gpus * self.longest[number])
            worth += takes * self.weights[number]
            gpu_minutes -= takes
        return worth


def work_of(problem: Problem, alone: Mapping[int, Window]) -> Work:
    """The jobs of the problem. `alone`: the GPUs that can be freed, each with its window if it alone were."""
    numbers = {problem.gpus[number].name: number for number in alone}
    may_run = tuple(
        None if job.allowed is None else frozenset(numbers[name] for name in job.allowed if name in numbers)
        for job in problem.jobs
    )
    order = sorted(
        range(len(problem.jobs)), key=lambda number: _in_a_pool(problem.jobs[number], may_run[number], number)
    )
    rank = [0] * len(order)
    for place, number in enumerate(order):
        rank[number] = place
    classes = sorted({job.priority for job in problem.jobs})
    everything = problem.ends * max(1, len(alone)) + 1
    weights = tuple(everything ** classes.index(job.priority) for job in problem.jobs)
    return Work(problem.jobs, may_run, tuple(rank), weights, _longest(problem, alone, may_run))


def _in_a_pool(job: Job, allowed: frozenset[int] | None, number: int) -> tuple[int, float, int, float, int]:
    due = inf if job.deadline is None else job.deadline
    return -job.priority, due, job.minutes, inf if allowed is None else len(allowed), number


def _longest(problem: Problem, alone: Mapping[int, Window], may_run: Sequence[frozenset[int] | None]) -> dict[int, int]:
    by_host: dict[str, list[int]] = defaultdict(list)
    for number in alone:
        by_host[problem.gpus[number].host].append(number)
    found: dict[int, int] = {}
    seen: dict[tuple[int, int | None, frozenset[int] | None], int] = {}
    for number, job in enumerate(problem.jobs):
        asked = (job.gpus, job.deadline, may_run[number])
        if asked not in seen:
            of_hosts = ([alone[gpu] for gpu in gpus if _may(asked[2], gpu)] for gpus in by_host.values())
            seen[asked] = max((_longest_common(here, job.gpus, job.deadline) for here in of_hosts), default=0)
        if seen[asked] >= job.at_least:
            found[number] = min(job.minutes, seen[asked])
    return found


def _may(allowed: frozenset[int] | None, gpu: int) -> bool:
    return allowed is None or gpu in allowed


def _longest_common(windows: Sequence[Window], gpus: int, deadline: int | None) -> int:
    """How long so many of these are free at once, at most."""
    longest = 0
    for window in windows:
        end = window.back_from if deadline is None else min(window.back_from, deadline)
        starts = sorted(other.free_from for other in windows if other.back_from >= end)
        if len(starts) >= gpus:
            longest = max(longest, end - starts[gpus - 1])
    return longest
