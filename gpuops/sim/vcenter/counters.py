"""The performance counters of this vCenter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
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

    @property
    def full_name(self) -> str:
        """`gpu.utilization.average`."""
        return f"{self.group}.{self.name}.{self.rollup}"


_ALL: Final = ("average", "maximum", "minimum", "none")
_SOME: Final = ("average",)

# group, name, rollups, unit, stats type, level: the counters a GPU fleet is watched by (vCenter 8 counter list). gpu.*
# is level 4: not kept in the database at the default level, so only real-time samples of the last hour exist.
_DECLARED: Final[tuple[tuple[str, str, tuple[str, ...], str, str, int], ...]] = (
    ("cpu", "usage", ("none", "average", "minimum", "maximum"), "percent", "rate", 1),
    ("cpu", "usagemhz", ("none", "average", "minimum", "maximum"), "megaHertz", "rate", 1),
    ("cpu", "idle", ("summation",), "millisecond", "delta", 2),
    ("cpu", "ready", ("summation",), "millisecond", "delta", 1),
    ("cpu", "utilization", _SOME, "percent", "rate", 2),
    ("mem", "usage", ("none", "average", "minimum", "maximum"), "percent", "absolute", 1),
    ("mem", "active", _SOME, "kiloBytes", "absolute", 2),
    ("mem", "consumed", _SOME, "kiloBytes", "absolute", 1),
    ("mem", "granted", _SOME, "kiloBytes", "absolute", 2),
    ("disk", "usage", _SOME, "kiloBytesPerSecond", "rate", 1),
    ("net", "usage", _SOME, "kiloBytesPerSecond", "rate", 1),
    ("power", "power", _SOME, "watt", "rate", 2),
    ("sys", "uptime", ("latest",), "second", "absolute", 1),
    ("gpu", "utilization", _ALL, "percent", "absolute", 4),
    ("gpu", "mem.used", _ALL, "kiloBytes", "absolute", 4),
    ("gpu", "mem.usage", _ALL, "percent", "absolute", 4),
    ("gpu", "mem.reserved", ("latest",), "kiloBytes", "absolute", 4),
    ("gpu", "mem.total", ("latest",), "kiloBytes", "absolute", 4),
    ("gpu", "temperature", _SOME, "celsius", "absolute", 4),
    ("gpu", "power.used", ("latest",), "watt", "absolute", 4),
)

COUNTERS: Final[tuple[Counter, ...]] = tuple(
    Counter(number, group, name, rollup, unit, stats, level)
    for number, (group, name, rollup, unit, stats, level) in enumerate(
        ((group, name, rollup, unit, stats, level) for group, name, rollups, unit, stats, level in _DECLARED
         for rollup in rollups),
        start=1,
    )
)  # fmt: skip

BY_KEY: Final[Mapping[int, Counter]] = {counter.key: counter for counter in COUNTERS}
BY_NAME: Final[Mapping[str, Counter]] = {counter.full_name: counter for counter in COUNTERS}

LABELS: Final[Mapping[str, str]] = {
    "percent": "%", "megaHertz": "MHz", "millisecond": "ms", "kiloBytes": "KB", "kiloBytesPerSecond": "KBps",
    "watt": "W", "second": "s", "celsius": "°C",
}  # fmt: skip
"""How vCenter labels the units."""
