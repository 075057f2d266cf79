"""Selects the ML VMs that must stop so that desktops can resume on their GPUs.

`restore.py` uses it if a policy says `user_wins`, and `watch_look.py` if too few desktops are ready for users. A
morning does not need it: it stops all ML VMs.
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
from gpuops.plan.placement.seating import Room, around
from gpuops.plan.placement.suspended_vms import resume_or_power_on
from gpuops.plan.rotation.ml_queue.whole_clusters import with_their_clusters
from gpuops.plan.rotation.returns.day import checkpoint_of
from gpuops.plan.rotation.taken_vms import TakenVm, Whereabouts

Loss = tuple[int, float]
"""(priority in the queue, seconds of lost work); infinite seconds if it is unknown when the VM was started."""


def loss_of(taken_vm: TakenVm, now: datetime) -> Loss:
    """Return the loss if this ML VM stops now; `now` by vCenter's clock."""
    vm, name, policy = taken_vm.vm, taken_vm.original.name, taken_vm.policy
    if vm is None:
        return 0, inf
    queued_vm = entry_of(policy.ml, vm, name)
    lost_s = checkpoint_of(policy, vm, name).lost_s(taken_vm.original.started_at, now)
    return queued_vm.priority if queued_vm is not None else 0, inf if lost_s is None else lost_s


def running_ml(taken_vms: Iterable[TakenVm]) -> list[TakenVm]:
    """Return the ML VMs that a night started and that still run."""
    return [
        taken_vm
        for taken_vm in taken_vms
        if taken_vm.original.role is Role.ML and taken_vm.whereabouts is Whereabouts.AWAY
    ]


def away_desktops(taken_vms: Iterable[TakenVm]) -> list[TakenVm]:
    """Return the desktops that are still suspended or shut down."""
    return [
        taken_vm
        for taken_vm in taken_vms
        if taken_vm.original.role is not Role.ML and taken_vm.whereabouts is Whereabouts.AWAY
    ]


@dataclass(frozen=True, slots=True)
class DesktopReturn:
    """Desktops that resume, and the ML VMs that stop for them."""

    desktops: tuple[TakenVm, ...] = ()
    stops: tuple[TakenVm, ...] = ()


def ml_stops_for(
    desktop: Vm, running: Sequence[TakenVm], world: Inventory, catalog: Catalog, now: datetime
) -> tuple[TakenVm, ...] | None:
    """Return the ML VMs that must stop before the desktop has room on its host; None = stopping all is not enough.

    If stopping one ML VM is enough, it is the one that loses the least work. Otherwise ML VMs are added in order of
    their loss, and those that turn out to be unnecessary are removed. An ML VM of a cluster stops together with the
    other VMs of the cluster, on every host, and their work counts as its loss.
    """
    host = world.host_of(desktop)
    if host is None:
        return None
    room, world = Room(catalog, certain=False), around(host, world, desktop)

    def fits_without(stopped: Sequence[TakenVm]) -> bool:
        after = world
        for ml_vm in stopped:
            after = project(ShutDownGuest(ml_vm.original.vm if ml_vm.vm is None else ml_vm.vm.ref), after)
        return not room.refusals(desktop, after.hosts[host.ref], after)

    if fits_without(()):
        return ()
    on_host = sorted(
        (ml_vm for ml_vm in running if ml_vm.vm is not None and ml_vm.vm.host == host.ref),
        key=lambda ml_vm: (_total_loss(with_their_clusters((ml_vm,), running), now), ml_vm.original.name),
    )
    one_stop = next((ml_vm for ml_vm in on_host if fits_without((ml_vm,))), None)
    if one_stop is not None:
        return with_their_clusters((one_stop,), running)
    if not fits_without(on_host):
        return None
    needed = list(on_host)
    for ml_vm in reversed(on_host):
        fewer = [needed_vm for needed_vm in needed if needed_vm is not ml_vm]
        if fits_without(fewer):
            needed = fewer
    return with_their_clusters(needed, running)


def return_desktops(
    desktops: Iterable[TakenVm], running: Sequence[TakenVm], world: Inventory, catalog: Catalog, now: datetime
) -> DesktopReturn:
    """Return all of these desktops that can resume if ML VMs stop, planned one after the other, and these ML VMs."""
    returning, stopped_vms = list[TakenVm](), list[TakenVm]()
    for taken_vm in desktops:
        if taken_vm.vm is None:
            continue
        stops = ml_stops_for(taken_vm.vm, [ml_vm for ml_vm in running if ml_vm not in stopped_vms], world, catalog, now)
        if stops is not None:
            returning.append(taken_vm)
            stopped_vms += stops
            world = _world_after(taken_vm.vm, stops, world, catalog)
    return DesktopReturn(tuple(returning), tuple(stopped_vms))


def return_cheapest_desktops(
    requested: Iterable[tuple[Sequence[TakenVm], int]],
    running: Sequence[TakenVm],
    world: Inventory,
    catalog: Catalog,
    now: datetime,
) -> DesktopReturn:
    """Return the requested number of desktops of each group that cost the least ML work, and the ML VMs that stop.

    There are fewer desktops if no more can resume.
    """
    returning, stopped_vms = list[TakenVm](), list[TakenVm]()
    for desktops, count in requested:
        candidates = list(desktops)
        for _ in range(count):
            still_running = [ml_vm for ml_vm in running if ml_vm not in stopped_vms]
            offers = [
                (_total_loss(stops, now), desktop.original.name, desktop, stops)
                for desktop in _one_of_each_kind(candidates)
                if desktop.vm is not None
                and (stops := ml_stops_for(desktop.vm, still_running, world, catalog, now)) is not None
            ]
            if not offers:
                break
            *_, best, stops = min(offers, key=lambda offer: offer[:2])
            candidates.remove(best)
            returning.append(best)
            stopped_vms += stops
            if best.vm is not None:
                world = _world_after(best.vm, stops, world, catalog)
    return DesktopReturn(tuple(returning), tuple(stopped_vms))


def _one_of_each_kind(desktops: Iterable[TakenVm]) -> Iterator[TakenVm]:
    """Yield one desktop for each host and list of profiles: for the others the stops would be the same."""
    seen_keys: set[tuple[str | None, tuple[str, ...]]] = set()
    for desktop in desktops:
        key = (desktop.vm.host, desktop.vm.profiles) if desktop.vm is not None else (None, ())
        if key not in seen_keys:
            seen_keys.add(key)
            yield desktop


def _total_loss(stops: Iterable[TakenVm], now: datetime) -> Loss:
    losses = [loss_of(ml_vm, now) for ml_vm in stops]
    return max((priority for priority, _ in losses), default=-(10**6)), sum(lost_s for _, lost_s in losses)


def _world_after(desktop: Vm, stops: Iterable[TakenVm], world: Inventory, catalog: Catalog) -> Inventory:
    """Return the snapshot after these ML VMs have stopped and the desktop has resumed."""
    for ml_vm in stops:
        if ml_vm.vm is not None:
            world = project(ShutDownGuest(ml_vm.vm.ref), world)
    return project(resume_or_power_on(desktop), world, catalog)
