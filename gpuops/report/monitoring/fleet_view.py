"""Views of one inventory for `gpuops inventory` and Ansible: hosts, NUMA nodes, GPUs, their holders, free room.

Text and JSON are two renderings of these values, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from gpuops.advise.capacity import Slots, total_slots
from gpuops.advise.occupancy import GpuState, Rooms, gpu_states
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import GraphicsType, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.devices.vgpu import resolve
from gpuops.model.vcenter.host import Host, NumaNode
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import (
    DirectPathDevice,
    DynamicDevice,
    PowerState,
    Vm,
    is_gpu,
    is_other_device,
    is_unreadable,
)
from gpuops.plan.core.scope import Scope, cluster_name

POWER_WORDS: Final[Mapping[PowerState | None, str]] = {
    PowerState.ON: "on",
    PowerState.OFF: "off",
    PowerState.SUSPENDED: "suspended",
    None: "power unknown",
}
Free = Mapping[str, Slots]
"""Room for more vGPUs, by profile."""


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU: its mode, its holders and its free room."""

    gpu: PhysicalGpu
    mode: str
    reboot_pending: bool
    holders: tuple[Vm, ...] | None
    """None if the host does not report them."""
    free: Free

    @property
    def whole(self) -> bool:
        """Return whether the GPU is given to VMs as a complete device, so that no vGPU has room on it."""
        return self.gpu.passthrough is not None and self.gpu.passthrough.active


@dataclass(frozen=True, slots=True)
class OtherView:
    """One device that is not an NVIDIA GPU: its mode and its holders."""

    device: OtherDevice
    mode: str
    reboot_pending: bool
    holders: tuple[Vm, ...]


@dataclass(frozen=True, slots=True)
class NodeView:
    """The GPUs of one NUMA node; `node` None = the host does not report where they are."""

    node: NumaNode | None
    gpus: tuple[GpuView, ...]


@dataclass(frozen=True, slots=True)
class HostView:
    """One host with GPUs."""

    host: Host
    cluster: str | None
    nodes: tuple[NodeView, ...]
    free: Free
    """The sum over all of its GPUs."""
    waiting: tuple[Vm, ...]
    """VMs registered here that have a GPU device but hold none now: off or suspended."""
    others: tuple[OtherView, ...] = ()
    """Its devices that are not NVIDIA GPUs: those in VMs, and those set to DirectPath I/O."""

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        return tuple(view for node in self.nodes for view in node.gpus)


@dataclass(frozen=True, slots=True)
class FleetFilters:
    """Which part of a fleet is shown. All filters hold at once; without any, the complete fleet is shown."""

    cluster: str | None = None
    """Hosts of this cluster (its name or id; where several share the name, all of them), and the VMs on them."""
    host: str | None = None
    """This host (its name, the first label of it, or its id), and the VMs on it."""
    profile: str | None = None
    """Hosts that offer this vGPU profile, with its room only, and VMs that have it."""
    holder: str | None = None
    """This VM, the host that it is on, and the GPUs that it holds now."""
    free: bool = False
    """GPUs with room, or perhaps room, for another vGPU (of `profile`), and GPUs in DirectPath I/O that no VM holds;
    the VMs on their hosts."""


@dataclass(frozen=True)
class Fleet:
    """The hosts that match the filters, with and without GPUs.

    Not slotted: the views of a thousand hosts are made when they are first read.
    """

    inventory: Inventory
    catalog: Catalog
    filters: FleetFilters
    profile: str | None
    """The full name of the profile in the filters."""
    holder: Vm | None
    scoped_hosts: tuple[Host, ...]
    """The hosts that match the cluster, host and holder filters, by name, with GPUs or without."""

    @property
    def gpu_hosts(self) -> tuple[Host, ...]:
        """Return the hosts with GPUs, without computing the free room on them."""
        return tuple(
            host for host in self.scoped_hosts if host.gpus and (self.profile is None or host.offers(self.profile))
        )

    @property
    def hosts_without_gpus(self) -> int:
        """Return the number of hosts without GPUs."""
        return sum(not host.gpus for host in self.scoped_hosts)

    @cached_property
    def hosts(self) -> tuple[HostView, ...]:
        """Return a view of each host with the GPUs that match; with `free`, only hosts that have one with room."""
        views = (_host_view(host, self) for host in self.gpu_hosts)
        return tuple(view for view in views if view.nodes or view.others or not self.filters.free)

    @cached_property
    def device_hosts(self) -> tuple[HostView, ...]:
        """Return views of the hosts without GPUs that give VMs other devices."""
        hosts = (host for host in self.scoped_hosts if not host.gpus and host.gives_others and self.profile is None)
        views = (_host_view(host, self) for host in hosts)
        return tuple(view for view in views if view.others or not self.filters.free)

    @property
    def host_count(self) -> int:
        """Return the length of `hosts`, without computing free room where that is not needed."""
        return len(self.hosts) if self.filters.free else len(self.gpu_hosts)

    @cached_property
    def rooms(self) -> Rooms:
        """Return the cache of free room by GPU state."""
        return Rooms(self.catalog)

    @cached_property
    def vms(self) -> tuple[Vm, ...]:
        """Return the VMs that have a GPU device, by path."""
        return tuple(vm for vm in self.vms_with_devices if any(map(is_gpu, vm.devices or ())))

    @cached_property
    def vms_with_devices(self) -> tuple[Vm, ...]:
        """Return the VMs that have a GPU device or another complete PCI device, by path."""
        vms: Iterable[Vm] = self.inventory.vms.values() if self.holder is None else (self.holder,)
        vms = [vm for vm in vms if _has_device(vm) and (self.profile is None or self.profile in vm.profiles)]
        if self.filters.free:
            roomy_refs = {view.host.ref for view in (*self.hosts, *self.device_hosts)}
            vms = [vm for vm in vms if vm.host in roomy_refs]
        elif self.filters.host is not None or self.filters.cluster is not None:
            scoped_refs = {host.ref for host in self.scoped_hosts}
            vms = [vm for vm in vms if vm.host in scoped_refs]
        return tuple(sorted(vms, key=lambda vm: vm.path or vm.name))


