"""Rotation, giving way: which desktops of one host make room for one ML VM, and what that costs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

from gpuops.model.gpu import PciAddress
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.vm import Vm
from gpuops.plan.core.plan import Rejection
from gpuops.plan.placement.project import project
from gpuops.plan.placement.return_order import suspend_or_shut_down
from gpuops.plan.placement.room import Room, around

_NONE_AT_ALL: Final = -(10**6)
"""Less than any priority."""

Cost = tuple[int, int]
"""(highest priority, number) of desktops that give way."""


def cost(desktops: Sequence[Vm], priority: Mapping[str, int]) -> Cost:
    """What it costs to take these: one of a higher priority is dearer than any number of lower ones."""
    return max((priority.get(vm.ref, 0) for vm in desktops), default=_NONE_AT_ALL), len(desktops)


def make_room(
    vm: Vm,
    host: Host,
    left: Sequence[Vm],
    world: Inventory,
    room: Room,
    priority: Mapping[str, int],
    best: Cost | None,
    first: Collection[PciAddress] = (),
) -> tuple[tuple[Vm, ...] | None, tuple[Rejection, ...]]:
    """The desktops of this host that must give way; None with every reason when not even all of them are enough.

    None without a reason: it would cost no less than the `best` so far. `first`: GPUs that should be cleared for it.
    """
    there = [desktop for desktop in left if desktop.host == host.ref]
    world = around(host, world, vm)
    groups = _groups(host, there, priority, first)
    taken: list[tuple[Vm, ...]] = []
    refusals = room.refusals(vm, host, world)
    if refusals and best is not None and all(cost(group, priority) >= best for group in groups):
        return None, ()
    after = world
    for group in groups:
        if not refusals:
            break
        taken.append(group)
        after = _taken(group, after)
        refusals = room.refusals(vm, after.hosts[host.ref], after)
    if refusals:
        return None, refusals
    needed = taken
    for group in taken:
        fewer = [other for other in needed if other is not group]
        if fewer == taken[:-1]:
            continue  # so many were not enough
        after = _taken(chain.from_iterable(fewer), world)
        if not room.refusals(vm, after.hosts[host.ref], after):
            needed = fewer
    return tuple(chain.from_iterable(needed)), ()


def _taken(desktops: Iterable[Vm], world: Inventory) -> Inventory:
    for desktop in desktops:
        world = project(suspend_or_shut_down(desktop), world)
    return world


def _groups(
    host: Host, desktops: Sequence[Vm], priority: Mapping[str, int], first: Collection[PciAddress]
) -> list[tuple[Vm, ...]]:
    """The desktops by the GPU they are on: these GPUs first; then the lowest priority, then GPUs that can be cleared
    whole, then those with fewer desktops.

    A desktop whose GPU the host does not tell is a group of its own.
    """
    by_ref = {desktop.ref: desktop for desktop in desktops}
    groups: list[tuple[bool, bool, tuple[Vm, ...]]] = []
    for gpu in host.gpus:
        on_it = [by_ref.pop(ref) for ref in gpu.vms or () if ref in by_ref]
        if on_it:
            groups.append((gpu.address not in first, len(on_it) < len(set(gpu.vms or ())), tuple(on_it)))
    groups += [(True, True, (desktop,)) for desktop in by_ref.values()]

    def order(item: tuple[bool, bool, tuple[Vm, ...]]) -> tuple[bool, int, bool, int, str]:
        other, shared, group = item
        return other, max(priority.get(vm.ref, 0) for vm in group), shared, len(group), group[0].name

    return [group for *_, group in sorted(groups, key=order)]
