"""Devices that vCenter reserves for other VMs (vSphere 9.0), and how many of them a plan leaves free.

vCenter counts each profile by cluster, or by host for hosts outside any cluster. `remaining` devices can still be
given, and `unusedReservation` of them only to VMs of the reservation (vSphere API 9.0,
DirectPathProfileManagerCapacityInfo). These counts hold for the snapshot as it was read. A plan changes a few GPUs, and
the new count follows from them: a GPU takes away at most the room that it may have had before, less the room that it
surely has afterwards.

For whole devices (Dynamic DirectPath I/O) the holders are known, so the new count is exact.

Example: vCenter reports 2 remaining and 1 reserved. It does not show where the vGPUs of a mixed-size GPU start, so 0 or
1 of the profile fit there. After a start on this GPU possibly 0 fit: at least 1 remains, which is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.advise.capacity import Slots
from gpuops.advise.occupancy import GpuState, Tenant, gpu_states
from gpuops.advise.room import Rooms
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.reservation import DeviceCapacity, ProfileCapacity
from gpuops.model.vcenter.vm import VgpuDevice, Vm, pins_of
from gpuops.plan.core.passthru_devices import with_passthru_numbers
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.scope import cluster_name
from gpuops.plan.placement.gpu_filters import holders

_NONE: Final = Slots(0, 0)
_MOST: Final = 128
"""No GPU has more vGPUs than this; it stands for an unknown number."""


@dataclass(frozen=True, slots=True)
class ReservedLeft:
    """How many vGPUs of a profile, or whole devices, remain before and after a plan, where some are reserved."""

    profile: str
    """The vGPU profile, or the DirectPath profile of the devices."""
    where: str
    """Name of the cluster, or of a host outside any cluster."""
    reserved: int
    before: int
    """How many more can start at least, including those of the reservation."""
    after: int

    @property
    def too_few(self) -> bool:
        """Whether the plan takes reserved devices. It does not if it leaves as many as there were, even if too few."""
        return self.after < min(self.before, self.reserved)

    def __str__(self) -> str:
        left = f"{max(0, self.after)} would be left, or may be"
        return f"{self.where}: {self.reserved} of {self.profile} reserved, not free: {left}"


def reserved_in(host: Host, inventory: Inventory) -> tuple[ProfileCapacity, ...]:
    """Return the vGPU profiles of which some are reserved in the host's cluster and not used yet."""
    if inventory.reservations is None:
        return ()
    capacities = inventory.reservations.in_place(_place(host))
    return tuple(capacity for capacity in capacities if capacity.unused_reservation)


def devices_reserved_in(host: Host, inventory: Inventory) -> tuple[DeviceCapacity, ...]:
    """Return the whole devices that are reserved in the host's cluster and not used yet."""
    if inventory.reservations is None:
        return ()
    return tuple(
        capacity for capacity in inventory.reservations.devices_in(_place(host)) if capacity.unused_reservation
    )


def is_reserved_in(host: Host, inventory: Inventory) -> bool:
    """Whether anything is reserved in the host's cluster and not used yet."""
    return bool(reserved_in(host, inventory) or devices_reserved_in(host, inventory))


def reserved_left(
    hosts: Iterable[Host], before: Inventory, after: Inventory, catalog: Catalog
) -> Iterator[ReservedLeft]:
    """Yield what remains in the clusters of these hosts, for a plan that leads from one snapshot to the other."""
    places = {_place(host): host for host in hosts}
    for host in places.values():
        for capacity in reserved_in(host, before):
            free_before, free_after = (remaining(capacity, world, catalog).at_least for world in (before, after))
            yield ReservedLeft(
                capacity.profile, place_name(host, before), capacity.unused_reservation, free_before, free_after
            )
        for of_devices in devices_reserved_in(host, before):
            free_before, free_after = (devices_remaining(of_devices, world) for world in (before, after))
            yield ReservedLeft(
                of_devices.name, place_name(host, before), of_devices.unused_reservation, free_before, free_after
            )


def remaining(capacity: ProfileCapacity, world: Inventory, catalog: Catalog) -> Slots:
    """Return how many more of the profile could start in that cluster, in a snapshot derived from the one as read."""
    read, rooms, least, most = world.as_read, Rooms(catalog), capacity.remaining, capacity.remaining
    for ref, host in world.hosts.items():
        host_as_read = read.hosts.get(ref)
        if host_as_read is None or _place(host) != capacity.place:
            continue
        if host is host_as_read and world.vms_on(host) is read.vms_on(host_as_read):
            continue
        states = {state.gpu.address: state for state in gpu_states(host_as_read, read, catalog)}
        slots_lost = 0
        for now in gpu_states(host, world, catalog):
            before = states.get(now.gpu.address)
            if before is not None and before != now:
                slots_before, slots_now = (_room(capacity.profile, state, rooms) for state in (before, now))
                slots_lost += _most(slots_before) - slots_now.at_least
                most += _most(slots_now) - slots_before.at_least
        least -= max(
            slots_lost,
            _lost_elsewhere(capacity.profile, _started_there(host, host_as_read, world, read), states.values(), rooms),
        )
    return Slots(max(0, least), max(0, most))


