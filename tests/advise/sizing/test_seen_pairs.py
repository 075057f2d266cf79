"""Pairs of VMs that the history saw at work on one GPU: their speeds, and that too little says nothing."""

from __future__ import annotations

import numpy as np
import pytest

from gpuops.extras.sizing.advice import size_pool
from gpuops.extras.sizing.busy_shares import BusyShares, SharingLimits
from gpuops.extras.sizing.pairs import fit_pairs
from gpuops.extras.sizing.seen_pairs import FEWEST_STEPS, seen_pairs
from gpuops.extras.sizing.sharing import pairwise_slowdowns
from gpuops.model.devices.scheduler import SchedulerPolicy

DAYS = 8
SINCE = np.repeat(np.arange(24 * DAYS), 12)
"""The hour of each step of five minutes, from the first midnight on."""
HOURS = SINCE % 24
OFF = float("nan")
PARTS, PART_HOURS = np.arange(120) % 3, np.arange(120) // 12 * 24
"""Three parts in turn, all of them at the same hour of ten days."""


def days(*hours: tuple[int, float]) -> np.ndarray:
    """What a VM used on each day, by the hour from which on; before the first it is off."""
    series = np.full(len(HOURS), OFF)
    for begin, use in hours:
        series[begin <= HOURS] = use
    return series


def every_other_day(even_days: np.ndarray, odd_days: np.ndarray) -> np.ndarray:
    day = np.arange(len(HOURS)) // (24 * 12)
    return np.where(day % 2 == 0, even_days, odd_days)


ALONE = days((9, 0.6), (12, OFF))
BESIDE = days((9, 0.45), (12, OFF))
OFF_ALL_DAY = np.full(len(HOURS), OFF)


def test_work_of_another_hour_is_not_compared() -> None:
    mornings = every_other_day(days((9, 0.6), (12, OFF)), OFF_ALL_DAY)
    on_both = every_other_day(OFF_ALL_DAY, days((14, 0.2), (17, OFF)))
    a = np.where(np.isnan(mornings), on_both, mornings)
    assert list(seen_pairs({"a": a, "b": a.copy()}, [("a", "b")], SINCE)) == []
    b = np.where(np.isnan(mornings), 0.2, OFF)
    assert list(seen_pairs({"a": a, "b": b}, [("a", "b")], SINCE)) == [], "a is never alone in the afternoon"


@pytest.mark.parametrize(("steps", "pair_count"), [(FEWEST_STEPS - 1, 0), (FEWEST_STEPS, 1)])
def test_less_than_three_hours_beside_each_other_are_no_pair(steps: int, pair_count: int) -> None:
    hours = np.repeat(np.arange(steps) // 4 * 24, 3)
    first, middle, last = (np.arange(3 * steps) % 3 == part for part in range(3))
    a = np.where(first, 0.8, np.where(middle, 0.5, 0.01))
    b = np.where(last, 0.6, np.where(middle, 0.3, OFF))
    observed = list(seen_pairs({"a": a, "b": b}, [("a", "b")], hours))
    assert len(observed) == pair_count
    for pair in observed:
        assert pair.speeds == pytest.approx((0.625, 0.5))


def test_nobody_is_faster_beside_another_one_and_a_third_one_is_not_left_out_of_account() -> None:
    part, hours = PARTS, PART_HOURS
    a = np.where(part == 0, 0.4, np.where(part == 1, 0.6, OFF))
    b = np.where(part == 2, 0.4, np.where(part == 1, 0.2, OFF))
    [pair] = seen_pairs({"a": a, "b": b}, [("a", "b")], hours)
    assert pair.speeds == pytest.approx((1.0, 0.5))
    busy, unknown = np.full(120, 0.5), {"a": a, "b": b}
    assert list(seen_pairs({"a": a, "b": b, "c": busy}, [("a", "b", "c")], hours)) == []
    assert list(seen_pairs(unknown, [("a", "b", "c")], hours)) == [], "nothing is known of c"


def test_what_was_seen_counts_where_both_work_and_nowhere_else() -> None:
    part, hours = PARTS, PART_HOURS
    a = np.where(part == 0, 0.5, np.where(part == 1, 0.25, 0.0))
    b = np.where(part == 2, 0.5, np.where(part == 1, 0.25, 0.0))
    fit = fit_pairs(list(seen_pairs({"a": a, "b": b}, [("a", "b")], hours)))
    assert fit.speed("a", "b") == pytest.approx(0.5, abs=0.05), "the busy shares alone say 1 / 1.25"
    used_alone = np.stack([np.where(part < 2, 0.5, 0.0), np.where(part > 0, 0.5, 0.0)], axis=1)
    shares = BusyShares(("a", "b"), used_alone, np.zeros(120, np.int64), ("a", "b"), fit)
    [row] = size_pool(shares, 2, SharingLimits()).rows
    halves = row.shares[SchedulerPolicy.BEST_EFFORT].slowdown
    assert halves == pytest.approx((1.0 + 2.0) / 2, rel=0.05), "half of its time each is alone"


def test_work_that_differs_from_day_to_day_is_not_taken_for_a_pair_that_slows_down() -> None:
    random, speeds = np.random.default_rng(1), []
    since = np.repeat(np.arange(24 * 14), 12)
    working = (since % 24 >= 9) & (since % 24 < 17)
    for _ in range(40):
        used = {}
        for name in ("a", "b"):
            level = 0.3 * random.lognormal(0.0, 0.4, 14) * (random.random(14) < 0.6)
            used[name] = np.where(working, np.clip(np.repeat(level, 288) * random.lognormal(0, 0.2, 4032), 0, 1), 0.0)
        speeds += [speed for pair in seen_pairs(used, [("a", "b")], since) for speed in pair.speeds]
    assert len(speeds) > 20
    by_busy_shares = float(pairwise_slowdowns(np.array([0.3, 0.3]))[0, 1])
    assert float(np.mean(speeds)) == pytest.approx(1.0 / by_busy_shares, abs=0.03), "nothing but chance is in it"


def test_a_pair_that_really_slows_down_is_told_through_such_noise() -> None:
    random = np.random.default_rng(2)
    day = PART_HOURS // 24
    level = random.lognormal(0.0, 0.1, (2, 10))[:, day]
    a = np.where(PARTS == 0, 0.6, np.where(PARTS == 1, 0.3, OFF)) * level[0]
    b = np.where(PARTS == 2, 0.6, np.where(PARTS == 1, 0.3, OFF)) * level[1]
    [pair] = seen_pairs({"a": a, "b": b}, [("a", "b")], PART_HOURS)
    assert pair.speeds == pytest.approx((0.5, 0.5), abs=0.05)
