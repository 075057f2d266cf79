"""Asks the DirectPathProfileManager of a vCenter 9.0 and newer what of its DirectPath profiles is reserved.

One call lists the DirectPath profiles, and where there is one, one more asks each cluster with GPUs, or host of none,
for all of them: a reservation is of a VM class, and that names a DirectPath profile (vSphere API 9.1,
`vm_classes_info.dpp_id`). Of several profiles that mean the same, the answer that leaves least counts: whether vCenter
counts what is reserved by profile, or by what that means, is not documented. What is not answered is unknown, with the
reason; so is what a start leaves of a device group of which some is reserved, since vCenter does not tell which GPUs
that is.

Source: vSphere API 9.0.0.0, DirectPathProfileManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from gpuops.errors import GpuopsError, NotConnected
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.reservation import DeviceCapacity, ProfileCapacity, Reservations, UnknownCapacity
from gpuops.vsphere.reading.bulk.reader import Reader
from gpuops.vsphere.reading.bulk.values import child, children, kind, number, text
from gpuops.vsphere.session import Session
from gpuops.vsphere.transport.network import decoding
from gpuops.vsphere.transport.request_text import written

MOST_PLACES: Final = 64
"""Clusters, and hosts of none, that are asked at the most; of others nothing is known."""
_MANAGER: Final = "directPathProfileManager"
_TELLS: Final = "DirectPathProfileManagerCapacityInfo"
_NOT_NUMBERS: Final = "vCenter tells no numbers of it"

Capacity = TypeVar("Capacity", ProfileCapacity, DeviceCapacity)


def reservations(reader: Reader, session: Session, hosts: Mapping[str, Host]) -> Reservations | None:
    """What is reserved where there are GPUs; None = this vCenter knows no reservations. Raises NotConnected."""
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
    capacities: list[ProfileCapacity] = []
    devices: list[DeviceCapacity] = []
    unknown: list[UnknownCapacity] = []
    for asked, (place, kind_of_place) in enumerate(places.items() if profiles else ()):
        if asked >= MOST_PLACES:
            unknown.append(UnknownCapacity(place, f"vCenter is asked about {MOST_PLACES} clusters at the most"))
            continue
        told = list(_of_place(reader, session, manager, place, kind_of_place, profiles))
        capacities += [each for each in told if isinstance(each, ProfileCapacity)]
        devices += [each for each in told if isinstance(each, DeviceCapacity)]
        unknown += [each for each in told if isinstance(each, UnknownCapacity)]
    return Reservations(tuple(capacities), tuple(devices), tuple(unknown))


def _places(hosts: Iterable[Host]) -> dict[str, str]:
    """Ref -> type of each cluster with GPUs or other devices for VMs, and of each such host that is in none."""
    giving = sorted((host for host in hosts if host.gpus or host.gives_others), key=lambda host: host.ref)
    return {host.cluster or host.ref: "Cluster" if host.cluster else "Host" for host in giving}


@dataclass(frozen=True, slots=True)
class _ProfileThing:
    """What one unit of a DirectPath profile is: a vGPU, a device group, or any of these devices, whole."""

    name: str
    """Of the DirectPath profile."""
    vgpu: str = ""
    group: str = ""
    allowed: tuple[tuple[int, int], ...] = ()
    label: str | None = None

    @property
    def thing(self) -> object:
        """Equal for profiles that differ in their name alone."""
        return (self.vgpu, self.group, frozenset(self.allowed), self.label)


def _profiles(reader: Reader, session: Session, manager: tuple[str, str]) -> dict[str, _ProfileThing]:
    """What each DirectPath profile is, by its id."""
    reply = reader.call("DirectPathProfileManagerList", manager, "<filterSpec></filterSpec>")
    found: dict[str, _ProfileThing] = {}
    with decoding(session.target.address, "DirectPathProfileManagerList"):
        for info in children(reply, "returnval"):
            id, meant = text(info, "id"), _meant_by(info)
            if id and meant is not None:
                found[id] = meant
    return found


def _meant_by(info: Any) -> _ProfileThing | None:
    """None = a device of another kind (DVX), which nothing here attaches."""
    config, name = child(info, "deviceConfig"), text(info, "name") or ""
    match kind(config) if config is not None else None:
        case "DirectPathProfileManagerVmiopDirectPathConfig":
            return _ProfileThing(name, vgpu=text(config, "vgpuProfile") or "")
        case "DirectPathProfileManagerVirtualDeviceGroupDirectPathConfig":
            return _ProfileThing(name, group=text(config, "deviceGroupName") or "")
        case "DirectPathProfileManagerDynamicDirectPathConfig":
            backing = child(config, "dynamicDirectPathBacking")
            allowed = [
                (number(each, "vendorId"), number(each, "deviceId")) for each in children(backing, "allowedDevice")
            ]
            known = tuple((vendor, device) for vendor, device in allowed if vendor is not None and device is not None)
            return _ProfileThing(name, allowed=known, label=text(backing, "customLabel") or None)
        case _:
            return None


def _of_place(
    reader: Reader,
    session: Session,
    manager: tuple[str, str],
    place: str,
    kind_of_place: str,
    profiles: Mapping[str, _ProfileThing],
) -> Iterator[ProfileCapacity | DeviceCapacity | UnknownCapacity]:
    of, name = ("ClusterComputeResource", "cluster") if kind_of_place == "Cluster" else ("HostSystem", "host")
    target = (
        f'<target xsi:type="DirectPathProfileManagerTarget{kind_of_place}">'
        f'<{name} type="{of}">{written(place)}</{name}></target>'
    )
    queries = "".join(
        f'<querySpec xsi:type="DirectPathProfileManagerCapacityQueryById"><id>{written(id)}</id></querySpec>'
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
        yield UnknownCapacity(place, f"vCenter answers {len(answers)} of {len(profiles)} questions")
        return
    told: dict[object, list[ProfileCapacity | DeviceCapacity | UnknownCapacity]] = {}
    for meant, answer in zip(profiles.values(), answers, strict=True):
        decoded = _decoded(answer, meant, place)
        if decoded is not None:
            told.setdefault(meant.thing, []).append(decoded)
    for same in told.values():
        yield from dict.fromkeys(each for each in same if isinstance(each, UnknownCapacity))
        yield from _least([each for each in same if isinstance(each, ProfileCapacity)])
        devices = [each for each in same if isinstance(each, DeviceCapacity)]
        name = ", ".join(dict.fromkeys(each.name for each in devices))
        yield from (replace(each, name=name) for each in _least(devices))


def _least(same: list[Capacity]) -> Iterator[Capacity]:
    """One capacity, of several of the same thing: what all of them leave. Nothing of none."""
    for first in same[:1]:
        yield replace(
            first,
            consumed=max(each.consumed for each in same),
            maximum=min(each.maximum for each in same),
            remaining=min(each.remaining for each in same),
            unused_reservation=max(each.unused_reservation for each in same),
        )


def _decoded(
    answer: Any, meant: _ProfileThing, place: str
) -> ProfileCapacity | DeviceCapacity | UnknownCapacity | None:
    """None = nothing of a device group is reserved."""
    called = meant.vgpu or meant.group or meant.name
    if kind(answer) != _TELLS:
        fault = next(iter(children(answer, "faultList")), None)
        return UnknownCapacity(place, (text(fault, "msg") if fault is not None else None) or _NOT_NUMBERS, called)
    shown = _meant_by(child(answer, "profile"))
    if shown is None or shown.thing != meant.thing:
        return UnknownCapacity(place, "vCenter answers for another profile", called)
    figures = [number(answer, name) for name in ("consumed", "max", "remaining", "unusedReservation")]
    known = [figure for figure in figures if figure is not None and figure >= 0]
    if len(known) != len(figures):
        return UnknownCapacity(place, _NOT_NUMBERS, called)
    if meant.vgpu:
        return ProfileCapacity(meant.vgpu, place, *known)
    if meant.group:
        reserved = known[-1]
        reason = f"{reserved} of the device group {meant.group} reserved, on GPUs that vCenter does not tell"
        return UnknownCapacity(place, reason, meant.group) if reserved else None
    return DeviceCapacity(meant.name, meant.allowed, meant.label, place, *known)