def _started_there(host: Host, host_as_read: Host, world: Inventory, read: Inventory) -> tuple[Vm, ...]:
    """Return the VMs that run on the host in this snapshot and did not in the snapshot as read."""
    running = {vm.ref for vm in read.vms_on(host_as_read) if vm.may_run}
    return tuple(vm for vm in world.vms_on(host) if vm.may_run and vm.ref not in running)


def _lost_elsewhere(profile: str, started: Iterable[Vm], states: Iterable[GpuState], rooms: Rooms) -> int:
    """Return the most slots of a profile that these starts may take, on any GPU that the host may choose; 0 if the
    choices of the host are known.

    If one choice is unknown, every start counts on the GPU where it takes most, and pinned vGPUs on their GPU.
    """
    states = tuple(states)
    wishes = [
        (device.profile, pins.get(ordinal))
        for vm, pins in ((vm, pins_of(vm)) for vm in started)
        for ordinal, device in with_passthru_numbers(vm.devices or ())
        if isinstance(device, VgpuDevice)
    ]
    if _is_choice_known(wishes, states, rooms):
        return 0

    def slots_taken(wish: str, state: GpuState) -> int:
        after = state.with_tenants(Tenant("", "", wish))
        return _most(_room(profile, state, rooms)) - _room(profile, after, rooms).at_least

    return sum(
        max((slots_taken(wish, state) for state in states if _may_go_to(wish, pin, state, rooms)), default=0)
        for wish, pin in wishes
    )


def _is_choice_known(wishes: Sequence[tuple[str, PciAddress | None]], states: Sequence[GpuState], rooms: Rooms) -> bool:
    """Whether the host surely puts vGPUs of these profiles, some of them pinned, where the plan expects them.

    If it is unknown where the vGPUs on a GPU start, it is unsure whether one more fits there, and then no vGPU is sure
    to be where the plan expects it.
    """
    if all(pin is not None for _, pin in wishes):
        return True
    may = ((wish, state) for wish, pin in wishes for state in states if _may_go_to(wish, pin, state, rooms))
    return all(_room(wish, state, rooms).at_least for wish, state in may)


def _may_go_to(wish: str, pin: PciAddress | None, state: GpuState, rooms: Rooms) -> bool:
    return pin in (None, state.gpu.address) and _room(wish, state, rooms).possible


def devices_remaining(capacity: DeviceCapacity, world: Inventory) -> int:
    """Return how many more of the devices could be given in that cluster, in a snapshot derived from that as read."""
    read, remaining_devices = world.as_read, capacity.remaining
    for ref, host in world.hosts.items():
        host_as_read = read.hosts.get(ref)
        if host_as_read is None or _place(host) != capacity.place:
            continue
        if host is not host_as_read or world.vms_on(host) is not read.vms_on(host_as_read):
            remaining_devices += _free(capacity, host, world) - _free(capacity, host_as_read, read)
    return remaining_devices


def _free(capacity: DeviceCapacity, host: Host, inventory: Inventory) -> int:
    """Return how many of these devices on the host are not held by a VM."""
    held_addresses = holders(host, inventory)
    return sum(
        device.address not in held_addresses and capacity.is_of(device)
        for device in host.devices
        if device.passthrough is not None and device.passthrough.active
    )


def _room(profile: str, state: GpuState, rooms: Rooms) -> Slots:
    return rooms.on(state, (profile,)).get(profile, _NONE)


def _most(slots: Slots) -> int:
    return _MOST if slots.at_most is None else slots.at_most


def reserved_unknown(host: Host, inventory: Inventory) -> str | None:
    """Return why the reservations in the host's cluster are unknown; None if they are known."""
    reservations = inventory.reservations
    reason = reservations.why_unknown(_place(host)) if reservations is not None else ""
    return f"{place_name(host, inventory)}: what is reserved for others is not known: {reason}" if reason else None


def reserved_refusal(remainder: ReservedLeft, host: Host) -> Rejection:
    """Return the rejection of a VM that would take reserved devices on the host."""
    reserved = f"{remainder.reserved} of {remainder.profile} reserved for others in {remainder.where}"
    rule = f"{reserved}, not free: left afterwards"
    hint = "free other slots there, or have the reservation changed (gpuops help place)"
    return Rejection(host.name, rule, remainder.reserved, remainder.after, hint=hint)


def place_name(host: Host, inventory: Inventory) -> str:
    """Return the name of the host's cluster, or the host's own name if it is in no cluster."""
    return cluster_name(host, inventory) or host.name


def _place(host: Host) -> str:
    return host.cluster or host.ref
