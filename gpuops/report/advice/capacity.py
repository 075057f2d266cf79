"""What `gpuops capacity` prints: tables that go as deep as what was asked for, and the whole tree as a JSON document.

Text: clusters; with --cluster its hosts too, with --host its NUMA nodes; with --profile every place, for it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from gpuops.advise.capacity import Slots
from gpuops.plan.capacity.fleet_part import Beside, Device, Fit, FleetPart, Largest, Level
from gpuops.plan.capacity.question import Capacity
from gpuops.plan.core.scope import Scope
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.monitoring.inventory import by_size, figure, without_series
from gpuops.report.text import count, size, visible

_FEW: Final = 4
_INDENT: Final = {Level.ALL: "", Level.CLUSTER: "", Level.HOST: "  ", Level.NODE: "    "}
_KEY_OF_PARTS: Final = {Level.ALL: "clusters", Level.CLUSTER: "hosts", Level.HOST: "numa_nodes"}


@dataclass(frozen=True, slots=True)
class _Both:
    """One place now and, where a night was asked about, after it."""

    now: FleetPart
    after: FleetPart | None

    @property
    def parts(self) -> tuple[_Both, ...]:
        after = self.after.parts if self.after is not None else (None,) * len(self.now.parts)
        return tuple(_Both(*pair) for pair in zip(self.now.parts, after, strict=True))

    @property
    def worlds(self) -> tuple[FleetPart, ...]:
        return (self.now,) if self.after is None else (self.now, self.after)


def capacity_text(found: Capacity, scope: Scope, policy: str | None) -> Shown:
    """A heading, and a table for each place that the scope leads to."""
    whole = _Both(found.now, found.after)
    lines: list[Shown] = [Text(_heading(found), "bold")]
    if found.after is not None:
        night = f"policy {visible(policy)}" if policy else "the policy"
        lines.append(Text(f"after: when {count(found.desktops, 'desktop')} that {night} may take now are suspended"))
    if not found.now.gpus and not found.now.devices:
        return (*lines, Text("no GPU to answer for"))
    if found.profile is not None:
        table = _places_table(whole, found.profile)
        return (*lines, table, *_largest_lines(whole), *_notes(whole), *_suspended(found))
    for place in _shown(whole, scope):
        lines += [Text(), Text(_title(place.now), "bold"), _profiles_table(place), *_largest_lines(place)]
    return (*lines, *_notes(whole), *_suspended(found))


def _suspended(found: Capacity) -> Iterator[Text]:
    """Whose GPUs are counted although they come back to them, unlike in `gpuops place`."""
    if found.suspended:
        more = f" and {len(found.suspended) - _FEW} more" if len(found.suspended) > _FEW else ""
        names = visible(", ".join(found.suspended[:_FEW]) + more)
        yield Text(f"counted as free: the GPUs of {count(len(found.suspended), 'suspended VM')}: {names}", "dim")


def capacity_document(found: Capacity, policy: str | None) -> Document:
    """Clusters > hosts > NUMA nodes, each with its figures; `after` is null without a policy."""
    inventory = found.inventory
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "capacity",
        "vcenter": inventory.vcenter,
        "api_version": inventory.api_version,
        "read_at": inventory.taken_at.isoformat(),
        "profile": found.profile,
        "policy": policy,
        "desktops_to_suspend": None if found.after is None else found.desktops,
        "suspended_vms": list(found.suspended),
        **_place(_Both(found.now, found.after), {}),
    }


def _heading(found: Capacity) -> str:
    inventory = found.inventory
    return (
        f"vCenter {visible(inventory.api_version)}: {count(found.now.hosts, 'host')} with "
        f"{count(found.now.gpus, 'GPU')}, read {inventory.taken_at:%Y-%m-%d %H:%M %Z}"
    )


def _shown(whole: _Both, scope: Scope) -> Iterator[_Both]:
    for cluster in whole.parts:
        if scope.host is None:
            yield cluster
        if scope.host is None and scope.cluster is None:
            continue
        for host in cluster.parts:
            yield host
            if scope.host is not None:
                yield from host.parts


def _title(place: FleetPart) -> str:
    if place.level is Level.CLUSTER:
        return f"{visible(place.name)}: {count(place.hosts, 'host')} with {count(place.gpus, 'GPU')}"
    beside = f"{_beside(place.beside)}, " if place.beside is not None else ""
    return f"{visible(place.name)}: {beside}{count(place.gpus, 'GPU')}"


def _profiles_table(place: _Both) -> TextTable:
    table = _table("profile", len(place.worlds))
    merged: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name in sorted(place.now.fits, key=by_size):
        stem = without_series(name)
        cells = _cells([world.fits[name] for world in place.worlds])
        merged.setdefault((stem, cells), []).append(name[len(stem) :])
    for (stem, cells), letters in merged.items():
        table.add_row(visible(f"{stem}{'|'.join(letters)}"), *cells)
    for device, cells in _device_rows(place):
        table.add_row(visible(f"whole {_device_name(device)}"), *cells)
    return table


def _places_table(whole: _Both, profile: str) -> TextTable:
    table = _table(visible(profile), len(whole.worlds), "why")
    for place in (each for cluster in whole.parts for each in _with_parts(cluster)):
        fits = [world.fits.get(profile, _NOTHING) for world in place.worlds]
        why = _because(fits[-1].slots) if place.now.level is Level.NODE else ""
        table.add_row(_INDENT[place.now.level] + visible(place.now.name), *_cells(fits), visible(why))
    return table


def _with_parts(place: _Both) -> Iterator[_Both]:
    yield place
    for part in place.parts:
        yield from _with_parts(part)


def _table(first: str, worlds: int, *more: str) -> TextTable:
    figures = (*("now", "after")[:worlds], *("in one VM", "in one VM after")[:worlds])
    return TextTable(first, *figures, *more, right=range(1, 1 + worlds))


def _cells(fits: list[Fit]) -> tuple[str, ...]:
    return (*(figure(fit.slots) for fit in fits), *map(_in_one_vm, fits))


def _in_one_vm(fit: Fit) -> str:
    """`2`, or `2 (4 over NUMA nodes)`."""
    beside, anywhere = figure(fit.beside_one_node), figure(fit.on_one_host)
    return beside if beside == anywhere else f"{beside} ({anywhere} over NUMA nodes)"


def _device_rows(place: _Both) -> Iterator[tuple[Device, tuple[str, ...]]]:
    for device in place.now.devices:
        yield device, tuple(figure(world.devices[device]) for world in place.worlds)


def _device_name(device: Device) -> str:
    kind = f"{device.kind}, " if device.kind else ""
    return f"{device.name} ({kind}DirectPath{f', label {device.label}' if device.label else ''})"


def _largest_lines(place: _Both) -> Iterator[Text]:
    for word, world in zip(("now", "after"), place.worlds, strict=False):
        yield Text(f"largest {word}: ", "dim").append(_largest_text(world.largest))


def _largest_text(largest: Largest | None) -> str:
    if largest is None:
        return "none fits beside a NUMA node"
    vgpus = f"{figure(largest.count)} x {visible(largest.profile)} in one VM"
    return f"{vgpus}, on {visible(largest.where)} with {_beside(largest.beside)}"


def _beside(beside: Beside) -> str:
    """`32 cores, 384 GiB to 512 GiB`."""
    cores = "unknown cores" if beside.cores is None else count(beside.cores, "core")
    least, most = beside.memory_at_least_mib, beside.memory_at_most_mib
    if most is None:
        return f"{cores}, unknown memory"
    return f"{cores}, {size(most) if least == most else f'{size(least)} to {size(most)}'} free"


def _notes(place: _Both) -> Iterator[Text]:
    for each in _with_parts(place):
        for note in each.now.notes:
            yield Text(f"note: {visible(each.now.name)} {visible(note)}", "yellow")


def _because(slots: Slots) -> str:
    """Why there is none, or why it is not certain; sums keep a reason of one part that means nothing of the others."""
    return "" if slots.exact and slots.at_least else slots.because


def _place(place: _Both, known: dict[tuple[int, int], list[Document]]) -> Document:
    """One place with its parts. `known`: the profiles of a fleet's nodes, most of which are like another one's."""
    now, after = place.now, place.after
    alike = (id(now.fits), id(after.fits) if after is not None else 0)
    if alike not in known:
        known[alike] = _profiles(place)
    document: Document = {} if now.level is Level.ALL else {"name": now.name}
    document |= {"gpus": now.gpus, "profiles": known[alike], "whole_gpus": _whole(place, gpus=True)}
    document["other_devices"] = _whole(place, gpus=False)
    document["largest"] = _each(place, lambda world: _largest(world.largest))
    if now.level is Level.NODE:
        document["beside"] = _each(place, lambda world: _memory(world.beside))
    if now.level in (Level.CLUSTER, Level.HOST):
        document["notes"] = list(now.notes)
    if now.level in _KEY_OF_PARTS:
        document[_KEY_OF_PARTS[now.level]] = [_place(part, known) for part in place.parts]
    return document


def _each(place: _Both, view: Callable[[FleetPart], Document | None]) -> Document:
    return {"now": view(place.now), "after": None if place.after is None else view(place.after)}


def _profiles(place: _Both) -> list[Document]:
    return [
        {"name": name, **_each(place, lambda world, name=name: _fit(world.fits[name]))}  # type: ignore[misc]
        for name in place.now.fits
    ]


def _whole(place: _Both, *, gpus: bool) -> list[Document]:
    """NVIDIA's GPUs that are given whole, or the other devices."""
    return [
        {
            "name": device.name,
            **({} if gpus else {"device_kind": device.kind}),
            "device_type": f"{device.vendor_id:04x}:{device.device_id:04x}",
            "label": device.label or None,
            **_each(place, lambda world, device=device: _slots(world.devices[device])),  # type: ignore[misc]
        }
        for device in place.now.devices
        if gpus is not bool(device.kind)
    ]


def _fit(fit: Fit) -> Document:
    return {
        **_slots(fit.slots),
        "in_one_vm": _range(fit.on_one_host),
        "in_one_vm_beside_one_node": _range(fit.beside_one_node),
    }


def _range(slots: Slots) -> Document:
    return {"at_least": slots.at_least, "at_most": slots.at_most}


def _slots(slots: Slots) -> Document:
    return {"at_least": slots.at_least, "at_most": slots.at_most, "because": _because(slots)}


def _largest(largest: Largest | None) -> Document | None:
    if largest is None:
        return None
    return {
        "profile": largest.profile,
        "framebuffer_mib": largest.framebuffer_mib,
        "in_one_vm": _range(largest.count),
        "where": largest.where,
        "beside": _memory(largest.beside),
    }


def _memory(beside: Beside | None) -> Document | None:
    if beside is None:
        return None
    memory = {"at_least_mib": beside.memory_at_least_mib, "at_most_mib": beside.memory_at_most_mib}
    return {"cores": beside.cores, "memory": memory}


_NOTHING: Final = Fit(*[Slots(0, 0, "has no GPU that runs it")] * 3)
