"""The types for states of GPUs, for the states that one more device leads to, and for requests to a pool.

A state is a small integer that stands for all properties of a GPU that a rule may depend on; 0 = no GPU. Most GPUs of a
fleet are in one of a few states, so the exact rules answer each question about a state once and arrays keep the answer.
`board_geometry.py` gives the answers, `pool.py` computes with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
        self._rows = Rows(lambda state: (answer(state),), 1)

    def of(self, states: Ints) -> Ints:
        """The answer for each of these states."""
        return self._rows.of(states)[..., 0]

    def at(self, state: int) -> int:
        """The answer for this state."""
        return int(self.of(np.array([state]))[0])


class Rows:
    """Several numbers for each state, in the last axis of the answer."""

    def __init__(self, answer: Callable[[int], Sequence[int]], width: int) -> None:
        self._answer = answer
        self._answers = np.full((64, width), _UNKNOWN, dtype=np.int64)

    def of(self, states: Ints) -> Ints:
        """The answers for each of these states."""
        try:
            rows = self._answers[states]
        except IndexError:  # a new state; cheaper than a check at each call
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

    def usable(self, state: int, kind: int) -> int:
        """Return how much of the free GPU memory devices of the kind can use."""

    def value(self, state: int) -> int:
        """Return the worth of the best filling of the free GPU memory at the site's prices, in thousandths."""

    def free(self, state: int) -> int:
        """GPU memory that is free."""


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """A VM to place: `count` devices of a kind, and CPU and memory. A VM without devices may go to any node."""

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
            usable = [geometry.usable(state, kind) for kind in kinds]
            return [*slots, *usable, geometry.value(state), geometry.free(state)]

        self.gains = Rows(gains, 2 * len(kinds) + 2)
        """Of a state: the slots of each kind, what these could use, the value at the prices, and what is free."""
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
        """Return every way to add one device to these nodes, as arrays: node, GPU, number of the way, new GPU state.

        If several GPUs of a node are in the same state, only the first is used.
        """
        after = self.after(kind).of(states)
        fresh: Flags = np.ones(states.shape, dtype=np.bool_)
        for gpu in range(1, states.shape[1]):
            fresh[:, gpu] = (states[:, :gpu] != states[:, gpu : gpu + 1]).all(axis=1)
        node, gpu_of, way = np.nonzero((after > 0) & fresh[:, :, None])
        return node, gpu_of, way, after[node, gpu_of, way]
