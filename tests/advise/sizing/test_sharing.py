"""Slowdowns of VMs that share a GPU: by the model, fitted to measured times, and from pairs seen at work together."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations_with_replacement
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.extras.sizing.advice import size_pool
from gpuops.extras.sizing.busy_shares import BusyShares, SharingLimits
from gpuops.extras.sizing.measure_plan import measured_curve, overheads
from gpuops.extras.sizing.pairs import error_on_unknown, fit_pairs
from gpuops.extras.sizing.seen_pairs import FEWEST_STEPS, seen_pairs
from gpuops.extras.sizing.sharing import (
    MOST_SHARERS,
    SWITCHING_OVERHEAD,
    alone,
    best_effort,
    pairwise_slowdowns,
    slowdowns,
    staggered_slowdowns,
)
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.devices.shared_gpu import ObservedPair
from gpuops.model.measurements.sharing_measurement import MeasuredCount, MeasuredDevice

BEST, EQUAL, FIXED = SchedulerPolicy.BEST_EFFORT, SchedulerPolicy.EQUAL_SHARE, SchedulerPolicy.FIXED_SHARE
Shares = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12)


def constant(busy: list[float], switching: Fraction = Fraction(0)) -> Fraction:
    """The normalising constant by its definition, in exact arithmetic: the sum of k! times the k-th coefficient, and of
    each customer beside the first the factor by which the station is slower then."""
    coefficients = [Fraction(1)]
    for share in map(Fraction, busy):
        longer = [Fraction(0)] * (len(coefficients) + 1)
        for power, coefficient in enumerate(coefficients):
            longer[power] += coefficient * (1 - share)
            longer[power + 1] += coefficient * share
        coefficients = longer
    slower = 1 + switching
    return sum(
        (factorial(power) * slower ** max(0, power - 1) * each for power, each in enumerate(coefficients)), Fraction(0)
    )


@pytest.mark.long
@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, 64).map(lambda share: share / 64), min_size=1, max_size=12),
    st.sampled_from([Fraction(0), Fraction(1, 16), Fraction(1, 2)]),
)
def test_it_is_the_ratio_of_normalising_constants(busy: list[float], switching: Fraction) -> None:
    whole = constant(busy, switching)
    exact = [whole / constant(busy[:at] + busy[at + 1 :], switching) for at in range(len(busy))]
    slowdowns = best_effort(np.array(busy), float(switching))
    assert slowdowns == pytest.approx([float(slowdown) for slowdown in exact], rel=1e-9)


@pytest.mark.long
def test_as_many_as_a_gpu_ever_holds_are_exact() -> None:
    busy = np.random.default_rng(1).random(MOST_SHARERS).tolist()
    assert best_effort(np.array(busy))[0] == pytest.approx(float(constant(busy) / constant(busy[1:])), rel=1e-9)


def test_always_busy_vms_have_their_nth_and_a_gpu_that_is_full_no_more_to_give() -> None:
    assert best_effort(np.ones(5)) == pytest.approx([5.0] * 5)
    assert 24 / best_effort(np.full(24, 0.7))[0] == pytest.approx(1 / 0.7, rel=1e-3)


@pytest.mark.parametrize(("busy", "expected"), [(0.1, (10, 14, 19)), (0.2, (5, 7, 9)), (0.5, (2, 2, 3))])
def test_how_many_vms_stay_within_a_slowdown(busy: float, expected: tuple[int, ...]) -> None:
    """Known of an independent program for the same network, by mean value analysis."""
    counts = [
        max(count for count in range(1, 33) if best_effort(np.full(count, busy))[0] <= most)
        for most in (1.25, 1.5, 2.0)
    ]
    assert tuple(counts) == expected


@pytest.mark.long
@given(Shares)
def test_nobody_is_slower_by_best_effort_than_by_equal_share_or_by_that_than_by_fixed_share(busy: list[float]) -> None:
    shares, slots = np.array(busy), len(busy) + 3
    best, equal, fixed = (slowdowns(policy, shares, slots) for policy in SchedulerPolicy)
    assert (best <= equal + 1e-9).all()
    assert (equal <= fixed + 1e-9).all()
    assert (best >= 1.0).all()


def test_equal_share_divides_among_those_that_run_and_fixed_share_among_those_that_could() -> None:
    busy = np.array([0.5, 0.0, np.nan])
    longer = 1 + SWITCHING_OVERHEAD
    equal, fixed = (slowdowns(policy, busy, 8)[:2] for policy in (EQUAL, FIXED))
    assert equal == pytest.approx([0.5 + 0.5 * 2 * longer, 1.0]), "one idle, one is off"
    assert fixed == pytest.approx([0.5 + 0.5 * 8 * longer, 1.0])
    assert slowdowns(FIXED, np.array([0.5, np.nan]), 8)[0] == pytest.approx(4.5), "there is no VM to change to"
    best = slowdowns(SchedulerPolicy.BEST_EFFORT, busy, 8)
    assert best[:2] == pytest.approx([1.0, 1.0]) and np.isnan(best[2])


@pytest.mark.long
@given(st.lists(st.floats(0.01, 0.6), min_size=1, max_size=5))
def test_what_vms_wanted_is_worked_out_of_what_they_got(shares: list[float]) -> None:
    busy = np.array(shares)
    assert alone(busy / best_effort(busy)) == pytest.approx(shares, abs=0.02)


def test_of_a_full_gpu_more_was_wanted_than_was_used() -> None:
    used_alone = alone(np.full(4, 0.25))
    assert (used_alone > 0.7).all() and (used_alone <= 1.0).all()
    assert alone(np.array([0.3, np.nan]))[0] == pytest.approx(0.3)


def test_vms_that_begin_one_after_another() -> None:
    best = SchedulerPolicy.BEST_EFFORT
    pair = slowdowns(best, np.full(2, 0.6), 2)[0] - 1.0
    assert 1 + pair == pytest.approx(pairwise_slowdowns(np.full(2, 0.6))[0, 1])
    found = staggered_slowdowns(best, 0.6, 3, 3, 0.25)
    assert found == pytest.approx([1 + pair / 4, 1 + pair / 2, 1 + pair / 4])
    assert staggered_slowdowns(best, 0.6, 3, 3, 1.0) == pytest.approx(slowdowns(best, np.full(3, 0.6), 3))
    assert staggered_slowdowns(best, 0.6, 5, 5, 0.0) == pytest.approx(np.ones(5))
    third = staggered_slowdowns(FIXED, 0.5, 3, 6, 0.25)
    assert third[0] == third[2] == pytest.approx(3.5 + 3 * SWITCHING_OVERHEAD * 0.25), "absent ones count"


SLOTS = 6


def count_of(policy: SchedulerPolicy, busy: float, sharers: int, overlap: float = 1.0) -> MeasuredCount:
    """A count as the model has it, of work that takes 10 s alone under best effort."""
    return MeasuredCount(policy, sharers, tuple(10.0 * staggered_slowdowns(policy, busy, sharers, SLOTS, overlap)))


@pytest.mark.long
@pytest.mark.parametrize("busy", [0.05, 0.3, 0.5, 0.71, 1.0])
@pytest.mark.parametrize("policies", [(BEST,), (EQUAL,), (BEST, EQUAL, FIXED)])
def test_the_busy_share_of_the_model_is_found_again(busy: float, policies: tuple[SchedulerPolicy, ...]) -> None:
    curve = measured_curve(
        [count_of(policy, busy, sharers) for policy in policies for sharers in (1, 2, 4, 6)], SLOTS, 1.0
    )
    assert curve.busy == pytest.approx(busy, abs=0.001)
    assert curve.worst_error == pytest.approx(0.0, abs=0.005)
    assert all(row.mean == pytest.approx(row.model, rel=0.005) for row in curve.rows)


@pytest.mark.long
def test_staggered_vms_are_compared_with_staggered_ones() -> None:
    counts = [count_of(BEST, 0.6, sharers, 0.25) for sharers in (1, 3)]
    assert measured_curve(counts, SLOTS, 0.25).busy == pytest.approx(0.6, abs=0.001)
    together = measured_curve(counts, SLOTS, 1.0).busy
    assert together is not None and together < 0.5


@pytest.mark.long
def test_times_are_divided_by_the_mean_alone_under_the_same_scheduler() -> None:
    counts = [
        MeasuredCount(BEST, 1, (10.0, 12.0)),
        MeasuredCount(BEST, 2, (11.0, 22.0)),
        MeasuredCount(EQUAL, 2, (9.0,)),
    ]
    best_1, best_2, equal_2 = measured_curve(counts, SLOTS, 1.0).rows
    assert (best_1.mean, best_2.mean, best_2.least, best_2.most) == (1.0, 1.5, 1.0, 2.0)
    assert (equal_2.mean, equal_2.model) == (None, None)


@pytest.mark.parametrize(
    "counts",
    [
        (),
        (count_of(BEST, 0.5, 1),),
        (count_of(BEST, 0.5, 2),),
        (count_of(FIXED, 0.5, 1), count_of(FIXED, 0.5, 4)),
        (count_of(BEST, 0.5, 1), MeasuredCount(BEST, 2, error="its GPU is gone")),
    ],
)
def test_nothing_is_fitted_to_what_tells_nothing(counts: tuple[MeasuredCount, ...]) -> None:
    curve = measured_curve(counts, SLOTS, 1.0)
    assert (curve.busy, curve.worst_error, len(curve.rows)) == (None, None, len(counts))


@pytest.mark.long
def test_one_vm_with_a_whole_gpu_is_compared_and_not_fitted() -> None:
    direct, whole = MeasuredDevice.DIRECT_PATH, MeasuredDevice.WHOLE_VGPU
    shared = [MeasuredCount(BEST, 1, (10.5,)), MeasuredCount(BEST, 2, (14.0, 14.0)), MeasuredCount(EQUAL, 1, (11.0,))]
    counts = [MeasuredCount(BEST, 1, (10.0,), device=direct), MeasuredCount(BEST, 1, (10.3,), device=whole), *shared]
    assert overheads(counts) == pytest.approx({"whole vGPU": 1.03, "best-effort": 1.05, "equal-share": 1.1})
    assert measured_curve(counts, SLOTS, 1.0) == measured_curve(shared, SLOTS, 1.0)
    failed = MeasuredCount(BEST, 1, error="it is held", device=direct)
    assert overheads([failed, *counts[1:]]) == {}


KEEPS = {"a": 0.95, "b": 0.8, "c": 0.6, "d": 0.7, "e": 0.85, "f": 0.5}
LEAVES = {"a": 0.9, "b": 0.6, "c": 0.75, "d": 0.95, "e": 0.5, "f": 0.8}


def pairs(noise: float = 0.0) -> list[ObservedPair]:
    chance = np.random.default_rng(3)

    def speed(of: str, beside: str) -> float:
        return float(KEEPS[of] * LEAVES[beside] + noise * chance.normal())

    return [
        ObservedPair((first, second), (speed(first, second), speed(second, first)))
        for first, second in combinations_with_replacement(KEEPS, 2)
    ]


def test_a_pair_that_was_never_seen_is_foreseen() -> None:
    without_pair = [pair for pair in pairs() if pair.names != ("b", "e")]
    model = fit_pairs(without_pair)
    assert model.speed("b", "e") == pytest.approx(0.8 * 0.5, abs=0.02)
    assert model.speed("e", "b") == pytest.approx(0.85 * 0.6, abs=0.02)
    assert model.speed("b", "unseen") is None


def test_sensitivity_and_pressure_are_shares_of_speed() -> None:
    model = fit_pairs(pairs())
    assert min(model.sensitivity, key=lambda name: model.sensitivity[name]) == "a", "it keeps most"
    assert max(model.pressure, key=lambda name: model.pressure[name]) == "e", "it leaves least"
    assert all(0.0 < share < 1.0 for share in (*model.sensitivity.values(), *model.pressure.values()))


def test_one_odd_pair_moves_no_other() -> None:
    odd = [ObservedPair(pair.names, (0.05, 0.05)) if pair.names == ("a", "d") else pair for pair in pairs()]
    model = fit_pairs(odd)
    assert model.speed("a", "b") == pytest.approx(0.95 * 0.6, abs=0.03)
    assert model.speed("d", "c") == pytest.approx(0.7 * 0.75, abs=0.03)


def test_the_error_is_that_of_pairs_the_fit_does_not_know() -> None:
    exact, noisy = error_on_unknown(pairs()), error_on_unknown(pairs(noise=0.1))
    assert exact is not None and noisy is not None
    assert exact < 0.03 < noisy
    assert error_on_unknown(pairs()[:4]) is None, "too few to say"


def test_nothing_is_made_of_nothing() -> None:
    model = fit_pairs([])
    assert (model.names, dict(model.sensitivity) if model.names else {}) == ((), {})
    assert np.isnan(model.slowdowns(["a", "b"])).all()


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
