"""The map of a fleet as records: host > NUMA node > GPU > the VMs on it and its free slots, small enough for a page.

It shows the values of `gpuops inventory` (`report/monitoring/fleet_view.py`) and the vGPUs that run on each GPU
(`advise/occupancy.py`). The free slots of a GPU, a range for each of about twenty profiles, are the same for most GPUs
of a fleet: each combination is in `rooms` once, and a GPU has its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any

from gpuops.advise.occupancy import GpuState, gpu_states
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import GraphicsType, VgpuMode
from gpuops.model.devices.vgpu import Series, parse
from gpuops.model.nights.ml_queue import entry_of
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.rotation.ml_queue.team_shares import gpus_of
from gpuops.report.document import DocumentRecord, Ref
from gpuops.report.monitoring.fleet_view import Fleet, Free, GpuView, HostView


class VmRole(StrEnum):
    """The purpose of a VM with a GPU device."""

    DESKTOP = "desktop"
    """In a pool of the policy; outside of pools and queue: with a vGPU of the series A, B or Q."""
    ML = "ml"
    """In the queue of the policy; outside of pools and queue: with vGPUs of the series C (compute) only."""
    WHOLE_GPU = "whole-gpu"
    """In neither, and with a GPU by DirectPath I/O."""
    OTHER = "other"


class GpuUse(StrEnum):
    """How far a GPU is used."""

    FREE = "free"
    """No VM holds it or a part of it."""
    PARTLY = "partly"
    """A VM holds a part of it, and another vGPU fits, or perhaps fits."""
    FULL = "full"
    UNKNOWN = "unknown"
    """The host does not report which VMs hold it."""


class FreeSlotsRecord(DocumentRecord, frozen=True):
    """How many more fit; at_most null = nothing bounds it."""

    at_least: int
    at_most: int | None


class MappedSlotRecord(DocumentRecord, frozen=True):
    """A vGPU that runs on the GPU, or a VM that holds it."""

    vm: Ref
    profile: Annotated[str | None, "null = it holds the GPU whole, or nothing more is known"]
    gpus: Annotated[float | None, "the part of the GPU that it is"]
    start: Annotated[int | None, "where it lies on the GPU, where the host tells"]
    certain: Annotated[bool, "false = it may as well be on another GPU of the host"]


class MappedGpuRecord(DocumentRecord, frozen=True):
    """A GPU, what holds it, and what is free; null = not known."""

    address: Annotated[str, "PCI address"]
    name: str
    mode: Annotated[str, "what it takes now, in a few words"]
    whole: Annotated[bool, "whether it is given to VMs whole, by DirectPath I/O"]
    takes_vgpus: Annotated[bool | None, "whether vGPUs may run on it as it is set now"]
    reboot_pending: bool
    problems: Annotated[list[str] | None, "of its health, as the nvidia-smi of its host reports it; null = unknown"]
    use: GpuUse
    used: Annotated[float | None, "the part of it that is held, 1 = all"]
    slots: list[MappedSlotRecord]
    open_slots: Annotated[int | None, "how many more vGPUs of the one profile fit that it is held to; null = of no one"]
    room: Annotated[int, "its number in `rooms`"]


class MappedNodeRecord(DocumentRecord, frozen=True):
    """The GPUs beside one NUMA node; id null = the host does not tell where they are."""

    id: int | None
    gpus: list[MappedGpuRecord]


class MappedHostRecord(DocumentRecord, frozen=True):
    """A host with its GPUs; null = not known."""

    ref: Ref
    name: str
    cluster: str | None
    version: str | None
    connected: bool | None
    in_maintenance: bool | None
    numa_nodes: list[MappedNodeRecord]
    vms_not_on_a_gpu: Annotated[list[str], "ids of VMs that carry a GPU device and hold none now"]


class MappedVmRecord(DocumentRecord, frozen=True):
    """A VM with a GPU device; null = not known."""

    ref: Ref
    name: str
    path: str | None
    power: PowerState | None
    role: VmRole
    profiles: Annotated[list[str], "of each of its vGPUs"]


class FleetUseRecord(DocumentRecord, frozen=True):
    """How far the GPUs are used; sums over `hosts`."""

    hosts: int
    hosts_without_gpus: int
    gpus: int
    gpus_free: Annotated[int, "no VM holds them or a part of them"]
    gpus_partly: Annotated[int, "held, with room or perhaps room for another vGPU"]
    gpus_full: int
    gpus_unknown: Annotated[int, "the host does not tell who holds them"]
    vms: Annotated[int, "those of `vms`"]
    free_whole_gpus: Annotated[int, "free GPUs that take vGPUs"]
    free_in_parts: Annotated[float, "what is free, in whole GPUs, on GPUs that hold vGPUs"]
    free_not_known_gpus: Annotated[int, "GPUs of which it is not known how much is free for vGPUs"]
    fragmented: Annotated[
        float | None, "the part of what is free that lies on GPUs in use, 1 = all; null = nothing is free"
    ]


def fleet_map(fleet: Fleet, policy: Policy | None) -> dict[str, Any]:
    """Return the keys `rooms`, `hosts` and `vms` of the report, and their sums as `use`."""
    rooms = _Rooms()  # filled by the next line: GPUs with the same free slots share one record
    hosts = [_host_record(view, fleet, rooms) for view in fleet.hosts]
    # VMs of the fleet, and others that hold one of its GPUs
    vms_by_ref = {vm.ref: vm for vm in fleet.vms}
    for view in fleet.hosts:
        vms_by_ref.update({vm.ref: vm for gpu in view.gpus for vm in gpu.holders or ()})
    return {
        "use": _fleet_use(hosts, fleet.hosts_without_gpus, len(vms_by_ref)),
        "rooms": rooms.records,
        "hosts": hosts,
        "vms": [
            MappedVmRecord.from_attributes(vm, role=role_of(vm, policy))
            for vm in sorted(vms_by_ref.values(), key=lambda vm: (vm.name, vm.ref))
        ],
    }


def _fleet_use(hosts: Sequence[MappedHostRecord], hosts_without_gpus: int, vms: int) -> FleetUseRecord:
    """Return the sums of the map's records. `fragmented`: the part of the free GPU capacity on partly used GPUs."""
    gpus = [gpu for host in hosts for node in host.numa_nodes for gpu in node.gpus]
    # None = it is unknown whether the GPU takes vGPUs
    may_take = [gpu for gpu in gpus if gpu.takes_vgpus is not False]
    # the used part, 0 to 1, of each GPU that takes vGPUs and whose use is known
    used_parts = [gpu.used for gpu in may_take if gpu.takes_vgpus and gpu.used is not None]
    free_whole = sum(used == 0 for used in used_parts)
    free_in_parts = sum(1 - used for used in used_parts if 0 < used < 1)
    free = free_whole + free_in_parts
    return FleetUseRecord.from_attributes(
        hosts=len(hosts),
        hosts_without_gpus=hosts_without_gpus,
        gpus=len(gpus),
        vms=vms,
        free_whole_gpus=free_whole,
        free_in_parts=round(free_in_parts, 4),
        free_not_known_gpus=len(may_take) - len(used_parts),
        fragmented=round(free_in_parts / free, 4) if free else None,
        **{f"gpus_{use.value}": sum(gpu.use == use for gpu in gpus) for use in GpuUse},
    )


