"""Text and document of `gpuops capacity`: tables as deep as the options ask, and the complete tree.

Text: clusters; with --cluster its hosts too, with --host its NUMA nodes; with --profile every place, for that profile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from gpuops.advise.capacity import Slots
from gpuops.advise.fragmentation import Fragmentation
from gpuops.plan.capacity.capacity_request import Capacity
from gpuops.plan.capacity.fleet_room import Beside, Fit, FleetPart, Largest, Level
from gpuops.plan.core.rejection import some_names
from gpuops.plan.core.scope import Scope
from gpuops.report.document import AtMost, DocumentRecord, RangeRecord, SlotsRecord, VersionedSiteDocument, printed
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.monitoring.inventory_view import by_size, figure, without_series
from gpuops.report.text import count, count_hosts, size, vcenter_heading

_MOST_NAMED: Final = 4
_INDENT: Final = {Level.ALL: "", Level.CLUSTER: "", Level.HOST: "  ", Level.NODE: "    "}
_KEY_OF_PARTS: Final = {Level.ALL: "clusters", Level.CLUSTER: "hosts", Level.HOST: "numa_nodes"}


@dataclass(frozen=True, slots=True)
class _PlaceComparison:
    """One place now and, with --policy, after the night."""

    now: FleetPart
    after: FleetPart | None

    @property
    def parts(self) -> tuple[_PlaceComparison, ...]:
        after = self.after.parts if self.after is not None else (None,) * len(self.now.parts)
        return tuple(_PlaceComparison(*pair) for pair in zip(self.now.parts, after, strict=True))

    @property
    def moments(self) -> tuple[FleetPart, ...]:
        """Return the place now and, with --policy, after the night."""
        return (self.now,) if self.after is None else (self.now, self.after)


def capacity_text(capacity: Capacity, scope: Scope, policy: str | None) -> Shown:
    """Return a heading and the free slots: with a requested profile one table of all places, else one for each place in
    the scope. Notes follow.
    """
    all_places = _PlaceComparison(capacity.now, capacity.after)
    lines: list[Shown] = [vcenter_heading(capacity.inventory, count_hosts(capacity.now.hosts, capacity.now.gpus))]
    if capacity.after is not None:
        policy_name = f"policy {policy}" if policy else "the policy"
        lines.append(
            Text(f"after: when {count(capacity.desktops, 'desktop')} that {policy_name} may take now are suspended")
        )
    if not capacity.now.gpus and not capacity.now.devices:
        return (*lines, Text("no GPU was found"))
    if capacity.profile is not None:
        lines += [_places_table(all_places, capacity.profile), *_largest_lines(all_places)]
    else:
        for place in _places_in_scope(all_places, scope):
            lines += [Text(), Text(_place_title(place.now), "bold"), _profiles_table(place), *_largest_lines(place)]
    if capacity.profile is None:
        fragmented = (part for part in capacity.fragmentation if part.fragmented_mib or part.unusable_gpus)
        lines += map(_fragmentation_line, fragmented)
    for part in _with_parts(all_places):
        lines += [Text(f"note: {part.now.name} {note}", "yellow") for note in part.now.notes]
    if capacity.suspended:  # `gpuops place` keeps the GPUs of these VMs
        vms, names = count(len(capacity.suspended), "suspended VM"), some_names(capacity.suspended, _MOST_NAMED)
        lines.append(Text(f"counted as free: the GPUs of {vms}: {names}", "dim"))
    return lines


def _fragmentation_line(part: Fragmentation) -> Text:
    """Return `fragmented: NVIDIA A40: the average VM cannot use 23 % of 88 GiB free`, and unusable GPUs."""
    text = f"{part.model}: the average VM cannot use {part.percent:.0f} % of {size(part.free_mib)} free"
    if part.unusable_gpus:
        text += f"; no waiting VM fits on {part.unusable_gpus} of {count(part.gpus, 'GPU')} with free memory"
    return Text("fragmented: ", "dim").append(text)


class FitRecord(DocumentRecord, frozen=True):
    """How many more fit, and how many of them in one VM."""

    at_least: int
    at_most: AtMost
    because: Annotated[str, "why nothing fits, or why the figure is a range"]
    in_one_vm: RangeRecord
    in_one_vm_beside_one_node: Annotated[RangeRecord, "with all vGPUs on one NUMA node"]

    @classmethod
    def made_of(cls, fit: Fit) -> Self:
        because, beside_one_node = _because(fit.slots), fit.beside_one_node
        return cls.from_attributes(
            fit.slots, because=because, in_one_vm=fit.on_one_host, in_one_vm_beside_one_node=beside_one_node
        )


class ProfileRoomRecord(DocumentRecord, frozen=True):
    """Room for vGPUs of one profile, now and after the night; `after` is null without a policy."""

    name: str
    now: FitRecord
    after: FitRecord | None


class WholeGpusRecord(DocumentRecord, frozen=True):
    """Free GPUs in DirectPath I/O of one kind."""

    name: str
    device_type: Annotated[str, "vendor and device id"]
    label: Annotated[str | None, "the hardware label"]
    now: SlotsRecord
    after: SlotsRecord | None


class OtherDevicesRecord(DocumentRecord, frozen=True):
    """Free devices of one kind in DirectPath I/O that are not NVIDIA GPUs."""

    name: str
    device_kind: Annotated[str, "GPU (of another vendor), FPGA, accelerator, NIC, storage controller, PCI device"]
    device_type: Annotated[str, "vendor and device id"]
    label: Annotated[str | None, "the hardware label"]
    now: SlotsRecord
    after: SlotsRecord | None


class FreeMemoryRecord(DocumentRecord, frozen=True):
    """Free memory in MiB."""

    at_least_mib: int
    at_most_mib: int | None


class BesideRecord(DocumentRecord, frozen=True):
    """What is free beside a NUMA node."""

    cores: int | None
    memory: FreeMemoryRecord

    @classmethod
    def made_of(cls, beside: Beside) -> Self:
        return cls(beside.cores, FreeMemoryRecord(beside.memory_at_least_mib, beside.memory_at_most_mib))


class BesideBothRecord(DocumentRecord, frozen=True):
    """What is free beside a NUMA node, now and after the night."""

    now: BesideRecord | None
    after: BesideRecord | None


class LargestRecord(DocumentRecord, frozen=True):
    """The largest profile that fits, and how many in one VM."""

    profile: str
    framebuffer_mib: int
    in_one_vm: RangeRecord
    where: str
    beside: BesideRecord

    @classmethod
    def made_of(cls, largest: Largest) -> Self:
        return cls.from_attributes(largest, in_one_vm=largest.count)


class LargestBothRecord(DocumentRecord, frozen=True):
    """The largest vGPUs that one VM may have, now and after the night."""

    now: LargestRecord | None
    after: LargestRecord | None


class RoomRecord(DocumentRecord, frozen=True):
    """Room at a place."""

    name: str
    gpus: int
    profiles: list[ProfileRoomRecord]
    whole_gpus: list[WholeGpusRecord]
    other_devices: list[OtherDevicesRecord]
    largest: LargestBothRecord


class NodeRoomRecord(RoomRecord, frozen=True):
    """Room beside a NUMA node."""

    beside: BesideBothRecord


class HostRoomRecord(RoomRecord, frozen=True):
    """Room on a host."""

    notes: list[str]
    numa_nodes: list[NodeRoomRecord]


class ClusterRoomRecord(RoomRecord, frozen=True):
    """Room in a cluster."""

    notes: Annotated[list[str], "its reservations, or why they are not known"]
    hosts: list[HostRoomRecord]


class FragmentationRecord(DocumentRecord, frozen=True):
    """The free memory of GPUs of one model that VMs cannot use."""

    model: str
    gpus: Annotated[int, "GPUs with free memory that serve vGPUs"]
    free_mib: int
    fragmented_mib: Annotated[int, "free memory that a VM cannot use, averaged over the VMs (F of FGD)"]
    unusable_gpus: Annotated[
        int | None,
        "of these GPUs, those without a slot for any VM that is not running; null = no VM of the model waits",
    ]

    @classmethod
    def made_of(cls, part: Fragmentation) -> Self:
        return cls.from_attributes(part, fragmented_mib=round(part.fragmented_mib))


@printed("capacity", by="gpuops capacity")
class CapacityDocument(VersionedSiteDocument, frozen=True):
    """How many more vGPUs and whole GPUs fit."""

    profile: Annotated[str | None, "full name of the profile in the options"]
    policy: Annotated[str | None, "name of the policy in the options"]
    desktops_to_suspend: Annotated[int | None, "number of desktops that this night suspends"]
    suspended_vms: Annotated[list[str], "VMs whose GPUs are counted as free"]
    gpus: int
    profiles: list[ProfileRoomRecord]
    whole_gpus: list[WholeGpusRecord]
    other_devices: list[OtherDevicesRecord]
    largest: LargestBothRecord
    fragmentation: Annotated[list[FragmentationRecord], "now, by GPU model"]
    clusters: list[ClusterRoomRecord]


def capacity_document(capacity: Capacity, policy: str | None) -> CapacityDocument:
    """Return clusters > hosts > NUMA nodes with their figures; `after` is null without a policy."""
    return CapacityDocument.from_attributes(
        capacity,
        capacity.inventory,
        read_at=capacity.inventory.taken_at,
        policy=policy,
        desktops_to_suspend=None if capacity.after is None else capacity.desktops,
        suspended_vms=capacity.suspended,
        **_room_fields(_PlaceComparison(capacity.now, capacity.after), {}),
    )


def _places_in_scope(all_places: _PlaceComparison, scope: Scope) -> Iterator[_PlaceComparison]:
    """Yield the clusters; with --cluster their hosts, with --host only that host and its NUMA nodes."""
    for cluster in all_places.parts:
        if scope.host is None:
            yield cluster
        if scope.host is None and scope.cluster is None:
            continue
        for host in cluster.parts:
            yield host
            if scope.host is not None:
                yield from host.parts


def _place_title(place: FleetPart) -> str:
    if place.level is Level.CLUSTER:
        return f"{place.name}: {count(place.hosts, 'host')} with {count(place.gpus, 'GPU')}"
    beside = f"{_beside_text(place.beside)}, " if place.beside is not None else ""
    return f"{place.name}: {beside}{count(place.gpus, 'GPU')}"


def _profiles_table(place: _PlaceComparison) -> TextTable:
    """Return the free slots of a place for each profile, and the free devices for whole use."""
    table = _figures_table("profile", len(place.moments))
    letters_by_row: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    # profiles with equal figures whose names differ only in the series share a row: a40-8q and a40-8c are `a40-8c|q`
    for name in sorted(place.now.fits, key=by_size):
        stem = without_series(name)
        cells = _figure_cells([moment.fits[name] for moment in place.moments])
        letters_by_row.setdefault((stem, cells), []).append(name[len(stem) :])
    for (stem, cells), letters in letters_by_row.items():
        table.add_row(f"{stem}{'|'.join(letters)}", *cells)
    for device in place.now.devices:
        kind = f"{device.kind}, " if device.kind else ""
        label = f", label {device.label}" if device.label else ""
        free = (figure(moment.devices[device]) for moment in place.moments)
        table.add_row(f"whole {device.name} ({kind}DirectPath{label})", *free)
    return table


def _places_table(all_places: _PlaceComparison, profile: str) -> TextTable:
    """Return the free slots for one profile in each cluster, host and NUMA node, and why a NUMA node has none."""
    table = _figures_table(profile, len(all_places.moments), "why")
    for place in (part for cluster in all_places.parts for part in _with_parts(cluster)):
        fits = [moment.fits.get(profile, _NO_ROOM) for moment in place.moments]
        why = _because(fits[-1].slots) if place.now.level is Level.NODE else ""
        table.add_row(_INDENT[place.now.level] + place.now.name, *_figure_cells(fits), why)
    return table


def _with_parts(place: _PlaceComparison) -> Iterator[_PlaceComparison]:
    yield place
    for part in place.parts:
        yield from _with_parts(part)


def _figures_table(first_header: str, moments: int, *more_headers: str) -> TextTable:
    """Return an empty table with the columns of `_figure_cells` for one moment (now) or two (now and after)."""
    figures = (*("now", "after")[:moments], *("in one VM", "in one VM after")[:moments])
    return TextTable(first_header, *figures, *more_headers, right=range(1, 1 + moments))


def _figure_cells(fits: list[Fit]) -> tuple[str, ...]:
    return (*(figure(fit.slots) for fit in fits), *map(_in_one_vm, fits))


def _in_one_vm(fit: Fit) -> str:
    """Return `2`, or `2 (4 over NUMA nodes)`."""
    beside, anywhere = figure(fit.beside_one_node), figure(fit.on_one_host)
    return beside if beside == anywhere else f"{beside} ({anywhere} over NUMA nodes)"


def _largest_lines(place: _PlaceComparison) -> Iterator[Text]:
    for word, largest in zip(("now", "after"), (moment.largest for moment in place.moments), strict=False):
        text = "none fits beside a NUMA node"
        if largest is not None:
            vgpus = f"{figure(largest.count)} x {largest.profile} in one VM"
            text = f"{vgpus}, on {largest.where} with {_beside_text(largest.beside)}"
        yield Text(f"largest {word}: ", "dim").append(text)


def _beside_text(beside: Beside) -> str:
    """Return `32 cores, 384 GiB to 512 GiB`."""
    cores = "unknown cores" if beside.cores is None else count(beside.cores, "core")
    least, most = beside.memory_at_least_mib, beside.memory_at_most_mib
    if most is None:
        return f"{cores}, unknown memory"
    return f"{cores}, {size(most) if least == most else f'{size(least)} to {size(most)}'} free"


def _because(slots: Slots) -> str:
    """Return why nothing fits or why the figure is a range; empty for an exact figure of one or more.

    A sum may keep the reason of one of its parts, which says nothing about the others.
    """
    return "" if slots.exact and slots.at_least else slots.because


_ROOMS: Final = {Level.CLUSTER: ClusterRoomRecord, Level.HOST: HostRoomRecord, Level.NODE: NodeRoomRecord}


def _room_fields(
    place: _PlaceComparison, profiles_by_fits: dict[tuple[int, int], list[ProfileRoomRecord]]
) -> dict[str, Any]:
    """Return the fields of one place and its parts.

    `profiles_by_fits` keeps the records of earlier places by the id of their `fits`: most NUMA nodes of a fleet share
    one `fits` object.
    """
    now, after = place.now, place.after
    key = (id(now.fits), id(after.fits) if after is not None else 0)
    if key not in profiles_by_fits:
        fits = [(name, now.fits[name], after.fits[name] if after is not None else None) for name in now.fits]
        profiles_by_fits[key] = [
            ProfileRoomRecord(name, FitRecord.made_of(fit), FitRecord.made_of(fit_after) if fit_after else None)
            for name, fit, fit_after in fits
        ]
    fields: dict[str, Any] = {"gpus": now.gpus, "profiles": profiles_by_fits[key], **_device_fields(place)}
    fields["largest"] = LargestBothRecord(
        *_now_and_after(place, lambda part: part.largest and LargestRecord.made_of(part.largest))
    )
    if now.level is Level.NODE:
        beside = _now_and_after(place, lambda part: part.beside and BesideRecord.made_of(part.beside))
        fields["beside"] = BesideBothRecord(*beside)
    if now.level in (Level.CLUSTER, Level.HOST):
        fields["notes"] = list(now.notes)
    if now.level in _KEY_OF_PARTS:
        fields[_KEY_OF_PARTS[now.level]] = [
            _ROOMS[part.now.level](name=part.now.name, **_room_fields(part, profiles_by_fits)) for part in place.parts
        ]
    return fields


def _now_and_after(place: _PlaceComparison, view: Callable[[FleetPart], Any]) -> tuple[Any, Any]:
    """Return a view of the place now and after the night."""
    return view(place.now), None if place.after is None else view(place.after)


def _device_fields(place: _PlaceComparison) -> dict[str, Any]:
    """Return NVIDIA GPUs that are given to VMs as complete devices, and the other devices."""
    whole_gpus, other_devices = [], []
    for device in place.now.devices:
        device_type, label = f"{device.vendor_id:04x}:{device.device_id:04x}", device.label or None
        now, after = _now_and_after(place, lambda world, device=device: _slots(world.devices[device]))  # type: ignore[misc]
        if device.kind:
            other_devices.append(OtherDevicesRecord(device.name, device.kind, device_type, label, now, after))
        else:
            whole_gpus.append(WholeGpusRecord(device.name, device_type, label, now, after))
    return {"whole_gpus": whole_gpus, "other_devices": other_devices}


def _slots(slots: Slots) -> SlotsRecord:
    return SlotsRecord.from_attributes(slots, because=_because(slots))


_NO_ROOM: Final = Fit(*[Slots(0, 0, "has no GPU that runs it")] * 3)
