"""Stretches: what fills one best, against every subset there is."""

from __future__ import annotations

import random
from itertools import combinations, permutations

import pytest

from gpuops.plan.schedule.packing import Stretch, fill_stretch
from gpuops.plan.schedule.problem import Job


def fullest(stretch: Stretch, jobs: list[Job]) -> int:
    """By trying all orders of all subsets."""
    best = 0
    for size in range(len(jobs) + 1):
        for chosen in combinations(jobs, size):
            if any(_in_time(stretch, order) for order in permutations(chosen)):
                best = max(best, sum(job.minutes for job in chosen))
    return best


def _in_time(stretch: Stretch, order: tuple[Job, ...]) -> bool:
    at = stretch.start
    for job in order:
        at += job.minutes
        if at > (stretch.end if job.deadline is None else min(stretch.end, job.deadline)):
            return False
    return True


@pytest.mark.parametrize("seed", range(60))
def test_nothing_fills_it_better(seed: int) -> None:
    chance = random.Random(seed)
    stretch = Stretch(0, 5, 5 + chance.randrange(10, 60), last=False)
    jobs = [
        Job(str(number), 1, chance.randrange(3, 30), deadline=chance.choice((None, chance.randrange(10, 60))))
        for number in range(5)
    ]
    pool = sorted(range(5), key=lambda number: (jobs[number].deadline or 999, jobs[number].minutes))
    stretch_jobs = fill_stretch(stretch, jobs, pool)
    assert sum(piece.minutes for piece in stretch_jobs) == fullest(stretch, jobs)
    assert _in_time(stretch, tuple(jobs[piece.job] for piece in stretch_jobs))


def test_the_end_of_the_night_cuts_a_run_off_only_where_that_is_worth_more() -> None:
    jobs = [Job("short", 1, 20), Job("long", 1, 500, least_minutes=25)]
    cut = fill_stretch(Stretch(0, 0, 50, last=True), jobs, [0, 1])
    assert [(piece.job, piece.minutes) for piece in cut] == [(0, 20), (1, 30)]
    assert [piece.job for piece in fill_stretch(Stretch(0, 0, 50, last=False), jobs, [0, 1])] == [0]
    assert [piece.job for piece in fill_stretch(Stretch(0, 0, 20, last=True), jobs, [0, 1])] == [0]


def test_large_jobs_are_used_up_first() -> None:
    jobs = [Job("a", 1, 10), Job("b", 1, 10), Job("c", 1, 20)]
    assert [piece.job for piece in fill_stretch(Stretch(0, 0, 20, last=False), jobs, [0, 1, 2])] == [2]
