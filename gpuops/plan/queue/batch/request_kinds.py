"""Groups the requests of a queue into kinds of equal ones, and orders and expects their starts on empty GPUs.

`place_all.py` calls it. Requests that the solver cannot place (they refer to each other, name devices, or mix profiles)
are set aside and placed one after another.

Plans that hold wherever vGPUs start on their GPUs come first. If they leave requests without a place, expected starts
are tried. The VMs are then bound to their GPUs and started in turn, so the content of a GPU at each start is known. The
start follows from the host's documented rule (`advise/expected_start.py`); for Ampere it is an expectation.

Example: a 3g instance starts at slice 4 of an H100, and four 1g fit beside it. With an unknown start only three surely
fit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuops.advise.expected_start import with_expected
from gpuops.advise.occupancy import GpuState, Tenant, gpu_states
from gpuops.advise.room import room_for
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DynamicDevice, VgpuDevice, Vm
from gpuops.model.workloads.workload import Workload
from gpuops.plan.core.plan import Rejection
from gpuops.plan.placement.numa_nodes import free_cores
from gpuops.plan.queue.workload import Devices, choices_of_devices, eligible_hosts, framebuffer_mib, vm_of

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
    """Return the requests as kinds of equal ones, and those that refer to each other, name devices or mix profiles."""
    limits = sorted({*_cores(inventory)})
    alike: dict[Workload, list[Workload]] = {}
    for workload in workloads:
        # vCPUs are not used up, they only fit or not: numbers between the same two limits are equal.
        key = replace(workload, name="", priority=0, until=None, vcpus=bisect_left(limits, workload.vcpus))
        alike.setdefault(key, []).append(workload)
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


_WITH_STARTS = (VgpuMode.MULTI_INSTANCE, VgpuMode.MIXED_SIZE)


def expecting_starts(inventory: Inventory, claimed: Inventory) -> Inventory:
    """Return the snapshot with the content of empty GPUs set to known (no vGPUs), so that starts can be expected.
    `claimed` is the same snapshot with the claims of suspended VMs; a GPU with a claim is not empty."""
    hosts = []
    for host in inventory.hosts.values():
        pairs = zip(host.gpus, claimed.hosts[host.ref].gpus, strict=True)
        empty = {gpu.address for gpu, claimed_gpu in pairs if _is_empty(gpu) and _is_empty(claimed_gpu)}
        if empty:
            gpus = (replace(gpu, vgpus=()) if gpu.address in empty else gpu for gpu in host.gpus)
            hosts.append(replace(host, gpus=tuple(gpus)))
    return inventory.with_hosts(hosts) if hosts else inventory


def _is_empty(gpu: PhysicalGpu) -> bool:
    return gpu.vms == () and gpu.vgpus is None and gpu.vgpu_mode in _WITH_STARTS


def order_of_starting(
    kinds: Sequence[RequestKind],
    gpus: Sequence[tuple[PciAddress, ...]],
    host: Host,
    inventory: Inventory,
    catalog: Catalog,
) -> list[int]:
    """Return the numbers of these VMs, planned for these GPUs, in an order of starting in which they all fit. The
    largest come first. VMs on GPUs where that fails come last, and smallest first."""
    states = {state.gpu.address: state for state in gpu_states(host, inventory, catalog)}
    profiles_by_gpu: dict[PciAddress, list[str]] = {}
    for kind, seats in zip(kinds, gpus, strict=True):
        if isinstance(kind.device, str):
            for seat in seats:
                profiles_by_gpu.setdefault(seat, []).append(kind.device)
    reverse = {
        address
        for address, profiles in profiles_by_gpu.items()
        if states[address].gpu.vgpus is not None
        and not _start(states[address], profiles, catalog)
        and _start(states[address], profiles[::-1], catalog)
    }
    last = [number for number, seats in enumerate(gpus) if seats and reverse.issuperset(seats)]
    return [*(number for number in range(len(gpus)) if number not in set(last)), *last[::-1]]


def _start(state: GpuState, profiles: Sequence[str], catalog: Catalog) -> bool:
    """Whether vGPUs of these profiles start one after another."""
    for profile in profiles:
        if not room_for(state, profile, catalog).at_least:
            return False
        state = with_expected(state, Tenant("", "", profile), catalog)
    return True
