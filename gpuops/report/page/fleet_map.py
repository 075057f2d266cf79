"""The map of a fleet as records: host > NUMA node > GPU > what holds it and what is free, small enough for a page.

It is a view of the same values as `gpuops inventory` (`report/monitoring/fleet.py`) and of the vGPUs that run on each
GPU (`advise/occupancy.py`). What is free on it, twenty profiles with a range each, is the same for most GPUs of a
fleet: each combination stands once in `rooms`, and a GPU has its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from gpuops.advise.occupancy import GpuState, gpu_states
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import GraphicsType, VgpuMode
from gpuops.model.devices.profile_name import parse
from gpuops.model.devices.vgpu import Series
from gpuops.model.nights.ml_queue import entry_of
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.rotation.ml_queue.gpu_share import gpus_of
from gpuops.report.document import Document
from gpuops.report.monitoring.fleet import Fleet, Free, GpuView, HostView


class VmRole(StrEnum):
    """What a VM with a GPU device is for."""

    DESKTOP = "desktop"
    """In a pool of the policy; else one whose vGPU is of the series A, B or Q."""
    ML = "ml"
    """In the queue of the policy; else one whose vGPU is of the series C (compute)."""
    WHOLE_GPU = "whole-gpu"
    """In neither, and with a GPU by DirectPath I/O."""
    OTHER = "other"


class GpuUse(StrEnum):
    """How far a GPU is used."""

    FREE = "free"
    """No VM holds it or a part of it."""
    PARTLY = "partly"
    """One does, and another vGPU has room, or perhaps has."""
    FULL = "full"
    UNKNOWN = "unknown"
    """The host does not tell who holds it."""


@dataclass(frozen=True, slots=True)
class UseOfFleet:
    """GPUs of the hosts that are meant, by their use, and how much of a GPU is free on those that take vGPUs."""

    hosts: int
    numbers: dict[GpuUse, int]
    free_whole: int
    """Free GPUs that take vGPUs."""
    free_in_parts: float
    """What is free, in whole GPUs, on GPUs that hold vGPUs."""
    uncertain: int
    """GPUs of which it is not known how much is free for vGPUs: in neither of the two."""

    @property
    def gpus(self) -> int:
        return sum(self.numbers.values())

    @property
    def fragmented(self) -> float | None:
        """The part of what is free that lies on GPUs in use, 1 = all of it; None = nothing is free."""
        free = self.free_whole + self.free_in_parts
        return self.free_in_parts / free if free else None


def fleet_map(fleet: Fleet, policy: Policy | None) -> Document:
    """The keys `rooms`, `hosts` and `vms` of the report, and `use`, their sums."""
    rooms = _Rooms()
    hosts = [_host(view, fleet, rooms) for view in fleet.hosts]
    shown = {vm.ref: vm for vm in fleet.vms}
    for view in fleet.hosts:
        shown.update({vm.ref: vm for gpu in view.gpus for vm in gpu.holders or ()})
    use = use_of(hosts)
    return {
        "use": {
            "hosts": use.hosts,
            "hosts_without_gpus": fleet.hosts_without_gpus,
            "gpus": use.gpus,
            **{f"gpus_{each.value}": use.numbers[each] for each in GpuUse},
            "vms": len(shown),
            "free_whole_gpus": use.free_whole,
            "free_in_parts": round(use.free_in_parts, 4),
            "free_not_known_gpus": use.uncertain,
            "fragmented": None if use.fragmented is None else round(use.fragmented, 4),
        },
        "rooms": rooms.records,
        "hosts": hosts,
        "vms": [_vm(vm, policy) for vm in sorted(shown.values(), key=lambda vm: (vm.name, vm.ref))],
    }


def use_of(hosts: Iterable[Document]) -> UseOfFleet:
    """The sums of the map's own records."""
    hosts = list(hosts)
    gpus = [gpu for host in hosts for node in host["numa_nodes"] for gpu in node["gpus"]]
    may_take = [gpu for gpu in gpus if gpu["takes_vgpus"] is not False]
    known = [gpu["used"] for gpu in may_take if gpu["takes_vgpus"] and gpu["used"] is not None]
    return UseOfFleet(
        hosts=len(hosts),
        numbers={use: sum(gpu["use"] == use for gpu in gpus) for use in GpuUse},
        free_whole=sum(used == 0 for used in known),
        free_in_parts=sum(1 - used for used in known if 0 < used < 1),
        uncertain=len(may_take) - len(known),
    )


def role_of(vm: Vm, policy: Policy | None) -> VmRole:
    """By the policy's pools and queue, and for what is in neither by its devices."""
    if policy is not None:
        if policy.pool_of(vm) is not None:
            return VmRole.DESKTOP
        if entry_of(policy.ml, vm) is not None:
            return VmRole.ML
    series = {name.series for profile in vm.profiles if (name := parse(profile)) is not None}
    if series:
        return VmRole.ML if series == {Series.C} else VmRole.DESKTOP
    return VmRole.WHOLE_GPU if vm.has_passthrough else VmRole.OTHER