def role_of(vm: Vm, policy: Policy | None) -> VmRole:
    """Return the role of a VM by the policy's pools and queue, or else by its devices."""
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
    """The free slots of GPUs, each combination once."""

    def __init__(self) -> None:
        self.records: list[dict[str, FreeSlotsRecord]] = []
        self._numbers: dict[tuple[tuple[str, int, int | None], ...], int] = {}

    def number_of(self, free: Free) -> int:
        """Return the number of this combination in `records`, and add it if it is new."""
        key = tuple((name, slots.at_least, slots.at_most) for name, slots in free.items() if slots.possible)
        if key not in self._numbers:
            self._numbers[key] = len(self.records)
            self.records.append({name: FreeSlotsRecord(least, most) for name, least, most in key})
        return self._numbers[key]


def _host_record(view: HostView, fleet: Fleet, rooms: _Rooms) -> MappedHostRecord:
    states = {state.gpu.address: state for state in gpu_states(view.host, fleet.inventory, fleet.catalog)}
    nodes = [
        MappedNodeRecord(
            node.node.id if node.node else None,
            [_gpu_record(gpu, states[gpu.gpu.address], fleet.catalog, rooms) for gpu in node.gpus],
        )
        for node in view.nodes
    ]
    waiting = [vm.ref for vm in view.waiting]
    return MappedHostRecord.from_attributes(view.host, cluster=view.cluster, numa_nodes=nodes, vms_not_on_a_gpu=waiting)


