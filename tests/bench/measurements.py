"""What a day of measurements takes: CPU for each look, and room in the store's file, of a fleet of 5,000 VMs.

A fiftieth of the fleet is made up, so that a day is written in a minute, and its figures are multiplied: each VM has
rows of its own, and none is shared. Without the wire: reading and decoding what vCenter sends is not in it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import process_time
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.execute.measurements.observing import EVERY_S
from gpuops.execute.measurements.rolling_up import FINE_S, SAMPLE_S, steps_of_samples
from gpuops.execute.measurements.store import Measurements, stored
from gpuops.model.measurement import OF_GPUS, VM_COUNTERS, Samples
from tests.bench.verdict import Figure, Result

VMS: Final = 5_000
PART: Final = 50
DAY_S: Final = 86_400
MIDNIGHT: Final = int(datetime(2026, 11, 20, tzinfo=UTC).timestamp())
MOST_PERCENT: Final = 2.0
MOST_MB: Final = 20.0


def run() -> list[Result]:
    """One result: a day is written look by look, rolled up, and weighed."""
    fleet = [_VmOfTheFleet(number) for number in range(VMS // PART)]
    with tempfile.TemporaryDirectory() as folder:
        place, looks, cpu_s = Path(folder) / "state", DAY_S // EVERY_S, 0.0
        with Measurements.open(place, "", "vcenter") as store:
            for number in range(looks):
                begin = MIDNIGHT + number * EVERY_S
                samples = [vm.samples(begin) for vm in fleet]
                began = process_time()
                store.write(begin, {each.entity: steps_of_samples(each, begin, EVERY_S // FINE_S) for each in samples})
                store.note_observed(begin, begin + EVERY_S)
                store.roll_up(begin + EVERY_S)
                cpu_s += process_time() - began
        [held] = stored(place).vcenters
        file_mb = sum(path.stat().st_size for path in place.glob("*.sqlite*")) / 1e6
    a_look_s = cpu_s / looks * PART
    tiers = (
        Figure(f"steps of {tier.step.total_seconds() / 60:.0f} min, packed", tier.stored_bytes / 1e6 * PART, "MB a day")
        for tier in held.tiers
    )
    return [
        Result(
            f"measurements of {VMS:,} VMs with {len(VM_COUNTERS)} counters, without the wire",
            (
                Figure("CPU of a look", a_look_s, "CPU s"),
                Figure(f"of a core, with a look each {EVERY_S // 60} min", 100 * a_look_s / EVERY_S, "%", MOST_PERCENT),
                *tiers,
                Figure("the file, before anything is dropped", file_mb * PART, "MB a day", MOST_MB),
            ),
        )
    ]


class _VmOfTheFleet:
    """A desktop that is used in office hours, all day, or hardly; half of them have no counters of a GPU."""

    def __init__(self, number: int) -> None:
        self._rng = np.random.default_rng(number)
        self._number = number
        self._kind = self._rng.random()
        self._size = {name: self._rng.lognormal(5, 1.5) for name in VM_COUNTERS}

    def samples(self, begin: int) -> Samples:
        """Those of 20 s from `begin` on, until the next look."""
        ends = begin + np.arange(1, EVERY_S // SAMPLE_S + 1, dtype=np.int64) * SAMPLE_S
        return Samples(f"vm-{self._number}", ends, dict(self._series(ends)))

    def _series(self, ends: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.int64]]]:
        hour = ends % DAY_S / 3600
        at_work = (hour > 8) & (hour < 18) if self._kind < 0.6 else np.full(len(ends), self._kind < 0.8)
        use = np.where(at_work, 1.0, 0.08)
        for name in VM_COUNTERS:
            if name.startswith(OF_GPUS) and self._kind > 0.5:
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
