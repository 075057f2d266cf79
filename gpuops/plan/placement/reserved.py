"""What is reserved for VMs of others (vSphere 9.0), and what a plan leaves of it.

vCenter counts a profile in a cluster, or on a host of none: `remaining`, of which `unusedReservation` may be taken by
those alone for whom it is reserved (vSphere API 9.0, DirectPathProfileManagerCapacityInfo). That is true of the
snapshot that was read. A plan changes a few of its GPUs, and what remains then follows from these: each takes away at
the most what it may have had room for before, less what it surely has room for afterwards.

Of whole devices (Dynamic DirectPath I/O) it is known who holds which, and what remains follows exactly.

Example: vCenter says 2 remain and 1 is reserved. How the vGPUs of a mixed-size GPU lie it does not tell, so 0 or 1 of
the profile fit there. After a start on it none may fit: 1 is left at the least, which is enough.
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
from gpuops.plan.core.device_numbers import with_passthru_numbers
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.scope import cluster_name
from gpuops.plan.placement.gpu_filters import holders

_NONE: Final = Slots(0, 0)
_MOST: Final = 128
"""More vGPUs no GPU has: of one of which nothing is known."""


@dataclass(frozen=True, slots=True)
class ReservedLeft:
    """What is left of a vGPU profile or of whole devices of which some is reserved, before and after a plan."""

    profile: str
    """The vGPU profile, or the DirectPath profile of the devices."""
    where: str
    """Name of the cluster, or of a host of none."""
    reserved: int
    before: int
    """So many more could start at the least, those for whom it is reserved among them."""
    after: int

    @property
    def too_few(self) -> bool:
        """Whether the plan takes of what is reserved; one that takes none of too few that there are does not."""
        return self.after < min(self.before, self.reserved)

    def __str__(self) -> str:
        left = f"{max(0, self.after)} would be left, or may be"
        return f"{self.where}: {self.reserved} of {self.profile} reserved, not free: {left}"


def reserved_in(host: Host, inventory: Inventory) -> tuple[ProfileCapacity, ...]:
    """What is reserved in the host's cluster and not used yet."""
    if inventory.reservations is None:
        return ()
    there = inventory.reservations.in_place(_place(host))
    return tuple(each for each in there if each.unused_reservation)


def devices_reserved_in(host: Host, inventory: Inventory) -> tuple[DeviceCapacity, ...]:
    """The whole devices that are reserved in the host's cluster and not used yet."""
    if inventory.reservations is None:
        return ()
    return tuple(each for each in inventory.reservations.devices_in(_place(host)) if each.unused_reservation)


def is_reserved_in(host: Host, inventory: Inventory) -> bool:
    """Whether anything is reserved in the host's cluster and not used yet."""
    return bool(reserved_in(host, inventory) or devices_reserved_in(host, inventory))


def reserved_left(
    hosts: Iterable[Host], before: Inventory, after: Inventory, catalog: Catalog
) -> Iterator[ReservedLeft]:
    """What a plan that leads from one snapshot to the other leaves in the clusters of these hosts."""
    places = {_place(host): host for host in hosts}
    for host in places.values():
        for told in reserved_in(host, before):
            was, left = (remaining(told, each, catalog).at_least for each in (before, after))
            yield ReservedLeft(told.profile, place_name(host, before), told.unused_reservation, was, left)
        for of_devices in devices_reserved_in(host, before):
            was, left = (devices_remaining(of_devices, each) for each in (before, after))
            yield ReservedLeft(of_devices.name, place_name(host, before), of_devices.unused_reservation, was, left)


def remaining(told: ProfileCapacity, world: Inventory, catalog: Catalog) -> Slots:
    """How many more of the profile could start in that place in a snapshot that was made of the one that was read."""
    read, rooms, least, most = world.as_read, Rooms(catalog), told.remaining, told.remaining
    for ref, host in world.hosts.items():
        then = read.hosts.get(ref)
        if then is None or _place(host) != told.place:
            continue
        if host is then and world.vms_on(host) is read.vms_on(then):
            continue
        states = {state.gpu.address: state for state in gpu_states(then, read, catalog)}
        lost = 0
        for now in gpu_states(host, world, catalog):
            before = states.get(now.gpu.address)
            if before is not None and before != now:
                was, is_now = (_room(told.profile, state, rooms) for state in (before, now))
                lost += _most(was) - is_now.at_least
                most += _most(is_now) - was.at_least
        least -= max(
            lost, _lost_elsewhere(told.profile, _started_there(host, then, world, read), states.values(), rooms)
        )
    return Slots(max(0, least), max(0, most))


