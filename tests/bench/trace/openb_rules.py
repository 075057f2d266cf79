"""The rules that the trace replay is measured beside, each as a pool of the engine with another cost.

Scores are cut to whole numbers as Kubernetes does; of equals the first node in a fixed order wins, as in the published
simulator. FGD counts a GPU as usable by a shape if one instance fits; `fgdcount` as far as the node's CPU feeds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuops.plan.placement.fleet.geometry import PoolRequest
from gpuops.plan.placement.fleet.pool import NodePool
from tests.bench.trace.openb_trace import MILLI, MOST_GPUS, Trace, asked, insisting, site, typical

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Floats, Ints

MOST_CPU = 128_000


class Rule(NodePool):
    """Another cost than the engine's, and nothing kept for large shapes."""

    def total(self, cost: Floats, destroyed: Ints) -> Floats:
        return cost


class FirstFit(Rule):
    def cost(self, ask: PoolRequest, rows: Ints, gpu: Ints, gains: Ints) -> Floats:
        return np.zeros(len(rows))


class BestFit(Rule):
    """The least CPU and GPU left, in equal parts of the largest node; on it the GPU with the least left."""

    def cost(self, ask: PoolRequest, rows: Ints, gpu: Ints, gains: Ints) -> Floats:
        free = np.maximum(0, self.state[rows] - 1)
        left = 0.5 * (self.cpu[rows] - ask.cpu) / MOST_CPU
        left = left + 0.5 * (free.sum(axis=1) - asked(ask)) / (MOST_GPUS * MILLI)
        on_gpu = np.where(gpu >= 0, free[np.arange(len(rows)), gpu], 0)
        return -np.floor(100 * (1 - left)) + on_gpu / (2 * MILLI)

    def select(self, cost: Floats) -> int:
        """Scores are stretched to 0..100 and cut again; on the node the best GPU."""
        best = cost.min(axis=1)
        whole = np.floor(best)
        able = np.isfinite(whole)
        if not able.any():
            return 0
        low, high = -whole[able].max(), -whole[able].min()
        stretched = np.floor((-whole - low) * 100 / (high - low)) if high > low else np.where(able, 0.0, -np.inf)
        row = int(np.where(able, stretched, -np.inf).argmax())
        return row * cost.shape[1] + int(cost[row].argmin())


class Fgd(Rule):
    """The least fragmentation more: a GPU is of use to a shape if one instance fits on the node."""

    fed_whole = False

    def cost(self, ask: PoolRequest, rows: Ints, gpu: Ints, gains: Ints) -> Floats:
        before = self.usable(rows, self.gains[rows], self.cpu[rows])
        gained = asked(ask) - (before - self.usable(rows, gains, self.cpu[rows] - ask.cpu))
        return -np.floor(100 / (1 + np.exp(-gained / MILLI)))

    def usable(self, rows: Ints, gains: Ints, cpu: Ints) -> Floats:
        shapes, kinds = self.shapes, len(self.shapes.kinds)
        slots, usable = gains[:, :kinds][:, shapes.kind], gains[:, kinds : 2 * kinds][:, shapes.kind]
        instances, fed = slots // np.maximum(1, shapes.count), cpu[:, None] // np.maximum(1, shapes.cpu)
        share = np.minimum(1.0, fed / np.maximum(1, instances)) if self.fed_whole else np.ones(slots.shape)
        there = shapes.suits[self.model[rows]] & (instances > 0) & (shapes.count > 0) & (fed > 0)
        total: Floats = np.where(there, usable * share, 0) @ shapes.weight
        return total


class Count(Fgd):
    """`fgdcount`: of use to a shape as far as the CPU of the node feeds whole instances of it."""

    fed_whole = True


RULES: dict[str, type[NodePool]] = {
    "best fit": BestFit,
    "first fit": FirstFit,
    "FGD": Fgd,
    "fgdcount": Count,
}


def pool_of(kind: type[NodePool], trace: Trace, order: Ints, step: float) -> NodePool:
    """The trace's nodes in this order, empty; the other rules know the shapes that their authors let them know."""
    nodes = [trace.nodes[number] for number in order]
    state = np.array([[MILLI + 1] * node.gpus + [0] * (MOST_GPUS - node.gpus) for node in nodes])
    cpu, memory = np.array([node.cpu for node in nodes]), np.array([node.memory_mib for node in nodes])
    model = np.array([node.model for node in nodes])
    geometry, shapes, large = site(trace)
    named = insisting(trace)
    if issubclass(kind, Rule):
        shapes, large, named = typical(trace), None, None
    return kind(geometry, state, cpu, memory, shapes, step=step, large=large, model=model, insisting=named)
