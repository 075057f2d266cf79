"""The room of all or some hosts, now and after a night's suspends, less what vCenter reserves for other VMs.

`gpuops capacity` uses it. Room is counted per cluster, and per host for hosts outside clusters.

vCenter 9.0 reserves slots of one profile. Such a reservation also takes room of the other profiles that its GPUs run.
To find how much of theirs surely remains, GPUs are set aside for the reservation until it has enough slots, first the
GPUs where that costs the other profile the least.

Example: 6 slots of 8 GB are reserved. One GPU has 6 of them free; another has 4 free beside two running vGPUs. Of a
profile of half a GPU, 2 fit on the first GPU and none on the second. The second is set aside first, at no cost. 2 slots
are still missing, so the first is set aside too, and none of the profile surely remains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from gpuops.advise.capacity import Slots
from gpuops.advise.fragmentation import Fragmentation, measure_fragmentation
from gpuops.advise.occupancy import GpuState, Rooms, gpu_states
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import DeviceCapacity, Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.capacity.fleet_room import Device, Fit, FleetPart, HostRoom, Level, fleet_part
from gpuops.plan.core.command_line import Names, Option
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import SuspendVm
from gpuops.plan.devices.goal import offered_profile
from gpuops.plan.placement.keep_free import devices_reserved_in, remaining, reserved_in, reserved_unknown
from gpuops.plan.placement.project import project
from gpuops.plan.placement.seating import reduced_to_host

_NO_SLOTS: Final = Slots(0, 0)


def without_reserved(part: FleetPart, hosts: Sequence[Host], inventory: Inventory, catalog: Catalog) -> FleetPart:
    """Return the room of these hosts without what vCenter reserves for other VMs."""
    any_host = hosts[0]  # vCenter reserves for a cluster, or for a host outside of clusters: any host names the place
    unknown = reserved_unknown(any_host, inventory)
    if unknown is not None:
        doubted = {name: replace(fit, slots=fit.slots.as_doubtful(unknown)) for name, fit in part.fits.items()}
        devices = {device: room.as_doubtful(unknown) for device, room in part.devices.items()}
        return replace(part, fits=doubted, devices=devices, notes=(*part.notes, unknown))
    states = [state for host in hosts for state in gpu_states(host, inventory, catalog)]
    rooms = Rooms(catalog)
    for reservation in reserved_in(any_host, inventory):
        reserved_profile, reserved = reservation.profile, reservation.unused_reservation
        free_by_vcenter = remaining(reservation, inventory, catalog)
        note = f"{reserved} of {reserved_profile} reserved, not free"
        fits = {}
        for name, fit in part.fits.items():
            if name == reserved_profile:
                slots = _slots_of_reserved_profile(fit.slots, free_by_vcenter, reserved, note)
            else:
                slots = _slots_of_other_profile(fit.slots, name, reserved_profile, reserved, states, rooms, note)
            fits[name] = _limit_fit(fit, slots, note)
        part = replace(part, fits=fits, notes=(*part.notes, note))
    for device_capacity in devices_reserved_in(any_host, inventory):
        note = f"{device_capacity.unused_reservation} of {device_capacity.name} reserved, not free"
        left_over = {
            device: _whole_devices_left(device, part.devices, device_capacity, note) for device in part.devices
        }
        part = replace(part, devices=left_over, notes=(*part.notes, note))
    return part


def _whole_devices_left(device: Device, rooms: Mapping[Device, Slots], reservation: DeviceCapacity, note: str) -> Slots:
    """Return the free devices of a kind. The reserved ones may be of any kind that the DirectPath profile allows."""
    slots = rooms[device]
    if not _matches_reservation(device, reservation):
        return slots
    other_rooms = [
        room
        for other_device, room in rooms.items()
        if other_device != device and _matches_reservation(other_device, reservation)
    ]
    elsewhere = sum(room.at_least for room in other_rooms)
    # at most those are free that remain if as many reserved devices as possible are of other kinds
    most = None if slots.at_most is None else max(0, slots.at_most - max(0, reservation.unused_reservation - elsewhere))
    return Slots(max(0, slots.at_least - reservation.unused_reservation), most, note)


def _matches_reservation(device: Device, reservation: DeviceCapacity) -> bool:
    return (device.vendor_id, device.device_id) in reservation.allowed and reservation.label in (None, device.label)


def _slots_of_reserved_profile(slots: Slots, free_by_vcenter: Slots, reserved: int, note: str) -> Slots:
    """Return the free slots of the reserved profile: the smaller of our count and vCenter's, less the reserved ones."""
    assert free_by_vcenter.at_most is not None, "counted from numbers of vCenter"
    most = free_by_vcenter.at_most if slots.at_most is None else min(slots.at_most, free_by_vcenter.at_most)
    least = min(slots.at_least, free_by_vcenter.at_least)
    return Slots(max(0, least - reserved), max(0, most - reserved), note)


