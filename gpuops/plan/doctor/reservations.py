"""Findings of what vCenter 9.0 counts and reserves of vGPU profiles and whole devices, beside what is counted here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuops.advise.capacity import Slots, total
from gpuops.advise.occupancy import gpu_states
from gpuops.advise.room import Rooms
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.reservation import DeviceCapacity
from gpuops.plan.capacity.host import DeviceHolders
from gpuops.plan.doctor.finding import Finding, Severity
from gpuops.plan.placement.reserved import place_name


def of_reservations(hosts: Sequence[Host], inventory: Inventory, catalog: Catalog) -> Iterator[Finding]:
    """What is not told of the clusters of these hosts, and where vCenter's count is another one than ours.

    Compared is what the GPUs have room for, as vCenter does (vSphere API 9.0, DirectPathProfileManagerCapacityInfo):
    cores and memory of hosts are no part of it.
    """
    if inventory.reservations is None:
        return
    empty = _without_vms(inventory)
    for place in dict.fromkeys(host.cluster or host.ref for host in hosts if host.gpus):
        members = [host for host in inventory.hosts.values() if (host.cluster or host.ref) == place]
        name = place_name(members[0], inventory)
        for each in inventory.reservations.unknown:
            if each.place in (place, ""):
                what = f"what is reserved of {each.profile or 'DirectPath profiles'} is not known: {each.reason}"
                fix = "see to it that this login may read the DirectPath profiles: gpuops help place"
                yield Finding(Severity.WARNING, name, what, fix)
        for told in inventory.reservations.in_place(place):
            now, most = (_counted(told.profile, members, each, catalog) for each in (inventory, empty))
            if not (_is_within(told.remaining, now) and _is_within(told.maximum, most)):
                reason = (
                    f"{told.profile}: vCenter counts {told.remaining} more of {told.maximum}, gpuops {_range(now)} of "
                    f"{_range(most)}"
                )
                fix = "plans go by the smaller count; look for GPUs in another mode, or held by what vCenter hides"
                yield Finding(Severity.WARNING, name, reason, fix)
        for of_devices in inventory.reservations.devices_in(place):
            room = total([_devices(of_devices, host, inventory) for host in members if _is_usable(host)])
            if not _is_within(of_devices.remaining, room):
                reason = f"{of_devices.name}: vCenter counts {of_devices.remaining} more, gpuops {_range(room)}"
                fix = "plans go by what vCenter counts; look for devices that it does not give, or that are held"
                yield Finding(Severity.WARNING, name, reason, fix)


def _is_usable(host: Host) -> bool:
    return bool(host.connected) and not host.in_maintenance


def _devices(told: DeviceCapacity, host: Host, inventory: Inventory) -> Slots:
    holding = DeviceHolders(host, inventory)
    rooms = [room for device in host.devices if told.is_of(device) and (room := holding.room(device)) is not None]
    return total(rooms)


def _without_vms(inventory: Inventory) -> Inventory:
    hosts = (replace(host, gpus=tuple(replace(gpu, vms=()) for gpu in host.gpus)) for host in inventory.hosts.values())
    return replace(inventory, vms={}, hosts={host.ref: host for host in hosts})


def _counted(profile: str, members: Sequence[Host], inventory: Inventory, catalog: Catalog) -> Slots:
    """The room of the GPUs of these hosts, as far as they can be used."""
    rooms, usable = Rooms(catalog), [host for host in members if _is_usable(host)]
    states = (state for host in usable for state in gpu_states(inventory.hosts[host.ref], inventory, catalog))
    found = [rooms.on(state, (profile,)) for state in states]
    return total([slots[profile] for slots in found if profile in slots])


def _is_within(count: int, slots: Slots) -> bool:
    return slots.at_least <= count and (slots.at_most is None or count <= slots.at_most)


def _range(slots: Slots) -> str:
    if slots.exact:
        return str(slots.at_least)
    return f"{slots.at_least} to {'?' if slots.at_most is None else slots.at_most}"
