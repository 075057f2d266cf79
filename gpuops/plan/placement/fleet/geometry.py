"""States of GPUs and what one more device makes of them, and the worth of a node to the site's mix of VMs.

A state is a small integer that stands for all properties of a GPU that a rule may depend on; 0 = no GPU. Most GPUs of a
fleet are in one of a few states, so the exact rules answer each question about a state once and arrays keep the answer.
`board_geometry.py` gives the answers, `losses.py` computes with them.

A place of a shape is room for one VM of that shape. A VM takes places from others, and each place has a price: its GPU
memory times the sum of

* the share of the site's VMs that have the shape. So the VM goes where it makes the least memory useless to others
  (FGD: Weng et al., "Beware of Fragmentation", USENIX ATC 2023);
* the chance that more VMs of the shape come than the fleet has places (the expected marginal seat revenue of airlines:
  Belobaba, 1989). So the last places of any shape are kept, and the first ones cost nothing.

Example: a quarter of the VMs ask for a whole GPU of 48 GiB, and about 5 more are expected. With 64 empty GPUs a place
costs 48 GiB x 0.25, with 5 empty GPUs 48 GiB x (0.25 + 0.56).

`Geometry.waste` counts too: the memory of a GPU that is expected to stay unused once VMs of the mix fill it by chance.
It tells good mixtures of GPU instances (MIG) from bad ones, which places of single shapes do not.
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
        """The answer for each of these states."""
        return self._rows.of(states)[..., 0]


class Rows:
    """Several numbers for each state, computed at its first use. They are in the last axis of the answer."""

    def __init__(self, answer: Callable[[int], Sequence[int]], width: int) -> None:
        self._answer = answer
        self._answers = np.full((64, width), _UNKNOWN, dtype=np.int64)

    def of(self, states: Ints) -> Ints:
        """The answers for each of these states."""
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
        """How many more devices of the kind fit."""

    def waste(self, state: int) -> int:
        """Return the free GPU memory that stays unused if VMs of the mix fill it by chance, in thousandths."""

    def free(self, state: int) -> int:
        """GPU memory that is free."""


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """A VM to place: `count` devices of a kind, and CPU and memory."""

    kind: int
    count: int
    cpu: int
    memory: int
    beside: bool = True
    """Whether CPU and memory must be on the node of the GPUs; if not, other nodes give what this node lacks."""


@dataclass(frozen=True, slots=True)
class NodePart:
    """The part of one node that a VM takes: GPUs with their states before and after, CPU and memory."""

    row: int
    gpus: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    cpu: int
    memory: int


@dataclass(frozen=True, slots=True)
class PoolSeat:
    """Where a VM goes. `local`: on as few nodes as its size allows, with its CPU and memory next to its GPUs."""

    parts: tuple[NodePart, ...]
    local: bool
    steps: float = 0.0
    """The loss of other VMs in steps; seats are compared by it."""


class GpuTransitions:
    """The answers of a geometry as arrays. `kinds`: those that the site's VMs ask for."""

    def __init__(self, geometry: Geometry, kinds: Sequence[int]) -> None:
        self._geometry = geometry

        def gains(state: int) -> list[int]:
            slots = [geometry.slots(state, kind) for kind in kinds]
            return [*slots, geometry.waste(state), geometry.free(state)]

        self.gains = Rows(gains, len(kinds) + 2)
        """Of a state: the slots of each kind, the expected waste in thousandths, and what is free."""
        self._after: dict[int, Rows] = {}

    def after(self, kind: int) -> Rows:
        """The states that one more device of the kind may lead to; 0 = no more."""
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
        fresh: Flags = np.ones(states.shape, dtype=np.bool_)
        for gpu in range(1, states.shape[1]):
            fresh[:, gpu] = (states[:, :gpu] != states[:, gpu : gpu + 1]).all(axis=1)
        node, gpu_of, way = np.nonzero((after > 0) & fresh[:, :, None])
        return node, gpu_of, way, after[node, gpu_of, way]


WASTE_UNIT: Final = 1000
"""States carry their expected waste in thousandths of the unit of GPU memory."""
_NORMAL_FROM: Final = 50


