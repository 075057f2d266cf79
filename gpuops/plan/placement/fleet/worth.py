"""Worth: how much of what is free on a node the VMs of a mix can use, beside the CPU and memory there.

After FGD (Weng et al., "Beware of Fragmentation", USENIX ATC 2023), with one change: a GPU counts for a shape only as
far as CPU and memory feed instances of it too. Without that, which of the nodes that seem equal comes first decides more
than the score does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.tables import Flags, Floats, Ints


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


def worth(shapes: Shapes, model: Ints, gains: Ints, cpu: Ints, memory: Ints) -> Floats:
    """What each of these nodes is worth to the mix.

    `gains` has, per node, the free slots for every kind of device and then what these could use.
    """
    kinds = len(shapes.kinds)
    slots, usable = gains[:, :kinds][:, shapes.kind], gains[:, kinds:][:, shapes.kind]
    several = np.maximum(1, shapes.count)
    instances = slots // several
    fed = np.minimum(cpu[:, None] // np.maximum(1, shapes.cpu), memory[:, None] // np.maximum(1, shapes.memory))
    share = np.minimum(1.0, fed / np.maximum(1, instances))
    used = np.where(shapes.count > 1, instances * several * shapes.size, usable) * share
    there: Flags = shapes.suits[model] & (instances > 0) & (shapes.count > 0)
    total: Floats = np.where(there, used, 0.0) @ shapes.weight
    return total
