"""One inventory arranged for `gpuops inventory` and Ansible: host, NUMA node, GPU, who holds it, what is still free.

Text and JSON are two renderings of these values, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuops.advise.capacity import Slots, total
from gpuops.advise.occupancy import GpuState, gpu_states, may_run
from gpuops.advise.room import room_for
from gpuops.model.catalog import Catalog
from gpuops.model.gpu import GraphicsType, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.host import Host, NumaNode
from gpuops.model.inventory import Inventory
from gpuops.model.profile_name import resolve
from gpuops.model.vm import DirectPathDevice, DynamicDevice, PowerState, Vm
from gpuops.plan.core.device_signature import is_gpu
from gpuops.report.text import visible

Free = Mapping[str, Slots]
"""Room for more vGPUs, by profile."""


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU: what it takes, who holds it, what is free."""

    gpu: PhysicalGpu
    mode: str
    reboot_pending: bool
    holders: tuple[Vm, ...] | None
    """None = the host does not tell."""
    free: Free

    @property
    def whole(self) -> bool:
        """Given to VMs as a whole device, so that no vGPU has room on it."""
        return self.gpu.passthrough is not None and self.gpu.passthrough.active


@dataclass(frozen=True, slots=True)
class NodeView:
    """The GPUs beside one NUMA node; `node` None = the host does not tell where they are."""

    node: NumaNode | None
    gpus: tuple[GpuView, ...]


@dataclass(frozen=True, slots=True)
class HostView:
    """One host with GPUs."""

    host: Host
    cluster: str | None
    nodes: tuple[NodeView, ...]
    free: Free
    """Over all of its GPUs."""
    waiting: tuple[Vm, ...]
    """VMs registered here that carry a GPU device and hold none now: off or suspended."""

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        return tuple(view for node in self.nodes for view in node.gpus)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All hosts with GPUs, and how many have none."""

    inventory: Inventory
    hosts: tuple[HostView, ...]
    hosts_without_gpus: int
    vms: tuple[Vm, ...]
    """Those that carry a GPU device, by path."""


def fleet(inventory: Inventory, catalog: Catalog, *, host: str | None = None, profile: str | None = None) -> Fleet:
    """The snapshot arranged; with `host` only that one, with `profile` only hosts that offer it, and its figures.

    Raises HostNotFound, ProfileUnknown, ProfileAmbiguous.
    """
    one = inventory.find_host(host) if host is not None else None
    name = resolve(profile, inventory.offered_profiles) if profile is not None else None
    wanted = [one] if one is not None else sorted(inventory.hosts.values(), key=lambda host: host.name)
    with_gpus = [host for host in wanted if host.gpus and (name is None or host.offers(name))]
    return Fleet(
        inventory,
        hosts=tuple(_host(host, inventory, catalog, name) for host in with_gpus),
        hosts_without_gpus=sum(not host.gpus for host in wanted),
        vms=_gpu_vms(inventory, one, name),
    )


def _gpu_vms(inventory: Inventory, host: Host | None, profile: str | None) -> tuple[Vm, ...]:
    found = [
        vm
        for vm in inventory.vms.values()
        if _gpu_devices(vm) and (host is None or vm.host == host.ref) and (profile is None or profile in vm.profiles)
    ]
    return tuple(sorted(found, key=lambda vm: vm.path or vm.name))


def mode(gpu: PhysicalGpu) -> str:
    """What the GPU takes now, in a few words."""
    if gpu.passthrough is not None and gpu.passthrough.active:
        return f"DirectPath I/O, label {visible(gpu.passthrough.label)}" if gpu.passthrough.label else "DirectPath I/O"
    match gpu.graphics_type:
        case GraphicsType.SHARED_DIRECT:
            return _SHARED_DIRECT[gpu.vgpu_mode]
        case GraphicsType.SHARED:
            return "shared (vSGA)"
        case GraphicsType.BASIC:
            return "basic graphics"
        case GraphicsType.DIRECT:
            return "direct"
        case None:
            return "unknown"


_SHARED_DIRECT: Mapping[VgpuMode | None, str] = {
    VgpuMode.NONE: "vGPU, empty",
    VgpuMode.SAME_SIZE: "vGPU, same size",
    VgpuMode.MIXED_SIZE: "vGPU, mixed size",
    VgpuMode.MULTI_INSTANCE: "vGPU, MIG",
    None: "vGPU",
}


def reboot_pending(gpu: PhysicalGpu) -> bool:
    """Whether what is configured is not yet in force (passthrough, or the graphics type)."""
    passthrough = gpu.passthrough is not None and gpu.passthrough.reboot_pending
    known = gpu.configured_graphics_type is not None and gpu.graphics_type is not None
    return passthrough or (known and gpu.configured_graphics_type is not gpu.graphics_type)


def holders(gpu: PhysicalGpu, host: Host, inventory: Inventory) -> tuple[Vm, ...] | None:
    """The VMs on a GPU now, by vGPU or by DirectPath; None = the host does not tell."""
    refs = set(gpu.vms or ())
    refs |= {binding.vm for binding in host.bindings if binding.address == gpu.address}
    refs |= {vm.ref for vm in inventory.vms_on(host) if vm.power is PowerState.ON and gpu.address in _direct(vm)}
    if not refs and gpu.vms is None and not (gpu.passthrough and gpu.passthrough.active):
        return None
    found = (inventory.vms.get(ref) or Vm(ref, ref) for ref in refs)
    return tuple(sorted(found, key=lambda vm: vm.name))


def _host(host: Host, inventory: Inventory, catalog: Catalog, profile: str | None) -> HostView:
    offered = [offer.name for offer in host.profiles or () if profile in (None, offer.name)]
    gpus = [_gpu(state, offered, host, inventory, catalog) for state in gpu_states(host, inventory, catalog)]
    nodes = [NodeView(node, tuple(view for view in gpus if view.gpu.numa_node == node.id)) for node in host.numa_nodes]
    known = {node.id for node in host.numa_nodes}
    elsewhere = tuple(view for view in gpus if view.gpu.numa_node not in known)
    holding = {vm.ref for view in gpus for vm in view.holders or ()}
    cluster = inventory.clusters.get(host.cluster) if host.cluster else None
    return HostView(
        host=host,
        cluster=cluster.name if cluster else None,
        nodes=(*(node for node in nodes if node.gpus), *((NodeView(None, elsewhere),) if elsewhere else ())),
        free=_total(view.free for view in gpus),
        waiting=tuple(vm for vm in inventory.vms_on(host) if _gpu_devices(vm) and vm.ref not in holding),
    )


def _gpu(state: GpuState, offered: Iterable[str], host: Host, inventory: Inventory, catalog: Catalog) -> GpuView:
    gpu = state.gpu
    free = {name: room_for(state, name, catalog) for name in offered if may_run(gpu, name, catalog) is not False}
    return GpuView(gpu, mode(gpu), reboot_pending(gpu), holders(gpu, host, inventory), free)


def _total(figures: Iterable[Free]) -> Free:
    rooms: dict[str, list[Slots]] = {}
    for free in figures:
        for name, slots in free.items():
            rooms.setdefault(name, []).append(slots)
    return {name: total(rooms[name]) for name in sorted(rooms)}


def _gpu_devices(vm: Vm) -> bool:
    return any(is_gpu(device) for device in vm.devices or ())


def _direct(vm: Vm) -> set[PciAddress]:
    return {
        address
        for device in vm.devices or ()
        if isinstance(device, DirectPathDevice | DynamicDevice)
        and (address := device.address if isinstance(device, DirectPathDevice) else device.assigned) is not None
    }
