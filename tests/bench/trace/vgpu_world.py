"""vGPU hosts for the trace's pods: A100 40 GB in same-size mode or in MIG mode, two sockets, four GPUs beside each.

A pod that shares a GPU takes the smallest profile that holds its part; one of several whole GPUs takes the largest
profile that often. Hosts have the shapes of the trace's own machines of eight GPUs. In MIG mode a place is an instance
at one of its legal starts (NVIDIA Multi-Instance GPU User Guide; `nvidia-smi mig -lgipp`).
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.model.vcenter.host import NumaPolicy
from gpuops.plan.placement.fleet.geometry import (
    VALUE_UNIT,
    LargeShapes,
    PoolRequest,
    ShapeArrays,
    ShapeFrequency,
    commonest,
    large_shapes,
    make_shape_arrays,
    slot_prices,
)

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Floats, Ints

GB: Final = 40
MILLI: Final = 1000
"""Milli-GPU of a GPU of the trace."""
HOSTS: Final = {"G2": (96_000, 393_216), "G3": (128_000, 786_432)}
"""Milli-cores and MiB of one host."""
TRACES: Final = ("default", "gpushare100", "default#small70")
NODE_GPUS: Final = 4


class SameSize:
    """Time-sliced: the first vGPU fixes the profile of all. State 1 = empty, then (profile, how many)."""

    ways = 1
    names = ("4C", "5C", "8C", "10C", "20C", "40C")
    sizes = (4, 5, 8, 10, 20, 40)
    whole = 5

    def __init__(self) -> None:
        self._held: list[tuple[int, int]] = [(0, 0), (0, 0)]
        self._held += [(kind, held) for kind, size in enumerate(self.sizes) for held in range(1, GB // size + 1)]
        self._number = {held: number for number, held in enumerate(self._held) if number > 1}
        self.price: Floats = np.array(self.sizes, dtype=np.float64)

    def profile(self, milli: int) -> int:
        """The smallest that holds so much of a GPU."""
        return next(kind for kind, size in enumerate(self.sizes) if size >= milli * GB / MILLI - 1e-9)

    def after(self, state: int, kind: int) -> Sequence[int]:
        return (self._number[kind, self._held[state][1] + 1],) if self.slots(state, kind) else ()

    def without(self, state: int, kind: int, before: int, after: int) -> int:
        """The state with one such vGPU less."""
        held = self._held[state][1] - 1
        return self._number[kind, held] if held else 1

    def slots(self, state: int, kind: int) -> int:
        locked, held = self._held[state]
        if state == 0 or (held and locked != kind):
            return 0
        return GB // self.sizes[kind] - held

    def value(self, state: int) -> int:
        best = max(self.slots(state, kind) * float(self.price[kind]) for kind in range(len(self.sizes)))
        return round(VALUE_UNIT * best)

    def free(self, state: int) -> int:
        locked, held = self._held[state]
        return 0 if state == 0 else GB // self.sizes[locked] * self.sizes[locked] - held * self.sizes[locked]

    def fillings(self) -> Ints:
        """The fullest ways to fill an empty GPU, in numbers of each profile."""
        return np.diag([GB // size for size in self.sizes])


class Mig:
    """MIG-backed: instances at fixed starts over eight memory slices. State 1 = empty, else 1 + the slices taken."""

    ways = 7
    names = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
    sizes = (5, 10, 20, 20, 40)
    whole = 4
    _starts = ((0, 1, 2, 3, 4, 5, 6), (0, 2, 4), (0, 4), (0,), (0,))
    _length = (1, 2, 4, 4, 8)
    _compute = (1, 2, 3, 4, 7)

    def __init__(self) -> None:
        self.price: Floats = np.array(self.sizes, dtype=np.float64)

    def profile(self, milli: int) -> int:
        """The smallest that has so much of a GPU's compute."""
        return next(kind for kind, part in enumerate(self._compute) if part / 7 >= milli / MILLI - 1e-9)

    def after(self, state: int, kind: int) -> Sequence[int]:
        if not state:
            return ()
        masks = (((1 << self._length[kind]) - 1) << start for start in self._starts[kind])
        return [1 + ((state - 1) | mask) for mask in masks if not (state - 1) & mask]

    def without(self, state: int, kind: int, before: int, after: int) -> int:
        """The state without the slices that were taken then."""
        return 1 + ((state - 1) & ~((before - 1) ^ (after - 1)))

    def slots(self, state: int, kind: int) -> int:
        return len(self.after(state, kind))

    def value(self, state: int) -> int:
        return round(VALUE_UNIT * self._best(state)) if state else 0

    def free(self, state: int) -> int:
        return (8 - (state - 1).bit_count()) * 5 if state else 0

    def fillings(self) -> Ints:
        return np.array(sorted(_fillings(1)))

    def _best(self, state: int) -> float:
        known: dict[int, float] = self.__dict__.setdefault("_known", {})
        if state not in known:
            known[state] = max(
                (float(self.price[kind]) + self._best(then) for kind in range(5) for then in self.after(state, kind)),
                default=0.0,
            )
        return known[state]


