"""vGPU profiles: GPU memory allocated at 100 % of arrivals in twelve scenarios, beside other rules and to the bound.

Needs the trace: `make bench OPENB=DIR`. The offline bounds, and what the other rules are known to reach, come with
`BASELINES=DIR`, a folder with `vgpu_bounds.csv`; without it only what was allocated is shown.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

import numpy as np

from tests.bench.trace.vgpu_across import Engine, Hosts
from tests.bench.trace.vgpu_rules import RULES, pool_of
from tests.bench.trace.vgpu_world import GB, HOSTS, TRACES, Request, Scenario, scenario
from tests.bench.verdict import Figure, Result

SEEDS: Final = (42, 44, 46)
"""Even ones; what is tuned is tuned on odd ones."""
HOSTS_EACH: Final = 16
STEP: Final = 0.001 * GB
OURS: Final = "ours"

Bounds = dict[tuple[str, str, str, int, str], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Percent of the GPU memory allocated, and percent of the placed VMs that are NUMA-local."""

    allocated: float
    local: float


def run() -> Result:
    """Per scenario and rule; judged: the mean gap to the bound, and that no other rule is much better anywhere."""
    folder = os.environ.get("OPENB")
    if not folder:
        return Result("vGPU profiles: not run, it needs the trace (make bench OPENB=DIR)", ())
    bounds = read_known_bounds(os.environ.get("BASELINES"))
    return Result("vGPU profiles: GPU memory allocated at 100 % arrivals", tuple(_figures(Path(folder), bounds)))


def scenarios(folder: Path) -> Iterator[Scenario]:
    """All twelve."""
    return (scenario(folder, trace, mode, host) for trace in TRACES for mode in ("ts", "mig") for host in HOSTS)


def _figures(folder: Path, bounds: Bounds) -> Iterator[Figure]:
    gaps: dict[str, list[float]] = {}
    local: list[float] = []
    off: dict[str, list[float]] = {}
    behind = []
    for of in scenarios(folder):
        reached = {name: [inflate(of, kind, seed) for seed in SEEDS] for name, (kind, _) in RULES.items()}
        reached[OURS] = [inflate(of, Engine, seed) for seed in SEEDS]
        local += [outcome.local for outcome in reached[OURS]]
        share = {name: mean(outcome.allocated for outcome in outcomes) for name, outcomes in reached.items()}
        best = max(value for name, value in share.items() if name != OURS)
        behind.append(best - share[OURS])
        scenario_name = f"{of.trace} {of.mode} {of.host}"
        yield Figure(f"{scenario_name}: ours", share[OURS], "%")
        yield Figure(f"{scenario_name}: best other rule ({max(share, key=lambda n: (n != OURS, share[n]))})", best, "%")
        for name, outcomes in reached.items() if bounds else ():
            for seed, outcome in zip(SEEDS, outcomes, strict=True):
                bound, online = bounds[of.trace, of.mode, of.host, seed, RULES[name][1] if name in RULES else "fgd"]
                gaps.setdefault(name, []).append(bound - outcome.allocated)
                if name in RULES:
                    off.setdefault(name, []).append(outcome.allocated - online)
    yield from (
        Figure(f"{name} differs from what is known by", abs(mean(gap)), "points", 0.3) for name, gap in off.items()
    )
    yield from (
        Figure(f"mean gap to the bound: {name}", mean(gap), "points", 2.0 if name == OURS else None)
        for name, gap in gaps.items()
    )
    yield Figure("worst scenario: behind the best other rule by", max(behind), "points", 0.5)
    yield Figure("VMs of ours not NUMA-local", 100 - mean(local), "%", 0.1)


def read_known_bounds(folder: str | None) -> Bounds:
    """By trace, mode, host, seed and rule: the bound and what the rule is known to reach, in percent."""
    if not folder:
        return {}
    with (Path(folder) / "vgpu_bounds.csv").open() as lines:
        return {
            (row["trace"].removeprefix("openb_pod_list_"), row["mode"], row["host"], int(row["seed"]), row["policy"]): (
                100 * float(row["ub_host"]),
                100 * float(row["online"]),
            )
            for row in csv.DictReader(lines)
        }


def inflate(of: Scenario, kind: type[Hosts], seed: int) -> Outcome:
    """Requests by chance until they ask for all of the GPU memory."""
    pool = pool_of(kind, of, HOSTS_EACH, STEP)
    geometry, whole = of.geometry(), HOSTS_EACH * 8 * GB
    came = allocated = placed = local = 0
    for request in drawn(of, seed):
        size = request.size(geometry)
        came += size
        seat = pool.choose(request.ask)
        if seat is not None:
            pool.take(seat)
            allocated, placed, local = allocated + size, placed + 1, local + seat.local
        if came >= whole:
            return Outcome(100 * allocated / whole, 100 * local / placed)
    raise AssertionError("requests never end")


def drawn(of: Scenario, seed: int) -> Iterator[Request]:
    """Requests by chance, without an end."""
    chance = np.random.default_rng(seed)
    weights = np.array([request.weight for request in of.requests])
    upto = np.cumsum(weights) / weights.sum()
    while True:
        number = int(np.searchsorted(upto, chance.random())) if of.weighted else int(chance.integers(len(upto)))
        yield of.requests[number]
