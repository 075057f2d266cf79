"""Rounds look at once, after each rest, and once more when the time is up; another clock may count."""

from __future__ import annotations

from itertools import islice
from math import inf

from gpuops import clock


class Stepped:
    """A clock that only a rest moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.rests_s: list[float] = []

    def rest(self, seconds: float) -> None:
        self.rests_s.append(seconds)
        self.now_s += seconds


def test_the_last_rest_repeats_and_none_outlasts_the_time() -> None:
    stepped = Stepped()
    rounds = list(clock.rounds((1.0, 2.0), 6.0, wait=stepped.rest, read_clock_s=lambda: stepped.now_s))
    assert (rounds, stepped.rests_s) == ([6.0, 5.0, 3.0, 1.0, 0.0], [1.0, 2.0, 2.0, 1.0])


def test_without_time_there_is_one_round_and_without_a_limit_no_last() -> None:
    assert list(clock.rounds((1.0,), 0.0)) == [0.0]
    assert list(islice(clock.rounds((0.0,)), 3)) == [inf] * 3
