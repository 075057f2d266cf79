"""Asks the DirectPathProfileManager of a vCenter 9.0 and newer what of its vGPU profiles is reserved.

One call lists the DirectPath profiles, and where there is one of a vGPU, one more asks each cluster with GPUs, or host
of none, for all of them: a reservation is of a VM class, and that names a DirectPath profile (vSphere API 9.1,
`vm_classes_info.dpp_id`). What is not answered is unknown, with the reason.

Source: vSphere API 9.0.0.0, DirectPathProfileManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gpuops.errors import GpuopsError, NotConnected
from gpuops.model.host import Host
from gpuops.model.reservation import ProfileCapacity, Reservations, UnknownCapacity
from gpuops.vsphere.reading.reader import Reader
from gpuops.vsphere.reading.values import child, children, kind, number, text
from gpuops.vsphere.session import Session
from gpuops.vsphere.transport.network import decoding
from gpuops.vsphere.transport.request_text import written

MOST_PLACES: Final = 64
"""Clusters, and hosts of none, that are asked at the most; of others nothing is known."""
_MANAGER: Final = "directPathProfileManager"
_VGPU: Final = "DirectPathProfileManagerVmiopDirectPathConfig"
_TELLS: Final = "DirectPathProfileManagerCapacityInfo"
_NOT_NUMBERS: Final = "vCenter tells no numbers of it"


def reservations(reader: Reader, session: Session, hosts: Mapping[str, Host]) -> Reservations | None:
    """What is reserved where there are GPUs; None = this vCenter knows no reservations. Raises NotConnected."""
    manager = session.service.get(_MANAGER)
    places = _places(hosts.values())
    if manager is None or not places:
        return None
    try:
        profiles = _vgpu_profiles(reader, session, manager)
    except NotConnected:
        raise
    except GpuopsError as error:
        return Reservations(unknown=(UnknownCapacity("", error.message),))
    capacities: list[ProfileCapacity] = []
    unknown: list[UnknownCapacity] = []
    for asked, (place, kind_of_place) in enumerate(places.items() if profiles else ()):
        if asked >= MOST_PLACES:
            unknown.append(UnknownCapacity(place, f"vCenter is asked about {MOST_PLACES} clusters at the most"))
            continue
        told = list(_of_place(reader, session, manager, place, kind_of_place, profiles))
        capacities += [each for each in told if isinstance(each, ProfileCapacity)]
        unknown += [each for each in told if isinstance(each, UnknownCapacity)]
    return Reservations(tuple(capacities), tuple(unknown))


def _places(hosts: Iterable[Host]) -> dict[str, str]:
    """Ref -> type of each cluster with GPUs, and of each host with GPUs that is in none."""
    with_gpus = sorted((host for host in hosts if host.gpus), key=lambda host: host.ref)
    return {host.cluster or host.ref: "Cluster" if host.cluster else "Host" for host in with_gpus}


def _vgpu_profiles(reader: Reader, session: Session, manager: tuple[str, str]) -> dict[str, str]:
    """vGPU profile by the id of its DirectPath profile; one of two that mean the same vGPU."""
    reply = reader.call("DirectPathProfileManagerList", manager, "<filterSpec></filterSpec>")
    found: dict[str, str] = {}
    with decoding(session.target.address, "DirectPathProfileManagerList"):
        for info in children(reply, "returnval"):
            id, vgpu = text(info, "id"), _vgpu_of(info)
            if id and vgpu and vgpu not in found.values():
                found[id] = vgpu
    return found


def _vgpu_of(info: Any) -> str | None:
    config = child(info, "deviceConfig")
    return text(config, "vgpuProfile") if config is not None and kind(config) == _VGPU else None


def _of_place(
    reader: Reader,
    session: Session,
    manager: tuple[str, str],
    place: str,
    kind_of_place: str,
    profiles: Mapping[str, str],
) -> Iterator[ProfileCapacity | UnknownCapacity]:
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
    for vgpu, answer in zip(profiles.values(), answers, strict=True):
        yield _decoded(answer, vgpu, place)


def _decoded(answer: Any, vgpu: str, place: str) -> ProfileCapacity | UnknownCapacity:
    if kind(answer) != _TELLS:
        fault = next(iter(children(answer, "faultList")), None)
        return UnknownCapacity(place, (text(fault, "msg") if fault is not None else None) or _NOT_NUMBERS, vgpu)
    if _vgpu_of(child(answer, "profile")) != vgpu:
        return UnknownCapacity(place, "vCenter answers for another profile", vgpu)
    figures = [number(answer, name) for name in ("consumed", "max", "remaining", "unusedReservation")]
    known = [figure for figure in figures if figure is not None and figure >= 0]
    if len(known) != len(figures):
        return UnknownCapacity(place, _NOT_NUMBERS, vgpu)
    return ProfileCapacity(vgpu, place, *known)
