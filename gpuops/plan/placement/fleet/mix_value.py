"""What a node is worth to the site's mix of VMs: what they could use of its GPUs with the CPU and memory that are left.

`pool.py` calls `node_value`; `board_pools.py` makes the arrays for it. Two measures together:

* what each shape of VM could use of the node (after FGD: Weng et al., "Beware of Fragmentation", USENIX ATC 2023), as
  far as CPU and memory feed instances of the shape, counted as a real number: counted in whole instances, or not at all
  as in FGD, which of the nodes that seem equal comes first decides more than the score does. Each further instance on
  the same node is worth less than the one before, so that places stay spread over nodes, and CPU and memory with them;
* what its GPUs could sell at the site's prices (`prices.py`), as far as memory can feed that much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.plan.placement.fleet.prices import LargeShapes

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Flags, Floats, Ints

VALUE_UNIT: Final = 1000
"""States carry their value at the prices in thousandths of the unit of GPU memory."""
SALE_WEIGHT: Final = 0.3
"""Weight of the second measure. More of it fills an empty fleet better and places less where VMs come and go: with 1
the gap is 2.2 points and 86.3 % are placed, with this 2.5 and 87.3, without it 2.9 and 86.8 (one seed, an odd one)."""
CUT_SALE_WEIGHT: Final = 3.0
"""The same where GPUs are cut into GPU instances (MIG): there the value at the prices is exactly that of the best
filling. With it H100 and A100 fill by 0.8 and 1.3 points more where starts are not told, and by 0.2 more where they
are; L40S in mixed-size mode, where it is not exact, would by 3.4 less (`python -m tests.bench filling`, eight and six
seeds below 200)."""
INSTANCE_POWER: Final = 0.4
"""The power of the number of instances: 1 = each is worth the same."""
SIZE_POWER: Final = -0.43
"""The power of a shape's size in its weight: large shapes have the reserve to speak for them. With 0 L40S in mixed-size
mode fills by 0.2 points less (six seeds); the twelve scenarios are 2.48 below their bound instead of 2.50."""
TYPICAL: Final = 0.95
"""Share of all VMs whose shapes count, the commonest first; rarer ones count only in the reserve for whole GPUs."""


@dataclass(frozen=True, slots=True)
class ShapeArrays:
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
    fed_by_memory: float = np.inf
    """Value at the prices that one unit of memory can feed."""
    sale_weight: float = SALE_WEIGHT
    """Of the value at the prices beside what the mix can use."""


def node_value(shapes: ShapeArrays, gains: Ints, cpu: Ints, memory: Ints) -> Floats:
    """The value of each of these nodes to the mix.

    `gains` has, per node: the free slots for every kind of device, what these could use, and the value at the prices.
    """
    sold: Floats = gains[:, 2 * len(shapes.kinds)] / VALUE_UNIT
    if shapes.fed_by_memory < np.inf:
        sold = np.minimum(sold, shapes.fed_by_memory * memory)
    return shapes.sale_weight * sold + usable_by_mix(shapes, gains, cpu, memory)


def usable_by_mix(shapes: ShapeArrays, gains: Ints, cpu: Ints, memory: Ints) -> Floats:
    """How much of each of these nodes the mix can be expected to use."""
    # Instances of each shape by free slots, and by CPU and memory as a real number; less than one counts as none.
    several = np.maximum(1, shapes.count)
    instances = gains[:, : len(shapes.kinds)][:, shapes.kind] // several
    fed = np.minimum(cpu[:, None] / np.maximum(1, shapes.cpu), memory[:, None] / np.maximum(1, shapes.memory))
    there: Flags = (instances > 0) & (shapes.count > 0) & (fed >= 1)
    # The fifth VM of a shape on one node counts less than the first: a power below 1.
    use = several * shapes.size * np.minimum(instances, fed) ** INSTANCE_POWER
    total: Floats = np.where(there, use, 0.0) @ shapes.weight
    return total


def shape_weights(often: Floats, count: Ints, size: Ints) -> Floats:
    """The weight of each shape by how often it comes and its size; together 1, and 0 without a device."""
    asked = (count * size).astype(np.float64)
    weight: Floats = np.where(asked > 0, often * np.maximum(1, asked) ** SIZE_POWER, 0.0)
    shares: Floats = weight / weight.sum()
    return shares


@dataclass(frozen=True, slots=True)
class ShapeFrequency:
    """One shape of VM and its frequency."""

    kind: int
    count: int
    cpu: int
    memory: int
    often: float


def commonest(asked: Sequence[ShapeFrequency], share: float = TYPICAL) -> list[ShapeFrequency]:
    """The commonest shapes that make up this share of all VMs."""
    ranked = sorted(asked, key=lambda each: (-each.often, each.cpu, each.memory, each.kind, each.count))
    upto = np.cumsum([each.often for each in ranked])
    return ranked[: int(np.searchsorted(upto, share * upto[-1]) + 1)]


def make_shape_arrays(asked: Sequence[ShapeFrequency], sizes: Mapping[int, int], gpus: int) -> ShapeArrays:
    """The shapes as arrays. A shape with more devices than the `gpus` of a node counts as its half on each of two
    nodes."""
    halves = [2 if each.count > gpus else 1 for each in asked]
    kinds = tuple(sorted(sizes))
    often = np.array([each.often for each in asked])
    return ShapeArrays(
        kinds,
        np.array([kinds.index(each.kind) for each in asked], dtype=np.int64),
        np.array([each.count // half for each, half in zip(asked, halves, strict=True)]),
        np.array([sizes[each.kind] for each in asked]),
        np.array([-(-each.cpu // half) for each, half in zip(asked, halves, strict=True)]),
        np.array([-(-each.memory // half) for each, half in zip(asked, halves, strict=True)]),
        often / often.sum(),
    )


def with_weights(
    shapes: ShapeArrays, asked: Sequence[ShapeFrequency], price: Mapping[int, float], slack: float, *, cut: bool
) -> ShapeArrays:
    """The shapes with their weights, and with the value that a unit of memory can feed at these prices.

    `cut`: the GPUs are cut into GPU instances. `slack`: memory feeds so many times the mean, for not all of the VMs
    come at once.
    """
    weight = shape_weights(shapes.weight, shapes.count, shapes.size)
    value = sum(shape.often * shape.count * price[shape.kind] for shape in asked if shape.memory)
    memory = sum(shape.often * shape.memory for shape in asked)
    fed_by_memory = slack * value / memory if memory else np.inf
    sale_weight = CUT_SALE_WEIGHT if cut else SALE_WEIGHT
    return replace(shapes, weight=weight, fed_by_memory=fed_by_memory, sale_weight=sale_weight)


def large_shapes(
    asked: Sequence[ShapeFrequency], sizes: Mapping[int, int], shapes: ShapeArrays, gpu: int
) -> LargeShapes | None:
    """The shapes of one or several whole GPUs of the size `gpu`; None = there are none.

    A VM with one whole GPU needs a GPU on which nothing runs, and small vGPUs come and go on any: without a place kept,
    the last empty GPU goes to the first small VM (8 hosts of L40S in mixed-size mode, 15 % whole-GPU VMs: 1.6 points of
    GPU memory less on two seeds).

    A shape asks for at least as much as another if it does in GPUs, CPU and memory.
    """
    merged: dict[tuple[int, int, int, int], float] = {}
    for each in asked:
        if sizes[each.kind] == gpu:
            key = (each.kind, each.count, each.cpu, each.memory)
            merged[key] = merged.get(key, 0.0) + each.often
    if not merged:
        return None
    kinds = np.array([key[0] for key in merged])
    asks = np.array([key[1:] for key in merged])
    often = np.array(list(merged.values()))
    total = sum(each.often for each in asked)
    share = np.array(
        [often[(asks >= ask).all(axis=1) & (kinds == kind)].sum() for ask, kind in zip(asks, kinds, strict=True)]
    )
    mean = sum(each.often * each.count * sizes[each.kind] for each in asked) / total
    column = np.array([shapes.kinds.index(kind) for kind in kinds.tolist()])
    return LargeShapes(column, asks[:, 0], asks[:, 1], asks[:, 2], share / total, float(gpu), mean)
