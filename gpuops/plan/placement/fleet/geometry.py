"""States of GPUs and what one more device makes of them, and the worth of slots and nodes to the site's mix of VMs.

A state is a small integer that stands for all properties of a GPU that a rule may depend on; 0 = no GPU. Most GPUs of a
fleet are in one of a few states, so the exact rules answer each question about a state once and arrays keep the answer.
`board_geometry.py` gives the answers, `losses.py` computes with them.

`slot_prices`: a small vGPU is easy to place, a size that leaves half a GPU empty is not; the price of a size is its GPU
memory less what it makes impossible to sell. They are the dual prices of the cutting-stock problem (Gilmore and Gomory,
1961): cut GPUs so that the most memory of one GPU's worth of average demand is placed.

`place_prices`: a rule that looks at one node breaks up GPUs and hosts that VMs with whole GPUs could still have had.
The price of such a place is what it holds, times the chance that more VMs of its size come than the fleet has places
left (the expected marginal seat revenue of airlines: Belobaba, 1989).

`node_value`: how much of a node's GPUs the VMs of the mix could use with the remaining CPU and memory. Two measures
together:

* what each shape of VM could use of the node (after FGD: Weng et al., "Beware of Fragmentation", USENIX ATC 2023), as
  far as CPU and memory feed instances of the shape, counted as a real number. With whole instances, or no count as in
  FGD, the order of nodes that seem equal would decide more than the score does. Each further instance on the same node
  is worth less than the one before, so that places stay spread over nodes, and CPU and memory with them;
* what its GPUs could sell at the site's prices (`slot_prices`), as far as memory can feed that much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import erfc, exp, sqrt
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]
    Flags = npt.NDArray[np.bool_]

NO_LIMIT: Final = 2**50
"""Stands for an unknown amount of memory (MiB) or for cores that are not counted: they limit nothing."""
_UNKNOWN: Final = -(2**40)


class Table:
    """One number for each state, computed at its first use."""

    def __init__(self, answer: Callable[[int], int]) -> None:
        self.at: Callable[[int], int] = cache(answer)
        """The answer for one state."""
        self._rows = Rows(lambda state: (self.at(state),), 1)

    def of(self, states: Ints) -> Ints:
        """Return the answer for each of these states."""
        return self._rows.of(states)[..., 0]


class Rows:
    """Several numbers for each state, computed at its first use. They are in the last axis of the answer."""

    def __init__(self, answer: Callable[[int], Sequence[int]], width: int) -> None:
        self._answer = answer
        self._answers = np.full((64, width), _UNKNOWN, dtype=np.int64)

    def of(self, states: Ints) -> Ints:
        """Return the answers for each of these states."""
        try:
            rows = self._answers[states]
        except IndexError:  # a new state; cheaper than a check at each call
            # This at least doubles the number of rows, so that it is rarely needed.
            new_rows = np.full((int(states.max()), self._answers.shape[1]), _UNKNOWN, dtype=np.int64)
            self._answers = np.concatenate([self._answers, new_rows])
            rows = self._answers[states]
        unknown = rows[..., 0] == _UNKNOWN
        if unknown.any():
            for state in np.unique(states[unknown]):
                self._answers[state] = self._answer(int(state))
            rows = self._answers[states]
        return rows


class Geometry(Protocol):
    """The states that GPUs of a pool can have. States and kinds of device are small integers; state 0 = no GPU."""

    ways: int
    """The most states that one more device can lead to."""

    def after(self, state: int, kind: int) -> Sequence[int]:
        """Return the states that one more device of the kind may lead to; empty if there is no room."""

    def slots(self, state: int, kind: int) -> int:
        """Return how many more devices of the kind fit."""

    def value(self, state: int) -> int:
        """Return the worth of the best filling of the free GPU memory at the site's prices, in thousandths."""

    def free(self, state: int) -> int:
        """Return the free GPU memory in MiB."""


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """A VM to place: `count` devices of a kind, and CPU and memory."""

    kind: int
    count: int
    cpu: int
    memory: int
    beside: bool = True
    """Whether CPU and memory must be on the node of the GPUs; if not, other nodes give what this node lacks."""


