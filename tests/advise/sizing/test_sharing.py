"""The slowdown of VMs on one GPU: by the definition of the network, by those of the schedulers, and staggered."""

from __future__ import annotations

from fractions import Fraction
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.extras.sizing.sharing import (
    MOST_SHARERS,
    SWITCHING,
    alone,
    best_effort,
    pairwise_slowdowns,
    slowdowns,
    staggered_slowdowns,
)
from gpuops.model.devices.scheduler import SchedulerPolicy

FIXED = SchedulerPolicy.FIXED_SHARE
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
    longer = 1 + SWITCHING
    equal, fixed = (slowdowns(policy, busy, 8)[:2] for policy in (SchedulerPolicy.EQUAL_SHARE, FIXED))
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
    assert third[0] == third[2] == pytest.approx(3.5 + 3 * SWITCHING * 0.25), "absent ones count"
