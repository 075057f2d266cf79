"""A pool: NUMA nodes with GPUs of one geometry, and the seat that leaves the rest worth the most to the site's mix.

What a GPU can be is the geometry's to say; what is free beside it is CPU and memory. Nodes are tried as the tiers say:
all of the VM on one node first, then what crosses the socket. Within a tier the smallest loss wins, in steps, and of
equals the first node. What was scored for a shape is kept until the node changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.plan.placement.fleet.across import TIERS
from gpuops.plan.placement.fleet.ask import Ask, Geometry, Part, Seat
from gpuops.plan.placement.fleet.reserve import Large, places, price
from gpuops.plan.placement.fleet.tables import Rows
from gpuops.plan.placement.fleet.worth import Shapes, worth

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.tables import Flags, Floats, Ints


@dataclass(slots=True)
class _Scored:
    """What one shape of VM would cost on each node when it was asked last; infinite = does not fit."""

    at: int
    loss: Floats
    gpu: Ints
    state: Ints
    destroyed: Ints
    """Places for each large shape that go with it."""


FULL: Final = np.inf


class Pool:
    """The nodes as they are, and what each of them is worth. `paired`: rows 2n and 2n+1 are one host."""

    def __init__(
        self,
        geometry: Geometry,
        state: Ints,
        cpu: Ints,
        memory: Ints,
        shapes: Shapes,
        *,
        step: float,
        large: Large | None = None,
        model: Ints | None = None,
        paired: bool = False,
    ) -> None:
        self.geometry, self.shapes, self.step, self.paired = geometry, shapes, step, paired
        self.state, self.cpu, self.memory = state.copy(), cpu.copy(), memory.copy()
        self.cpu_whole, self.memory_whole = int(cpu.max()), int(memory.max())
        self.model = np.zeros(len(cpu), dtype=np.int64) if model is None else model
        kinds = shapes.kinds

        def gains(state: int) -> list[int]:
            slots = [geometry.slots(state, kind) for kind in kinds]
            usable = [geometry.usable(state, kind) for kind in kinds]
            return [*slots, *usable, geometry.value(state), geometry.free(state)]

        self._gains = Rows(gains, 2 * len(kinds) + 2)
        self._next: dict[int, Rows] = {}
        self._scored: dict[Ask, _Scored] = {}
        self._changed: list[int] = []
        self.gains = self._gains.of(self.state).sum(axis=1)
        everywhere = np.arange(len(cpu))
        self.value = self._value(everywhere, self.gains, self.cpu, self.memory)
        self.large = large
        self.places = self._places(everywhere, self.gains, self.cpu, self.memory)

    def choose(self, ask: Ask) -> Seat | None:
        """The best seat in the first tier that has any."""
        local = self._local(ask)
        if local is not None or not self.paired:
            return local
        return self._across(ask)

    def take(self, seat: Seat) -> None:
        """The pool with the VM there."""
        for part in seat.parts:
            self._set(part.row, part.gpus, part.after, -part.cpu, -part.memory)

    def give(self, part: Part, states: Sequence[int]) -> None:
        """The pool without it; `states` are those of its GPUs then."""
        self._set(part.row, part.gpus, states, part.cpu, part.memory)

    def _set(self, row: int, gpus: Sequence[int], states: Sequence[int], cpu: int, memory: int) -> None:
        self.state[row, list(gpus)] = states
        self.cpu[row] += cpu
        self.memory[row] += memory
        there = np.array([row])
        self.gains[row] = self._gains.of(self.state[row]).sum(axis=0)
        self.value[row] = self._value(there, self.gains[there], self.cpu[there], self.memory[there])[0]
        near = [row, row ^ 1] if self.paired else [row]
        self.places[near] = self._places(np.array(near), self.gains[near], self.cpu[near], self.memory[near])
        self._changed += near

    def _value(self, rows: Ints, gains: Ints, cpu: Ints, memory: Ints) -> Floats:
        return worth(self.shapes, self.model[rows], gains, cpu, memory)

    def _places(self, rows: Ints, gains: Ints, cpu: Ints, memory: Ints) -> Ints:
        """Places for each large shape on these nodes, were they like this; those that take both nodes of a host, on
        either."""
        if self.large is None:
            return np.zeros((len(rows), 0), dtype=np.int64)
        found = places(self.large, self.model[rows], gains, cpu, memory)
        wide = self.large.count > self.state.shape[1]
        if self.paired and wide.any():
            half = replace(
                self.large,
                count=-(-self.large.count // 2),
                cpu=-(-self.large.cpu // 2),
                memory=-(-self.large.memory // 2),
            )
            other = rows ^ 1
            here = places(half, self.model[rows], gains, cpu, memory)
            there = places(half, self.model[other], self.gains[other], self.cpu[other], self.memory[other])
            found[:, wide] = np.minimum(1, np.minimum(here, there))[:, wide]
        return found

    def _local(self, ask: Ask) -> Seat | None:
        scored = self._scored.get(ask)
        if scored is None:
            changed = np.arange(len(self.cpu))
            none = np.zeros((len(self.cpu), self.places.shape[1]), dtype=np.int64)
            scored = self._scored[ask] = _Scored(0, np.full(len(self.cpu), FULL), 0 * changed, 0 * changed, none)
        else:
            changed = np.array(sorted(set(self._changed[scored.at :])), dtype=np.int64)
        scored.at = len(self._changed)
        if len(changed):
            self._score(ask, changed, scored)
        row = self.select(self.total(scored.loss, scored.destroyed))
        if scored.loss[row] == FULL:
            return None
        gpus, states = self._gpus(ask, row, int(scored.gpu[row]), int(scored.state[row]))
        part = Part(row, gpus, tuple(self.state[row, list(gpus)].tolist()), states, ask.cpu, ask.memory)
        return Seat((part,), local=True)

    def _score(self, ask: Ask, rows: Ints, scored: _Scored) -> None:
        """Score these nodes for the shape anew."""
        scored.loss[rows] = FULL
        enough = (self.cpu[rows] >= ask.cpu) & (self.memory[rows] >= ask.memory)
        enough &= ((ask.models >> self.model[rows]) & 1).astype(np.bool_)
        rows = rows[enough]
        option, gpu, state, gains = self._options(ask, rows)
        at = rows[option]
        cost = self.cost(ask, at, gpu, gains)
        # The cheapest option of each node; the sort is stable, so of equals the first.
        order = np.lexsort((cost, at))
        first = order[np.concatenate([[True], np.diff(at[order]) != 0])] if len(order) else order
        row = at[first]
        scored.loss[row], scored.gpu[row], scored.state[row] = cost[first], gpu[first], state[first]
        left = self._places(row, gains[first], self.cpu[row] - ask.cpu, self.memory[row] - ask.memory)
        scored.destroyed[row] = np.maximum(0, self.places[row] - left)

    def total(self, cost: Floats, destroyed: Ints) -> Floats:
        """The cost with the places for large shapes that are destroyed, in steps: what differs by less is equal."""
        if self.large is not None:
            left = self.places.sum(axis=0)
            left = np.where(self.large.count > self.state.shape[1], left // 2, left) if self.paired else left
            cost = cost + destroyed @ price(self.large, left, float(self.gains[:, -1].sum()))
        steps: Floats = np.floor(cost / self.step + 0.5 + 1e-6)
        return steps

    def select(self, cost: Floats) -> int:
        """The cheapest node, of equals the first."""
        return int(cost.argmin())

    def cost(self, ask: Ask, rows: Ints, gpu: Ints, gains: Ints) -> Floats:
        """What these nodes lose to the mix by the VM."""
        return self.value[rows] - self._value(rows, gains, self.cpu[rows] - ask.cpu, self.memory[rows] - ask.memory)

    def _options(self, ask: Ask, rows: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Ways to seat the devices: which of these nodes, GPU, its new state, and what the node offers then."""
        gains = self.gains[rows]
        if ask.count == 0:
            here = np.arange(len(rows))
            return here, 0 * here - 1, 0 * here, gains
        states = self.state[rows]
        after = self._after(ask.kind).of(states)
        if ask.count > 1:
            return self._several(ask, states, after, gains)
        fresh = np.ones(states.shape, dtype=np.bool_)
        for gpu in range(1, states.shape[1]):
            fresh[:, gpu] = (states[:, :gpu] != states[:, gpu : gpu + 1]).all(axis=1)
        option, which, way = np.nonzero((after > 0) & fresh[:, :, None])
        new, old = after[option, which, way], states[option, which]
        return option, which, new, gains[option] + self._gains.of(new) - self._gains.of(old)

    def _several(self, ask: Ask, states: Ints, after: Ints, gains: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Whole GPUs are all alike: the first that are free."""
        room = after[:, :, 0] > 0
        option = np.flatnonzero(room.sum(axis=1) >= ask.count)
        taken = room[option] & (room[option].cumsum(axis=1) <= ask.count)
        new = np.where(taken, after[option, :, 0], states[option])
        return option, 0 * option, 0 * option, self._gains.of(new).sum(axis=1)

    def _gpus(self, ask: Ask, row: int, gpu: int, state: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if ask.count == 0:
            return (), ()
        if ask.count == 1:
            return (gpu,), (state,)
        return self.first(ask, row, ask.count)

    def first(self, ask: Ask, row: int, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The first GPUs of the node that can take a device each, so many at the most, and their states then."""
        after = self._after(ask.kind).of(self.state[row])[:, 0]
        gpus = np.flatnonzero(after > 0)[:count]
        return tuple(gpus.tolist()), tuple(after[gpus].tolist())

    def _after(self, kind: int) -> Rows:
        if kind not in self._next:
            ways = self.geometry.ways

            def after(state: int) -> list[int]:
                found = list(self.geometry.after(state, kind))
                return found + [0] * (ways - len(found))

            self._next[kind] = Rows(after, ways)
        return self._next[kind]

    def _across(self, ask: Ask) -> Seat | None:
        """What does not fit on one node, in the first way that a host can: even halves, then CPU and memory where they
        are free."""
        best: tuple[float, Seat] | None = None
        for tier in TIERS:
            for row in self._hosts_for(ask):
                seat = tier(self, ask, int(row))
                loss = FULL if seat is None else self._loss(seat)
                if seat is not None and (best is None or loss < best[0]):
                    best = (loss, seat)
            if best is not None:
                return best[1]
        return None

    def _hosts_for(self, ask: Ask) -> Ints:
        """Rows with a GPU that will do, on hosts that have the CPU and memory in all."""
        pair = np.arange(len(self.cpu)) ^ 1
        room = (self._after(ask.kind).of(self.state)[:, :, 0] > 0).sum(axis=1) if ask.count else np.ones(len(self.cpu))
        enough: Flags = (self.cpu + self.cpu[pair] >= ask.cpu) & (self.memory + self.memory[pair] >= ask.memory)
        return np.flatnonzero(enough & (room > 0) & (room + (room[pair] if ask.count > 1 else 0) >= ask.count))

    def _loss(self, seat: Seat) -> float:
        loss = 0.0
        destroyed = np.zeros(self.places.shape[1], dtype=np.int64)
        for part in seat.parts:
            there = np.array([part.row])
            states = self.state[part.row].copy()
            states[list(part.gpus)] = part.after
            gains = self._gains.of(states).sum(axis=0)[None, :]
            cpu, memory = self.cpu[there] - part.cpu, self.memory[there] - part.memory
            loss += float(self.value[part.row] - self._value(there, gains, cpu, memory)[0])
            destroyed += np.maximum(0, self.places[part.row] - self._places(there, gains, cpu, memory)[0])
        return float(self.total(np.array([loss]), destroyed[None, :])[0])
