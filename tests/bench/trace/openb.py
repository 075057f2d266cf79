"""Trace replay: GPUs allocated of a cluster of 6,212 once pods for all of them have come, beside other rules.

Needs the trace: `make bench OPENB=DIR`, a folder with the CSV files of Alibaba's cluster-trace-gpu-v2023. With
`BASELINES=DIR`, a folder with `openb_summary.csv`, it is also judged whether the other rules do as they are known to.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from time import process_time
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.plan.placement.fleet.pool import NodePool
from tests.bench.trace.openb_rules import RULES, pool_of
from tests.bench.trace.openb_trace import MILLI, Trace, arrivals, asked, read
from tests.bench.verdict import Figure, Result

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Floats

SEEDS: Final = (42, 44)
"""Even ones; what is tuned is tuned on odd ones."""
STEP: Final = 0.001 * MILLI
UNALLOCATED: Final = 4.1
AGREE: Final = 0.3
KNOWN: Final = {"best fit": "bestfit", "first fit": "firstfit", "FGD": "fgd", "fgdcount": "fgdcount"}


def run() -> Result:
    """Allocation at 100 % of arrivals per workload and rule, and ours under other orders of the nodes."""
    folder = os.environ.get("OPENB")
    if not folder:
        return Result("trace replay: not run, it needs the trace (make bench OPENB=DIR)", ())
    names = sorted(path.stem.removeprefix("openb_pod_list_") for path in Path(folder).glob("openb_pod_list_*.csv"))
    return Result("trace replay: GPUs allocated at 100 % arrivals", tuple(_figures(Path(folder), names)))


def _figures(folder: Path, names: list[str]) -> Iterator[Figure]:
    for name in sorted(names, key=lambda name: (name != "default", name)):
        trace = read(folder, name)
        of = {rule: mean(allocated(trace, kind, seed) for seed in SEEDS) for rule, kind in RULES.items()}
        started = process_time()
        ours = mean(allocated(trace, NodePool, seed) for seed in SEEDS)
        cpu_s = process_time() - started
        yield from (Figure(f"{name}: {rule}", value, "%") for rule, value in of.items())
        if name == "default":
            yield from _agreement(of)
            yield Figure(f"{name}: ours, unallocated", 100 - ours, "%", UNALLOCATED)
            yield from _orders(trace, ours)
            yield Figure(f"{name}: CPU time of ours, all seeds", cpu_s, "s")
        else:
            yield Figure(f"{name}: ours", ours, "%")
        yield Figure(
            f"{name}: below the best of FGD and first fit", max(of["FGD"], of["first fit"]) - ours, "points", 0.3
        )


def _agreement(of: dict[str, float]) -> Iterator[Figure]:
    folder = os.environ.get("BASELINES")
    if not folder:
        return
    with (Path(folder) / "openb_summary.csv").open() as lines:
        rows = list(csv.reader(lines))
    column = next(
        at for at, (what, how) in enumerate(zip(rows[0], rows[1], strict=True)) if (what, how) == ("alloc100", "mean")
    )
    known = {row[1]: float(row[column]) for row in rows[3:] if row[2:4] == ["k8s", "perm"]}
    for rule, value in of.items():
        yield Figure(f"default: {rule} differs from what is known by", abs(value - known[KNOWN[rule]]), "points", AGREE)


class AnyOfEquals(NodePool):
    """Of the ways that cost the same any, by chance, instead of the first."""

    chance = np.random.default_rng(7)

    def select(self, cost: Floats) -> int:
        return int(self.chance.choice(np.flatnonzero(cost == cost.min())))


def _orders(trace: Trace, ours: float) -> Iterator[Figure]:
    per_gpu = np.array([node.cpu / node.gpus for node in trace.nodes])
    gpus = np.array([node.gpus for node in trace.nodes])
    orders = {
        "largest first": np.lexsort((per_gpu, -gpus)),
        "least CPU per GPU first": np.argsort(per_gpu, kind="stable"),
        "as in the trace": np.arange(len(gpus)),
    }
    found = [ours]
    for name, order in orders.items():
        found.append(mean(replayed(trace, pool_of(NodePool, trace, order, STEP), seed) for seed in SEEDS))
        yield Figure(f"default: ours, {name}", found[-1], "%")
    order = orders["as in the trace"]
    found.append(mean(replayed(trace, pool_of(AnyOfEquals, trace, order, STEP), seed) for seed in SEEDS))
    yield Figure("default: ours, of equals any by chance", found[-1], "%")
    yield Figure("default: ours, spread over orders and ties", max(found) - min(found), "points", 0.3)


def allocated(trace: Trace, kind: type[NodePool], seed: int) -> float:
    """Percent of the GPUs, the nodes in a random order that the seed fixes."""
    order = np.random.default_rng(10_000 + seed).permutation(len(trace.nodes))
    return replayed(trace, pool_of(kind, trace, order, STEP), seed)


def replayed(trace: Trace, pool: NodePool, seed: int) -> float:
    """Percent allocated, on the mean over the arrivals that round to 100 % of the GPUs."""
    came = placed = 0
    full = []
    for pod in arrivals(trace, seed):
        came += asked(pod)
        percent = 100 * came / trace.milli
        if round(percent) > 100:
            break
        seat = pool.choose(pod)
        if seat is not None:
            pool.take(seat)
            placed += asked(pod)
        if round(percent) == 100:
            full.append(100 * placed / trace.milli)
    return mean(full)
