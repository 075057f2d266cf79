"""What a day of measurements takes: CPU for each look, and room in the store's file, of 5,000 VMs on 500 hosts.

A tenth of the fleet is made up, so that a day is written in two minutes, and its figures are multiplied: each VM and
each host has rows of its own, and none is shared; what an empty store has is taken off before. Without the wire:
reading and decoding what vCenter sends is not in it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import process_time
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from gpuops.extras.observe.observing import EVERY_S
from gpuops.extras.observe.rolling_up import FINE_S, SAMPLE_S, steps_of_samples
from gpuops.extras.observe.store import Measurements
from gpuops.extras.observe.store_reads import stored_measurements as stored
from gpuops.model.measurements.measurement import HOST_COUNTERS, OF_GPUS, VM_COUNTERS, Samples
from tests.bench.verdict import Figure, Result

VMS: Final = 5_000
HOSTS: Final = 500
GPUS: Final = 4
"""Of a host."""
PART: Final = 10
VCENTER: Final = "5029e1c6-9d0a-4f0e-8a55-2f1c6a6c2b11"
"""Rows are kept by its whole uuid."""
DAY_S: Final = 86_400
MIDNIGHT: Final = int(datetime(2026, 11, 20, tzinfo=UTC).timestamp())
MOST_PERCENT: Final = 2.0
MOST_MB: Final = 20.0


def run() -> Iterator[Result]:
    """A day is written look by look, rolled up, and weighed: of VMs, of hosts, and what both take."""
    vms = _day([_VmOfTheFleet(number) for number in range(VMS // PART)], f"{VMS:,} VMs")
    hosts = _day([_HostOfTheFleet(number) for number in range(HOSTS // PART)], f"{HOSTS} hosts with {GPUS} GPUs")
    yield from (vms, hosts)
    both = [
        Figure(one.what, one.value + other.value, one.unit)
        for one, other in zip(vms.figures, hosts.figures, strict=True)
    ]
    _, core, _, hours, grows = both
    figures = (replace(core, budget=MOST_PERCENT), hours, replace(grows, budget=MOST_MB))
    yield Result("measurements of both", figures)


def _day(fleet: Sequence[_VmOfTheFleet], what: str) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        place, looks, cpu_s = Path(folder) / "state", DAY_S // EVERY_S, 0.0
        Measurements.open(place, "", VCENTER).close()
        empty_mb = _size_mb(place)
        with Measurements.open(place, "", VCENTER) as store:
            for number in range(looks):
                begin = MIDNIGHT + number * EVERY_S
                samples = [vm.samples(begin) for vm in fleet]
                began = process_time()
                store.write(begin, {each.entity: steps_of_samples(each, begin, EVERY_S // FINE_S) for each in samples})
                store.note_observed(begin, begin + EVERY_S)
                store.roll_up(begin + EVERY_S)
                cpu_s += process_time() - began
        [held] = stored(place).vcenters
        file_mb = _size_mb(place) - empty_mb
    a_look_s = cpu_s / looks * PART
    tiers = (
        Figure(f"steps of {tier.step.total_seconds() / 60:.0f} min, packed", tier.stored_bytes / 1e6 * PART, "MB a day")
        for tier in held.tiers
    )
    return Result(
        f"measurements of {what}, each of {len(fleet[0].counters)} series, without the wire",
        (
            Figure("CPU of a look", a_look_s, "CPU s"),
            Figure(f"of a core, with a look each {EVERY_S // 60} min", 100 * a_look_s / EVERY_S, "%"),
            *tiers,
            Figure("the file grows, before anything is dropped, by", file_mb * PART, "MB a day"),
        ),
    )


def _size_mb(place: Path) -> float:
    return sum(path.stat().st_size for path in place.glob("*.sqlite*")) / 1e6


class _VmOfTheFleet:
    """A desktop that is used in office hours, all day, or hardly; half of them have no counters of a GPU."""

    counters: ClassVar[Sequence[str]] = VM_COUNTERS
    sometimes_without_gpu: ClassVar[bool] = True
    prefix: ClassVar[str] = "vm"

    def __init__(self, number: int) -> None:
        self._rng = np.random.default_rng(number)
        self._number = number
        self._kind = self._rng.random()
        self._size = {name: self._rng.lognormal(5, 1.5) for name in self.counters}

    def samples(self, begin: int) -> Samples:
        """Those of 20 s from `begin` on, until the next look."""
        ends = begin + np.arange(1, EVERY_S // SAMPLE_S + 1, dtype=np.int64) * SAMPLE_S
        return Samples(f"{self.prefix}-{self._number}", ends, dict(self._series(ends)))

    def _series(self, ends: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.int64]]]:
        hour = ends % DAY_S / 3600
        at_work = (hour > 8) & (hour < 18) if self._kind < 0.6 else np.full(len(ends), self._kind < 0.8)
        use = np.where(at_work, 1.0, 0.08)
        for name in self.counters:
            if name.startswith(OF_GPUS) and self._kind > 0.5 and self.sometimes_without_gpu:
                continue
            yield name, self._values(name, use).astype(np.int64)

    def _values(self, name: str, use: NDArray[np.float64]) -> NDArray[np.float64]:
        if name.startswith("mem."):
            return 1e6 * (1 + self._kind) + self._rng.normal(0, 2_000, len(use))
        if "dropped" in name:
            return (self._rng.random(len(use)) < 0.001).astype(np.float64)
        if "Latency" in name:
            return self._rng.poisson(1.5 * use + 0.2).astype(np.float64)
        return self._size[name] * use * self._rng.lognormal(0, 0.35, len(use))


class _HostOfTheFleet(_VmOfTheFleet):
    """A host, and each of its GPUs, used as its desktops are."""

    counters: ClassVar[Sequence[str]] = tuple(
        f"{name}@0000:{gpu:02x}:00.0" if name.startswith(OF_GPUS) else name
        for gpu in range(GPUS)
        for name in HOST_COUNTERS
        if gpu == 0 or name.startswith(OF_GPUS)
    )
    sometimes_without_gpu: ClassVar[bool] = False
    prefix: ClassVar[str] = "host"
