"""Groups the requests of a queue into kinds of equal ones, and sets aside those that the solver cannot place.

`place_all.py` calls it. Requests set aside (they refer to each other, name devices, or mix profiles) are placed one
after another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DynamicDevice, VgpuDevice, Vm
from gpuops.model.workloads.workload import Workload
from gpuops.plan.core.plan import Rejection
from gpuops.plan.placement.numa_nodes import free_cores
from gpuops.plan.queue.eligible_hosts import eligible_hosts
from gpuops.plan.queue.workload_vm import Devices, choices_of_devices, framebuffer_mib, vm_of

_NO_VM: Final = Vm(ref="", name="")

Device = str | tuple[tuple[tuple[int, int], ...], str | None]
"""A vGPU profile, or the PCI types and the label of a whole device."""


@dataclass(frozen=True, slots=True)
class RequestKind:
    """Equal requests: the devices of each, and the hosts that each may go to, whatever their room."""

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
class GroupedRequests:
    """The kinds, largest first, and the requests that are placed one after another."""

    kinds: tuple[RequestKind, ...]
    others: tuple[Workload, ...]


def group_requests(workloads: Iterable[Workload], inventory: Inventory, catalog: Catalog) -> GroupedRequests:
    """The requests as kinds of equal ones, and those that refer to each other, name devices or mix profiles."""
    limits = sorted({*_cores(inventory)})
    alike: dict[Workload, list[Workload]] = {}
    for workload in workloads:
        # vCPUs are not used up, they only fit or not: numbers between the same two limits are equal.
        alike.setdefault(
            replace(workload, name="", priority=0, until=None, vcpus=bisect_left(limits, workload.vcpus)), []
        ).append(workload)
    kinds: list[RequestKind] = []
    other_requests: list[Workload] = []
    for group in alike.values():
        kind = _kind(group, inventory, catalog)
        if kind is None:
            other_requests += group
        else:
            kinds.append(kind)
    kinds.sort(key=lambda kind: (-kind.gpu_mib, -kind.first.memory_mib, kind.first.name))
    return GroupedRequests(tuple(kinds), tuple(other_requests))


def _cores(inventory: Inventory) -> Iterator[int]:
    """Every number of cores and threads that a rule compares vCPUs with."""
    for host in inventory.hosts.values():
        if host.gpus:
            yield host.cpu_threads or 0
            yield from (free_cores(node, _NO_VM, host, inventory) for node in host.numa_nodes)


def _kind(group: Sequence[Workload], inventory: Inventory, catalog: Catalog) -> RequestKind | None:
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
    reachable = eligible_hosts(first, vm_of(first, devices), (), inventory, catalog)
    ordered = tuple(sorted(group, key=lambda workload: workload.name))
    return RequestKind(ordered, devices, device, gpu_mib, frozenset(reachable.hosts))


def _device(devices: Devices) -> Device | None:
    match devices[0]:
        case VgpuDevice(profile=profile):
            return profile
        case DynamicDevice(allowed=allowed, label=label):
            return (allowed, label)
        case _:
            return None