class _Rooms:
    """What is free on GPUs, each combination once."""

    def __init__(self) -> None:
        self.records: list[Document] = []
        self._numbers: dict[tuple[tuple[str, int, int | None], ...], int] = {}

    def number(self, free: Free) -> int:
        key = tuple((name, slots.at_least, slots.at_most) for name, slots in free.items() if slots.possible)
        if key not in self._numbers:
            self._numbers[key] = len(self.records)
            self.records.append({name: {"at_least": least, "at_most": most} for name, least, most in key})
        return self._numbers[key]


def _host(view: HostView, fleet: Fleet, rooms: _Rooms) -> Document:
    host = view.host
    states = {state.gpu.address: state for state in gpu_states(host, fleet.inventory, fleet.catalog)}
    return {
        "ref": host.ref,
        "name": host.name,
        "cluster": view.cluster,
        "version": host.version,
        "connected": host.connected,
        "in_maintenance": host.in_maintenance,
        "numa_nodes": [
            {
                "id": node.node.id if node.node else None,
                "gpus": [_gpu(gpu, states[gpu.gpu.address], fleet.catalog, rooms) for gpu in node.gpus],
            }
            for node in view.nodes
        ],
        "vms_not_on_a_gpu": [vm.ref for vm in view.waiting],
    }


def _gpu(view: GpuView, state: GpuState, catalog: Catalog, rooms: _Rooms) -> Document:
    slots = list(_slots(view, state, catalog))
    return {
        "address": str(view.gpu.address),
        "name": view.gpu.name,
        "mode": view.mode,
        "whole": view.whole,
        "takes_vgpus": _takes_vgpus(view),
        "reboot_pending": view.reboot_pending,
        "problems": list(view.gpu.health.problems) if view.gpu.health is not None else None,
        "use": _use(view, state),
        "used": _used(view, state, slots),
        "slots": slots,
        "open_slots": _open_slots(view, state),
        "room": rooms.number(view.free),
    }


def _takes_vgpus(view: GpuView) -> bool | None:
    """Whether vGPUs may run on it as it is set now; None = the host does not tell."""
    if view.whole:
        return False
    return None if view.gpu.graphics_type is None else view.gpu.graphics_type is GraphicsType.SHARED_DIRECT


def _slots(view: GpuView, state: GpuState, catalog: Catalog) -> Iterator[Document]:
    """Each vGPU that runs on the GPU, or may; of a GPU that is given whole, and of VMs nothing more is known of, the
    VMs that hold it."""
    for tenant in state.tenants if not view.whole else ():
        part = gpus_of((tenant.profile,), catalog)
        yield _slot(tenant.vm, tenant.profile, part, tenant.start, certain=tenant.certain)
    told = set() if view.whole else {tenant.vm for tenant in state.tenants}
    for vm in view.holders or ():
        if vm.ref not in told:
            yield _slot(vm.ref, None, 1.0 if view.whole else None, None, certain=True)


def _slot(vm: str, profile: str | None, gpus: float | None, start: int | None, *, certain: bool) -> Document:
    part = None if gpus is None else round(gpus, 4)
    return {"vm": vm, "profile": profile, "gpus": part, "start": start, "certain": certain}


def _use(view: GpuView, state: GpuState) -> GpuUse:
    if view.holders is None or (state.unclear and not view.whole):
        return GpuUse.UNKNOWN
    if not view.holders:
        return GpuUse.FREE
    if view.whole or not any(slots.possible for slots in view.free.values()):
        return GpuUse.FULL
    return GpuUse.PARTLY


def _used(view: GpuView, state: GpuState, slots: list[Document]) -> float | None:
    """The part of the GPU that is held; None = not known."""
    if view.whole:
        return None if view.holders is None else float(bool(view.holders))
    parts: list[float] = [slot["gpus"] for slot in slots if slot["certain"] and slot["gpus"] is not None]
    if view.holders is None or state.unclear or len(parts) < len(slots):
        return None
    return min(round(sum(parts), 4), 1.0)


def _open_slots(view: GpuView, state: GpuState) -> int | None:
    """How many more vGPUs of the one profile surely fit that a GPU in same-size mode is held to; None = of no one."""
    profiles = {tenant.profile for tenant in state.tenants}
    if view.gpu.vgpu_mode is not VgpuMode.SAME_SIZE or len(profiles) != 1:
        return None
    slots = view.free.get(next(iter(profiles)))
    return None if slots is None else slots.at_least


def _vm(vm: Vm, policy: Policy | None) -> Document:
    return {
        "ref": vm.ref,
        "name": vm.name,
        "path": vm.path,
        "power": vm.power,
        "role": role_of(vm, policy),
        "profiles": list(vm.profiles),
    }