def _gpu_record(view: GpuView, state: GpuState, catalog: Catalog, rooms: _Rooms) -> MappedGpuRecord:
    """Return the record of a GPU. Its `room` is the number of its free slots in `rooms`, to which they are added."""
    slots = list(_slot_records(view, state, catalog))
    return MappedGpuRecord.from_attributes(
        view,
        view.gpu,
        takes_vgpus=_takes_vgpus(view),
        problems=view.gpu.health.problems if view.gpu.health is not None else None,
        use=_gpu_use(view, state),
        used=_used_part(view, state, slots),
        slots=slots,
        open_slots=_open_slots(view, state),
        room=rooms.number_of(view.free),
    )


def _takes_vgpus(view: GpuView) -> bool | None:
    """Return whether vGPUs may run on the GPU with its present settings. None: the host does not report them."""
    if view.whole:
        return False
    return None if view.gpu.graphics_type is None else view.gpu.graphics_type is GraphicsType.SHARED_DIRECT


def _slot_records(view: GpuView, state: GpuState, catalog: Catalog) -> Iterator[MappedSlotRecord]:
    """Yield each vGPU that runs on the GPU, or may run there, and each other VM that holds the GPU.

    A GPU in DirectPath I/O (`view.whole`) has no vGPUs, only a VM that holds it.
    """
    for tenant in state.tenants if not view.whole else ():
        part = gpus_of((tenant.profile,), catalog)
        yield _slot(tenant.vm, tenant.profile, part, tenant.start, certain=tenant.certain)
    tenant_vms = set() if view.whole else {tenant.vm for tenant in state.tenants}
    for vm in view.holders or ():
        if vm.ref not in tenant_vms:
            yield _slot(vm.ref, None, 1.0 if view.whole else None, None, certain=True)


def _slot(vm: str, profile: str | None, gpus: float | None, start: int | None, *, certain: bool) -> MappedSlotRecord:
    part = None if gpus is None else round(gpus, 4)
    return MappedSlotRecord(vm, profile, part, start, certain)


def _gpu_use(view: GpuView, state: GpuState) -> GpuUse:
    if view.holders is None or (state.unclear and not view.whole):
        return GpuUse.UNKNOWN
    if not view.holders:
        return GpuUse.FREE
    if view.whole or not any(slots.possible for slots in view.free.values()):
        return GpuUse.FULL
    return GpuUse.PARTLY


def _used_part(view: GpuView, state: GpuState, slots: list[MappedSlotRecord]) -> float | None:
    """Return the part of the GPU that is in use; None if it is not known."""
    if view.whole:
        return None if view.holders is None else float(bool(view.holders))
    parts: list[float] = [slot.gpus for slot in slots if slot.certain and slot.gpus is not None]
    if view.holders is None or state.unclear or len(parts) < len(slots):
        return None
    return min(round(sum(parts), 4), 1.0)


def _open_slots(view: GpuView, state: GpuState) -> int | None:
    """Return how many more vGPUs certainly fit on a GPU in same-size mode, which takes only one profile.

    None in other modes, or while the profile is not known because no vGPU runs on it.
    """
    profiles = {tenant.profile for tenant in state.tenants}
    if view.gpu.vgpu_mode is not VgpuMode.SAME_SIZE or len(profiles) != 1:
        return None
    slots = view.free.get(next(iter(profiles)))
    return None if slots is None else slots.at_least
