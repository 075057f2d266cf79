"""Finds the pairs of VMs that worked on one GPU in the history, and how fast each was next to the other. Pure.

Speed is not measured in production; GPU use is. A VM whose work wants the GPU for a share of the time gets as
much less of it beside another one as it is slower: its speed is what it used beside that one to what it used while
no other VM on its GPU was at work. Work differs by the hour, so the two are compared hour of the day by hour of the
day, and an hour counts by the fewer of its steps:

    09:00 to 10:00  vm-1 alone 24 steps, 0.60 used; beside vm-2 12 steps, 0.45 used: 12 steps that say 0.75

What is seen is a pair only with three such hours or more, of three days or more, for both of them. The same work
differs from day to day as well: by as much as the speed changes when each of the days is left out (jackknife), it is
drawn to what the busy shares alone say of the two. Others who were on the GPU then, and are elsewhere today, are not
known here: speeds are of those that share it today.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import log
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.extras.sizing.question import IDLE
from gpuops.extras.sizing.sharing import pairwise_slowdowns
from gpuops.model.devices.shared_gpu import ObservedPair

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Shares = NDArray[np.float32] | Floats
    Steps = NDArray[np.bool_]

FEWEST_STEPS: Final = 36
"""Of five minutes: three hours in which it was seen alone, and beside the other one at the same hours of the day."""
FEWEST_DAYS: Final = 3
"""Alone, and beside the other one."""
_HOURS: Final = 24
_FASTEST: Final = 1.0
"""No VM is faster next to others: a higher number means that its work differed."""
_SPREAD: Final = 0.2
"""By how much, in logarithms, pairs are taken to differ from what busy shares say of them; such noise draws by half."""


def seen_pairs(
    used: Mapping[str, Shares], groups: Collection[Collection[str]], hours: NDArray[np.int64]
) -> Iterator[ObservedPair]:
    """Yield the pairs of these groups that were seen.

    `used`: for each VM the share of each step that it used its GPU; NaN = it was off. `groups`: the VMs of each GPU.
    `hours`: for each step its hour, counted from a midnight before all of them, ascending. A group with a VM of which
    nothing is known says nothing.
    """
    for group in groups:
        names = sorted(group)
        if any(name not in used for name in names):
            continue
        shares = np.stack([used[name] for name in names])
        works = np.nan_to_num(shares) > IDLE
        at_work = works.sum(axis=0)
        two = works & (at_work == 2)
        often = two.astype(np.float32) @ two.T >= FEWEST_STEPS  # of many VMs few pairs are ever at work alone
        for first, second in zip(*np.nonzero(np.triu(often, 1)), strict=True):
            both_at_work = two[first] & two[second]
            alone = [works[at] & (at_work == 1) for at in (first, second)]
            if not all(when.any() for when in alone):
                continue
            busy = np.array([shares[at][when].mean() for at, when in zip((first, second), alone, strict=True)])
            usual = -log(pairwise_slowdowns(busy)[0, 1])
            speeds = [
                _speed(shares[at], when, both_at_work, hours, usual)
                for at, when in zip((first, second), alone, strict=True)
            ]
            if speeds[0] is not None and speeds[1] is not None:
                yield ObservedPair((names[first], names[second]), (speeds[0], speeds[1]))


def _speed(used: Shares, alone: Steps, beside: Steps, hours: NDArray[np.int64], usual: float) -> float | None:
    """Return how fast it was beside the other one, 1 = as fast as alone; None = too little was seen.

    `usual`: the logarithm of what the busy shares say.
    """
    first = hours[0] // _HOURS * _HOURS
    days = int(hours[-1] - first) // _HOURS + 1
    cells = days * _HOURS
    steps, sums = (
        np.array([np.bincount(hours[when] - first, weights[when], cells) for when in (alone, beside)])
        for weights in (np.ones(len(hours)), used)
    )
    steps, sums = steps.reshape(2, days, _HOURS), sums.reshape(2, days, _HOURS)  # alone and beside, day, hour
    weight = steps.sum(axis=1).min(axis=0)
    was_at_work = ((steps > 0) & (weight > 0)).any(axis=2)
    if weight.sum() < FEWEST_STEPS or was_at_work.sum(axis=1).min() < FEWEST_DAYS:
        return None
    log_speed = log(_ratio(steps.sum(axis=1), sums.sum(axis=1)))
    without = []
    for day in np.flatnonzero(was_at_work.any(axis=0)):
        other_days = steps.sum(axis=1) - steps[:, day]
        if other_days.min(axis=0).sum() == 0:
            return None  # one day says all of it
        without.append(log(_ratio(other_days, sums.sum(axis=1) - sums[:, day])))
    noise = (1.0 - 1.0 / len(without)) * float(((np.array(without) - log_speed) ** 2).sum())
    drawn = usual + (log_speed - usual) * _SPREAD**2 / (_SPREAD**2 + noise)
    return min(_FASTEST, float(np.exp(drawn)))


def _ratio(steps: Floats, sums: Floats) -> float:
    """What it used beside the other one to what it used alone, each hour of the day by the fewer of its steps."""
    got = (steps.min(axis=0) * sums / np.maximum(steps, 1.0)).sum(axis=1)
    return float(got[1] / got[0])
