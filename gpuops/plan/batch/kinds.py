"""Kinds: requests that nothing tells apart but their names, and requests that only the rule can place."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuops.model.catalog import Catalog
from gpuops.model.inventory import Inventory
from gpuops.model.numa import NumaPolicy
from gpuops.model.vm import DynamicDevice, VgpuDevice, Vm
from gpuops.model.workload import Workload
from gpuops.plan.hypothetical import Devices, choices_of_devices, framebuffer_mib, vm_of
from gpuops.plan.placement.nodes import free_cores
from gpuops.plan.plan import Rejection
from gpuops.plan.reach import reach_of

_NOBODY: Final = Vm(ref="", name="")

Device = str | tuple[tuple[tuple[int, int], ...], str | None]
"""A vGPU profile, or the PCI types and the label of a whole device."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Equal requests: what each wants, and where each may go whatever the room."""

    workloads: tuple[Workload, ...]
    devices: Devices
    device: Device
    gpu_mib: int
    hosts: frozenset[str]

    @property
    def first(self) -> Workload:
        return self.workloads[0]

    @property
    def count(self) -> int:
        """Devices per VM."""
        return len(self.devices)

    @property
    def numa(self) -> NumaPolicy:
        return self.first.numa

    def vm(self, workload: Workload) -> Vm:
        return vm_of(workload, self.devices)


@dataclass(frozen=True, slots=True)
class Sorted:
    """The kinds, largest first, and what is left to the rule."""

    kinds: tuple[Kind, ...]
    others: tuple[Workload, ...]


def sorted_out(workloads: Iterable[Workload], inventory: Inventory, catalog: Catalog) -> Sorted:
    """Equal requests together. Those that look at each other, name devices or mix profiles are for the rule."""
    limits = sorted({*_cores(inventory)})
    alike: dict[Workload, list[Workload]] = {}
    for workload in workloads:
        # vCPUs are not used up: two numbers that every host and node answers alike are one.
        alike.setdefault(
            replace(workload, name="", priority=0, until=None, vcpus=bisect_left(limits, workload.vcpus)), []
        ).append(workload)
    kinds: list[Kind] = []
    others: list[Workload] = []
    for group in alike.values():
        kind = _kind(group, inventory, catalog)
        if kind is None:
            others += group
        else:
            kinds.append(kind)
    kinds.sort(key=lambda kind: (-kind.gpu_mib, -kind.first.memory_mib, kind.first.name))
    return Sorted(tuple(kinds), tuple(others))


def _cores(inventory: Inventory) -> Iterator[int]:
    """Every number of cores and threads that a rule compares vCPUs with."""
    for host in inventory.hosts.values():
        if host.gpus:
            yield host.cpu_threads or 0
            yield from (free_cores(node, _NOBODY, host, inventory) for node in host.numa_nodes)


def _kind(group: Sequence[Workload], inventory: Inventory, catalog: Catalog) -> Kind | None:
    first = group[0]
    looks_at_others = first.affinity or first.anti_affinity or first.spread
    if looks_at_others or first.device or first.device_group or first.more:
        return None
    choices = choices_of_devices(first, inventory, catalog)
    devices = choices[0]
    if len(choices) > 1 or isinstance(devices, Rejection):
        return None
    device = _device(devices)
    gpu_mib = framebuffer_mib(devices, catalog)
    if device is None or not gpu_mib:
        return None
    reach = reach_of(first, vm_of(first, devices), (), inventory, catalog)
    ordered = tuple(sorted(group, key=lambda workload: workload.name))
    return Kind(ordered, devices, device, gpu_mib, frozenset(reach.hosts))


def _device(devices: Devices) -> Device | None:
    match devices[0]:
        case VgpuDevice(profile=profile):
            return profile
        case DynamicDevice(allowed=allowed, label=label):
            return (allowed, label)
        case _:
            return None