def _started_there(host: Host, then: Host, world: Inventory, read: Inventory) -> tuple[Vm, ...]:
    """The VMs that run on the host in the one snapshot, and did not in the other."""
    running = {vm.ref for vm in read.vms_on(then) if vm.may_run}
    return tuple(vm for vm in world.vms_on(host) if vm.may_run and vm.ref not in running)


def _lost_elsewhere(profile: str, started: Iterable[Vm], states: Iterable[GpuState], rooms: Rooms) -> int:
    """The most that the starts may take of a profile, on whichever GPU the host puts each; 0 = its choice is known.

    If it is not known of one of them, all count where they take most, the pinned ones on their GPUs too.
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

    def taken(wish: str, state: GpuState) -> int:
        after = state.with_tenants(Tenant("", "", wish))
        return _most(_room(profile, state, rooms)) - _room(profile, after, rooms).at_least

    return sum(
        max((taken(wish, state) for state in states if _may_go_to(wish, pin, state, rooms)), default=0)
        for wish, pin in wishes
    )


def _is_choice_known(wishes: Sequence[tuple[str, PciAddress | None]], states: Sequence[GpuState], rooms: Rooms) -> bool:
    """Whether the host puts vGPUs of these profiles, some of them pinned, where the plan expects them.

    Not where it is not sure that one fits on a GPU, since nobody tells where those on it lie: then none of them is sure
    to be where it is expected.
    """
    if all(pin is not None for _, pin in wishes):
        return True
    may = ((wish, state) for wish, pin in wishes for state in states if _may_go_to(wish, pin, state, rooms))
    return all(_room(wish, state, rooms).at_least for wish, state in may)


def _may_go_to(wish: str, pin: PciAddress | None, state: GpuState, rooms: Rooms) -> bool:
    return pin in (None, state.gpu.address) and _room(wish, state, rooms).possible


def devices_remaining(told: DeviceCapacity, world: Inventory) -> int:
    """How many more of the devices could be given in that place in a snapshot made of the one that was read."""
    read, left = world.as_read, told.remaining
    for ref, host in world.hosts.items():
        then = read.hosts.get(ref)
        if then is None or _place(host) != told.place:
            continue
        if host is not then or world.vms_on(host) is not read.vms_on(then):
            left += _free(told, host, world) - _free(told, then, read)
    return left


def _free(told: DeviceCapacity, host: Host, inventory: Inventory) -> int:
    """How many of these devices nobody holds on the host."""
    held = holders(host, inventory)
    given = (device for device in host.devices if device.passthrough is not None and device.passthrough.active)
    return sum(device.address not in held and told.is_of(device) for device in given)


def _room(profile: str, state: GpuState, rooms: Rooms) -> Slots:
    return rooms.on(state, (profile,)).get(profile, _NONE)


def _most(slots: Slots) -> int:
    return _MOST if slots.at_most is None else slots.at_most


def reserved_unknown(host: Host, inventory: Inventory) -> str | None:
    """That it is not known what is reserved in the host's cluster, and why; None = it is known."""
    reservations = inventory.reservations
    reason = reservations.untold(_place(host)) if reservations is not None else ""
    return f"{place_name(host, inventory)}: what is reserved for others is not known: {reason}" if reason else None


def reserved_refusal(left: ReservedLeft, host: Host) -> Rejection:
    """Why a VM may not start on the host: it would take of what is reserved."""
    rule = f"{left.reserved} of {left.profile} reserved for others in {left.where}, not free: left afterwards"
    hint = "free other slots there, or have the reservation changed (gpuops help vsphere9)"
    return Rejection(host.name, rule, left.reserved, left.after, hint=hint)


def place_name(host: Host, inventory: Inventory) -> str:
    """The name of the host's cluster, or its own where it is in none."""
    return cluster_name(host, inventory) or host.name


def _place(host: Host) -> str:
    return host.cluster or host.ref