def fleet(inventory: Inventory, catalog: Catalog, filters: FleetFilters | None = None) -> Fleet:
    """Return a view of the inventory, or of the part that matches the filters.

    Raises UsageError for an unknown cluster, HostNotFound, VmNotFound, VmAmbiguous, ProfileUnknown, ProfileAmbiguous.
    """
    filters = filters or FleetFilters()
    scope = Scope(cluster=filters.cluster)
    scope.check(inventory)
    named_host = inventory.find_host(filters.host) if filters.host is not None else None
    profile = resolve(filters.profile, inventory.offered_profiles) if filters.profile is not None else None
    holder = inventory.find_vm(filters.holder) if filters.holder is not None else None
    hosts = (
        host
        for host in ([named_host] if named_host is not None else inventory.hosts.values())
        if scope.outside(host, inventory) is None and (holder is None or holder.host == host.ref)
    )
    hosts_by_name = tuple(sorted(hosts, key=lambda host: host.name))
    return Fleet(inventory, catalog, filters, profile, holder, hosts_by_name)


def mode(gpu: PhysicalGpu) -> str:
    """Return the mode of a GPU in a few words."""
    if gpu.passthrough is not None and gpu.passthrough.active:
        return f"DirectPath I/O, label {gpu.passthrough.label}" if gpu.passthrough.label else "DirectPath I/O"
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


def mode_of_other(device: OtherDevice) -> str:
    """Return the mode of another device in a few words."""
    state = device.passthrough
    if state is None:
        return "unknown"
    if state.active:
        return f"DirectPath I/O, label {state.label}" if state.label else "DirectPath I/O"
    return "not passed through"


def holders_of_other(device: OtherDevice, host: Host, inventory: Inventory) -> tuple[Vm, ...]:
    """Return the VM that has the device now, or ()."""
    return _vms_with(device.address, host, inventory)


def reboot_pending(gpu: PhysicalGpu) -> bool:
    """Return whether a configured mode (DirectPath I/O or graphics type) is not in force yet."""
    is_passthrough_pending = gpu.passthrough is not None and gpu.passthrough.reboot_pending
    is_graphics_type_known = gpu.configured_graphics_type is not None and gpu.graphics_type is not None
    return is_passthrough_pending or (is_graphics_type_known and gpu.configured_graphics_type is not gpu.graphics_type)


def holders(gpu: PhysicalGpu, host: Host, inventory: Inventory) -> tuple[Vm, ...] | None:
    """Return the VMs on a GPU now, by vGPU or by DirectPath I/O; None if the host does not report them."""
    vms = _vms_with(gpu.address, host, inventory, gpu.vms or ())
    if not vms and gpu.vms is None and not (gpu.passthrough and gpu.passthrough.active):
        return None
    return vms


def _vms_with(address: PciAddress, host: Host, inventory: Inventory, listed: Iterable[str] = ()) -> tuple[Vm, ...]:
    """Return the VMs that hold a device: by the host's bindings, by their own running devices, or by `listed`."""
    refs = set(listed)
    refs |= {binding.vm for binding in host.bindings if binding.address == address}
    refs |= {vm.ref for vm in inventory.vms_on(host) if vm.power is PowerState.ON and address in _passed_addresses(vm)}
    vms = (inventory.vms.get(ref) or Vm(ref, ref) for ref in refs)
    return tuple(sorted(vms, key=lambda vm: vm.name))


