"""How many VMs may share a GPU: `gpuops size` beside what was published, a GPU that was measured, and pairs.

The measurements of VMware (its blogs, 2018; `gpuops/extras/sizing/README.md`) do not say how busy a VM kept the GPU
alone, so one tells it, and another of the same kind is foreseen by it, both ways round; each as the command does it.

The pairs need the data: `GAVEL=DIR`, a folder with `physical_cluster_throughputs.json` of stanford-futuredata/gavel. A
tenth of the pairs is left out each time, in both directions; speeds are normalised, 1 = as fast as alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Any, Final

import numpy as np

from gpuops.extras.sizing.pairs import fit_pairs
from gpuops.extras.sizing.size_request import SizeRequest, size_numbers
from gpuops.extras.sizing.view import sizing_document
from gpuops.model.devices.shared_gpu import ObservedPair
from gpuops.report.document import as_values
from tests.bench.advice.sizing_gpu import on_gpus
from tests.bench.verdict import Figure, Result

MOST_OFF: Final = 15.0
TIMES_OF_24: Final = 17.0
LONGER_OF_3: Final = (0.16, 0.23)
OVERLAP: Final = 0.25
LONGER_OF_4: Final = 0.17
THROUGHPUT_OF_4: Final = 3.0
ERRORS: Final = {"k80": 0.030, "p100": 0.034, "v100": 0.095}
"""The mean absolute error of normalised speed that may be there, by GPU."""
FOLDS: Final = 10
SEEDS: Final = (0, 1, 2)


def run() -> Iterator[Result]:
    yield Result("sizing: beside VMware's measurements", tuple(_published_figures()))
    yield from on_gpus()
    folder = os.environ.get("GAVEL")
    if not folder:
        yield Result("sizing: pairs of jobs, not run, needs the data (GAVEL=DIR)", ())
        return
    data = json.loads((Path(folder) / "physical_cluster_throughputs.json").read_text(encoding="utf-8"))
    for gpu, most in ERRORS.items():
        yield Result(f"sizing: pairs of jobs on {gpu.upper()}", tuple(_pairs(measured_pairs(data[gpu]), most)))


def _published_figures() -> Iterator[Figure]:
    middle = mean(LONGER_OF_3)
    by_24 = busy_by(lambda busy: size_forecast(busy, 24)["slowdown"], TIMES_OF_24)
    by_3 = busy_by(lambda busy: size_forecast(busy, 3, OVERLAP)["slowdown"], 1 + middle)
    by_4 = busy_by(lambda busy: size_forecast(busy, 4)["slowdown"], 1 + LONGER_OF_4)
    yield Figure("busy share by 24 VMs that take 17 times as long", by_24, "")
    three = size_forecast(by_24, 3, OVERLAP)
    yield Figure("by it, 3 VMs with 25 % overlap take longer, in the mean", 100 * (three["slowdown"] - 1), "%")
    yield Figure("... the first and the last", 100 * (three["low"] - 1), "%")
    yield Figure("... the one in between", 100 * (three["high"] - 1), "%")
    yield Figure(
        "run time of the 3 VMs, off the middle of 16 to 23 %", _off(three["slowdown"], 1 + middle), "%", MOST_OFF
    )
    yield Figure("their longer time alone, off its middle", _off(three["slowdown"] - 1, middle), "%", MOST_OFF)
    yield Figure("busy share by 3 VMs that take 19.5 % longer", by_3, "")
    yield Figure("by it, 24 VMs take as long, times", size_forecast(by_3, 24)["slowdown"], "")
    yield Figure("24 VMs, off 17 times", _off(size_forecast(by_3, 24)["slowdown"], TIMES_OF_24), "%", MOST_OFF)
    yield Figure("busy share by 4 quarter-GPU jobs that take 17 % longer", by_4, "")
    throughput = size_forecast(by_4, 4)["throughput"]
    yield Figure("by it, their throughput", throughput, "times")
    yield Figure("throughput of 4, off 3 times", _off(throughput, THROUGHPUT_OF_4), "%", MOST_OFF)
    behind = sum(
        size_forecast(busy, sharers)["slowdown"] > size_forecast(busy, sharers, policy="equal-share")["slowdown"]
        for busy in (by_24, by_4)
        for sharers in range(2, 25)
    )
    yield Figure("counts of 2 to 24 VMs by which best effort is behind equal share", behind, "", 0)


def size_forecast(busy: float, sharers: int, overlap: float = 1.0, policy: str = "best-effort") -> Any:
    """What `gpuops size --busy BUSY --sharers N` prints of a scheduler in JSON."""
    document = sizing_document(size_numbers(SizeRequest(sharers=sharers), busy, overlap, None))
    return as_values(document.sizes[0].schedulers[policy])


def busy_by(told_of: Callable[[float], float], target: float) -> float:
    """Return the busy share at which `told_of`, which grows with it, reaches the target."""
    low, high = 0.001, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if told_of(middle) < target else (low, middle)
    return low


def _off(actual: float, expected: float) -> float:
    return 100 * abs(actual / expected - 1)


def measured_pairs(of_gpu: dict[str, dict[str, Any]]) -> list[ObservedPair]:
    """Each pair of jobs that ran on one GPU together, once."""
    pairs: dict[tuple[str, ...], ObservedPair] = {}
    single = {name: partners for name, partners in of_gpu.items() if name.endswith(", 1)") and partners["null"] > 0}
    for name, partners in single.items():
        for partner in partners.keys() & single.keys():
            speeds = (partners[partner][0] / partners["null"], partners[partner][1] / single[partner]["null"])
            if min(speeds) > 0:
                pairs.setdefault(tuple(sorted((name, partner))), ObservedPair((name, partner), speeds))
    return [pairs[names] for names in sorted(pairs)]


def _pairs(pairs: Sequence[ObservedPair], most: float) -> Iterator[Figure]:
    began_s = process_time()
    errors = [mean(errors_on_unknown(pairs, seed)) for seed in SEEDS]
    took_s = (process_time() - began_s) / len(SEEDS) / FOLDS
    speeds = [speed for pair in pairs for speed in _directed_speeds(pair).values()]
    usual = mean(speeds)
    yield Figure("directed pairs", len(speeds), "")
    yield Figure("each half as fast, off by", mean(abs(speed - 0.5) for speed in speeds), "")
    yield Figure("each as fast as the mean, off by", mean(abs(speed - usual) for speed in speeds), "")
    yield Figure("two numbers for each job, off by", mean(errors), "", most)
    yield Figure("... the worst of three ways to leave pairs out", max(errors), "", most)
    yield Figure("CPU of a fit", took_s, "s")


def errors_on_unknown(pairs: Sequence[ObservedPair], seed: int) -> Iterator[float]:
    """By how much each directed pair is off, by a fit to nine tenths that does not know it in either direction."""
    fold = np.random.default_rng(seed).permutation(len(pairs)) % FOLDS
    for part in range(FOLDS):
        model = fit_pairs([pair for pair, its in zip(pairs, fold, strict=True) if its != part])
        for pair in (pair for pair, its in zip(pairs, fold, strict=True) if its == part):
            for (of, beside), speed in _directed_speeds(pair).items():
                told_speed = model.speed(of, beside)
                assert told_speed is not None, f"{of} is in no other pair"
                yield abs(told_speed - speed)


def _directed_speeds(pair: ObservedPair) -> dict[tuple[str, str], float]:
    """Both directions; of a job beside its own like it is one."""
    first, second = pair.names
    return {(first, second): pair.speeds[0], (second, first): pair.speeds[1]}
