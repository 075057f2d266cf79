"""The jobs of a night as the search sees them: by number, each with the GPUs that it may run on and its weight.

`search.py` makes the table once for a night.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from gpuops.plan.schedule.problem import Job, NightProblem
from gpuops.plan.schedule.windows import GpuWindow


@dataclass(frozen=True, slots=True)
class JobTable:
    """Jobs by number, with the facts that the search needs of each."""

    jobs: tuple[Job, ...]
    may_run: tuple[frozenset[int] | None, ...]
    """The numbers of the GPUs on which each may run; None = any."""
    rank: tuple[int, ...]
    """Place of each job in a pool: the higher priority first, then by deadline, then the shorter first, then those that
    may run on fewer GPUs."""
    weights: tuple[int, ...]
    """The worth of a GPU-minute of each job; one minute of a priority outweighs all minutes of lower priorities."""
    longest: Mapping[int, int]
    """How long each job could run if it were the only one; a job that could not run at all is missing."""

    def may_run_on(self, job: int, gpu: int) -> bool:
        """Whether the job may run on the GPU."""
        allowed = self.may_run[job]
        return allowed is None or gpu in allowed

    def pool(self, numbers: Iterable[int], *, multi_gpu: bool) -> list[int]:
        """The jobs of several GPUs among these, or those of one, in the order in which they are packed."""
        return sorted(
            (number for number in numbers if (self.jobs[number].gpus > 1) is multi_gpu), key=self.rank.__getitem__
        )

    def allowed_on(self, pool: Iterable[int], gpu: int) -> list[int]:
        """The jobs of the pool that may run on this GPU, in the same order."""
        return [number for number in pool if self.may_run_on(number, gpu)]

    def gpu_minutes(self) -> int:
        """The GPU-minutes of all jobs that could run."""
        return sum(self.jobs[number].gpus * minutes for number, minutes in self.longest.items())

    def most_worth(self, gpu_minutes: int) -> int:
        """An upper limit on the worth of this number of GPU-minutes: the best jobs for as long as they could run, and a
        part of one."""
        worth = 0
        for number in sorted(self.longest, key=lambda number: -self.weights[number]):
            takes = min(gpu_minutes, self.jobs[number].gpus * self.longest[number])
            worth += takes * self.weights[number]
            gpu_minutes -= takes
        return worth


def make_job_table(problem: NightProblem, window_alone: Mapping[int, GpuWindow]) -> JobTable:
    """The jobs of the problem. `window_alone`: for each GPU that can be freed, the window it would have alone."""
    number_of = {problem.gpus[number].name: number for number in window_alone}
    may_run = tuple(
        None if job.allowed is None else frozenset(number_of[name] for name in job.allowed if name in number_of)
        for job in problem.jobs
    )
    order = sorted(
        range(len(problem.jobs)), key=lambda number: _pool_order(problem.jobs[number], may_run[number], number)
    )
    rank = [0] * len(order)
    for place, number in enumerate(order):
        rank[number] = place
    classes = sorted({job.priority for job in problem.jobs})
    # The base of the powers is more than a complete night of all GPUs, so that all lower priorities together are worth
    # less than one minute.
    everything = problem.ends * max(1, len(window_alone)) + 1
    weights = tuple(everything ** classes.index(job.priority) for job in problem.jobs)
    return JobTable(problem.jobs, may_run, tuple(rank), weights, _longest(problem, window_alone, may_run))


def _pool_order(job: Job, allowed: frozenset[int] | None, number: int) -> tuple[int, float, int, float, int]:
    due = inf if job.deadline is None else job.deadline
    return -job.priority, due, job.minutes, inf if allowed is None else len(allowed), number


def _longest(
    problem: NightProblem, window_alone: Mapping[int, GpuWindow], may_run: Sequence[frozenset[int] | None]
) -> dict[int, int]:
    """How long each job could run on the GPUs of its best host, computed once for equal demands."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for number in window_alone:
        by_host[problem.gpus[number].host].append(number)
    longest_run: dict[int, int] = {}
    longest_for: dict[tuple[int, int | None, frozenset[int] | None], int] = {}
    for number, job in enumerate(problem.jobs):
        demand = (job.gpus, job.deadline, may_run[number])
        if demand not in longest_for:
            windows_by_host = (
                [window_alone[gpu] for gpu in gpus if _may_run(demand[2], gpu)] for gpus in by_host.values()
            )
            longest_for[demand] = max(
                (_longest_common(windows_allowed, job.gpus, job.deadline) for windows_allowed in windows_by_host),
                default=0,
            )
        if longest_for[demand] >= job.at_least:
            longest_run[number] = min(job.minutes, longest_for[demand])
    return longest_run


def _may_run(allowed: frozenset[int] | None, gpu: int) -> bool:
    return allowed is None or gpu in allowed


def _longest_common(windows: Sequence[GpuWindow], gpus: int, deadline: int | None) -> int:
    """How long `gpus` of these windows are open at once, at most.

    Windows 0-60, 10-50 and 20-40: two are open together for 40 minutes (10-50), three for 20.
    """
    longest = 0
    for window in windows:
        end = window.back_from if deadline is None else min(window.back_from, deadline)
        starts = sorted(candidate.free_from for candidate in windows if candidate.back_from >= end)
        if len(starts) >= gpus:
            longest = max(longest, end - starts[gpus - 1])
    return longest