def _slots_of_other_profile(
    slots: Slots,
    profile: str,
    reserved_profile: str,
    reserved: int,
    states: Sequence[GpuState],
    rooms: Rooms,
    note: str,
) -> Slots:
    """Return the slots of another profile after GPUs are set aside for the reservation."""
    rooms_by_gpu = [rooms.on(state, (profile, reserved_profile)) for state in states]
    # for each GPU its slots of this profile, and of the reserved one
    pairs = [(slots_on.get(profile, _NO_SLOTS), slots_on.get(reserved_profile, _NO_SLOTS)) for slots_on in rooms_by_gpu]
    shared = [(free, reservable) for free, reservable in pairs if free.possible and reservable.possible]
    # reserved slots that do not fit on GPUs without a slot of this profile
    missing = reserved - sum(reservable.at_least for free, reservable in pairs if not free.possible)
    if missing <= 0 or not shared:
        return slots
    # as many slots of both profiles on each GPU: a reserved slot costs one of this profile
    if all(free.exact and free == reservable for free, reservable in shared):
        lost_slots = min(missing, sum(free.at_least for free, _ in shared))
        most = None if slots.at_most is None else max(0, slots.at_most - lost_slots)
        return Slots(max(0, slots.at_least - lost_slots), most, note)
    # The GPUs that cost least for each reserved slot come first; those that may have no such slot come last.
    cheapest_first = sorted(
        shared, key=lambda pair: (pair[1].at_least == 0, pair[0].at_least / (pair[1].at_least or 1))
    )
    lost_slots = 0
    for free, reservable in cheapest_first:
        if missing <= 0:
            break
        lost_slots += free.at_least
        missing -= reservable.at_least
    return Slots(max(0, slots.at_least - lost_slots), slots.at_most, note) if lost_slots else slots


def _limit_fit(fit: Fit, slots: Slots, note: str) -> Fit:
    """Return the fit with this many slots in total, and at most as many in one VM."""
    if slots is fit.slots or slots.at_most is None:
        return replace(fit, slots=slots)
    return Fit(slots, *(room.limited_to(slots.at_most, note) for room in (fit.beside_one_node, fit.on_one_host)))


STANDALONE = "standalone hosts"


@dataclass(frozen=True, slots=True)
class CapacityRequest:
    """The request of `gpuops capacity`: the hosts to count, and one profile or all."""

    profile: Annotated[str | None, Option("Only this vGPU profile, place by place.", "NAME", Names.PROFILES)] = None
    cluster: Annotated[str | None, Option("Only this cluster, host by host.", "NAME", Names.CLUSTERS)] = None
    host: Annotated[
        str | None, Option("Only hosts named so (esx-0*), NUMA node by NUMA node.", "HOST", Names.HOSTS)
    ] = None

    @property
    def scope(self) -> Scope:
        return Scope(self.cluster, self.host)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The room now and, where a policy was given, when all desktops that it may take are suspended."""

    inventory: Inventory
    profile: str | None
    """The profile that was asked for, as hosts offer it."""
    now: FleetPart
    after: FleetPart | None = None
    """Its places are those of `now`, in the same order."""
    desktops: int = 0
    """How many of these hosts' desktops are suspended for it."""
    suspended: tuple[str, ...] = ()
    """Names of the VMs that are already suspended on these hosts. The GPUs that they will need count as free."""
    fragmentation: tuple[Fragmentation, ...] = ()
    """Of these hosts now, by GPU model."""


def capacity(
    inventory: Inventory,
    catalog: Catalog,
    scope: Scope | None = None,
    desktops: Sequence[Vm] | None = None,
    *,
    profile: str | None = None,
) -> Capacity:
    """Return how many more vGPUs and whole devices fit on the hosts of the scope.

    `profile`: count only this vGPU profile. `desktops`: also count the room after these VMs are suspended.

    Raises HostNotFound, UsageError for an unknown cluster, ProfileUnknown, and Refused for a profile
    that no host offers.
    """
    scope = scope or Scope()
    scope.check(inventory)
    profile = None if profile is None else offered_profile(profile, inventory, catalog)
    # Without a profile, hosts that have only other passthrough devices count too.
    hosts_in_scope = scope.device_hosts(inventory) if profile is None else scope.hosts(inventory)
    hosts = [host for host in hosts_in_scope if _may_offer(host, profile)]
    room = HostRoom(catalog, inventory.offered_profiles, profile)
    before = {host.ref: room.of(host, inventory) for host in hosts}
    now = _room_tree(hosts, before, inventory, catalog)
    vms = (vm for host in hosts for vm in inventory.vms_on(host))
    suspended_names = tuple(sorted(vm.name for vm in vms if vm.power is PowerState.SUSPENDED and vm.devices))
    fragmentation = measure_fragmentation(hosts, inventory, catalog)
    if desktops is None:
        return Capacity(inventory, profile, now, suspended=suspended_names, fragmentation=fragmentation)
    by_host = _by_host(desktops)
    after, after_suspends = dict(before), inventory
    for host in hosts:
        if host.ref in by_host:
            world = _suspend_desktops(host, by_host[host.ref], inventory, catalog)
            after[host.ref] = room.of(world.hosts[host.ref], world)
            after_suspends = after_suspends.with_vms(world.vms_on(host)).with_hosts([world.hosts[host.ref]])
    suspended_count = sum(len(by_host.get(host.ref, ())) for host in hosts)
    return Capacity(
        inventory,
        profile,
        now,
        _room_tree(hosts, after, after_suspends, catalog),
        suspended_count,
        suspended_names,
        fragmentation,
    )


