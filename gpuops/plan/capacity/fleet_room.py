"""A part of the fleet and the room in it; the room of a larger place follows from that of its parts.

Beside the GPUs of a NUMA node a VM can have the cores and the memory of that node. A VM with a passthrough device
reserves all of its memory at power-on (VMware vSphere docs). Which node the memory of a running VM is on vCenter tells
only where `numa.nodeAffinity` binds it, so what is free on a node is a range.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from gpuops.advise.capacity import Slots, best, total
from gpuops.model.vcenter.host import Host, NumaNode
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.placement.numa_nodes import free_cores, free_memory_mib, surely_free_memory_mib, unreserved_mib

_NOBODY = Vm(ref="", name="")


@dataclass(frozen=True, slots=True)
class Beside:
    """What one VM can have beside the GPUs of a node."""

    cores: int | None
    """Physical cores: more vCPUs would not all be local. None = not known, as is the node."""
    memory_at_least_mib: int
    """However the memory of running VMs lies."""
    memory_at_most_mib: int | None
    """None = not known."""

    @property
    def possible(self) -> bool:
        """Return whether a VM could be there at all."""
        return self.cores != 0 and self.memory_at_most_mib != 0

    @property
    def certain(self) -> bool:
        """Return whether there surely are cores and memory for a VM, if a small one."""
        return bool(self.cores) and self.memory_at_least_mib > 0


UNKNOWN = Beside(None, 0, None)


def beside(node: NumaNode, host: Host, inventory: Inventory) -> Beside:
    """Return cores and memory of a node of the host."""
    least = surely_free_memory_mib(node, _NOBODY, host, inventory)
    on_host = free_on(host, inventory)
    most = free_memory_mib(node, _NOBODY, host, inventory)
    if on_host.memory_at_most_mib is not None:
        most = min(most, on_host.memory_at_most_mib)
        least = min(least, on_host.memory_at_least_mib)
    return Beside(free_cores(node, _NOBODY, host, inventory), max(0, least), max(0, most))


def free_on(host: Host, inventory: Inventory) -> Beside:
    """Return cores and memory of the whole host, beside what running VMs reserve."""
    if host.memory_mib is None:
        return Beside(host.cpu_cores, 0, None)
    running = [vm for vm in inventory.vms_on(host) if vm.may_run]
    claims = [vm.most_reserved_mib for vm in running]
    least = 0 if None in claims else host.memory_mib - sum(claim for claim in claims if claim is not None)
    return Beside(host.cpu_cores, max(0, least), max(0, unreserved_mib(host, _NOBODY, inventory) or 0))


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
    """A kind of device that is given whole."""

    name: str
    vendor_id: int
    device_id: int
    label: str = ""
    """Hardware label of Dynamic DirectPath I/O; "" = none."""
    kind: str = ""
    """What it is, where it is no GPU of NVIDIA."""


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
class FleetPart:
    """How many vGPUs and whole GPUs fit in one part of the fleet: a NUMA node, a host, a cluster or all of it."""

    level: Level
    name: str
    gpus: int
    fits: Fits
    devices: Mapping[Device, Slots]
    largest: Largest | None = None
    """None = no vGPU fits beside a NUMA node."""
    beside: Beside | None = None
    """Of a NUMA node alone."""
    parts: tuple[FleetPart, ...] = ()
    notes: tuple[str, ...] = ()
    """Why there is less room than its GPUs have, or why that is not certain."""

    @property
    def hosts(self) -> int:
        return 1 if self.level in (Level.HOST, Level.NODE) else sum(part.hosts for part in self.parts)


def fleet_part(level: Level, name: str, parts: Sequence[FleetPart]) -> FleetPart:
    """Return the part of the fleet that these parts make up."""
    return FleetPart(
        level=level,
        name=name,
        gpus=sum(part.gpus for part in parts),
        fits=fits_of(part.fits for part in parts),
        devices={device: total(rooms) for device, rooms in _group_by_key(part.devices for part in parts)},
        largest=largest_of(part.largest for part in parts),
        parts=tuple(parts),
    )


def fits_of(parts: Iterable[Fits]) -> Fits:
    """Return room in all of these places together; one VM is in one of them."""
    return {
        profile: Fit(
            slots=total([fit.slots for fit in fits]),
            beside_one_node=best([fit.beside_one_node for fit in fits]),
            on_one_host=best([fit.on_one_host for fit in fits]),
        )
        for profile, fits in _group_by_key(parts)
    }


def largest_of(candidates: Iterable[Largest | None]) -> Largest | None:
    """Return the largest of these; the first of equals."""
    fitting = [largest for largest in candidates if largest is not None]
    return max(fitting, key=lambda largest: largest.rank, default=None)


def _group_by_key(mappings: Iterable[Mapping[Key, Value]]) -> list[tuple[Key, list[Value]]]:
    """Return what each key has in all of them, in the order of the keys."""
    grouped: dict[Key, list[Value]] = {}
    for mapping in mappings:
        for key, room in mapping.items():
            grouped.setdefault(key, []).append(room)
    return sorted(grouped.items(), key=lambda pair: pair[0])