class GpuTransitions:
    """The answers of a geometry as arrays. `kinds`: those that the site's VMs ask for."""

    def __init__(self, geometry: Geometry, kinds: Sequence[int]) -> None:
        self._geometry = geometry

        def gains(state: int) -> list[int]:
            slots = [geometry.slots(state, kind) for kind in kinds]
            return [*slots, geometry.value(state), geometry.free(state)]

        self.gains = Rows(gains, len(kinds) + 2)
        """Of a state: the slots of each kind, the value at the prices, and the free GPU memory."""
        self._after: dict[int, Rows] = {}

    def after(self, kind: int) -> Rows:
        """Return a table of the states that one more device of the kind may lead to, filled up with 0."""
        if kind not in self._after:
            ways = self._geometry.ways

            def after(state: int) -> list[int]:
                states = list(self._geometry.after(state, kind))
                return states + [0] * (ways - len(states))

            self._after[kind] = Rows(after, ways)
        return self._after[kind]

    def add_one(self, kind: int, states: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return every way to add one device to these nodes, as arrays: node, GPU, number of the way, new GPU state. If
        several GPUs of a node are in the same state, only the first is used."""
        after = self.after(kind).of(states)
        is_first_in_state: Flags = np.ones(states.shape, dtype=np.bool_)
        for gpu in range(1, states.shape[1]):
            is_first_in_state[:, gpu] = (states[:, :gpu] != states[:, gpu : gpu + 1]).all(axis=1)
        node, gpu_of, way = np.nonzero((after > 0) & is_first_in_state[:, :, None])
        return node, gpu_of, way, after[node, gpu_of, way]


ROUNDS: Final = 400
"""Subgradient steps of `slot_prices`."""
_NORMAL_FROM: Final = 50
"""Expected number of arrivals from which the normal distribution replaces Poisson's."""


def slot_prices(sizes: Floats, demand: Floats, fill: Callable[[Floats], Ints]) -> Floats:
    """Return the price of each size, at most the size itself. `sizes` are in GPUs; only the ratios of `demand` count.

    `fill`: how many of each size fill an empty GPU best at given prices. Subgradient steps minimise a bound on what one
    GPU can sell, so no solver is needed.
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
    """Return for each node and each shape the number of VMs that fit, by GPUs, CPU and memory."""
    by_cpu_and_memory = np.minimum(
        cpu[:, None] // np.maximum(1, large.cpu), memory[:, None] // np.maximum(1, large.memory)
    )
    counts: Ints = np.minimum(gains[:, large.column] // large.count, np.maximum(0, by_cpu_and_memory))
    return counts


def half_of_two_nodes(large: LargeShapes) -> LargeShapes:
    """Return the shapes with half of everything: what each of two nodes gives to a VM that takes both."""
    return replace(large, count=-(-large.count // 2), cpu=-(-large.cpu // 2), memory=-(-large.memory // 2))


def place_prices(large: LargeShapes, free_places: Ints, free: float) -> Floats:
    """Return the price of one place of each shape, given the number of `free_places` and the `free` GPU memory."""
    arrivals = free / large.mean
    # The last free place is used only if at least as many such VMs come as there are places.
    chances = [
        chance_of_at_least(int(many), share * arrivals) for many, share in zip(free_places, large.share, strict=True)
    ]
    worth: Floats = large.count * large.gpu * np.array(chances)
    return worth


def chance_of_at_least(many: int, mean: float) -> float:
    """Return the chance that `many` or more arrive if `mean` are expected, each independent of the others (Poisson;
    above a mean of 50 the normal distribution). `chance_of_at_least(1, 1.0)` is 1 - 1/e = 0.632."""
    if many <= 0:
        return 1.0
    if mean > _NORMAL_FROM:
        # - 0.5: a count of `many` is the range from many - 0.5 to many + 0.5 of the continuous distribution.
        return 0.5 * erfc((many - 0.5 - mean) / sqrt(2 * mean))
    term = total = exp(-mean)
    for count in range(1, many):
        term *= mean / count
        total += term
    return max(0.0, 1 - total)


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
    """Devices of one VM; a shape with 0 devices is worth nothing here."""
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
    """Return the value of each node to the mix. `gains`: those of `GpuTransitions`, summed over the node's GPUs."""
    sold: Floats = gains[:, len(shapes.kinds)] / VALUE_UNIT
    if shapes.fed_by_memory < np.inf:
        sold = np.minimum(sold, shapes.fed_by_memory * memory)
    return shapes.sale_weight * sold + usable_by_mix(shapes, gains, cpu, memory)


def usable_by_mix(shapes: ShapeArrays, gains: Ints, cpu: Ints, memory: Ints) -> Floats:
    """Return how much of the GPU memory of each of these nodes the mix can be expected to use."""
    # Instances of each shape by free slots, and by CPU and memory as a real number; less than one counts as none.
    devices_per_vm = np.maximum(1, shapes.count)
    by_slots = gains[:, : len(shapes.kinds)][:, shapes.kind] // devices_per_vm
    by_cpu_and_memory = np.minimum(
        cpu[:, None] / np.maximum(1, shapes.cpu), memory[:, None] / np.maximum(1, shapes.memory)
    )
    fits: Flags = (by_slots > 0) & (shapes.count > 0) & (by_cpu_and_memory >= 1)
    # The fifth VM of a shape on one node counts less than the first: a power below 1.
    use = devices_per_vm * shapes.size * np.minimum(by_slots, by_cpu_and_memory) ** INSTANCE_POWER
    total: Floats = np.where(fits, use, 0.0) @ shapes.weight
    return total


@dataclass(frozen=True, slots=True)
class ShapeFrequency:
    """One shape of VM and its frequency."""

    kind: int
    count: int
    cpu: int
    memory: int
    often: float


def commonest(frequencies: Sequence[ShapeFrequency]) -> list[ShapeFrequency]:
    """Return the commonest shapes that together make up `TYPICAL` of all VMs."""
    ranked = sorted(
        frequencies,
        key=lambda frequency: (-frequency.often, frequency.cpu, frequency.memory, frequency.kind, frequency.count),
    )
    upto = np.cumsum([frequency.often for frequency in ranked])
    return ranked[: int(np.searchsorted(upto, TYPICAL * upto[-1]) + 1)]


FEEDING_SLACK: Final = 2.0
"""Memory is assumed to feed this many times the value of the mean VM: not all small VMs come at once."""


def make_shape_arrays(
    frequencies: Sequence[ShapeFrequency],
    sizes: Mapping[int, int],
    gpus: int,
    price: Mapping[int, float],
    *,
    cut: bool,
) -> ShapeArrays:
    """Return the commonest shapes as arrays, at these prices of each kind of device.

    A shape with more devices than the `gpus` of a node counts as one half on each of two nodes. `cut`: the GPUs are cut
    into GPU instances.
    """
    common = commonest(frequencies)
    # over how many nodes each VM is spread
    node_counts = [2 if frequency.count > gpus else 1 for frequency in common]
    kinds = tuple(sorted(sizes))
    count = np.array([frequency.count // nodes for frequency, nodes in zip(common, node_counts, strict=True)])
    size = np.array([sizes[frequency.kind] for frequency in common])
    # The weight of a shape by its frequency and size; a shape without devices has none.
    often = np.array([frequency.often for frequency in common])
    devices_size = (count * size).astype(np.float64)
    weight = np.where(devices_size > 0, often / often.sum() * np.maximum(1, devices_size) ** SIZE_POWER, 0.0)
    mean_value = sum(shape.often * shape.count * price[shape.kind] for shape in frequencies if shape.memory)
    mean_memory = sum(shape.often * shape.memory for shape in frequencies)
    return ShapeArrays(
        kinds,
        np.array([kinds.index(frequency.kind) for frequency in common], dtype=np.int64),
        count,
        size,
        np.array([-(-frequency.cpu // nodes) for frequency, nodes in zip(common, node_counts, strict=True)]),
        np.array([-(-frequency.memory // nodes) for frequency, nodes in zip(common, node_counts, strict=True)]),
        weight / weight.sum(),
        fed_by_memory=FEEDING_SLACK * mean_value / mean_memory if mean_memory else np.inf,
        sale_weight=CUT_SALE_WEIGHT if cut else SALE_WEIGHT,
    )


def large_shapes(
    frequencies: Sequence[ShapeFrequency], sizes: Mapping[int, int], shapes: ShapeArrays, gpu: int
) -> LargeShapes | None:
    """Return the shapes of one or several whole GPUs of the size `gpu`; None if the mix has no such shapes.

    A VM with one whole GPU needs a GPU on which nothing runs, while small vGPUs come and go on any GPU. If no place is
    kept, the last empty GPU goes to the first small VM (8 hosts of L40S in mixed-size mode, 15 % whole-GPU VMs: 1.6
    points of GPU memory less on two seeds).

    A shape asks for at least as much as another if that is so in GPUs, CPU and memory.
    """
    frequency_of: dict[tuple[int, int, int, int], float] = {}
    for frequency in frequencies:
        if sizes[frequency.kind] == gpu:
            shape = (frequency.kind, frequency.count, frequency.cpu, frequency.memory)
            frequency_of[shape] = frequency_of.get(shape, 0.0) + frequency.often
    if not frequency_of:
        return None
    kinds = np.array([shape[0] for shape in frequency_of])
    asks = np.array([shape[1:] for shape in frequency_of])
    often = np.array(list(frequency_of.values()))
    total = sum(frequency.often for frequency in frequencies)
    # For each shape, the frequency of the shapes of its kind that ask for at least as much.
    share = np.array(
        [often[(asks >= ask).all(axis=1) & (kinds == kind)].sum() for ask, kind in zip(asks, kinds, strict=True)]
    )
    mean = sum(frequency.often * frequency.count * sizes[frequency.kind] for frequency in frequencies) / total
    column = np.array([shapes.kinds.index(kind) for kind in kinds.tolist()])
    return LargeShapes(column, asks[:, 0], asks[:, 1], asks[:, 2], share / total, float(gpu), mean)
