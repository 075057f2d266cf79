"""The rules that vGPU placement is measured beside, each as a pool of the engine with another cost or another choice.

vSphere is a model: the host with the most free CPU and memory that has a GPU that will do, then on it the emptiest GPU
(`performance`) or the fullest (`consolidation`), and the VM on the NUMA node with the most free memory, wherever its
GPU is (vSphere API, HostGraphicsConfig.sharedPassthruAssignmentPolicy; the rest is assumed).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuops.plan.placement.fleet.geometry import PoolRequest
from tests.bench.trace.vgpu_across import Hosts, NodePart, PoolSeat
from tests.bench.trace.vgpu_world import GB, HOSTS, NODE_GPUS, Scenario, known_shapes, site

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Floats, Ints


class Rule(Hosts):
    """Nothing kept for large shapes, and no steps."""

    def total(self, cost: Floats, destroyed: Ints) -> Floats:
        return np.round(cost, 9)


class FirstFit(Rule):
    def _value(self, rows: Ints, gains: Ints, cpu: Ints, memory: Ints) -> Floats:
        return np.zeros(len(rows))


class BestFit(Rule):
    """The host with the least GPU memory and CPU left, on it the GPU with the least left."""

    def cost(self, ask: PoolRequest, rows: Ints, gpu: Ints, gains: Ints) -> Floats:
        free = self.moves.gains.of(self.state)[:, :, -1]
        on_gpu = free[rows, gpu] if ask.count == 1 else np.zeros(len(rows))
        return self._room(rows, alone=ask.count == 1) + on_gpu / 1e6

    def across_loss(self, seat: PoolSeat) -> float:
        row = np.array([seat.parts[0].row])
        return float(self._room(row, alone=len(seat.parts[0].gpus) == 1)[0])

    def _room(self, rows: Ints, *, alone: bool) -> Floats:
        gpu = self.gains[rows, -1] + self.gains[rows ^ 1, -1]
        cpu = self.cpu[rows] + self.cpu[rows ^ 1]
        left: Floats = gpu / (8 * GB) + (cpu / (2 * self.cpu_whole) if alone else 0)
        return left


class Fgd(Rule):
    """The least fragmentation more: a GPU is of use to a shape if one instance fits on the node."""

    whole = False

    def _value(self, rows: Ints, gains: Ints, cpu: Ints, memory: Ints) -> Floats:
        shapes, kinds = self.shapes, len(self.shapes.kinds)
        slots = gains[:, :kinds][:, shapes.kind]
        fed = np.minimum(cpu[:, None] // shapes.cpu, memory[:, None] // shapes.memory)
        several = np.minimum(NODE_GPUS, shapes.count)
        devices = slots // several * several
        # As first written: a VM of eight GPUs is fed as a whole or not at all, and its GPUs counted four by four.
        fits = np.minimum(devices, fed * shapes.count) if self.whole else np.where(fed > 0, devices, 0)
        total: Floats = (fits * shapes.size) @ shapes.weight
        return total


class Count(Fgd):
    whole = True


class Vsphere(Rule):
    """Chooses as one host after the other would."""

    fullest = True

    def choose(self, ask: PoolRequest) -> PoolSeat | None:
        after = self.moves.after(ask.kind).of(self.state)
        room = (after[:, :, 0] > 0).sum(axis=1)
        enough = (self.cpu[::2] + self.cpu[1::2] >= ask.cpu) & (self.memory[::2] + self.memory[1::2] >= ask.memory)
        enough &= room[::2] + room[1::2] >= ask.count
        if not enough.any():
            return None
        load = self.cpu / self.cpu_whole + self.memory / self.memory_whole
        row = 2 * int(np.where(enough, load[::2] + load[1::2], -1).argmax())
        gpus = self._choice(ask, row, after)
        return self._at_home(ask, row, gpus, after)

    def _choice(self, ask: PoolRequest, row: int, after: Ints) -> list[tuple[int, int]]:
        able = [(node, gpu) for node in (row, row + 1) for gpu in range(NODE_GPUS) if after[node, gpu, 0] > 0]
        if ask.count == 1:
            free = self.moves.gains.of(self.state[row : row + 2])[:, :, -1]
            sign = 1 if self.fullest else -1
            return [min(able, key=lambda at: (sign * int(free[at[0] - row, at[1]]), at))]
        return able[: ask.count]

    def _at_home(self, ask: PoolRequest, row: int, gpus: list[tuple[int, int]], after: Ints) -> PoolSeat:
        homes = (row, row + 1) if self.memory[row] >= self.memory[row + 1] else (row + 1, row)
        home = next((node for node in homes if self.cpu[node] >= ask.cpu and self.memory[node] >= ask.memory), None)
        nodes = {node for node, _ in gpus}
        first = gpus[0][0] if ask.count == 1 else row
        split = (min(int(self.cpu[first]), ask.cpu), min(int(self.memory[first]), ask.memory))
        parts = []
        for node in (first, first ^ 1):
            there = tuple(gpu for at, gpu in gpus if at == node)
            cpu, memory = split if node == first else (ask.cpu - split[0], ask.memory - split[1])
            if home is not None:
                cpu, memory = (ask.cpu, ask.memory) if node == home else (0, 0)
            before = tuple(int(self.state[node, gpu]) for gpu in there)
            parts.append(NodePart(node, there, before, tuple(int(after[node, gpu, 0]) for gpu in there), cpu, memory))
        return PoolSeat(tuple(parts), local=self._is_local(ask, nodes, home))

    def _is_local(self, ask: PoolRequest, nodes: set[int], home: int | None) -> bool:
        if home is not None:
            return ask.count <= NODE_GPUS and nodes == {home}
        if ask.count > 1:
            return ask.count > NODE_GPUS
        return ask.cpu > self.cpu_whole or ask.memory > self.memory_whole


class Performance(Vsphere):
    fullest = False


RULES: dict[str, tuple[type[Hosts], str]] = {
    "vSphere performance": (Performance, "vsphere-perf"),
    "vSphere consolidation": (Vsphere, "vsphere-cons"),
    "best fit": (BestFit, "bestfit"),
    "first fit": (FirstFit, "firstfit"),
    "FGD": (Fgd, "fgd"),
    "fgdcount": (Count, "fgdcount"),
}


def pool_of(kind: type[Hosts], of: Scenario, hosts: int, step: float) -> Hosts:
    """Empty hosts; the other rules know the shapes that their authors let them know."""
    cpu, memory = HOSTS[of.host]
    geometry, shapes, large = site(of)
    if issubclass(kind, Rule):
        shapes, large = known_shapes(of), None
    rows = 2 * hosts
    state = np.ones((rows, NODE_GPUS), dtype=np.int64)
    both = np.full(rows, cpu // 2), np.full(rows, memory // 2)
    return kind(geometry, state, *both, shapes, step=step, large=large)
