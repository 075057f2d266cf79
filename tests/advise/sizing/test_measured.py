"""The busy share that is fitted to what VMs took: it is found again where the model made the times."""

from __future__ import annotations

import pytest

from gpuops.extras.sizing.measure_plan import measured_curve, overheads
from gpuops.extras.sizing.sharing import staggered_slowdowns
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.measurements.sharing_measurement import MeasuredCount, MeasuredDevice

BEST, EQUAL, FIXED = SchedulerPolicy.BEST_EFFORT, SchedulerPolicy.EQUAL_SHARE, SchedulerPolicy.FIXED_SHARE
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