def _host_view(host: Host, fleet: Fleet) -> HostView:
    """Return the view of a host: its GPUs by NUMA node and its other devices, as far as they match the filters."""
    inventory = fleet.inventory
    offered = tuple(offer.name for offer in host.profiles or () if fleet.profile in (None, offer.name))
    states = gpu_states(host, inventory, fleet.catalog)
    gpus = [view for state in states if _matches_filters(view := _gpu_view(state, offered, host, fleet), fleet)]
    nodes = [NodeView(node, tuple(view for view in gpus if view.gpu.numa_node == node.id)) for node in host.numa_nodes]
    node_ids = {node.id for node in host.numa_nodes}
    # GPUs whose NUMA node is unknown, or not a node of the host, form a group without a node
    elsewhere = tuple(view for view in gpus if view.gpu.numa_node not in node_ids)
    return HostView(
        host=host,
        cluster=cluster_name(host, inventory),
        nodes=(*(node for node in nodes if node.gpus), *((NodeView(None, elsewhere),) if elsewhere else ())),
        free=_sum_by_profile(view.free for view in gpus),
        waiting=_waiting(host, fleet, gpus),
        others=tuple(
            device_view
            for device in host.others
            if _other_matches_filters(device_view := _view_of_other_device(device, host, inventory), fleet)
        ),
    )


def _other_matches_filters(view: OtherView, fleet: Fleet) -> bool:
    if fleet.profile is not None:
        return False
    if fleet.holder is not None and fleet.holder.ref not in {vm.ref for vm in view.holders}:
        return False
    state = view.device.passthrough
    return not fleet.filters.free or (state is not None and state.active and not view.holders)


def _view_of_other_device(device: OtherDevice, host: Host, inventory: Inventory) -> OtherView:
    pending = device.passthrough is not None and device.passthrough.reboot_pending
    return OtherView(device, mode_of_other(device), pending, holders_of_other(device, host, inventory))


def _matches_filters(view: GpuView, fleet: Fleet) -> bool:
    if fleet.holder is not None and fleet.holder.ref not in {vm.ref for vm in view.holders or ()}:
        return False
    if not fleet.filters.free:
        return True
    if view.whole:
        return view.holders == () and fleet.profile is None
    return any(slots.possible for slots in view.free.values())


def _waiting(host: Host, fleet: Fleet, gpus: Sequence[GpuView]) -> tuple[Vm, ...]:
    """Return the VMs registered on a host that have a GPU device but hold none of its devices now."""
    registered_vms = fleet.inventory.vms_on(host)
    if fleet.holder is not None:
        registered_vms = tuple(vm for vm in registered_vms if vm.ref == fleet.holder.ref)
    visible_addresses = {view.gpu.address for view in gpus}
    holder_refs = {vm.ref for view in gpus for vm in view.holders or ()}
    holder_refs |= {vm.ref for device in host.others for vm in holders_of_other(device, host, fleet.inventory)}
    # a VM that holds a GPU which the filters hide does not wait either
    for gpu in host.gpus if registered_vms else ():
        if gpu.address not in visible_addresses:
            holder_refs |= {vm.ref for vm in holders(gpu, host, fleet.inventory) or ()}
    return tuple(vm for vm in registered_vms if _has_device(vm) and vm.ref not in holder_refs)


def _gpu_view(state: GpuState, offered: tuple[str, ...], host: Host, fleet: Fleet) -> GpuView:
    gpu, free = state.gpu, fleet.rooms.on_if_full(state, offered)
    return GpuView(gpu, mode(gpu), reboot_pending(gpu), holders(gpu, host, fleet.inventory), free)


def _sum_by_profile(figures: Iterable[Free]) -> Free:
    """Return the sum of the free room of several GPUs, by profile."""
    rooms: dict[str, list[Slots]] = {}
    for free in figures:
        for name, slots in free.items():
            rooms.setdefault(name, []).append(slots)
    return {name: total_slots(rooms[name]) for name in sorted(rooms)}


def _has_device(vm: Vm) -> bool:
    """Return whether a VM has a GPU device, another complete PCI device, or a device that cannot be read."""
    return any(is_gpu(device) or is_other_device(device) or is_unreadable(device) for device in vm.devices or ())


def _passed_addresses(vm: Vm) -> set[PciAddress]:
    """Return the PCI addresses that a VM's DirectPath devices name."""
    devices = vm.devices or ()
    static = {device.address for device in devices if isinstance(device, DirectPathDevice)}
    assigned = {device.assigned for device in devices if isinstance(device, DynamicDevice)}
    return static | {address for address in assigned if address is not None}
