"""The Alibaba GPU trace of 2023 ("openb"): nodes, pods, the typical mix and inflated arrivals, as FGD's authors had it.

Weng et al., "Beware of Fragmentation", USENIX ATC 2023, section 6: pods in random order, then more drawn from them
until they ask for 130 % of the GPUs. A GPU is 1000 milli-GPU; a pod takes a part of one GPU, or several whole ones.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.plan.placement.fleet.geometry import PoolRequest
from gpuops.plan.placement.fleet.mix_value import VALUE_UNIT, ShapeArrays, shape_weights
from gpuops.plan.placement.fleet.prices import InsistingVms, LargeShapes, slot_prices

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Floats, Ints

MILLI: Final = 1000
GRAIN: Final = 10
MOST_GPUS: Final = 8
SLACK: Final = 1.3
"""CPU feeds a little more than the mean pod's worth per core: from 1.3 to 2 alike (tuned on odd seeds)."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine."""

    cpu: int
    memory_mib: int
    gpus: int
    model: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Machines and pods; `models` are the GPU models by number."""

    nodes: tuple[Node, ...]
    pods: tuple[PoolRequest, ...]
    models: tuple[str, ...]

    @property
    def milli(self) -> int:
        return MILLI * sum(node.gpus for node in self.nodes)


class MilliGpu:
    """A GPU cut at will: state 1 = full, 1001 = empty; a kind is how much of it a device takes."""

    ways = 1

    def __init__(self, values: Floats) -> None:
        self._values = values

    def after(self, state: int, kind: int) -> Sequence[int]:
        return (state - kind,) if state - 1 >= kind else ()

    def slots(self, state: int, kind: int) -> int:
        return (state - 1) // kind if state else 0

    def usable(self, state: int, kind: int) -> int:
        return state - 1 if state - 1 >= kind else 0

    def value(self, state: int) -> int:
        return round(VALUE_UNIT * MILLI * float(self._values[max(0, state - 1) // GRAIN]))

    def free(self, state: int) -> int:
        return max(0, state - 1)


def filling(sizes: Ints, price: Floats) -> tuple[Floats, Ints]:
    """The best that can be sold of each free amount (in grains of ten milli-GPU), and what fills an empty GPU best."""
    grains = -(-sizes // GRAIN)
    best, last = np.zeros(MILLI // GRAIN + 1), np.full(MILLI // GRAIN + 1, -1)
    for free in range(1, len(best)):
        best[free] = best[free - 1]
        fits = np.flatnonzero(grains <= free)
        if len(fits):
            sold = best[free - grains[fits]] + price[fits]
            if sold.max() > best[free] + 1e-12:
                best[free], last[free] = sold.max(), fits[sold.argmax()]
    counts, free = np.zeros(len(sizes), dtype=np.int64), MILLI // GRAIN
    while free:
        if last[free] >= 0:
            counts[last[free]] += 1
        free -= int(grains[last[free]]) if last[free] >= 0 else 1
    return best, counts


def read(folder: Path, pods: str) -> Trace:
    """The trace of one workload (`default`, `gpushare100`, ...)."""
    rows = read_rows(folder, "openb_node_list_gpu_node")
    models = tuple(sorted({row["model"] for row in rows}))
    nodes = tuple(
        Node(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), models.index(row["model"])) for row in rows
    )
    asks = tuple(_ask(row, models) for row in read_rows(folder, f"openb_pod_list_{pods}"))
    return Trace(nodes, asks, models)


def read_rows(folder: Path, name: str) -> list[dict[str, str]]:
    """The lines of one file of the trace."""
    with (folder / f"{name}.csv").open() as lines:
        return list(csv.DictReader(lines))


def asked(pod: PoolRequest) -> int:
    """Milli-GPU that the pod takes."""
    return pod.kind * pod.count


def arrivals(trace: Trace, seed: int, ratio: float = 1.3) -> list[PoolRequest]:
    """The pods in a random order, then more of them by chance, until they ask for so much of the GPUs."""
    chance = np.random.default_rng(seed)
    order = [int(number) for number in chance.permutation(len(trace.pods))]
    total, most = sum(map(asked, trace.pods)), ratio * trace.milli
    while total > most:
        total -= asked(trace.pods[order.pop(int(chance.integers(len(order))))])
    while True:
        number = int(chance.integers(len(trace.pods)))
        if total + trace.pods[number].kind > most:
            return [trace.pods[number] for number in order]
        total += asked(trace.pods[number])
        order.append(number)


def site(trace: Trace) -> tuple[MilliGpu, ShapeArrays, LargeShapes | None]:
    """The geometry with the prices of this trace's sizes, its typical shapes, and its large ones."""
    counts = Counter(pod.kind for pod in trace.pods for _ in range(pod.count))
    sizes = np.array(sorted(counts))
    demand = np.array([counts[int(size)] for size in sizes], dtype=np.float64)
    found = slot_prices(sizes / MILLI, demand, lambda price: filling(sizes, price)[1])
    values, _ = filling(sizes, found)
    of = dict(zip(sizes.tolist(), found.tolist(), strict=True))
    value = MILLI * sum(pod.count * of.get(pod.kind, 0.0) for pod in trace.pods)
    shapes = typical(trace)
    weight = shape_weights(shapes.weight, shapes.count, shapes.size)
    shapes = replace(shapes, weight=weight, fed_by_cpu=SLACK * value / sum(pod.cpu for pod in trace.pods))
    return MilliGpu(values), shapes, _large(trace, shapes)


