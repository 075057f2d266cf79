"""The free capacity for a vGPU type, a device group or whole devices in a cluster or on a host, and whether it still
covers the reservations after a VM has started.

A VM for which nothing is reserved starts only where the unused units of every reservation still have room afterwards
(vSphere API, CapacityInfo.unusedReservation). Not documented, and chosen here: a start that takes nothing from a
reservation is admitted although that has too little room already; the fault is that of a GPU without room; a host
counts as reserved what the other hosts of its cluster have no room for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID
from gpuops.sim.inventory import faults
from gpuops.sim.render.pci import offered_groups
from gpuops.sim.state.direct_path import DirectPathConfig, ReservationState, count_more_vgpus
from gpuops.sim.state.gpu_admission import NotAdmitted, WantedVgpu, admit
from gpuops.sim.state.host_state import OtherHostDevice

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import HostEntity, VmEntity
    from gpuops.sim.state.gpu_admission import RunningVgpu
    from gpuops.sim.state.host_state import HostGpu, HostState


@dataclass(frozen=True, slots=True)
class TypeCapacity:
    """DirectPathProfileManagerCapacityInfo of one configuration in one place."""

    consumed: int
    remaining: int
    max: int
    unused_reservation: int


@dataclass(frozen=True, slots=True)
class HostLoad:
    """The GPU resources of one host that VMs use: vGPUs, passthrough devices and device groups."""

    seats: tuple[RunningVgpu, ...] = ()
    held: tuple[tuple[str, str], ...] = ()
    """(moid of the VM, PCI id)."""
    groups: tuple[tuple[str, str], ...] = ()
    """(moid of the VM, name of its device group)."""

    def without(self, vm: str) -> HostLoad:
        return HostLoad(
            tuple(seat for seat in self.seats if seat.vm != vm),
            tuple(holder for holder in self.held if holder[0] != vm),
            tuple(holder for holder in self.groups if holder[0] != vm),
        )


_NO_LOAD: Final = HostLoad()


def current_load(host: HostEntity) -> HostLoad:
    """Return the GPU resources of the host that its running VMs use now."""
    running = host.running_vms()
    held_devices = tuple((vm.moid, pci_id) for vm in running for _, pci_id in vm.state.held)
    return HostLoad(host.seats(), held_devices, tuple((vm.moid, name) for vm in running for _, name in vm.state.groups))


def capacity(
    config: DirectPathConfig, hosts: Sequence[HostEntity], reservations: Iterable[ReservationState]
) -> TypeCapacity:
    """Return the used, free and total units of a DirectPath configuration on these hosts.

    `reservations` are those of their cluster; `unused_reservation` counts reserved units that no VM uses.
    """
    loads = {host.moid: current_load(host) for host in hosts}
    unused = sum(
        _count_unused_units(reservation, hosts, loads) for reservation in reservations if reservation.config == config
    )
    return TypeCapacity(
        consumed=sum(len(_using_vms(config, host, loads[host.moid])) for host in hosts),
        remaining=sum(_free_units(config, host, loads[host.moid]) for host in hosts),
        max=sum(_free_units(config, host, _NO_LOAD) for host in hosts),
        unused_reservation=unused,
    )


def capacity_at_host(
    config: DirectPathConfig, host: HostEntity, other_hosts: list[HostEntity], reservations: list[ReservationState]
) -> TypeCapacity:
    """Return the units of a configuration on one host of a cluster.

    Of the cluster's unused reservations, only those that its other hosts have no room for count at this host.
    """
    own = capacity(config, [host], ())
    unused = capacity(config, [host, *other_hosts], reservations).unused_reservation
    free_elsewhere = sum(_free_units(config, other_host, current_load(other_host)) for other_host in other_hosts)
    reserved = max(0, min(own.remaining, unused - free_elsewhere))
    return TypeCapacity(own.consumed, own.remaining, own.max, reserved)


def refuse_over_reservations(
    vm: VmEntity, host: HostEntity, seats: tuple[RunningVgpu, ...], held_pci_ids: Iterable[str]
) -> None:
    """Raises InsufficientGraphicsResourcesFault if starting the VM on the host with these vGPUs and whole devices (PCI
    ids) would take capacity that is reserved for other VMs."""
    compute = host.compute_resource()
    reservations = [reservation for reservation in _reservations(vm) if reservation.place == compute.moid]
    if not reservations:
        return
    hosts = [usable_host for usable_host in compute.hosts() if usable_host.state.usable]
    before = {usable_host.moid: current_load(usable_host) for usable_host in hosts}
    after = {moid: host_load.without(vm.moid) for moid, host_load in before.items()}
    load_without_vm = after.get(host.moid, _NO_LOAD)
    after[host.moid] = HostLoad(
        (*load_without_vm.seats, *seats),
        (*load_without_vm.held, *((vm.moid, pci_id) for pci_id in held_pci_ids)),
        (*load_without_vm.groups, *((vm.moid, name) for _, name in vm.state.groups)),
    )
    for reservation in reservations:
        margin_after, margin_before = (_margin(reservation, hosts, loads) for loads in (after, before))
        # a negative margin is the number of reserved units for which there is no room
        if margin_after < min(0, margin_before):  # a margin that was negative before must only not get worse
            missing = f"{-margin_after} of {reservation.units} {reservation.config} that are reserved in {compute.name}"
            raise faults.no_graphics(f"{missing} would have no room left")


def _reservations(vm: VmEntity) -> tuple[ReservationState, ...]:
    state: Any = vm.world
    reservations: tuple[ReservationState, ...] = state.direct_path.reservations
    return reservations


def _margin(reservation: ReservationState, hosts: Sequence[HostEntity], loads: Mapping[str, HostLoad]) -> int:
    """Return the free units minus the reserved units that are not used yet; negative = units are missing."""
    remaining = sum(_free_units(reservation.config, host, loads[host.moid]) for host in hosts)
    return remaining - _count_unused_units(reservation, hosts, loads)


def _count_unused_units(
    reservation: ReservationState, hosts: Sequence[HostEntity], loads: Mapping[str, HostLoad]
) -> int:
    if not hosts:
        return reservation.units
    find = hosts[0].world.find
    vms = (find(vm) for host in hosts for vm in _using_vms(reservation.config, host, loads[host.moid]))
    used = sum(vm is not None and reservation.is_for(vm.display_name) for vm in vms)
    return max(0, reservation.units - used)


def _using_vms(config: DirectPathConfig, host: HostEntity, load: HostLoad) -> list[str]:
    """Return the VM (moid) of each used unit of the configuration on the host."""
    if config.vgpu:
        return [seat.vm for seat in load.seats if seat.type.name == config.vgpu]
    if config.group:
        return [vm for vm, name in load.groups if name == config.group]
    matching_pci_ids = {gpu.pci_id for gpu in _devices(config, host.state)}
    return [vm for vm, pci_id in load.held if pci_id in matching_pci_ids]


def _free_units(config: DirectPathConfig, host: HostEntity, load: HostLoad) -> int:
    """Return how many more units of the configuration the host has room for."""
    if not host.state.usable:
        return 0
    if config.vgpu:
        return count_more_vgpus(config.vgpu, host.state.for_admission(load.seats))
    if config.group:
        return _free_groups(config.group, host.state, load)
    held_pci_ids = {pci_id for _, pci_id in load.held}
    return sum(gpu.pci_id not in held_pci_ids for gpu in _devices(config, host.state))


def _devices(config: DirectPathConfig, host: HostState) -> list[HostGpu | OtherHostDevice]:
    """Return the host's passthrough devices that the configuration allows, in use or not."""
    return [device for device in host.devices if is_device_of(config, device)]


def is_device_of(config: DirectPathConfig, device: HostGpu | OtherHostDevice) -> bool:
    """Return whether passthrough is active for the device and the configuration allows it."""
    ids = (
        (device.vendor_id, device.device_id)
        if isinstance(device, OtherHostDevice)
        else (NVIDIA_VENDOR_ID, device.board.device_id)
    )
    return ids in config.devices and config.label in (None, device.label) and device.passthrough_active


def _free_groups(name: str, host: HostState, load: HostLoad) -> int:
    """Return how many more device groups of this name can start; each set of NVLink-connected GPUs takes one."""
    profiles = next((group.profiles for group in offered_groups(host) if group.name == name), ())
    if not profiles:
        return 0
    gpus, wishes = host.for_admission(load.seats), [WantedVgpu(profile) for profile in profiles]
    pools = [{gpu.pci_id for gpu in joined} for joined in host.nvlink_sets().values()]
    return sum(
        not isinstance(admit("", wishes, [gpu for gpu in gpus if gpu.pci_id in ids], host.policy), NotAdmitted)
        for ids in pools
    )
