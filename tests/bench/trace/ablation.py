"""Ablation of the engine: what each of its parts is worth, on the scenarios of `profiles.py` and `departures.py`.

The engine with one part taken out at a time, on held-out seeds: GPU memory allocated at 100 % of arrivals (with
`BASELINES=DIR` its mean gap to the offline bound too), and under churn, on the hosts that are short of CPU, what is
placed; for both which VMs are not NUMA-local. Needs the trace: `make bench OPENB=DIR`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gpuops.plan.placement.fleet.geometry import PoolRequest, usable_by_mix
from gpuops.plan.placement.fleet.losses import NO_ROOM
from tests.bench.trace.departures import churn
from tests.bench.trace.profiles import SEEDS, Bounds, inflate, read_known_bounds, scenarios
from tests.bench.trace.vgpu_across import Engine, Hosts, PoolSeat
from tests.bench.verdict import Figure, Result

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Floats, Ints

CHURN_SEED: Final = 44
"""An even one; what is tuned is tuned on odd ones."""
CHURN_HOST: Final = "G2"


class NoPrices(Engine):
    """What GPUs could sell at the site's prices does not count, only what each shape could use."""

    def _value(self, rows: Ints, gains: Ints, cpu: Ints, memory: Ints) -> Floats:
        return usable_by_mix(self.shapes, gains, cpu, memory)


class OnlyPrices(Engine):
    """Only that counts."""

    def _value(self, rows: Ints, gains: Ints, cpu: Ints, memory: Ints) -> Floats:
        return super()._value(rows, gains, cpu, memory) - usable_by_mix(self.shapes, gains, cpu, memory)


class NoReserve(Engine):
    """Nothing is kept for VMs of several GPUs."""

    def reserve(self) -> Floats:
        return np.zeros(self.places.shape[1])


class FineSteps(Engine):
    """Any difference decides, however small."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **{**named, "step": 1e-9})


class NothingAcross(Hosts):
    """A VM that a node could hold is refused rather than spread (`--numa required`)."""

    def choose(self, ask: PoolRequest) -> PoolSeat | None:
        seat = super().choose(ask)
        return seat if seat is None or seat.local else None


class NoPins(Engine):
    """Each host chooses the GPU of a single vGPU, the fullest that has room (`--pin never`, consolidation)."""

    sign = 1

    def cost(self, ask: PoolRequest, rows: Ints, gpu: Ints, gains: Ints) -> Floats:
        loss = super().cost(ask, rows, gpu, gains)
        return (
            loss if ask.count != 1 else np.where(self._first_choice(ask, rows) == 8 * (rows % 2) + gpu, loss, NO_ROOM)
        )

    def _first_choice(self, ask: PoolRequest, rows: Ints) -> Ints:
        """Of the host of each row: eight times the node, and the GPU on it."""
        width = self.state.shape[1]
        states = self.state[np.stack([rows & ~1, rows | 1], axis=1)]
        able = self.moves.after(ask.kind).of(states)[..., 0] > 0
        key = np.where(able, self.sign * self.moves.gains.of(states)[..., -1], 10**6)
        best: Ints = key.reshape(len(rows), 2 * width).argmin(axis=1)
        return 8 * (best // width) + best % width


class NoPinsEmptiest(NoPins):
    """The same where hosts take the emptiest (performance)."""

    sign = -1


PARTS: Final[dict[str, type[Hosts]]] = {
    "all of it": Engine,
    "without prices": NoPrices,
    "prices alone": OnlyPrices,
    "without the reserve": NoReserve,
    "without steps": FineSteps,
    "without pins, hosts take the fullest": NoPins,
    "without pins, hosts take the emptiest": NoPinsEmptiest,
    "one vGPU may go across nodes too": Hosts,
    "several may not either": NothingAcross,
}


def run() -> Result:
    """All parts, one after the other."""
    folder = os.environ.get("OPENB")
    if not folder:
        return Result("ablation of the engine: not run, it needs the trace (make bench OPENB=DIR)", ())
    bounds = read_known_bounds(os.environ.get("BASELINES"))
    return Result("ablation of the engine", tuple(_figures(Path(folder), bounds)))


def _figures(folder: Path, bounds: Bounds) -> Iterator[Figure]:
    each = list(scenarios(folder))
    for name, kind in PARTS.items():
        filled = [inflate(of, kind, seed) for of in each for seed in SEEDS]
        allocated = mean(outcome.allocated for outcome in filled)
        yield Figure(f"{name}: allocated", allocated, "%")
        if bounds:
            best = mean(bounds[of.trace, of.mode, of.host, seed, "fgd"][0] for of in each for seed in SEEDS)
            yield Figure(f"{name}: gap to the bound", best - allocated, "points")
        yield Figure(f"{name}: not NUMA-local", 100 - mean(outcome.local for outcome in filled), "%")
        come_and_go = [churn(of, kind, CHURN_SEED) for of in each if of.host == CHURN_HOST]
        yield Figure(f"{name}: placed under churn", mean(outcome.allocated for outcome in come_and_go), "%")
        yield Figure(f"{name}: not NUMA-local under churn", 100 - mean(outcome.local for outcome in come_and_go), "%")
