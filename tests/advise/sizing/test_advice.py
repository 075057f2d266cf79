"""How many VMs may share a GPU: within what is allowed, by when they are busy, without those that are in the way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.extras.sizing.advice import Sizing, size_alike_vms, size_pool
from gpuops.extras.sizing.busy_shares import BusyShares, SharingLimits
from gpuops.extras.sizing.pairs import fit_pairs
from gpuops.extras.sizing.sharing import SWITCHING_OVERHEAD
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.devices.shared_gpu import ObservedPair

BEST, EQUAL = SchedulerPolicy.BEST_EFFORT, SchedulerPolicy.EQUAL_SHARE
DAYS = np.repeat(np.arange(4), 6)


def pool(*busy: float | list[float], days: np.ndarray = DAYS) -> BusyShares:
    """VMs of these busy shares, each the same at all times or one for each step of a day."""
    steps = len(days)
    columns = [np.resize(np.array(shares, dtype=float), steps) for shares in busy]
    return BusyShares(tuple(f"vm-{at}" for at in range(len(busy))), np.stack(columns, axis=1), days)


def advice_of(sizing: Sizing) -> tuple[int, SchedulerPolicy]:
    assert sizing.advice is not None
    return sizing.advice.sharers, sizing.advice.policy


@pytest.mark.long
@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8), st.floats(1.0, 4.0), st.booleans())
def test_nobody_suffers_more_than_is_allowed(busy: list[float], at_most: float, guaranteed: bool) -> None:
    sizing = size_pool(pool(*busy), None, SharingLimits(at_most, 6, guaranteed))
    if sizing.advice is None:
        assert guaranteed or max(busy) * 5 + 1 > at_most, "only fixed share slows down a VM that is alone"
        return
    advice = sizing.advice
    assert 1 <= advice.sharers <= 6
    assert advice.share.highest_slowdown <= at_most + 1e-6
    assert advice.gpus <= len(busy)
    assert not guaranteed or advice.policy is not BEST


@pytest.mark.long
def test_more_is_never_recommended_of_less() -> None:
    counts = [
        advice_of(size_pool(pool(*[0.3] * 6), None, SharingLimits(most)))[0] for most in (1.0, 1.2, 1.5, 2.0, 3.0)
    ]
    assert counts == sorted(counts)
    assert counts[0] == 1


@pytest.mark.long
def test_it_matters_whether_vms_are_busy_at_the_same_hours() -> None:
    together = pool(*[[0.8, 0.0, 0.0]] * 3)
    in_turn = pool([0.8, 0.0, 0.0], [0.0, 0.8, 0.0], [0.0, 0.0, 0.8])
    assert together.mean == pytest.approx(in_turn.mean)
    assert advice_of(size_pool(together, None, SharingLimits(1.2)))[0] == 1
    assert advice_of(size_pool(in_turn, None, SharingLimits(1.2)))[0] == 3


def test_idle_nights_make_nothing_look_good() -> None:
    always, by_day = pool(*[0.5] * 4), pool(*[[0.5, 0.0, 0.0, 0.0]] * 4)
    for count in (2, 4):
        of = [
            size_pool(shares_of_day, count, SharingLimits()).rows[0].shares[BEST].slowdown
            for shares_of_day in (always, by_day)
        ]
        assert of[0] == pytest.approx(of[1])


@pytest.mark.long
def test_one_that_is_always_busy_gets_a_gpu_of_its_own() -> None:
    sizing = size_pool(pool(1.0, *[0.05] * 11), None, SharingLimits(1.15, 12))
    assert [vm.name for vm in sizing.vms if not vm.shares] == ["vm-0"]
    assert sizing.advice is not None
    assert (sizing.advice.sharers, sizing.advice.gpus) == (12, 2), "the 11 others fit on one"
    alike = size_pool(pool(*[0.9] * 4), None, SharingLimits(1.15, 12))
    assert advice_of(alike)[0] == 1
    assert all(vm.shares for vm in alike.vms), "none of them is more in the way than the others"


@pytest.mark.long
def test_a_guarantee_holds_when_the_others_are_always_busy() -> None:
    sizing = size_pool(pool(*[0.2] * 6), None, SharingLimits(1.5, 8, guaranteed=True))
    assert advice_of(sizing) == (3, EQUAL), "1 + 0.2 * 2 of 1.5"
    off = pool(*[[0.2, float("nan")]] * 6)
    assert advice_of(size_pool(off, None, SharingLimits(1.5, 8, guaranteed=True))) == (3, EQUAL), (
        "VMs that are off may come"
    )


def test_a_days_slowdown_has_a_range_and_the_upper_end_counts() -> None:
    quiet, busy = [0.1] * 6, [0.6] * 6
    sizing = size_pool(pool(*[quiet * 2 + busy * 2] * 4, days=DAYS), 3, SharingLimits())
    share = sizing.rows[0].shares[BEST]
    assert share.low is not None and share.high is not None
    assert 1.0 < share.low < share.slowdown < share.high


def test_pairs_correct_what_busy_shares_say() -> None:
    observed = [ObservedPair(("x", "x"), (0.5, 0.5))] * 5

    def shares(*kinds: str) -> BusyShares:
        return BusyShares(kinds, np.array([[0.2] * len(kinds)]), np.zeros(1, np.int64), kinds, fit_pairs(observed))

    plain = size_pool(shares("y", "y"), 2, SharingLimits()).rows[0].shares[BEST].slowdown
    slowed = size_pool(shares("x", "x"), 2, SharingLimits()).rows[0].shares[BEST].slowdown
    assert plain == pytest.approx(1 + 0.04 * (1 + 2 * SWITCHING_OVERHEAD)), "y was in no pair"
    assert slowed == pytest.approx(2.0, rel=0.05)


def test_vms_that_never_use_a_gpu_suffer_nothing() -> None:
    sizing = size_pool(pool(0.0, 0.0), None, SharingLimits(1.0, 8))
    assert advice_of(sizing)[0] == 8
    assert sizing.rows[-1].shares[BEST].slowdown == 1.0


def test_plain_numbers() -> None:
    sizing = size_alike_vms(0.2, None, SharingLimits(1.5, 6))
    assert advice_of(sizing) == (6, BEST)
    assert [row.sharers for row in sizing.rows] == [1, 2, 3, 4, 6]
    assert size_alike_vms(0.9, None, SharingLimits(1.1, 4, guaranteed=True)).advice is not None, "alone by equal share"
    [row] = size_alike_vms(0.7, 24, SharingLimits()).rows
    assert row.shares[BEST].slowdown == pytest.approx(24 * 0.7 * (1 + SWITCHING_OVERHEAD), rel=1e-3)
    assert row.shares[EQUAL].slowdown == pytest.approx(0.3 + 24 * 0.7 * (1 + SWITCHING_OVERHEAD))
    assert row.shares[BEST].throughput > row.shares[EQUAL].throughput
