"""Reads the reservations of DirectPath profiles from the DirectPathProfileManager of vCenter 9.0 and newer.

One call lists the DirectPath profiles. If there are any, one call for each cluster with GPUs, and for each host with
GPUs outside of clusters, asks for all of them. VM classes make the reservations, and name a DirectPath profile (vSphere
API 9.1, `vm_classes_info.dpp_id`). If several profiles have the same devices, the answer with the least capacity
counts: it is not documented whether vCenter counts reservations by profile or by device. Without an answer the capacity
is unknown, with a reason. The free capacity of a device group is unknown as well if some of it is reserved, because
vCenter does not report which GPUs are reserved.

Source: vSphere API 9.0.0.0, DirectPathProfileManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from gpuops.errors import GpuopsError, NotConnected
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import DeviceCapacity, ProfileCapacity, Reservations, UnknownCapacity
from gpuops.vsphere.reading.bulk.pages import child, children, kind, number, text
from gpuops.vsphere.reading.bulk.reader import Reader
from gpuops.vsphere.session import Session
from gpuops.vsphere.transport.messages import escape_text
from gpuops.vsphere.transport.network import decoding

MOST_PLACES: Final = 64
"""The limit of clusters, and hosts outside of clusters, to ask; the capacity of further ones is unknown."""
_MANAGER: Final = "directPathProfileManager"
_CAPACITY_INFO: Final = "DirectPathProfileManagerCapacityInfo"
_NOT_NUMBERS: Final = "vCenter reports no capacity for it"

Capacity = TypeVar("Capacity", ProfileCapacity, DeviceCapacity)
_Answer = ProfileCapacity | DeviceCapacity | UnknownCapacity


def reservations(reader: Reader, session: Session, hosts: Mapping[str, Host]) -> Reservations | None:
    """Return the reservations for clusters and hosts with GPUs.

    None = no host has GPUs, or this vCenter has no DirectPathProfileManager. Raises NotConnected and its subclasses.
    """
    manager = session.service.get(_MANAGER)
    places = _places(hosts.values())
    if manager is None or not places:
        return None
    try:
        profiles = _profiles(reader, session, manager)
    except NotConnected:
        raise
    except GpuopsError as error:
        return Reservations(unknown=(UnknownCapacity("", error.message),))
    answers: list[_Answer] = []
    for place_number, (place, kind_of_place) in enumerate(places.items() if profiles else ()):
        if place_number < MOST_PLACES:
            answers += _query_place(reader, session, manager, place, kind_of_place, profiles)
        else:
            answers.append(
                UnknownCapacity(
                    place, f"gpuops asks vCenter about at most {MOST_PLACES} clusters and hosts, and not about this one"
                )
            )
    return Reservations(
        tuple(answer for answer in answers if isinstance(answer, ProfileCapacity)),
        tuple(answer for answer in answers if isinstance(answer, DeviceCapacity)),
        tuple(answer for answer in answers if isinstance(answer, UnknownCapacity)),
    )


def _places(hosts: Iterable[Host]) -> dict[str, str]:
    """Return the type by ref of clusters with GPUs or other devices for VMs, and of such hosts outside of clusters."""
    hosts_with_devices = sorted((host for host in hosts if host.gpus or host.gives_others), key=lambda host: host.ref)
    return {host.cluster or host.ref: "Cluster" if host.cluster else "Host" for host in hosts_with_devices}


@dataclass(frozen=True, slots=True)
class _ProfileUnit:
    """One unit of a DirectPath profile: a vGPU, a device group, or one complete device of those allowed."""

    name: str
    """Of the DirectPath profile."""
    vgpu: str = ""
    group: str = ""
    allowed: tuple[tuple[int, int], ...] = ()
    label: str | None = None

    @property
    def content(self) -> object:
        """The devices, to compare: equal for profiles that differ only in their names."""
        return (self.vgpu, self.group, frozenset(self.allowed), self.label)


def _profiles(reader: Reader, session: Session, manager: tuple[str, str]) -> dict[str, _ProfileUnit]:
    """Return the unit of each DirectPath profile by its id."""
    reply = reader.call("DirectPathProfileManagerList", manager, "<filterSpec></filterSpec>")
    units_by_id: dict[str, _ProfileUnit] = {}
    with decoding(session.target.address, "DirectPathProfileManagerList"):
        for profile in children(reply, "returnval"):
            id, unit = text(profile, "id"), _decode_profile(profile)
            if id and unit is not None:
                units_by_id[id] = unit
    return units_by_id


def _decode_profile(profile: Any) -> _ProfileUnit | None:
    """Return the unit of a DirectPath profile, or None for a DVX device, which gpuops does not attach."""
    config, name = child(profile, "deviceConfig"), text(profile, "name") or ""
    match kind(config) if config is not None else None:
        case "DirectPathProfileManagerVmiopDirectPathConfig":
            return _ProfileUnit(name, vgpu=text(config, "vgpuProfile") or "")
        case "DirectPathProfileManagerVirtualDeviceGroupDirectPathConfig":
            return _ProfileUnit(name, group=text(config, "deviceGroupName") or "")
        case "DirectPathProfileManagerDynamicDirectPathConfig":
            backing = child(config, "dynamicDirectPathBacking")
            allowed = tuple(
                (vendor, device)
                for pci_ids in children(backing, "allowedDevice")
                if (vendor := number(pci_ids, "vendorId")) is not None
                and (device := number(pci_ids, "deviceId")) is not None
            )
            return _ProfileUnit(name, allowed=allowed, label=text(backing, "customLabel") or None)
        case _:
            return None


def _query_place(
    reader: Reader,
    session: Session,
    manager: tuple[str, str],
    place: str,
    kind_of_place: str,
    profiles: Mapping[str, _ProfileUnit],
) -> Iterator[_Answer]:
    """Yield the capacity for each profile in a cluster or on a host. `profiles` are by id.

    For profiles of the same devices one capacity is yielded, with the worst of their numbers.
    """
    object_type, name = ("ClusterComputeResource", "cluster") if kind_of_place == "Cluster" else ("HostSystem", "host")
    target = (
        f'<target xsi:type="DirectPathProfileManagerTarget{kind_of_place}">'
        f'<{name} type="{object_type}">{escape_text(place)}</{name}></target>'
    )
    queries = "".join(
        f'<querySpec xsi:type="DirectPathProfileManagerCapacityQueryById"><id>{escape_text(id)}</id></querySpec>'
        for id in profiles
    )
    try:
        reply = reader.call("DirectPathProfileManagerQueryCapacity", manager, target + queries)
    except NotConnected:
        raise
    except GpuopsError as error:
        yield UnknownCapacity(place, error.message)
        return
    with decoding(session.target.address, "DirectPathProfileManagerQueryCapacity"):
        answers = list(children(reply, "returnval"))
    if len(answers) != len(profiles):
        yield UnknownCapacity(
            place, f"vCenter reports the capacity of {len(answers)} of {len(profiles)} DirectPath profiles"
        )
        return
    answers_by_unit: dict[object, list[_Answer]] = {}
    for unit, answer in zip(profiles.values(), answers, strict=True):
        capacity = _decode_capacity(answer, unit, place)
        if capacity is not None:
            answers_by_unit.setdefault(unit.content, []).append(capacity)
    # several profiles of the same devices: each reason once, and the smallest capacity
    for answers_for_unit in answers_by_unit.values():
        yield from dict.fromkeys(answer for answer in answers_for_unit if isinstance(answer, UnknownCapacity))
        yield from _smallest_capacity([answer for answer in answers_for_unit if isinstance(answer, ProfileCapacity)])
        devices = [answer for answer in answers_for_unit if isinstance(answer, DeviceCapacity)]
        name = ", ".join(dict.fromkeys(device.name for device in devices))
        yield from (replace(device, name=name) for device in _smallest_capacity(devices))


def _smallest_capacity(capacities: list[Capacity]) -> Iterator[Capacity]:
    """Yield one capacity with the worst numbers of all of these; nothing for an empty list."""
    if capacities:
        yield replace(
            capacities[0],
            consumed=max(capacity.consumed for capacity in capacities),
            maximum=min(capacity.maximum for capacity in capacities),
            remaining=min(capacity.remaining for capacity in capacities),
            unused_reservation=max(capacity.unused_reservation for capacity in capacities),
        )


def _decode_capacity(answer: Any, unit: _ProfileUnit, place: str) -> _Answer | None:
    """Return the capacity, or an UnknownCapacity with the reason; None for a device group without reservations."""
    unit_name = unit.vgpu or unit.group or unit.name
    if kind(answer) != _CAPACITY_INFO:
        fault = next(iter(children(answer, "faultList")), None)
        return UnknownCapacity(place, (text(fault, "msg") if fault is not None else None) or _NOT_NUMBERS, unit_name)
    answered_unit = _decode_profile(child(answer, "profile"))
    if answered_unit is None or answered_unit.content != unit.content:
        return UnknownCapacity(place, "vCenter answers for another profile", unit_name)
    numbers = [number(answer, name) for name in ("consumed", "max", "remaining", "unusedReservation")]
    counts = [count for count in numbers if count is not None and count >= 0]
    if len(counts) != len(numbers):
        return UnknownCapacity(place, _NOT_NUMBERS, unit_name)
    if unit.vgpu:
        return ProfileCapacity(unit.vgpu, place, *counts)
    if unit.group:
        reserved = counts[-1]
        reason = f"{reserved} of the device group {unit.group} are reserved, on GPUs that vCenter does not name"
        return UnknownCapacity(place, reason, unit.group) if reserved else None
    return DeviceCapacity(unit.name, unit.allowed, unit.label, place, *counts)
