"""The performance counters of this vCenter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpuops.sim.core.managed_object import ManagedObject

Values = Mapping[tuple[str, str], int]
"""(counter name such as `gpu.utilization.average`, instance; '' = aggregate) -> value in the counter's unit."""

Provider = Callable[["ManagedObject", datetime], Values]
"""What an entity's counters show at a moment; percentages in hundredths (135 = 1.35 %)."""


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter (vSphere API reference, PerfCounterInfo)."""

    key: int
    group: str
    name: str
    rollup: str
    unit: str
    stats: str
    level: int
    """The statistics level from which the database keeps the values of the whole entity."""
    device_level: int
    """The statistics level from which the database keeps the values of one device."""
    label: str

    @property
    def full_name(self) -> str:
        """`gpu.utilization.average`."""
        return f"{self.group}.{self.name}.{self.rollup}"

    def kept_from(self, instance: str) -> int:
        """The statistics level from which the database keeps the samples of this instance; '' = the whole entity."""
        return self.device_level if instance else self.level


def _read(line: str) -> Iterator[Counter]:
    full_name, unit, stats, rollups, label = line.split("\t")
    group, _, name = full_name.partition(".")
    for rollup_text in rollups.split():
        rollup, _, numbers = rollup_text.partition("=")
        key, level, device_level = map(int, numbers.split(":"))
        yield Counter(key, group, name, rollup, unit, stats, level, device_level, label)


_LINES: Final = (files(__package__) / "counters.tsv").read_text(encoding="utf-8").splitlines()

COUNTERS: Final[tuple[Counter, ...]] = tuple(
    sorted((counter for line in _LINES if line[0] != "#" for counter in _read(line)), key=lambda counter: counter.key)
)
"""The counters of a vCenter 9.0.1 (source: see `counters.tsv`). Clients use the names; keys differ between vCenters."""

BY_KEY: Final[Mapping[int, Counter]] = {counter.key: counter for counter in COUNTERS}
BY_NAME: Final[Mapping[str, Counter]] = {counter.full_name: counter for counter in COUNTERS}

LABELS: Final[Mapping[str, str]] = {
    "percent": "%", "megaHertz": "MHz", "number": "num", "celsius": "°C", "watt": "W", "joule": "J",
    "kiloBytes": "KB", "megaBytes": "MB", "gigaBytes": "GB", "teraBytes": "TB",
    "kiloBytesPerSecond": "KBps", "megaBytesPerSecond": "MBps",
    "second": "s", "millisecond": "ms", "microsecond": "µs", "nanosecond": "ns",
}  # fmt: skip
"""How vCenter labels the units."""
