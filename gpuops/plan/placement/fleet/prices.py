"""Prices: what a slot of each size is worth on an empty GPU, given what the site asks for.

A small vGPU is easy to find a place for, a size that leaves half a GPU empty is not: the price of a size is its GPU
memory less what it makes impossible to sell. They are the dual prices of the cutting-stock problem (Gilmore and Gomory,
1961): cut GPUs so that the most memory of one GPU's worth of average demand is placed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.tables import Floats, Ints

ROUNDS: Final = 400


def prices(sizes: Floats, demand: Floats, fill: Callable[[Floats], Ints]) -> Floats:
    """The price of each size, at most the size itself; sizes in GPUs, `demand` in any proportion.

    `fill` = how many of each size fill an empty GPU best at given prices. Found by subgradient steps: the bound on what
    one GPU can sell falls to its least, and no library is needed for it.
    """
    demand = demand / (demand @ sizes)
    price = sizes.copy()
    best, lowest = price, np.inf
    for round_number in range(ROUNDS):
        filling = fill(price)
        bound = float(filling @ price + demand @ np.maximum(sizes - price, 0))
        if bound < lowest:
            best, lowest = price, bound
        slope = filling - demand * (price < sizes)
        step = 0.5 / (1 + 0.05 * round_number) / max(1e-9, float(np.abs(slope).sum()))
        price = np.clip(price - step * slope, 0, sizes)
    return best
