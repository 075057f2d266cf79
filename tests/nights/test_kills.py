"""Killed at every point of a night, and resumed: no desktop is lost, and nothing is done twice."""

from __future__ import annotations

import pytest

from tests.nights.checkers import violations
from tests.nights.event import Event
from tests.nights.night import Nightly, play


def killed_everywhere(seed: int) -> int:
    """How many points the first run of this night has; each was the end of a process."""
    night = Nightly(seed, [])
    night.play()
    for point in range(1, night.most_points + 1):
        assert violations(play(seed, [Event("K1", point=point)])) == [], f"seed {seed} killed at point {point}"
    return night.most_points


def test_a_run_is_killed_at_each_point_of_a_night() -> None:
    assert killed_everywhere(2 * 7) > 20, "there is something to be killed in"


def test_a_run_and_those_that_resume_it_are_killed() -> None:
    for point in range(3, 40, 9):
        kills = [Event("K1", point=point), Event("K1", point=7), Event("K1", point=4)]
        night = play(2 * 7, kills)
        assert [call[1] for call in night.calls].count("killed") == len(kills)
        assert violations(night) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_twenty_nights_are_killed_everywhere() -> None:
    points = sum(killed_everywhere(seed) for seed in range(100, 140, 2))
    print(f"{points} points of 20 nights")
    assert points > 1000
