"""The room in a cluster, or on a host of none, less what is reserved there for VMs of others (vSphere 9.0).

A reservation is of one profile, and takes the room of others that its GPUs run too. How much of theirs is left at the
least follows from GPUs that are set aside for it: those on which it costs the others least, until it has enough.

Example: 6 slots of 8 GB are reserved, one GPU has 6 free and another 4 beside two that run. Of a profile of half a GPU
2 fit on the first alone, and nothing of it where the 4 are: that GPU is set aside first, at no cost, and then the other
for the 2 that are missing, so that at the least none of the profile is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpuops.advise.capacity import Slots
from gpuops.advise.occupancy import GpuState, gpu_states
from gpuops.advise.room import Rooms
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.reservation import DeviceCapacity
from gpuops.plan.capacity.fleet_part import Device, Fit, FleetPart
from gpuops.plan.placement.reserved_slots import devices_reserved_in, remaining, reserved_in, reserved_unknown

_NONE: Final = Slots(0, 0)


def less_reserved(part: FleetPart, hosts: Sequence[Host], inventory: Inventory, catalog: Catalog) -> FleetPart:
    """The same part, whose hosts these are, with what is free for others."""
    first = hosts[0]
    unknown = reserved_unknown(first, inventory)
    if unknown is not None:
        doubted = {name: replace(fit, slots=fit.slots.doubted(unknown)) for name, fit in part.fits.items()}
        devices = {each: room.doubted(unknown) for each, room in part.devices.items()}
        return replace(part, fits=doubted, devices=devices, notes=(*part.notes, unknown))
    states = [state for host in hosts for state in gpu_states(host, inventory, catalog)]
    rooms = Rooms(catalog)
    for told in reserved_in(first, inventory):
        reserved, left = told.unused_reservation, remaining(told, inventory, catalog)
        note = f"{reserved} of {told.profile} reserved, not free"
        fits = {}
        for name, fit in part.fits.items():
            if name == told.profile:
                fits[name] = _limited(fit, _own(fit.slots, left, reserved, note), note)
            else:
                fits[name] = _limited(fit, _beside(fit.slots, name, told.profile, reserved, states, rooms, note), note)
        part = replace(part, fits=fits, notes=(*part.notes, note))
    for of_devices in devices_reserved_in(first, inventory):
        note = f"{of_devices.unused_reservation} of {of_devices.name} reserved, not free"
        left_over = {each: _whole(each, part.devices, of_devices, note) for each in part.devices}
        part = replace(part, devices=left_over, notes=(*part.notes, note))
    return part


def _whole(device: Device, rooms: Mapping[Device, Slots], told: DeviceCapacity, note: str) -> Slots:
    """What is left of a kind of whole device: those that are reserved may be of any kind that the profile allows."""
    slots = rooms[device]
    if not _is_of(device, told):
        return slots
    others = [room for each, room in rooms.items() if each != device and _is_of(each, told)]
    elsewhere = sum(room.at_least for room in others)
    most = None if slots.at_most is None else max(0, slots.at_most - max(0, told.unused_reservation - elsewhere))
    return Slots(max(0, slots.at_least - told.unused_reservation), most, note)


def _is_of(device: Device, told: DeviceCapacity) -> bool:
    return (device.vendor_id, device.device_id) in told.allowed and told.label in (None, device.label)


def _own(slots: Slots, left: Slots, reserved: int, note: str) -> Slots:
    """What of the reserved profile is free: of what is counted here and in vCenter the smaller number, less that."""
    assert left.at_most is not None, "counted from numbers of vCenter"
    most = left.at_most if slots.at_most is None else min(slots.at_most, left.at_most)
    least = min(slots.at_least, left.at_least)
    return Slots(max(0, least - reserved), max(0, most - reserved), note)


def _beside(
    slots: Slots, profile: str, kept: str, reserved: int, states: Sequence[GpuState], rooms: Rooms, note: str
) -> Slots:
    """What of another profile is left when GPUs are set aside for what is reserved."""
    both = [rooms.on(state, (profile, kept)) for state in states]
    there = [(on.get(profile, _NONE), on.get(kept, _NONE)) for on in both]
    shared = [(own, other) for own, other in there if own.possible and other.possible]
    missing = reserved - sum(other.at_least for own, other in there if not own.possible)
    if missing <= 0 or not shared:
        return slots
    if all(own.exact and own == other for own, other in shared):
        taken = min(missing, sum(own.at_least for own, _ in shared))
        most = None if slots.at_most is None else max(0, slots.at_most - taken)
        return Slots(max(0, slots.at_least - taken), most, note)
    # on which GPU it costs least for each slot; on one that may have none last
    cost = sorted(shared, key=lambda each: (each[1].at_least == 0, each[0].at_least / (each[1].at_least or 1)))
    taken = 0
    for own, other in cost:
        if missing <= 0:
            break
        taken += own.at_least
        missing -= other.at_least
    return Slots(max(0, slots.at_least - taken), slots.at_most, note) if taken else slots


def _limited(fit: Fit, slots: Slots, note: str) -> Fit:
    """The same with so many over all VMs, and no more in one."""
    if slots is fit.slots or slots.at_most is None:
        return replace(fit, slots=slots)
    return Fit(slots, *(each.capped(slots.at_most, note) for each in (fit.beside_one_node, fit.on_one_host)))
