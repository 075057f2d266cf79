"""The rules that the trace replay is measured beside, each as a pool of the engine with another cost.

Scores are cut to whole numbers as Kubernetes does; of equals the first node in a fixed order wins, as in the published
simulator. FGD counts a GPU as usable by a shape if one instance fits; `fgdcount` as far as the node's CPU feeds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gpuops.plan.placement.fleet.pool import Ask, Pool
from gpuops.plan.placement.fleet.worth import worth
from tests.bench.openb_trace import MILLI, MOST_GPUS, MilliGpu, Trace, asked, typical

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.tables import Floats, Ints

MOST_CPU = 128_000


class FirstFit(Pool):
    def cost(self, ask: Ask, rows: Ints, gpu: Ints, gains: Ints) -> Floats:
        return np.zeros(len(rows))


class BestFit(Pool):
    """The least CPU and GPU left, in equal parts of the largest node; on it the GPU with the least left."""

    def cost(self, ask: Ask, rows: Ints, gpu: Ints, gains: Ints) -> Floats:
        free = np.maximum(0, self.state[rows] - 1)
        left = 0.5 * (self.cpu[rows] - ask.cpu) / MOST_CPU
        left = left + 0.5 * (free.sum(axis=1) - asked(ask)) / (MOST_GPUS * MILLI)
        on_gpu = np.where(gpu >= 0, free[np.arange(len(rows)), gpu], 0)
        return -np.floor(100 * (1 - left)) + on_gpu / (2 * MILLI)

    def select(self, cost: Floats) -> int:
        """Scores are stretched to 0..100 and cut again."""
        whole = np.floor(cost)
        able = np.isfinite(whole)
        if not able.any():
            return 0
        low, high = -whole[able].max(), -whole[able].min()
        stretched = np.floor((-whole - low) * 100 / (high - low)) if high > low else np.where(able, 0.0, -np.inf)
        return int(np.where(able, stretched, -np.inf).argmax())


class Count(Pool):
    """`fgdcount`: the engine's worth, with FGD's steps."""

    def cost(self, ask: Ask, rows: Ints, gpu: Ints, gains: Ints) -> Floats:
        after = self.worth_of(rows, gains, self.cpu[rows] - ask.cpu)
        gained = asked(ask) - (self.worth_of(rows, self.gains[rows], self.cpu[rows]) - after)
        return -np.floor(100 / (1 + np.exp(-gained / MILLI)))

    def worth_of(self, rows: Ints, gains: Ints, cpu: Ints) -> Floats:
        return worth(self.shapes, self.model[rows], gains, cpu, self.memory[rows])


class Fgd(Count):
    def worth_of(self, rows: Ints, gains: Ints, cpu: Ints) -> Floats:
        shapes, kinds = self.shapes, len(self.shapes.kinds)
        slots, usable = gains[:, :kinds][:, shapes.kind], gains[:, kinds:][:, shapes.kind]
        there = shapes.suits[self.model[rows]] & (slots >= shapes.count) & (shapes.count > 0)
        there &= cpu[:, None] >= shapes.cpu
        total: Floats = np.where(there, usable, 0) @ shapes.weight
        return total


RULES: dict[str, type[Pool]] = {
    "best fit": BestFit,
    "first fit": FirstFit,
    "FGD": Fgd,
    "fgdcount": Count,
}


def pool_of(kind: type[Pool], trace: Trace, order: Ints, step: float = 1.0) -> Pool:
    """The trace's nodes in this order, empty."""
    nodes = [trace.nodes[number] for number in order]
    state = np.array([[MILLI + 1] * node.gpus + [0] * (MOST_GPUS - node.gpus) for node in nodes])
    cpu, memory = np.array([node.cpu for node in nodes]), np.array([node.memory_mib for node in nodes])
    model = np.array([node.model for node in nodes])
    return kind(MilliGpu(), state, cpu, memory, typical(trace), step=step, model=model)


NodeOrder = Callable[[Trace, int], "Ints"]