def _large(trace: Trace, shapes: ShapeArrays) -> LargeShapes | None:
    """Pods of several whole GPUs. One asks for at least as much as another if it does in every respect."""
    counts = Counter((pod.count, pod.cpu, pod.models) for pod in trace.pods if pod.count > 1)
    if not counts:
        return None
    asks = list(counts)
    share = [
        sum(
            times
            for (k, cpu, models), times in counts.items()
            if k >= ask[0] and cpu >= ask[1] and not models & ~ask[2]
        )
        for ask in asks
    ]
    count, cpu, masks = (np.array(column) for column in zip(*asks, strict=True))
    suits = ((masks[None, :] >> np.arange(len(trace.models))[:, None]) & 1).astype(np.bool_)
    size = sum(map(asked, trace.pods)) / len(trace.pods)
    column = np.full(len(count), shapes.kinds.index(MILLI))
    return LargeShapes(column, count, cpu, 0 * cpu, suits, np.array(share) / len(trace.pods), MILLI, size)


def insisting(trace: Trace) -> InsistingVms | None:
    """Pods that name GPU models; None = no pod does."""
    anywhere, pods = (1 << len(trace.models)) - 1, [pod for pod in trace.pods if pod.count]
    masks = tuple(sorted({pod.models for pod in pods} - {anywhere}))
    if not masks:
        return None
    sizes = [[asked(pod) for pod in pods if not pod.models & ~mask] for mask in masks]
    total = sum(map(asked, pods))
    return InsistingVms(masks, tuple(sum(each) / total for each in sizes), tuple(map(mean, sizes)))


def typical(trace: Trace, share: float = 0.95) -> ShapeArrays:
    """The commonest shapes that make up this share of the pods; memory is not looked at."""
    counts = Counter((pod.cpu, pod.count, pod.kind, pod.models) for pod in trace.pods)
    # Equals in the order of their figures, as the published analysis has them.
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    upto = np.cumsum([times for _, times in ranked])
    kept = ranked[: int(np.searchsorted(upto, share * upto[-1]) + 1)]
    cpu, count, kind, masks = (np.array([shape[field] for shape, _ in kept]) for field in range(4))
    times = np.array([times for _, times in kept])
    kinds = tuple(sorted({*kind[count > 0].tolist(), MILLI}))
    numbers = np.array([kinds.index(each) if each else 0 for each in kind])
    suits = ((masks[None, :] >> np.arange(len(trace.models))[:, None]) & 1).astype(np.bool_)
    return ShapeArrays(kinds, numbers, count, kind, cpu, 0 * cpu, times / times.sum(), suits)


def _ask(row: dict[str, str], models: tuple[str, ...]) -> PoolRequest:
    count = int(row["num_gpu"])
    named = [name for name in (row.get("gpu_spec") or "").split("|") if name]
    anywhere = (1 << len(models)) - 1
    mask = sum(1 << models.index(name) for name in named if name in models) if named and count else anywhere
    milli = min(int(row["gpu_milli"]), MILLI) if count else 0
    return PoolRequest(milli, count, int(row["cpu_milli"]), int(row["memory_mib"]), mask)
