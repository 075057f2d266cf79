"""Which ML VMs must stop so that desktops find their GPUs again.

`restore.py` asks it where a policy says `user_wins`, `watch_look.py` where too few desktops are ready for users. A
morning does not: it stops all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf

from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.ml_queue import entry_of
from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.steps import ShutDownGuest
from gpuops.plan.placement.project import project
from gpuops.plan.placement.return_order import resume_or_power_on
from gpuops.plan.placement.room import Room, around
from gpuops.plan.rotation.ml_queue.whole_clusters import with_their_clusters
from gpuops.plan.rotation.returns.day import checkpoint_of
from gpuops.plan.rotation.taken_vms import TakenVm, Whereabouts

Loss = tuple[int, float]
"""(priority in the queue, seconds of work that are lost); infinite where nothing tells when it was started."""


def loss_of(taken_vm: TakenVm, now: datetime) -> Loss:
    """What it costs to stop this ML VM now; `now` by vCenter's clock."""
    vm, name, policy = taken_vm.vm, taken_vm.original.name, taken_vm.policy
    if vm is None:
        return 0, inf
    entry = entry_of(policy.ml, vm, name)
    lost_s = checkpoint_of(policy, vm, name).lost_s(taken_vm.original.started_at, now)
    return entry.priority if entry is not None else 0, inf if lost_s is None else lost_s


def running_ml(taken: Iterable[TakenVm]) -> list[TakenVm]:
    """Those of these that are ML VMs which run."""
    return [each for each in taken if each.original.role is Role.ML and each.whereabouts is Whereabouts.AWAY]


def away_desktops(taken: Iterable[TakenVm]) -> list[TakenVm]:
    """Those of these that are desktops which are suspended, or shut down."""
    return [each for each in taken if each.original.role is not Role.ML and each.whereabouts is Whereabouts.AWAY]


@dataclass(frozen=True, slots=True)
class WayBack:
    """Desktops that come back, and the ML VMs that stop for them."""

    desktops: tuple[TakenVm, ...] = ()
    stops: tuple[TakenVm, ...] = ()


def stops_for(
    desktop: Vm, running: Sequence[TakenVm], world: Inventory, catalog: Catalog, now: datetime
) -> tuple[TakenVm, ...] | None:
    """The ML VMs of these that must stop before the desktop finds room on its host; None = not even all are enough.

    One alone where that is enough, the one that loses the least; else one after the other in that order, without those
    that turn out not to be needed. With each stop the others of its cluster, on whatever host, and count as its loss.
    """
    host = world.host_of(desktop)
    if host is None:
        return None
    room, world = Room(catalog, certain=False), around(host, world, desktop)

    def fits_without(stopped: Sequence[TakenVm]) -> bool:
        after = world
        for each in stopped:
            after = project(ShutDownGuest(each.original.vm if each.vm is None else each.vm.ref), after)
        return not room.refusals(desktop, after.hosts[host.ref], after)

    if fits_without(()):
        return ()
    here = sorted(
        (each for each in running if each.vm is not None and each.vm.host == host.ref),
        key=lambda each: (_total(with_their_clusters((each,), running), now), each.original.name),
    )
    alone = next((each for each in here if fits_without((each,))), None)
    if alone is not None:
        return with_their_clusters((alone,), running)
    if not fits_without(here):
        return None
    needed = list(here)
    for each in reversed(here):
        fewer = [other for other in needed if other is not each]
        if fits_without(fewer):
            needed = fewer
    return with_their_clusters(needed, running)


def way_free_for(
    desktops: Iterable[TakenVm], running: Sequence[TakenVm], world: Inventory, catalog: Catalog, now: datetime
) -> WayBack:
    """All of these desktops that can come back when ML VMs stop, one after the other, and which do."""
    chosen, stopped = list[TakenVm](), list[TakenVm]()
    for taken_vm in desktops:
        if taken_vm.vm is None:
            continue
        stops = stops_for(taken_vm.vm, [each for each in running if each not in stopped], world, catalog, now)
        if stops is not None:
            chosen.append(taken_vm)
            stopped += stops
            world = _after(taken_vm.vm, stops, world, catalog)
    return WayBack(tuple(chosen), tuple(stopped))


def cheapest_way_back(
    wanted: Iterable[tuple[Sequence[TakenVm], int]],
    running: Sequence[TakenVm],
    world: Inventory,
    catalog: Catalog,
    now: datetime,
) -> WayBack:
    """Of each group of desktops so many as are wanted of it, those for which the least work is stopped; fewer where no
    more can come back."""
    chosen, stopped = list[TakenVm](), list[TakenVm]()
    for desktops, count in wanted:
        left = list(desktops)
        for _ in range(count):
            going = [each for each in running if each not in stopped]
            offers = [
                (_total(stops, now), each.original.name, each, stops)
                for each in _one_of_each_kind(left)
                if each.vm is not None and (stops := stops_for(each.vm, going, world, catalog, now)) is not None
            ]
            if not offers:
                break
            *_, best, stops = min(offers, key=lambda offer: offer[:2])
            left.remove(best)
            chosen.append(best)
            stopped += stops
            if best.vm is not None:
                world = _after(best.vm, stops, world, catalog)
    return WayBack(tuple(chosen), tuple(stopped))


def _one_of_each_kind(desktops: Iterable[TakenVm]) -> Iterator[TakenVm]:
    """One for all desktops of a host that carry the same: for the others the answer would be the same."""
    seen: set[tuple[str | None, tuple[str, ...]]] = set()
    for each in desktops:
        key = (each.vm.host, each.vm.profiles) if each.vm is not None else (None, ())
        if key not in seen:
            seen.add(key)
            yield each


def _total(stops: Iterable[TakenVm], now: datetime) -> Loss:
    losses = [loss_of(each, now) for each in stops]
    return max((priority for priority, _ in losses), default=-(10**6)), sum(lost_s for _, lost_s in losses)


def _after(desktop: Vm, stops: Iterable[TakenVm], world: Inventory, catalog: Catalog) -> Inventory:
    """The snapshot once these have stopped and the desktop is back."""
    for each in stops:
        if each.vm is not None:
            world = project(ShutDownGuest(each.vm.ref), world)
    return project(resume_or_power_on(desktop), world, catalog)
