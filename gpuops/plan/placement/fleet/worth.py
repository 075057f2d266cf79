"""Worth: what a node can still bring to the site's mix of VMs, beside the CPU and memory it has left.

Two measures together:

* what each shape of VM could use of it (after FGD: Weng et al., "Beware of Fragmentation", USENIX ATC 2023), as far as
  CPU and memory feed instances of the shape, counted as a real number: counted in whole instances, or not counted at
  all as in FGD, which of the nodes that seem equal comes first decides more than the score does. Each further instance
  on the same node is worth less than the one before, so places stay spread over nodes, CPU and memory with them.
* what its GPUs could sell at the site's prices (`prices.py`), as far as CPU and memory can feed that much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.tables import Flags, Floats, Ints

VALUE_UNIT: Final = 1000
"""States carry their value at the prices in thousandths of the unit of GPU memory."""
SOLD: Final = 0.3
"""Weight of the second measure. More of it fills an empty fleet better and places less where VMs come and go: with 1
the gap is 2.2 points and 86.3 % are placed, with this 2.5 and 87.3, without it 2.9 and 86.8 (one seed, an odd one)."""
LESS: Final = 0.4
"""The power of the number of instances: 1 = each is worth the same."""
SMALL: Final = -0.43
"""The power of a shape's size in its weight: large shapes have the reserve to speak for them."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """The mix, one entry per shape of VM. Sizes are in the unit of the GPUs' memory."""

    kinds: tuple[int, ...]
    """Every kind of device that a shape asks for, once."""
    kind: Ints
    """Which of them, for each shape."""
    count: Ints
    """Devices of one VM; 0 = it asks for none, and is worth nothing here."""
    size: Ints
    """Of one device."""
    cpu: Ints
    memory: Ints
    weight: Floats
    suits: Flags
    """For each model of node and each shape, whether it may go there."""
    fed_by_cpu: float = np.inf
    """Value at the prices that one unit of CPU can feed."""
    fed_by_memory: float = np.inf


def worth(shapes: Shapes, model: Ints, gains: Ints, cpu: Ints, memory: Ints) -> Floats:
    """What each of these nodes is worth to the mix.

    `gains` has, per node: the free slots for every kind of device, what these could use, and the value at the prices.
    """
    sold: Floats = gains[:, 2 * len(shapes.kinds)] / VALUE_UNIT
    for fed, free in ((shapes.fed_by_cpu, cpu), (shapes.fed_by_memory, memory)):
        if fed < np.inf:
            sold = np.minimum(sold, fed * free)
    return SOLD * sold + used(shapes, model, gains, cpu, memory)


def used(shapes: Shapes, model: Ints, gains: Ints, cpu: Ints, memory: Ints) -> Floats:
    """What the mix can be expected to use of each of these nodes."""
    several = np.maximum(1, shapes.count)
    instances = gains[:, : len(shapes.kinds)][:, shapes.kind] // several
    fed = np.minimum(cpu[:, None] / np.maximum(1, shapes.cpu), memory[:, None] / np.maximum(1, shapes.memory))
    there: Flags = shapes.suits[model] & (instances > 0) & (shapes.count > 0) & (fed >= 1)
    use = several * shapes.size * np.minimum(instances, fed) ** LESS
    total: Floats = np.where(there, use, 0.0) @ shapes.weight
    return total


def weights(often: Floats, count: Ints, size: Ints) -> Floats:
    """How much each shape counts that comes so often: together 1, and nothing for one without a device."""
    asked = (count * size).astype(np.float64)
    weight: Floats = np.where(asked > 0, often * np.maximum(1, asked) ** SMALL, 0.0)
    shares: Floats = weight / weight.sum()
    return shares