def with_suspended(inventory: Inventory, desktops: Iterable[Vm], catalog: Catalog) -> Inventory:
    """Return the snapshot when these desktops are suspended."""
    after_suspends = inventory
    for ref, host_desktops in _by_host(desktops).items():
        if ref is not None:
            host = inventory.hosts[ref]
            world = _suspend_desktops(host, host_desktops, inventory, catalog)
            after_suspends = after_suspends.with_vms(world.vms_on(host)).with_hosts([world.hosts[ref]])
    return after_suspends


def _by_host(vms: Iterable[Vm]) -> dict[str | None, list[Vm]]:
    vms_by_host: dict[str | None, list[Vm]] = {}
    for vm in vms:
        vms_by_host.setdefault(vm.host, []).append(vm)
    return vms_by_host


def _may_offer(host: Host, profile: str | None) -> bool:
    return profile is None or host.profiles is None or host.offers(profile) is not None


def _room_tree(
    hosts: Iterable[Host], rooms: Mapping[str, FleetPart], inventory: Inventory, catalog: Catalog
) -> FleetPart:
    """Return the room of these hosts as a tree. Reservations are subtracted by cluster, or by host if it is in none."""
    by_cluster: dict[str | None, list[Host]] = {}
    for host in hosts:
        by_cluster.setdefault(host.cluster if host.cluster in inventory.clusters else None, []).append(host)
    clusters = []
    for ref, members in by_cluster.items():
        places = [rooms[host.ref] for host in members]
        cluster_hosts = [inventory.hosts[host.ref] for host in members]
        if ref is None:  # each host is a place of its own
            pairs = zip(places, cluster_hosts, strict=True)
            places = [without_reserved(place, [host], inventory, catalog) for place, host in pairs]
        name = STANDALONE if ref is None else inventory.clusters[ref].name
        cluster = fleet_part(Level.CLUSTER, name, places)
        clusters.append(cluster if ref is None else without_reserved(cluster, cluster_hosts, inventory, catalog))
    # Hosts outside clusters come last.
    clusters.sort(key=lambda cluster: (cluster.name == STANDALONE, cluster.name))
    return fleet_part(Level.ALL, "all", clusters)


def _suspend_desktops(host: Host, desktops: Iterable[Vm], inventory: Inventory, catalog: Catalog) -> Inventory:
    """Return the snapshot of this host alone after its desktops are suspended."""
    listed = {ref for gpu in host.gpus for ref in gpu.vms or ()}
    world = reduced_to_host(host, inventory, *(inventory.vms[ref] for ref in listed if ref in inventory.vms))
    states = {state.gpu.address: state for state in gpu_states(host, inventory, catalog)}
    for vm in desktops:
        world = project(SuspendVm(vm.ref), world, catalog)
    after = world.hosts[host.ref]
    gpus = tuple(replace(gpu, vgpu_mode=_mode(states[gpu.address], catalog)) for gpu in after.gpus)
    return world.with_hosts([replace(after, gpus=gpus)])


def _mode(state: GpuState, catalog: Catalog) -> VgpuMode | None:
    """Return the mode of a GPU before it is emptied. If vCenter does not report it, the running vGPUs show it. Before
    8.0 Update 3 a GPU is in MIG mode or takes vGPUs of one size; suspending VMs changes neither."""
    running = [catalog.profile(tenant.profile) for tenant in state.tenants if tenant.certain]
    if state.gpu.vgpu_mode is not None or state.unclear or not running or None in running:
        return state.gpu.vgpu_mode
    mig_backed = any(profile is not None and profile.mig_backed for profile in running)
    return VgpuMode.MULTI_INSTANCE if mig_backed else VgpuMode.SAME_SIZE
