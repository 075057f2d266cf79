"""Seats that cross the socket, for what does not fit on one NUMA node; the tiers in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gpuops.model.vcenter.host import NumaPolicy
from gpuops.plan.placement.fleet.geometry import PoolRequest
from gpuops.plan.placement.fleet.losses import NO_ROOM, NodePool
from tests.bench.trace.vgpu_world import numa_of

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Flags, Ints


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


Tier = Callable[["Hosts", PoolRequest, int], PoolSeat | None]


def _evenly(pool: Hosts, ask: PoolRequest, row: int) -> PoolSeat | None:
    """Half of everything on each node, for what needs more GPUs than a node has."""
    if ask.count <= pool.state.shape[1] or row % 2:
        return None
    half, cpus, memories = (
        ask.count // 2,
        (ask.cpu - ask.cpu // 2, ask.cpu // 2),
        (
            ask.memory - ask.memory // 2,
            ask.memory // 2,
        ),
    )
    parts = [_part(pool, ask, row + n, half, cpus[n], memories[n]) for n in (0, 1)]
    return PoolSeat((parts[0], parts[1]), local=True) if parts[0] is not None and parts[1] is not None else None


def _beside(pool: Hosts, ask: PoolRequest, row: int) -> PoolSeat | None:
    """One device here, CPU and memory on the other node."""
    if ask.count != 1:
        return None
    gpu, none = _part(pool, ask, row, 1, 0, 0), _part(pool, ask, row ^ 1, 0, ask.cpu, ask.memory)
    return PoolSeat((gpu, none), local=False) if gpu is not None and none is not None else None


def _anyhow(pool: Hosts, ask: PoolRequest, row: int) -> PoolSeat | None:
    """Devices here as far as there are, the rest on the other node; CPU and memory on one of them if one has enough."""
    several = ask.count > 1
    if several and row % 2:
        return None
    count_here = min(ask.count, len(pool.first(ask, row, ask.count)[0]))
    home = next((node for node in _most_memory(pool, row) if several and _feeds(pool, ask, node)), None)
    cpu, memory = min(int(pool.cpu[row]), ask.cpu), min(int(pool.memory[row]), ask.memory)
    if home is not None:
        cpu, memory = (ask.cpu, ask.memory) if home == row else (0, 0)
    first = _part(pool, ask, row, count_here, cpu, memory)
    second = _part(pool, ask, row ^ 1, ask.count - count_here, ask.cpu - cpu, ask.memory - memory)
    if first is None or second is None:
        return None
    wide = ask.count > pool.state.shape[1]
    if several:
        all_there = home is not None and (count_here == ask.count if home == row else count_here == 0)
        return PoolSeat((first, second), local=wide if home is None else all_there and not wide)
    return PoolSeat((first, second), local=ask.cpu > pool.cpu_whole or ask.memory > pool.memory_whole)


def _most_memory(pool: Hosts, row: int) -> tuple[int, int]:
    return (row, row ^ 1) if pool.memory[row] >= pool.memory[row ^ 1] else (row ^ 1, row)


def _feeds(pool: Hosts, ask: PoolRequest, row: int) -> bool:
    return bool(pool.cpu[row] >= ask.cpu and pool.memory[row] >= ask.memory)


def _part(pool: Hosts, ask: PoolRequest, row: int, count: int, cpu: int, memory: int) -> NodePart | None:
    gpus, states = pool.first(ask, row, count)
    if len(gpus) < count or pool.cpu[row] < cpu or pool.memory[row] < memory:
        return None
    return NodePart(row, gpus, tuple(pool.state[row, list(gpus)].tolist()), states, cpu, memory)


TIERS: Final[tuple[Tier, ...]] = (
    _evenly,  # what is wider than a node, in equal parts: as local as it can be
    _beside,  # GPU here, all CPU and memory there: one hop for everything
    _anyhow,  # what is left
)


class Hosts(NodePool):
    """The engine on hosts of two nodes that hand out CPU and memory: rows 2n and 2n+1 are one host.

    What does not fit on one node goes across, as ESXi would have it: there `place` asks the rules of `wide.py`.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named, sibling=np.arange(len(args[1])) ^ 1)
        self.cpu_whole, self.memory_whole = int(self.cpu.max()), int(self.memory.max())

    def choose(self, ask: PoolRequest) -> PoolSeat | None:
        """The best seat in the first tier that has any."""
        best = self.best(ask, np.ones(len(self.cpu), dtype=np.bool_))
        if best is None:
            return self._across(ask)
        row, way, _ = best
        gpu, way = divmod(way, self.geometry.ways)
        gpus: tuple[int, ...] = (gpu,)
        states = self.state[row : row + 1].copy()
        if ask.count == 1:
            states[0, gpu] = self.moves.after(ask.kind).of(states)[0, gpu, way]
        else:
            *_, (_, _, states) = self.seat_in_turn(ask, np.array([row]))
            gpus = tuple(sorted(set(self.in_turn(ask, row))))
        before, after = self.state[row, list(gpus)].tolist(), states[0, list(gpus)].tolist()
        return PoolSeat((NodePart(row, gpus, tuple(before), tuple(after), ask.cpu, ask.memory),), local=ask.beside)

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

    def loss(self, parts: Sequence[NodePart]) -> tuple[float, Ints]:
        """Return the loss of these nodes by the parts of one VM, and the places lost of each shape."""
        rows = np.array([part.row for part in parts])
        states = self.state[rows]
        for at, part in enumerate(parts):
            states[at, list(part.gpus)] = part.after
        resources = [np.array([getattr(part, resource) for part in parts]) for resource in ("cpu", "memory")]
        loss, destroyed = self.losses(rows, states, *resources)
        return float(loss.sum()), destroyed.sum(axis=0)

    def first(self, ask: PoolRequest, row: int, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the first GPUs of the node that can take a device each, at most so many, and their states then."""
        after = self.moves.after(ask.kind).of(self.state[row])[:, 0]
        gpus = np.flatnonzero(after > 0)[:count]
        return tuple(gpus.tolist()), tuple(after[gpus].tolist())

    def _across(self, ask: PoolRequest) -> PoolSeat | None:
        """What does not fit on one node, in the first way that a host can: even halves, then CPU and memory where they
        are free."""
        best: tuple[float, PoolSeat] | None = None
        for tier in TIERS:
            for row in self._hosts_for(ask):
                seat = tier(self, ask, int(row))
                loss = NO_ROOM if seat is None else self.across_loss(seat)
                if seat is not None and (best is None or loss < best[0]):
                    best = (loss, seat)
            if best is not None:
                return best[1]
        return None

    def _hosts_for(self, ask: PoolRequest) -> Ints:
        """Rows of hosts that have GPUs that will do, CPU and memory enough in all; of one GPU, those that have it."""
        pair = self.sibling
        after = self.moves.after(ask.kind).of(self.state)[:, :, 0]
        room = (after > 0).sum(axis=1) if ask.count else np.ones(len(self.cpu))
        enough: Flags = (self.cpu + self.cpu[pair] >= ask.cpu) & (self.memory + self.memory[pair] >= ask.memory)
        return np.flatnonzero(enough & (room + (room[pair] if ask.count > 1 else 0) >= ask.count))

    def across_loss(self, seat: PoolSeat) -> float:
        """In steps."""
        loss, destroyed = self.loss(seat.parts)
        return float(self.total(np.array([loss]), destroyed[None, :])[0])


class Engine(Hosts):
    """Where locality is required, a VM that would have to go across is refused."""

    def choose(self, ask: PoolRequest) -> PoolSeat | None:
        seat = super().choose(ask)
        allowed = seat is None or seat.local or numa_of(ask) is not NumaPolicy.REQUIRED
        return seat if allowed else None
