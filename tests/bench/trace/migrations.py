"""vGPU profiles under churn once more, where at most one VM in a hundred is migrated to make room for another.

The scenarios of `departures.py`. A VM of a whole GPU or more that finds no place beside its GPUs gets one where one
vMotion to another host makes it: of the smallest VM that will do. `gpuops place` names such moves, and does not make
them: this is what there is to be had. Needs the trace: `make bench OPENB=DIR`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.plan.placement.fleet.geometry import NodePart, PoolRequest, PoolSeat
from gpuops.plan.placement.fleet.losses import NodePool
from tests.bench.trace.departures import SEEDS, ChurnOutcome, Stream, fluid_hours, played
from tests.bench.trace.profiles import HOSTS_EACH, STEP, scenarios
from tests.bench.trace.vgpu_across import Engine
from tests.bench.trace.vgpu_rules import pool_of
from tests.bench.trace.vgpu_world import GB, NODE_GPUS, Scenario
from tests.bench.verdict import Figure, Result

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Ints

SHARE: Final = 0.01
"""VMs that may be migrated, of those that came (GRMU, arXiv 2502.01909)."""


@dataclass
class Migrating(Stream):
    """One move at the most for each VM that comes, and no more than the share in all."""

    came: int = 0
    moves: int = 0

    def come(self, number: int, ask: PoolRequest) -> PoolSeat | None:
        found = super().come(number, ask)
        self.came += found is not None
        return found

    def seat(self, ask: PoolRequest) -> PoolSeat | None:
        found = super().seat(ask)
        large = ask.count * self.geometry.sizes[ask.kind] >= GB
        if (found is None or not found.local) and large and self.moves + 1 <= SHARE * self.came:
            self._make_room(ask)
            return super().seat(ask)
        return found

    def _make_room(self, ask: PoolRequest) -> None:
        free = (self.pool.moves.after(ask.kind).of(self.pool.state)[:, :, 0] > 0).sum(axis=1)
        for number in sorted(self.live, key=self._size):
            other, seat = self.live[number]
            if len(seat.parts) == 1 and self._frees(seat.parts[0], other, ask, free):
                elsewhere = np.ones(len(self.pool.cpu), dtype=np.bool_)
                elsewhere[[seat.parts[0].row, seat.parts[0].row ^ 1]] = False
                to = NodePool.choose(self.pool, other, elsewhere)
                if to is not None:
                    self.go(number)
                    self.pool.take(to)
                    self.live[number] = (other, to)
                    self.moves += 1
                    return

    def _size(self, number: int) -> tuple[int, int]:
        ask, _ = self.live[number]
        return ask.count * self.geometry.sizes[ask.kind], number

    def _frees(self, part: NodePart, other: PoolRequest, ask: PoolRequest, free: Ints) -> bool:
        """Whether the node has room for it, or its half of it, once this VM is gone."""
        halves = 1 if ask.count <= NODE_GPUS else 2
        count, cpu, memory = (-(-much // halves) for much in (ask.count, ask.cpu, ask.memory))
        pool, row = self.pool, part.row
        if halves == 2:
            there = row ^ 1
            if free[there] < count or pool.cpu[there] < cpu or pool.memory[there] < memory:
                return False
        if pool.cpu[row] + part.cpu < cpu or pool.memory[row] + part.memory < memory:
            return False
        before = pool.state[row, list(part.gpus)].tolist()
        states = zip(before, self.without(part, other), strict=True)
        gained = sum(
            not self.geometry.slots(was, ask.kind) and self.geometry.slots(now, ask.kind) > 0 for was, now in states
        )
        return int(free[row]) + gained >= count


def run() -> Result:
    """The share of memory-hours with some moves, beside the fluid reference."""
    folder = os.environ.get("OPENB")
    if not folder:
        return Result("churn with migration: not run, it needs the trace (make bench OPENB=DIR)", ())
    title = "churn with at most 1 % of the VMs migrated: GPU memory-hours placed"
    return Result(title, tuple(_figures(Path(folder))))


def _figures(folder: Path) -> Iterator[Figure]:
    jobs = [(of, seed) for of in scenarios(folder) for seed in SEEDS]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        done = list(workers.map(_migrated, jobs, chunksize=4))
    placed, fluid = mean(outcome.hours for outcome, _ in done), mean(fluid_hours(of, seed) for of, seed in jobs)
    yield Figure("placed", placed, "%")
    yield Figure("fluid reference", fluid, "%")
    yield Figure("below the fluid reference", fluid - placed, "points", 1.0)
    yield Figure("VMs migrated, the largest share of any stream", max(share for _, share in done), "%", 100 * SHARE)
    yield Figure("VMs not NUMA-local", 100 - mean(outcome.local for outcome, _ in done), "%", 0.5)


def _migrated(job: tuple[Scenario, int]) -> tuple[ChurnOutcome, float]:
    """What became of one stream, and the percentage of its VMs that were migrated."""
    of, seed = job
    stream = Migrating(of, pool_of(Engine, of, HOSTS_EACH, STEP))
    return played(stream, seed), 100 * stream.moves / stream.came
