"""Computes the worth of a slot of each size on an empty GPU, and of a place for VMs with whole GPUs.

`board_geometry.py` and `pool.py` call it.

`slot_prices`: a small vGPU is easy to place, a size that leaves half a GPU empty is not; the price of a size is its GPU
memory less what it makes impossible to sell. They are the dual prices of the cutting-stock problem (Gilmore and Gomory,
1961): cut GPUs so that the most memory of one GPU's worth of average demand is placed.

`place_prices`: a rule that looks at one node breaks up GPUs and hosts that VMs with whole GPUs could still have had.
The price of such a place is what it holds, times the chance that more VMs of its size come than the fleet has places
left (the expected marginal seat revenue of airlines: Belobaba, 1989).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import erfc, exp, sqrt
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Floats, Ints

ROUNDS: Final = 400
_NORMAL_FROM: Final = 50


def slot_prices(sizes: Floats, demand: Floats, fill: Callable[[Floats], Ints]) -> Floats:
    """The price of each size, at most the size itself; sizes in GPUs, `demand` in any proportion.

    `fill`: how many of each size fill an empty GPU best at given prices. Subgradient steps lower the bound on what one
    GPU can sell to its least; that needs no solver.
    """
    # Demand of one GPU's worth of memory.
    demand = demand / (demand @ sizes)
    price = sizes.copy()
    best, lowest = price, np.inf
    for round_number in range(ROUNDS):
        filling = fill(price)
        # What the best filling sells for, and what demand would pay above the prices: never below what can be sold.
        bound = float(filling @ price + demand @ np.maximum(sizes - price, 0))
        if bound < lowest:
            best, lowest = price, bound
        # A size that fills more than the demand gets cheaper, one that fills less gets dearer.
        slope = filling - demand * (price < sizes)
        step = 0.5 / (1 + 0.05 * round_number) / max(1e-9, float(np.abs(slope).sum()))
        price = np.clip(price - step * slope, 0, sizes)
    return best


@dataclass(frozen=True, slots=True)
class LargeShapes:
    """The shapes of VMs with one or several whole GPUs, one entry each."""

    column: Ints
    """For each shape the column of its kind of device among the gains of a node."""
    count: Ints
    cpu: Ints
    memory: Ints
    share: Floats
    """The share of all arrivals that ask for at least as much."""
    gpu: float
    """Size of a whole GPU."""
    mean: float
    """Size of the mean arrival."""


def count_places(large: LargeShapes, gains: Ints, cpu: Ints, memory: Ints) -> Ints:
    """For each node and each shape the number of VMs that fit, by GPUs, CPU and memory."""
    fed = np.minimum(cpu[:, None] // np.maximum(1, large.cpu), memory[:, None] // np.maximum(1, large.memory))
    counts: Ints = np.minimum(gains[:, large.column] // large.count, np.maximum(0, fed))
    return counts


def half_of_two_nodes(large: LargeShapes) -> LargeShapes:
    """The shapes with half of everything: what each of two nodes gives to a VM that takes both."""
    return replace(large, count=-(-large.count // 2), cpu=-(-large.cpu // 2), memory=-(-large.memory // 2))


def place_prices(large: LargeShapes, free_places: Ints, free: float) -> Floats:
    """Return the price of one place of each shape, given the number of `free_places` and the `free` GPU memory."""
    arrivals = free / large.mean
    chances = [
        chance_of_at_least(int(many), share * arrivals) for many, share in zip(free_places, large.share, strict=True)
    ]
    worth: Floats = large.count * large.gpu * np.array(chances)
    return worth


def chance_of_at_least(many: int, mean: float) -> float:
    """The chance that `many` or more arrive where `mean` are expected, each independent of the others (Poisson).

    From a mean of 50 on by the normal distribution. `chance_of_at_least(1, 1.0)` is 1 - 1/e = 0.632.
    """
    if many <= 0:
        return 1.0
    if mean > _NORMAL_FROM:
        return 0.5 * erfc((many - 0.5 - mean) / sqrt(2 * mean))
    term = total = exp(-mean)
    for count in range(1, many):
        term *= mean / count
        total += term
    return max(0.0, 1 - total)
