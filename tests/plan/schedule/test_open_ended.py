"""Nights of jobs without an end: the matching, and the search around it, against every assignment there is."""

from __future__ import annotations

import random
from itertools import combinations, product

import pytest

from gpuops.plan.schedule.problem import Job, NightGpu, NightProblem, OperationLimits
from gpuops.plan.schedule.schedule import match_jobs, schedule
from tests.plan.schedule.nights import broken, gpu

NO_END = 10**6


def night(seed: int) -> NightProblem:
    """Few enough GPUs and jobs to try everything; all idle now, and no lanes to wait for."""
    chance = random.Random(seed)
    gpus = tuple(gpu(f"gpu-{n}", f"host-{n % 2}", *[0] * chance.randrange(4), minutes=0) for n in range(5))
    jobs = tuple(
        Job(
            f"job-{n}",
            chance.choice((1, 1, 1, 2)),
            NO_END,
            least_minutes=10,
            priority=chance.choice((0, 0, 1)),
            allowed=frozenset(of.name for of in gpus if chance.random() < 0.5),
        )
        for n in range(5)
    )
    return NightProblem(100, gpus, jobs, OperationLimits(None, None))


def best(problem: NightProblem) -> tuple[int, int, int]:
    """(GPUs with work of priority 1, of priority 0, desktops not spent), over all assignments."""
    best_so_far = (0, 0, 0)
    sets = [[None, *_sets(job, problem.gpus)] for job in problem.jobs]
    for choice in product(*sets):
        used = [of for chosen in choice if chosen is not None for of in chosen]
        if len({of.name for of in used}) == len(used):
            gpus = [
                sum(
                    len(chosen)
                    for job, chosen in zip(problem.jobs, choice, strict=True)
                    if chosen and job.priority == p
                )
                for p in (1, 0)
            ]
            best_so_far = max(best_so_far, (gpus[0], gpus[1], -sum(len(of.desktops) for of in used)))
    return best_so_far


def _sets(job: Job, gpus: tuple[NightGpu, ...]) -> list[tuple[NightGpu, ...]]:
    allowed = [of for of in gpus if job.allowed is not None and of.name in job.allowed]
    return [chosen for chosen in combinations(allowed, job.gpus) if len({of.host for of in chosen}) == 1]


@pytest.mark.parametrize("seed", range(80))
def test_no_assignment_is_better(seed: int) -> None:
    problem = night(seed)
    night_schedule = schedule(problem, 100_000)
    assert broken(problem, night_schedule) == []
    priority = {job.name: job.priority for job in problem.jobs}
    gpus = [sum(len(run.gpus) for run in night_schedule.runs if priority[run.job] == level) for level in (1, 0)]
    assert (*gpus, -night_schedule.desktops) == best(problem)


def test_those_with_the_better_right_and_the_cheapest_places() -> None:
    may_run = {1: [10, 11], 2: [10], 3: [10], 4: [11, 12]}
    assert match_jobs([1, 2, 3, 4], [12, 11, 10], may_run) == {1: 11, 2: 10, 4: 12}
    assert match_jobs([3, 2, 1], [10, 11], may_run) == {3: 10, 1: 11}
    assert match_jobs([1, 4], [10, 12, 11], may_run) == {1: 10, 4: 12}


def test_a_job_that_the_lanes_leave_too_little_time_for_is_left_out() -> None:
    gpus = tuple(gpu(f"gpu-{n}", "h", *[0] * 4, minutes=10) for n in range(3))
    jobs = tuple(Job(f"job-{n}", 1, NO_END, least_minutes=40) for n in range(3))
    problem = NightProblem(160, gpus, jobs, OperationLimits(1, None))
    night_schedule = schedule(problem, 100_000)
    assert broken(problem, night_schedule) == []
    assert len(night_schedule.runs) == 1
    assert night_schedule.desktops == 4
