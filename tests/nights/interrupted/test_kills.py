"""Killed at every point of a night, and resumed: no desktop is lost, and nothing is done twice."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from itertools import count, islice, repeat
from typing import Final

import pytest

from gpuops.execute.runs import RunKind
from tests.nights.faults.event import Event
from tests.nights.judging.checkers import violations
from tests.nights.playing.night import Nightly, play
from tests.sample import every_nth

ROTATION_RUNS: Final = (RunKind.NIGHT, RunKind.DAY)
RESUME: Final = "rotate resume"
WORLDS: Final = 20
PAIRED: Final = (162, 258)
"""Nights of few points, so that all pairs of two of them are a matter of a minute."""


def points_of(seed: int) -> dict[str, int]:
    """How many points each half of the night of a seed has in which nothing goes wrong: before and after each append
    to the journal and each effect."""
    night = Nightly(seed, [])
    night.play()
    return night.points


def killed_at(seed: int, half: str, *points: int) -> tuple[int, list[str]]:
    """Kill this half of the night at the first of these points, and each run that continues it at the next ones. Return
    the number of killed processes and the broken invariants.
    """
    first, *then = points
    goes_on = RunKind.DAY if half == RunKind.DAY else RESUME  # a morning that was killed is cron's
    events = [Event("K1", target=half, point=first), *(Event("K1", target=goes_on, point=point) for point in then)]
    night = play(seed, events)
    killed = [name for name, ended, _ in night.calls if ended == "killed"]
    assert killed[:1] == [half], f"seed {seed}: no process was killed in {half} at {first}"
    return len(killed), [f"seed {seed}, {half} killed at {points}: {violation}" for violation in violations(night)]


def killed_everywhere(seed: int, half: str) -> tuple[int, list[str]]:
    """How many points this half of the night of a seed has, each of which was the end of a process; what that broke."""
    most = points_of(seed)[half]
    return most, [violation for point in range(1, most + 1) for violation in killed_at(seed, half, point)[1]]


def test_a_run_is_killed_at_each_point_of_a_night() -> None:
    for half in ROTATION_RUNS:
        points, broken = killed_everywhere(364, half)
        assert broken == []
        assert points >= 20, "there is something to be killed in"


@pytest.mark.long
def test_a_run_and_those_that_resume_it_are_killed() -> None:
    for point in range(9, 46, 9):
        assert killed_at(132, RunKind.NIGHT, point, 7, 4) == (3, [])


@pytest.mark.drawn_cases(2)
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("half", ROTATION_RUNS)
def test_nights_are_killed_everywhere(half: str) -> None:
    """A tenth of twenty nights a run."""
    nights = islice(
        (
            seed
            for seed in count(100, 2)
            if all(points_of(seed).get(points_of_half) for points_of_half in ROTATION_RUNS)
        ),
        WORLDS,
    )
    with ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        results_of_kills = list(pool.map(killed_everywhere, every_nth(list(nights), 10), repeat(half)))
    points = sum(points_of_half for points_of_half, _ in results_of_kills)
    print(f"{points} points of {len(results_of_kills)} times {half}")
    assert [violation for _, broken in results_of_kills for violation in broken] == []
    assert len(results_of_kills) == WORLDS // 10
    assert points > 40


@pytest.mark.drawn_cases(2)
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", PAIRED)
def test_two_nights_are_killed_at_all_pairs_of_points(seed: int) -> None:
    """After a kill at every fourth point, the run that continues is killed too, at each of its points."""
    pairs = 0
    for half, most in points_of(seed).items():
        for point in every_nth(range(1, most + 1), 4):
            for second in count(1):
                killed, broken = killed_at(seed, half, point, second)
                assert broken == []
                if killed < 2:
                    break
                pairs += 1
    print(f"{pairs} pairs of the night of seed {seed}")
    assert pairs > 100
