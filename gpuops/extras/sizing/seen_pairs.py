"""Finds the pairs of VMs that worked on one GPU in the history, and how fast each was next to the other. Pure.

Speed is not measured in production; GPU use is. A VM that needs the GPU gets less of it next to another one, in
proportion to its loss of speed. So its speed is what it used next to that VM, divided by what it used while no other
VM on its GPU was at work. Work differs by the hour, so the same hours of the day are compared. An hour counts by the
fewer of its steps:

    09:00 to 10:00  vm-1 alone 24 steps, 0.60 used; next to vm-2 12 steps, 0.45 used: 12 steps with a speed of 0.75

A pair counts only if both VMs have three such hours or more, on three days or more. The same work also differs from day
to day. The noise is estimated from how the speed changes when each of the days is left out (jackknife), and the more
noise, the more the speed is moved towards what the busy shares alone predict. VMs that were on the GPU then, and are on
another one today, are not known here: only VMs that share a GPU today are compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import log
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.extras.sizing.busy_shares import IDLE
from gpuops.extras.sizing.sharing import pairwise_slowdowns
from gpuops.model.devices.shared_gpu import ObservedPair

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Shares = NDArray[np.float32] | Floats
    Steps = NDArray[np.bool_]

FEWEST_STEPS: Final = 36
"""The least number of steps (three hours) both alone and next to the other VM, at the same hours of the day."""
FEWEST_DAYS: Final = 3
"""The least number of days both alone and next to the other VM."""
_HOURS: Final = 24
_FASTEST: Final = 1.0
"""No VM is faster next to others: a higher number means that its work differed."""
_SPREAD: Final = 0.2
"""How much pairs usually differ from the prediction of busy shares, in logarithms. Noise of this size moves a speed
halfway to the prediction."""


def seen_pairs(
    used: Mapping[str, Shares], groups: Collection[Collection[str]], hours: NDArray[np.int64]
) -> Iterator[ObservedPair]:
    """Yield the pairs in these groups that worked at the same time often enough, with the speed of each VM.

    `used`: for each VM the share of each step in which it used its GPU; NaN = it was off. `groups`: the VMs of each
    GPU; a group with a VM without history is skipped. `hours`: the hour of each step, ascending, counted from a
    midnight before the first step.
    """
    for group in groups:
        names = sorted(group)
        if any(name not in used for name in names):
            continue
        shares = np.stack([used[name] for name in names])
        works = np.nan_to_num(shares) > IDLE
        at_work = works.sum(axis=0)
        in_pair = works & (at_work == 2)  # the VM works, and exactly one other VM
        # cheap test: with many VMs only few pairs pass
        often_together = in_pair.astype(np.float32) @ in_pair.T >= FEWEST_STEPS
        for first, second in zip(*np.nonzero(np.triu(often_together, 1)), strict=True):
            both_at_work = in_pair[first] & in_pair[second]
            works_alone = [works[at] & (at_work == 1) for at in (first, second)]
            if not all(is_step.any() for is_step in works_alone):
                continue
            busy = np.array(
                [shares[at][is_step].mean() for at, is_step in zip((first, second), works_alone, strict=True)]
            )
            # the logarithm of the speed next to each other, which is 1 / slowdown
            expected_log_speed = -log(pairwise_slowdowns(busy)[0, 1])
            speeds = [
                _speed(shares[at], is_step, both_at_work, hours, expected_log_speed)
                for at, is_step in zip((first, second), works_alone, strict=True)
            ]
            if speeds[0] is not None and speeds[1] is not None:
                yield ObservedPair((names[first], names[second]), (speeds[0], speeds[1]))


def _speed(
    used: Shares, alone: Steps, beside: Steps, hours: NDArray[np.int64], expected_log_speed: float
) -> float | None:
    """Return the speed of a VM next to the other one, 1 = as fast as alone; None = too few steps or days.

    `alone`, `beside`: whether it is at work alone, or next to the other one, by step. `expected_log_speed`: the
    logarithm of the speed that the busy shares predict.
    """
    first = hours[0] // _HOURS * _HOURS
    days = int(hours[-1] - first) // _HOURS + 1
    cells = days * _HOURS  # one for each hour
    steps, sums = (
        np.array([np.bincount(hours[when] - first, weights[when], cells) for when in (alone, beside)])
        for weights in (np.ones(len(hours)), used)
    )
    steps, sums = steps.reshape(2, days, _HOURS), sums.reshape(2, days, _HOURS)  # alone and beside, day, hour
    # for each hour of the day the steps that both cases have; the other hours cannot be compared
    weight = steps.sum(axis=1).min(axis=0)
    was_at_work = ((steps > 0) & (weight > 0)).any(axis=2)
    if weight.sum() < FEWEST_STEPS or was_at_work.sum(axis=1).min() < FEWEST_DAYS:
        return None
    # how much the speed differs if a day is left out (jackknife) is the noise; a noisy speed is moved to the expected
    log_speed = log(_ratio(steps.sum(axis=1), sums.sum(axis=1)))
    logs_without_a_day = []
    for day in np.flatnonzero(was_at_work.any(axis=0)):
        other_days = steps.sum(axis=1) - steps[:, day]
        if other_days.min(axis=0).sum() == 0:
            return None  # all common hours are on one day: the noise is unknown
        logs_without_a_day.append(log(_ratio(other_days, sums.sum(axis=1) - sums[:, day])))
    noise = (1.0 - 1.0 / len(logs_without_a_day)) * float(((np.array(logs_without_a_day) - log_speed) ** 2).sum())
    log_speed_less_noise = expected_log_speed + (log_speed - expected_log_speed) * _SPREAD**2 / (_SPREAD**2 + noise)
    return min(_FASTEST, float(np.exp(log_speed_less_noise)))


def _ratio(steps: Floats, sums: Floats) -> float:
    """Return use next to the other VM divided by use alone; each hour of the day counts by the fewer of its steps."""
    got = (steps.min(axis=0) * sums / np.maximum(steps, 1.0)).sum(axis=1)
    return float(got[1] / got[0])
