"""Place: a part of the fleet and the room in it; the room of a larger place follows from that of its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from gpuops.advise.capacity import Slots, best, total
from gpuops.plan.capacity.beside import Beside

Key = TypeVar("Key", str, "Device")
Value = TypeVar("Value")


class Level(StrEnum):
    """How large a place is."""

    ALL = "all"
    CLUSTER = "cluster"
    HOST = "host"
    NODE = "numa-node"


@dataclass(frozen=True, slots=True)
class Fit:
    """Room for more vGPUs of one profile."""

    slots: Slots
    """Over all VMs."""
    beside_one_node: Slots
    """For one VM whose cores and memory are beside its GPUs, on one NUMA node."""
    on_one_host: Slots
    """For one VM, wherever on a host its GPUs are."""


Fits = Mapping[str, Fit]
"""By profile, in the order of their names."""


@dataclass(frozen=True, slots=True, order=True)
class Device:
    """A kind of GPU that is given whole."""

    name: str
    vendor_id: int
    device_id: int
    label: str = ""
    """Hardware label of Dynamic DirectPath I/O; "" = none."""


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest profile that fits, as many times as one VM may have it beside one NUMA node."""

    profile: str
    framebuffer_mib: int
    count: Slots
    where: str
    """The node: `esx-01.lab NUMA node 0`."""
    beside: Beside

    @property
    def rank(self) -> tuple[bool, int, int, int]:
        """Larger is more: what is certain first, then frame buffer, then vGPUs, then memory."""
        certain = self.count.at_least > 0
        return (certain, self.framebuffer_mib, self.count.at_least, self.beside.memory_at_least_mib)


@dataclass(frozen=True, slots=True)
class Place:
    """The room in one part of the fleet."""

    level: Level
    name: str
    gpus: int
    fits: Fits
    devices: Mapping[Device, Slots]
    largest: Largest | None = None
    """None = no vGPU fits beside a NUMA node."""
    beside: Beside | None = None
    """Of a NUMA node alone."""
    parts: tuple[Place, ...] = ()
    notes: tuple[str, ...] = ()
    """Why there is less room than its GPUs have, or why that is not certain."""

    @property
    def hosts(self) -> int:
        return 1 if self.level in (Level.HOST, Level.NODE) else sum(part.hosts for part in self.parts)


def place_of(level: Level, name: str, parts: Sequence[Place]) -> Place:
    """The place that these make up."""
    return Place(
        level=level,
        name=name,
        gpus=sum(part.gpus for part in parts),
        fits=fits_of(part.fits for part in parts),
        devices={device: total(rooms) for device, rooms in _gathered(part.devices for part in parts)},
        largest=largest_of(part.largest for part in parts),
        parts=tuple(parts),
    )


def fits_of(parts: Iterable[Fits]) -> Fits:
    """Room in all of these places together; one VM is in one of them."""
    return {
        profile: Fit(
            slots=total([fit.slots for fit in fits]),
            beside_one_node=best([fit.beside_one_node for fit in fits]),
            on_one_host=best([fit.on_one_host for fit in fits]),
        )
        for profile, fits in _gathered(parts)
    }


def largest_of(found: Iterable[Largest | None]) -> Largest | None:
    """The largest of these; the first of equals."""
    known = [largest for largest in found if largest is not None]
    return max(known, key=lambda largest: largest.rank, default=None)


def _gathered(found: Iterable[Mapping[Key, Value]]) -> list[tuple[Key, list[Value]]]:
    """What each key has in all of them, in the order of the keys."""
    gathered: dict[Key, list[Value]] = {}
    for each in found:
        for key, value in each.items():
            gathered.setdefault(key, []).append(value)
    return sorted(gathered.items(), key=lambda item: item[0])
