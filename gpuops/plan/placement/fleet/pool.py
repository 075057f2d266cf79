"""Finds, among NUMA nodes with GPUs of one geometry, the place that leaves the most room for the VMs that the site has.

`choice.py`, `losses.py` and the benches call it. The geometry defines the states of a GPU; a node also has CPU and
memory. The place with the smallest loss in steps wins; of equal places, the first node. Scores of a request are kept
until a node changes, so that a decision only has to score the nodes that changed since the last equal request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.plan.placement.fleet.geometry import Geometry, GpuTransitions, NodePart, PoolRequest, PoolSeat
from gpuops.plan.placement.fleet.mix_value import (
    LargeShapes,
    ShapeArrays,
    count_places,
    half_of_two_nodes,
    node_value,
    place_prices,
)

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Flags, Floats, Ints


@dataclass(slots=True)
class _ScoredRequest:
    """The loss of one request in each way on each node, when it was last scored; infinite = does not fit."""

    at: int
    loss: Floats
    state: Ints
    """State of the GPU afterwards; a way is a GPU and one of the states that it may have."""
    destroyed: Ints
    """Places for each large shape that this way destroys."""


NO_ROOM: Final = np.inf


class NodePool:
    """The current nodes, and the value of each to the mix.

    `sibling` is the other node of a host with two nodes, else -1.
    """

    def __init__(
        self,
        geometry: Geometry,
        state: Ints,
        cpu: Ints,
        memory: Ints,
        shapes: ShapeArrays,
        *,
        step: float,
        large: LargeShapes | None = None,
        sibling: Ints | None = None,
    ) -> None:
        self.geometry, self.shapes, self.step, self.large = geometry, shapes, step, large
        self.state, self.cpu, self.memory = state.copy(), cpu.copy(), memory.copy()
        self.sibling = np.full(len(cpu), -1) if sibling is None else sibling
        self._wide = np.zeros(0, dtype=np.bool_) if large is None else large.count > state.shape[1]
        self._half = half_of_two_nodes(large) if large is not None and self._wide.any() else None
        self.moves = GpuTransitions(geometry, shapes.kinds)
        self._scored: dict[PoolRequest, _ScoredRequest] = {}
        self._changed: list[int] = []
        self.gains = self.moves.gains.of(self.state).sum(axis=1)
        everywhere = np.arange(len(cpu))
        self.value = self._value(everywhere, self.gains, self.cpu, self.memory)
        self.places = self._places(everywhere, self.gains, self.cpu, self.memory)

    def choose(self, ask: PoolRequest, among: Flags | None = None) -> PoolSeat | None:
        """Return the best seat on one node, `among` these nodes if given; None if no node has room."""
        scored = self._up_to_date(ask)
        loss: Floats = scored.loss if among is None else np.where(among[:, None], scored.loss, NO_ROOM)
        total = self.total(loss, scored.destroyed)
        row, way = divmod(self.select(total), loss.shape[1])
        if loss[row, way] == NO_ROOM:
            return None
        gpus, states = self._gpus(ask, row, way, int(scored.state[row, way]))
        part = NodePart(row, gpus, tuple(self.state[row, list(gpus)].tolist()), states, ask.cpu, ask.memory)
        return PoolSeat((part,), ask.beside, float(total[row, way]))

    def steps(self, ask: PoolRequest, row: int, gpu: int) -> float:
        """Return the loss in steps of one device on this GPU, if that leads to one state; infinite = no room."""
        scored = self._up_to_date(ask)
        # Of several GPUs in the same state only the first is scored.
        way = int((self.state[row] == self.state[row, gpu]).argmax()) * self.geometry.ways
        return float(self.total(scored.loss[row, way : way + 1], scored.destroyed[row, way : way + 1])[0])

    def take(self, seat: PoolSeat) -> None:
        """Take the GPUs, CPU and memory of the seat."""
        for part in seat.parts:
            self._set(part.row, part.gpus, part.after, -part.cpu, -part.memory)

    def give(self, part: NodePart, states: Sequence[int]) -> None:
        """Give back the part of a node that a VM had; `states`: those of its GPUs afterwards."""
        self._set(part.row, part.gpus, states, part.cpu, part.memory)

    def _set(self, row: int, gpus: Sequence[int], states: Sequence[int], cpu: int, memory: int) -> None:
        self.state[row, list(gpus)] = states
        self.cpu[row] += cpu
        self.memory[row] += memory
        self.update_nodes((row,))

    def update_nodes(self, rows: Iterable[int]) -> None:
        """Compute these nodes anew, and mark them and their siblings as changed for all kept scores."""
        changed_rows = np.array(sorted(set(rows)), dtype=np.int64)
        self.gains[changed_rows] = self.moves.gains.of(self.state[changed_rows]).sum(axis=1)
        self.value[changed_rows] = self._value(
            changed_rows, self.gains[changed_rows], self.cpu[changed_rows], self.memory[changed_rows]
        )
        siblings = self.sibling[changed_rows]
        near = np.unique(np.concatenate([changed_rows, siblings[siblings >= 0]]))
        self.places[near] = self._places(near, self.gains[near], self.cpu[near], self.memory[near])
        self._changed += near.tolist()

    def loss(self, parts: Sequence[NodePart]) -> tuple[float, Ints]:
        """Return the loss of these nodes by the parts of one VM, and the places lost for each large shape."""
        rows = np.array([part.row for part in parts])
        states = self.state[rows]
        for at, part in enumerate(parts):
            states[at, list(part.gpus)] = part.after
        taken = [np.array([getattr(part, resource) for part in parts]) for resource in ("cpu", "memory")]
        loss, destroyed = self.losses(rows, states, *taken)
        return float(loss.sum()), destroyed.sum(axis=0)

    def losses(self, rows: Ints, states: Ints, cpu: Ints, memory: Ints) -> tuple[Floats, Ints]:
        """Return the loss of each node with its GPUs in these states and this CPU and memory taken, and the places
        lost."""
        gains = self.moves.gains.of(states).sum(axis=1)
        cpu, memory = np.maximum(0, self.cpu[rows] - cpu), np.maximum(0, self.memory[rows] - memory)
        loss: Floats = self.value[rows] - self._value(rows, gains, cpu, memory)
        return loss, np.maximum(0, self.places[rows] - self._places(rows, gains, cpu, memory))

    def _value(self, rows: Ints, gains: Ints, cpu: Ints, memory: Ints) -> Floats:
        return node_value(self.shapes, gains, cpu, memory)

    def _places(self, rows: Ints, gains: Ints, cpu: Ints, memory: Ints) -> Ints:
        """Return the places for each large shape on these nodes with these gains, CPU and memory.

        A shape that needs both nodes of a host has a place there if each node has room for one half. The place counts
        on both nodes.
        """
        if self.large is None:
            return np.zeros((len(rows), 0), dtype=np.int64)
        counts = count_places(self.large, gains, cpu, memory)
        if self._half is not None:
            wide, siblings = self._wide, self.sibling[rows]
            half_here = count_places(self._half, gains, cpu, memory)
            half_there = count_places(self._half, self.gains[siblings], self.cpu[siblings], self.memory[siblings])
            both = np.where((siblings >= 0)[:, None], np.minimum(1, np.minimum(half_here, half_there)), 0)
            counts[:, wide] = both[:, wide]
        return counts

    def _up_to_date(self, ask: PoolRequest) -> _ScoredRequest:
        scored = self._scored.get(ask)
        if scored is None:
            changed = np.arange(len(self.cpu))
            size = (len(self.cpu), self.state.shape[1] * self.geometry.ways)
            destroyed = np.zeros((*size, self.places.shape[1]), dtype=np.int64)
            scored = self._scored[ask] = _ScoredRequest(0, np.full(size, NO_ROOM), np.zeros(size, np.int64), destroyed)
        else:
            changed = np.array(sorted(set(self._changed[scored.at :])), dtype=np.int64)
        scored.at = len(self._changed)
        if len(changed):
            self._score(ask, changed, scored)
        return scored

    def _score(self, ask: PoolRequest, rows: Ints, scored: _ScoredRequest) -> None:
        """Score these nodes for the request anew."""
        # 1. Nodes with room for CPU and memory, if these must be local.
        scored.loss[rows] = NO_ROOM
        if ask.beside:
            rows = rows[(self.cpu[rows] >= ask.cpu) & (self.memory[rows] >= ask.memory)]
        # 2. Every way to add the devices, and the value that the node loses by each.
        option, way, state, gains = self._options(ask, rows)
        at = rows[option]
        gpu = way // self.geometry.ways if ask.count else way - 1
        scored.loss[at, way] = self.cost(ask, at, gpu, gains)
        scored.state[at, way] = state
        # 3. The places for large shapes that it destroys; their price depends on the whole pool, so `total` adds it.
        if self.large is not None:
            places_after = self._places(at, gains, *self._left(ask, at))
            scored.destroyed[at, way] = np.maximum(0, self.places[at] - places_after)

    def total(self, cost: Floats, destroyed: Ints) -> Floats:
        """Return the loss with the price of the destroyed places, in steps: smaller differences do not count."""
        steps: Floats = np.floor((cost + destroyed @ self.reserve()) / self.step + 0.5 + 1e-6)
        return steps

    def reserve(self) -> Floats:
        """The price of one place of each large shape now."""
        if self.large is None:
            return np.zeros(0)
        free_places = self.places.sum(axis=0)
        free_places = np.where(self._wide, free_places // 2, free_places)
        return place_prices(self.large, free_places, float(self.gains[:, -1].sum()))

    def select(self, cost: Floats) -> int:
        """Return the cheapest way, or the first of equal ones; the ways of one node are consecutive."""
        return int(cost.argmin())

    def cost(self, ask: PoolRequest, rows: Ints, gpu: Ints, gains: Ints) -> Floats:
        """Return the value that these nodes lose to the mix by the VM."""
        return self.value[rows] - self._value(rows, gains, *self._left(ask, rows))

    def _left(self, ask: PoolRequest, rows: Ints) -> tuple[Ints, Ints]:
        """Return the CPU and memory that the VM leaves of each node; at least 0, since other nodes give the missing
        part."""
        return np.maximum(0, self.cpu[rows] - ask.cpu), np.maximum(0, self.memory[rows] - ask.memory)

    def _options(self, ask: PoolRequest, rows: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return every way to seat the devices, as arrays: node, way, new state of the GPU, new gains of the node."""
        gains, states = self.gains[rows], self.state[rows]
        if ask.count == 0:
            all_rows = np.arange(len(rows))
            return all_rows, 0 * all_rows, 0 * all_rows, gains
        if ask.count > 1:
            return self._several(ask, rows, states)
        option, gpu, way, new = self.moves.add_one(ask.kind, states)
        after = gains[option] + self.moves.gains.of(new) - self.moves.gains.of(states[option, gpu])
        return option, gpu * self.geometry.ways + way, new, after

    def _several(self, ask: PoolRequest, rows: Ints, states: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return one way for each node: one device after the other, each where the node keeps the most value."""
        open_rows = np.arange(len(rows))
        for has_room, _, new in self._in_turn(ask, rows, states):
            open_rows, states = open_rows[has_room], new
        return open_rows, 0 * open_rows, 0 * open_rows, self.moves.gains.of(states).sum(axis=1)

    def _in_turn(self, ask: PoolRequest, rows: Ints, states: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Yield for each device in turn which of the remaining nodes have room, on which GPU, and the new states of
        all GPUs."""
        for _ in range(ask.count):
            option, gpu, _, new = self.moves.add_one(ask.kind, states)
            after, at = states[option], rows[option]
            after[np.arange(len(option)), gpu] = new
            cost = -self._value(at, self.moves.gains.of(after).sum(axis=1), self.cpu[at], self.memory[at])
            first = _cheapest_of_each_node(np.round(cost / self.step, 3), option)
            has_room, states = option[first], after[first]
            rows = rows[has_room]
            yield has_room, gpu[first], states

    def in_turn(self, ask: PoolRequest, row: int) -> tuple[int, ...]:
        """The GPU of each of several devices on this node, as many as there is room for."""
        rows = np.array([row])
        return tuple(int(device_gpu) for _, gpu, _ in self._in_turn(ask, rows, self.state[rows]) for device_gpu in gpu)

    def _gpus(self, ask: PoolRequest, row: int, way: int, state: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the GPUs that change, and their new states."""
        if ask.count == 0:
            return (), ()
        if ask.count == 1:
            return (way // self.geometry.ways,), (state,)
        rows = np.array([row])
        *_, (_, _, after) = self._in_turn(ask, rows, self.state[rows])
        gpus = tuple(sorted(set(self.in_turn(ask, row))))
        return gpus, tuple(after[0, list(gpus)].tolist())


def _cheapest_of_each_node(cost: Floats, node: Ints) -> Ints:
    """The cheapest option of each node; the sort is stable, so of equals the first.

    Costs (3, 1, 2) on nodes (0, 0, 1) give options 1 and 2.
    """
    order = np.lexsort((cost, node))
    cheapest: Ints = order[np.concatenate([[True], np.diff(node[order]) != 0])] if len(order) else order
    return cheapest
