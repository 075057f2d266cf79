"""What VMs took that really shared a GPU, as times as long as alone, and the busy share that explains it best. Pure.

The busy share is the one number of `sharing` that is not known: of all from 0 to 1 in steps of a thousandth the one
with the least squared errors of the logarithms, over all counts and schedulers together. Each time is divided by that
of one VM under the same scheduler, as the model's is; so fixed share, under which no VM notices others, says nothing.

    best effort, 2 VMs took 1.33 times as long: a busy share of 0.5, by which 2 take 1.333 times as long
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuops.extras.sizing.sharing import staggered_slowdowns
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.measurements.sharing_measurement import MeasuredCount, MeasuredDevice

_STEPS = 1000
WHOLE = "whole vGPU"


@dataclass(frozen=True, slots=True)
class NormalisedCount:
    """One count, divided by what one VM took alone under its scheduler; None = that was not measured."""

    count: MeasuredCount
    mean: float | None
    least: float | None = None
    most: float | None = None
    model: float | None = None
    """What the fitted busy share foresees; None = nothing was fitted."""


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """All counts, and the busy share by which the model is closest to them."""

    rows: tuple[NormalisedCount, ...]
    busy: float | None
    """None = fewer than one count besides 1 of a scheduler that tells it."""
    worst_error: float | None = None
    """By how much a count is off, as a share of what was measured."""


def measured_curve(counts: Sequence[MeasuredCount], slots: int, overlap: float) -> MeasuredCurve:
    """Return the curve of these counts. `slots`: how many vGPUs of the profile a GPU holds."""
    shared = [measured_count for measured_count in counts if measured_count.device is MeasuredDevice.SHARE]
    alone = {
        measured_count.scheduler: float(np.mean(measured_count.times_s))
        for measured_count in shared
        if measured_count.sharers == 1 and measured_count.times_s
    }
    rows = tuple(
        _normalise(measured_count, alone)
        for measured_count in sorted(
            shared, key=lambda measured_count: (measured_count.scheduler, measured_count.sharers)
        )
    )
    telling = [
        row
        for row in rows
        if row.mean is not None and row.count.sharers > 1 and row.count.scheduler is not SchedulerPolicy.FIXED_SHARE
    ]
    if not telling:
        return MeasuredCurve(rows, None)
    shares = np.linspace(0.0, 1.0, _STEPS + 1)
    measured_logs = np.log([row.mean or 1.0 for row in telling])
    errors = [float(((np.log(_models(telling, share, slots, overlap)) - measured_logs) ** 2).sum()) for share in shares]
    busy = float(shares[int(np.argmin(errors))])
    foreseen = {
        (row.count.scheduler, row.count.sharers): _model(row.count, busy, slots, overlap) for row in rows if row.mean
    }
    worst = max(abs(foreseen[row.count.scheduler, row.count.sharers] / (row.mean or 1.0) - 1.0) for row in telling)
    return MeasuredCurve(tuple(_with_model(row, foreseen) for row in rows), busy, worst)


def overheads(counts: Sequence[MeasuredCount]) -> Mapping[str, float]:
    """Return how many times as long one VM alone took as one with a whole GPU by DirectPath I/O, by what it had.

    The vGPU that is a whole GPU, and the share of each scheduler. Empty = DirectPath I/O was not measured. What is
    more than 1 is what virtualisation and the scheduler take, with no other VM on the GPU.
    """
    times = {
        measured_count.device: float(np.mean(measured_count.times_s))
        for measured_count in counts
        if measured_count.times_s
    }
    direct_s = times.get(MeasuredDevice.DIRECT_PATH)
    if direct_s is None:
        return {}
    by_scheduler = {
        measured_count.scheduler.value: measured_count
        for measured_count in counts
        if measured_count.sharers == 1 and measured_count.device is MeasuredDevice.SHARE
    }
    whole = next(
        (measured_count for measured_count in counts if measured_count.device is MeasuredDevice.WHOLE_VGPU), None
    )
    measured = ({WHOLE: whole} if whole is not None else {}) | by_scheduler
    return {
        name: float(np.mean(measured_count.times_s)) / direct_s
        for name, measured_count in measured.items()
        if measured_count.times_s
    }


def _normalise(count: MeasuredCount, alone: Mapping[SchedulerPolicy, float]) -> NormalisedCount:
    base = alone.get(count.scheduler)
    if not base or not count.times_s:
        return NormalisedCount(count, None)
    times = [time_s / base for time_s in count.times_s]
    return NormalisedCount(count, float(np.mean(times)), min(times), max(times))


def _with_model(row: NormalisedCount, foreseen: Mapping[tuple[SchedulerPolicy, int], float]) -> NormalisedCount:
    model = foreseen.get((row.count.scheduler, row.count.sharers))
    return NormalisedCount(row.count, row.mean, row.least, row.most, model)


def _models(rows: Sequence[NormalisedCount], busy: float, slots: int, overlap: float) -> list[float]:
    return [_model(row.count, busy, slots, overlap) for row in rows]


def _model(count: MeasuredCount, busy: float, slots: int, overlap: float) -> float:
    """Times as long as one VM alone under the same scheduler, in the mean of so many."""
    together = staggered_slowdowns(count.scheduler, busy, count.sharers, slots, overlap).mean()
    return float(together / staggered_slowdowns(count.scheduler, busy, 1, slots, overlap).mean())
