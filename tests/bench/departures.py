"""vGPU profiles under churn: of the GPU memory asked for at 1.2 times what there is, how much finds a place.

The twelve scenarios of `profiles.py` with arrivals by chance and the stays of the trace; what finds no place is lost,
and nothing migrates. Needs the trace: `make bench OPENB=DIR`; with `BASELINES=DIR` (`vgpu_churn.csv`) the other rules
are held to what they are known to place.
"""

from __future__ import annotations

import csv
import heapq
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Final

import numpy as np

from gpuops.plan.placement.fleet.geometry import NodePart, PoolRequest, PoolSeat
from tests.bench.profiles import HOSTS_EACH, OURS, STEP, Outcome, scenarios
from tests.bench.verdict import Figure, Result
from tests.bench.vgpu_across import Engine, Hosts
from tests.bench.vgpu_rules import RULES, pool_of
from tests.bench.vgpu_world import GB, Mig, SameSize, Scenario

SEEDS: Final = (42, 44)
ARRIVALS, WARM, LOAD = 5000, 1500, 1.2
TARGET: Final = 88.0

Known = dict[tuple[str, str, str, int, str], float]


def run() -> Result:
    """The share placed per rule, on the mean of the scenarios, and ours per scenario."""
    folder = os.environ.get("OPENB")
    if not folder:
        return Result("vGPU profiles under churn: not run, it needs the trace (make bench OPENB=DIR)", ())
    return Result("vGPU profiles under churn: GPU memory placed", tuple(_figures(Path(folder))))


def _figures(folder: Path) -> Iterator[Figure]:
    placed: dict[str, list[float]] = {}
    off: dict[str, list[float]] = {}
    local = []
    known = _known(os.environ.get("BASELINES"))
    for of in scenarios(folder):
        rules: dict[str, tuple[type[Hosts], str]] = {**RULES, OURS: (Engine, "")}
        for name, (kind, word) in rules.items():
            outcomes = [churned(of, kind, seed) for seed in SEEDS]
            placed.setdefault(name, []).append(mean(outcome.allocated for outcome in outcomes))
            local += [outcome.local for outcome in outcomes] if name == OURS else []
            if known and word:
                before = [known[of.trace, of.mode, of.host, seed, word] for seed in SEEDS]
                off.setdefault(name, []).append(placed[name][-1] - mean(before))
        yield Figure(f"{of.trace} {of.mode} {of.host}: ours placed", placed[OURS][-1], "%")
    for name, each in off.items():
        yield Figure(f"{name} differs from what is known by", abs(mean(each)), "points", 0.3)
    yield from (Figure(f"placed: {name}", mean(each), "%") for name, each in placed.items())
    yield Figure("ours lost", 100 - mean(placed[OURS]), "%", 100 - TARGET)
    yield Figure("VMs of ours not NUMA-local", 100 - mean(local), "%", 0.5)


@dataclass
class Stream:
    """The VMs that run, by the number of their arrival; who comes takes the seat that the pool chooses."""

    of: Scenario
    pool: Hosts
    live: dict[int, tuple[PoolRequest, PoolSeat]] = field(default_factory=dict)
    geometry: SameSize | Mig = field(init=False)

    def __post_init__(self) -> None:
        self.geometry = self.of.geometry()

    def seat(self, ask: PoolRequest) -> PoolSeat | None:
        """Where it goes."""
        return self.pool.choose(ask)

    def come(self, number: int, ask: PoolRequest) -> PoolSeat | None:
        found = self.seat(ask)
        if found is not None:
            self.pool.take(found)
            self.live[number] = (ask, found)
        return found

    def go(self, number: int) -> None:
        ask, seat = self.live.pop(number)
        for part in seat.parts:
            self.pool.give(part, self.without(part, ask))

    def without(self, part: NodePart, ask: PoolRequest) -> list[int]:
        """The states of its GPUs once the VM is gone."""
        now = [int(self.pool.state[part.row, gpu]) for gpu in part.gpus]
        return [
            self.geometry.without(state, ask.kind, before, after)
            for state, before, after in zip(now, part.before, part.after, strict=True)
        ]


def churned(of: Scenario, kind: type[Hosts], seed: int) -> Outcome:
    """Percent of the GPU memory asked for that was placed, and of the placed VMs that were NUMA-local."""
    return played(Stream(of, pool_of(kind, of, HOSTS_EACH, STEP)), seed)


def played(there: Stream, seed: int) -> Outcome:
    """The same of this stream."""
    of, geometry = there.of, there.geometry
    sizes = np.array([request.size(geometry) for request in of.requests])
    stays = np.array([request.stay_s for request in of.requests])
    weights = np.array([request.weight for request in of.requests])
    chance = np.random.default_rng(seed)
    share = weights / weights.sum() if of.weighted else None
    numbers = chance.choice(len(sizes), ARRIVALS, p=share)
    rate = LOAD * HOSTS_EACH * 8 * GB / float(np.average(sizes * stays, weights=share))
    times = np.cumsum(chance.exponential(1 / rate, ARRIVALS))
    leaving: list[tuple[float, int]] = []
    asked = placed = count = local = 0
    for at, (now, number) in enumerate(zip(times, numbers, strict=True)):
        while leaving and leaving[0][0] <= now:
            there.go(heapq.heappop(leaving)[1])
        found = there.come(at, of.requests[number].ask)
        if at >= WARM:
            asked += int(sizes[number])
        if found is not None:
            heapq.heappush(leaving, (float(now + stays[number]), at))
        if found is not None and at >= WARM:
            placed, count, local = placed + int(sizes[number]), count + 1, local + found.local
    return Outcome(100 * placed / asked, 100 * local / count)


def _known(folder: str | None) -> Known:
    if not folder:
        return {}
    with (Path(folder) / "vgpu_churn.csv").open() as lines:
        return {
            (row["trace"].removeprefix("openb_pod_list_"), row["mode"], row["host"], int(row["seed"]), row["policy"]): (
                100 * float(row["placed"])
            )
            for row in csv.DictReader(lines)
        }
