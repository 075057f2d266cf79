"""The types of the states of GPUs, of what a further device makes of them, and of requests to a pool and its answers.

A state is a small whole number for all that a rule may see of a GPU; 0 = no GPU. Most GPUs of a fleet are in one of few
states, so each question about a state is answered once by the exact rules and then looked up in an array.
`states.py` and `board_geometry.py` give the answers, `pool.py` computes with them.
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
"""MiB of memory that is not known, or cores that are not counted: they do not limit."""
_UNKNOWN: Final = -(2**40)


class Table:
    """One number for each state, computed when it is first asked."""

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
        self._known = np.full((64, width), _UNKNOWN, dtype=np.int64)

    def of(self, states: Ints) -> Ints:
        """The answers for each of these states."""
        try:
            rows = self._known[states]
        except IndexError:  # a new state; cheaper than a check at each call
            more = np.full((int(states.max()), self._known.shape[1]), _UNKNOWN, dtype=np.int64)
            self._known = np.concatenate([self._known, more])
            rows = self._known[states]
        unknown = rows[..., 0] == _UNKNOWN
        if unknown.any():
            for state in np.unique(states[unknown]):
                self._known[state] = self._answer(int(state))
            rows = self._known[states]
        return rows


class Geometry(Protocol):
    """What GPUs of a pool can be. States and kinds of device are small whole numbers; state 0 = no GPU."""

    ways: int
    """The most states that one more device can lead to."""

    def after(self, state: int, kind: int) -> Sequence[int]:
        """The states that one more device of the kind may lead to; none = there is no room."""

    def slots(self, state: int, kind: int) -> int:
        """How many more devices of the kind fit."""

    def usable(self, state: int, kind: int) -> int:
        """How much of what is free devices of the kind can use."""

    def value(self, state: int) -> int:
        """What the best filling of what is free sells for at the site's prices, in thousandths."""

    def free(self, state: int) -> int:
        """GPU memory that is free."""


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """A VM to place: so many devices of a kind, and CPU and memory beside them. No device = on any node."""

    kind: int
    count: int
    cpu: int
    memory: int
    beside: bool = True
    """Whether CPU and memory must be on the node of the GPUs; else what the node lacks comes from elsewhere."""


@dataclass(frozen=True, slots=True)
class NodePart:
    """What a VM takes of one node: its GPUs with their states before and after, CPU and memory."""

    row: int
    gpus: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    cpu: int
    memory: int


@dataclass(frozen=True, slots=True)
class PoolSeat:
    """Where a VM goes. `local`: on as few nodes as its size allows, with all of it beside its GPUs."""

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

    def one(self, kind: int, states: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Every way to add one device to these nodes, as arrays: node, GPU, number of the way, new state of the GPU.

        Of GPUs of a node that are in the same state only the first counts.
        """
        after = self.after(kind).of(states)
        fresh: Flags = np.ones(states.shape, dtype=np.bool_)
        for gpu in range(1, states.shape[1]):
            fresh[:, gpu] = (states[:, :gpu] != states[:, gpu : gpu + 1]).all(axis=1)
        node, gpu_of, way = np.nonzero((after > 0) & fresh[:, :, None])
        return node, gpu_of, way, after[node, gpu_of, way]
