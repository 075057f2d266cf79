"""The reserve: what a VM destroys of the room for the site's largest shapes, at the chance that they will want it.

Every rule that looks at one node breaks up hosts that several whole GPUs at once could still have had. The price of
such a place is what it holds, times the chance that more of its kind, or larger, come than the fleet has places left
(the expected marginal seat revenue of airlines: Belobaba, 1989).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import erfc, exp, sqrt
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.tables import Flags, Floats, Ints

_MANY: Final = 50


@dataclass(frozen=True, slots=True)
class Large:
    """The shapes of several whole GPUs, one entry each."""

    column: Ints
    """For each shape, where the GPUs that are free for it stand among what a node offers."""
    count: Ints
    cpu: Ints
    memory: Ints
    suits: Flags
    """For each model of node and each shape."""
    share: Floats
    """Of all arrivals, those that ask for at least as much."""
    gpu: float
    """Size of a whole GPU."""
    mean: float
    """Size of the mean arrival."""


def places(large: Large, model: Ints, gains: Ints, cpu: Ints, memory: Ints) -> Ints:
    """How many VMs of each shape each of these nodes could take."""
    fed = np.minimum(cpu[:, None] // np.maximum(1, large.cpu), memory[:, None] // np.maximum(1, large.memory))
    found: Ints = np.minimum(gains[:, large.column] // large.count, np.maximum(0, fed))
    return found * large.suits[model]


def halved(large: Large) -> Large:
    """What each of two nodes gives to a VM of these shapes that takes both."""
    return replace(large, count=-(-large.count // 2), cpu=-(-large.cpu // 2), memory=-(-large.memory // 2))


def price(large: Large, left: Ints, free: float) -> Floats:
    """What one place of each shape is worth, where so many are `left` and so much GPU memory is free."""
    arrivals = free / large.mean
    chances = [at_least(int(many), share * arrivals) for many, share in zip(left, large.share, strict=True)]
    worth: Floats = large.count * large.gpu * np.array(chances)
    return worth


def at_least(many: int, mean: float) -> float:
    """The chance that so many or more come where `mean` are expected, one independent of the other (Poisson)."""
    if many <= 0:
        return 1.0
    if mean > _MANY:
        return 0.5 * erfc((many - 0.5 - mean) / sqrt(2 * mean))
    term = total = exp(-mean)
    for count in range(1, many):
        term *= mean / count
        total += term
    return max(0.0, 1 - total)