@cache
def _fillings(state: int) -> frozenset[tuple[int, ...]]:
    """The numbers of each profile with which the GPU can be filled until nothing fits."""
    found = set()
    for kind in range(5):
        for then in Mig().after(state, kind):
            for rest in _fillings(then):
                found.add(tuple(count + (number == kind) for number, count in enumerate(rest)))
    return frozenset(found or {(0,) * 5})


def numa_of(ask: PoolRequest) -> NumaPolicy:
    """How the VMs here ask for locality, as the manual advises: one vGPU finds room beside some GPU sooner or later,
    several GPUs at once are too scarce to wait for it."""
    return NumaPolicy.REQUIRED if ask.count == 1 else NumaPolicy.PREFERRED


@dataclass(frozen=True, slots=True)
class Request:
    """One pod as a VM: what it asks for, how long it stays, how often it is drawn."""

    ask: PoolRequest
    stay_s: float
    weight: float

    def size(self, geometry: SameSize | Mig) -> int:
        return self.ask.count * geometry.sizes[self.ask.kind]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Requests for hosts of one shape with GPUs in one mode."""

    trace: str
    mode: str
    host: str
    requests: tuple[Request, ...]
    weighted: bool

    def geometry(self) -> SameSize | Mig:
        return SameSize() if self.mode == "ts" else Mig()


def read_rows(folder: Path, name: str) -> list[dict[str, str]]:
    """The lines of one file of the trace."""
    with (folder / f"{name}.csv").open() as lines:
        return list(csv.DictReader(lines))


def scenario(folder: Path, trace: str, mode: str, host: str) -> Scenario:
    """`trace#small70`: 70 % of the draws are of pods that ask for half a GPU at the most."""
    pods, _, small = trace.partition("#")
    geometry = SameSize() if mode == "ts" else Mig()
    rows = [row for row in read_rows(folder, f"openb_pod_list_{pods}") if int(row["num_gpu"])]
    stays = [_stay_s(row) for row in rows]
    cpu, memory = HOSTS[host]
    found: list[tuple[Request, bool]] = []
    known = sorted(stay for row, stay in zip(rows, stays, strict=True) if stay is not None and _fits(row, cpu, memory))
    middle = float(np.median(known))
    for row, stay in zip(rows, stays, strict=True):
        if _fits(row, cpu, memory):
            count, milli = int(row["num_gpu"]), int(row["gpu_milli"])
            kind = geometry.profile(min(milli, MILLI)) if count == 1 else geometry.whole
            ask = PoolRequest(kind, count, int(row["cpu_milli"]), max(1024, int(row["memory_mib"])))
            stay_s = min(86_400.0, max(60.0, middle if stay is None else stay))
            found.append((Request(ask, stay_s, 1.0), count == 1 and milli <= MILLI // 2))
    if small:
        share, few = int(small.removeprefix("small")) / 100, sum(is_small for _, is_small in found)
        weights = (share / few, (1 - share) / (len(found) - few))
        found = [(replace(each, weight=weights[not is_small]), is_small) for each, is_small in found]
    return Scenario(trace, mode, host, tuple(each for each, _ in found), bool(small))


def site(of: Scenario) -> tuple[SameSize | Mig, ShapeArrays, LargeShapes | None]:
    """The geometry at the scenario's prices, its typical shapes and its large ones."""
    geometry = of.geometry()
    asked = _asked(of)
    demand = np.zeros(len(geometry.sizes))
    for each in asked:
        demand[each.kind] += each.often * each.count
    fillings = geometry.fillings()
    relative = np.array(geometry.sizes) / GB
    geometry.price = GB * slot_prices(relative, demand, lambda price: fillings[(fillings @ price).argmax()])
    sizes = dict(enumerate(geometry.sizes))
    price = dict(enumerate(geometry.price.tolist()))
    shapes = make_shape_arrays(asked, sizes, NODE_GPUS, price, cut=isinstance(geometry, Mig))
    return geometry, shapes, large_shapes(asked, sizes, shapes, GB)


def known_shapes(of: Scenario) -> ShapeArrays:
    """The typical shapes as they are: what the authors of other rules let them know."""
    asked, sizes = _asked(of), dict(enumerate(of.geometry().sizes))
    shapes = make_shape_arrays(asked, sizes, 2 * NODE_GPUS, sizes, cut=False)
    often = np.array([each.often for each in commonest(asked)])
    return replace(shapes, weight=often / often.sum())


def _asked(of: Scenario) -> list[ShapeFrequency]:
    """How often each shape comes."""
    counts: dict[tuple[int, int, int, int], float] = {}
    for each in of.requests:
        key = (each.ask.kind, each.ask.count, each.ask.cpu, each.ask.memory)
        counts[key] = counts.get(key, 0.0) + each.weight
    return [ShapeFrequency(*key, often) for key, often in counts.items()]


def _fits(row: dict[str, str], cpu: int, memory: int) -> bool:
    return int(row["cpu_milli"]) <= cpu and max(1024, int(row["memory_mib"])) <= memory and int(row["num_gpu"]) <= 8


def _stay_s(row: dict[str, str]) -> float | None:
    if not row["deletion_time"] or not row["scheduled_time"]:
        return None
    return float(row["deletion_time"]) - float(row["scheduled_time"])