@dataclass(frozen=True, slots=True)
class ShapeFrequency:
    """One shape of VM and its frequency."""

    kind: int
    count: int
    cpu: int
    memory: int
    often: float


@dataclass(frozen=True, slots=True)
class Shapes:
    """The mix, one entry for each shape of VM. Sizes are in the unit of the GPUs' memory."""

    kinds: tuple[int, ...]
    """Every kind of device that a shape asks for, once."""
    column: Ints
    """Which of them, for each shape."""
    count: Ints
    """Devices of one VM."""
    cpu: Ints
    memory: Ints
    size: Ints
    """GPU memory of one VM."""
    share: Floats
    """The share of all arrivals that have this shape."""
    at_least: Floats
    """The share of all arrivals that ask for at least as many devices of the kind."""
    mean: float
    """Size of the mean arrival."""


def make_shapes(frequencies: Sequence[ShapeFrequency], sizes: Mapping[int, int]) -> Shapes:
    """Return the shapes as arrays. VMs with equal devices are one shape with the mean of their CPU and memory."""
    groups: dict[tuple[int, int], list[ShapeFrequency]] = {}
    for frequency in frequencies:
        groups.setdefault((frequency.kind, frequency.count), []).append(frequency)
    kinds = tuple(sorted({kind for kind, _ in groups}))
    total = sum(frequency.often for group in groups.values() for frequency in group)
    share = np.array([sum(frequency.often for frequency in group) / total for group in groups.values()])

    def means(numbers: Sequence[Sequence[int]]) -> Ints:
        """Return the mean of each group's numbers, weighted by frequency."""
        weights = [[frequency.often for frequency in group] for group in groups.values()]
        return np.array(
            [round(np.average(of_group, weights=often)) for of_group, often in zip(numbers, weights, strict=True)],
            dtype=np.int64,
        )

    kind = np.array([kind for kind, _ in groups])
    count = np.array([count for _, count in groups])
    size = np.array([sizes[kind] * count for kind, count in groups])
    return Shapes(
        kinds=kinds,
        column=np.array([kinds.index(kind) for kind, _ in groups]),
        count=count,
        cpu=means([[frequency.cpu for frequency in group] for group in groups.values()]),
        memory=means([[frequency.memory for frequency in group] for group in groups.values()]),
        size=size,
        share=share,
        at_least=np.array([share[(kind == kind[at]) & (count >= count[at])].sum() for at in range(len(kind))]),
        mean=float(share @ size),
    )


def count_places(shapes: Shapes, gains: Ints, cpu: Ints, memory: Ints) -> Ints:
    """For each node and each shape the number of VMs that fit, by GPUs, CPU and memory."""
    fed = np.minimum(cpu[:, None] // np.maximum(1, shapes.cpu), memory[:, None] // np.maximum(1, shapes.memory))
    counts: Ints = np.minimum(gains[:, shapes.column] // shapes.count, np.maximum(0, fed))
    return counts


def half_of_two_nodes(shapes: Shapes) -> Shapes:
    """The shapes with half of everything: what each of two nodes gives to a VM that takes both."""
    return replace(shapes, count=-(-shapes.count // 2), cpu=-(-shapes.cpu // 2), memory=-(-shapes.memory // 2))


def scarcity_prices(shapes: Shapes, free_places: Ints, free: float) -> Floats:
    """Return the price of one place of each shape by the chance that more VMs come than there are `free_places`;
    arrivals are expected until they ask for all of the `free` GPU memory."""
    arrivals = free / shapes.mean
    chances = [
        chance_of_at_least(int(places), share * arrivals)
        for places, share in zip(free_places, shapes.at_least, strict=True)
    ]
    prices: Floats = shapes.size * np.array(chances)
    return prices


def chance_of_at_least(many: int, mean: float) -> float:
    """The chance that `many` or more arrive where `mean` are expected, each independent of the others (Poisson). From a
    mean of 50 on by the normal distribution. `chance_of_at_least(1, 1.0)` is 1 - 1/e = 0.632."""
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
