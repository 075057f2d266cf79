"""Plans the return of named VMs for `rotate restore`, and selects the ML VMs that must stop for desktops.

The plan is that of `rotate day`, limited to these VMs. If the policy has `user_wins`, the ML VMs stop on whose GPUs the
desktops resume. `watch_look.py` selects ML VMs in the same way if too few desktops are ready for users. `rotate day`
selects none, because it stops all ML VMs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf

from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.ml_queue import entry_of
from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.plan import Choice, Plan, Wave, refuse
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import SetAttribute, ShutDownGuest, SuspendVm
from gpuops.plan.placement.project import project
from gpuops.plan.placement.seating import Room, reduced_to_host
from gpuops.plan.placement.suspended_vms import resume_or_power_on
from gpuops.plan.rotation.ml_queue.whole_clusters import with_their_clusters
from gpuops.plan.rotation.returns.day import RotateDay, checkpoint_of, reverted_desktops
from gpuops.plan.rotation.taken_vms import RETURN_COMMAND, TakenVm, Whereabouts, marker_of, taken_vms, vms_of

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
    """Return the ML VMs that must stop before the desktop has room on its host; None = stopping all is not enough,
    or its host is unknown.

    If stopping one ML VM is enough, it is the one that loses the least work. Otherwise ML VMs are added in order of
    their loss, and those that turn out to be unnecessary are removed. An ML VM of a cluster stops together with the
    other VMs of the cluster, on every host, and their work counts as its loss.
    """
    host = world.host_of(desktop)
    if host is None:
        return None
    room, world = Room(catalog, certain=False), reduced_to_host(host, world, desktop)

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
    # Keep those that lose the most work running, if the desktop fits without stopping them.
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
            # One desktop for each host and list of profiles: for the others the stops would be the same.
            representatives: dict[tuple[str | None, tuple[str, ...]], tuple[TakenVm, Vm]] = {}
            for desktop in candidates:
                if desktop.vm is not None:
                    representatives.setdefault((desktop.vm.host, desktop.vm.profiles), (desktop, desktop.vm))
            offers = []
            for desktop, vm in representatives.values():
                stops = ml_stops_for(vm, still_running, world, catalog, now)
                if stops is not None:
                    offers.append((_total_loss(stops, now), desktop.original.name, desktop, vm, stops))
            if not offers:
                break
            _, _, best, vm, stops = min(offers, key=lambda offer: offer[:2])
            candidates.remove(best)
            returning.append(best)
            stopped_vms += stops
            world = _world_after(vm, stops, world, catalog)
    return DesktopReturn(tuple(returning), tuple(stopped_vms))


def _total_loss(stops: Iterable[TakenVm], now: datetime) -> Loss:
    """Return the highest priority of these ML VMs and the sum of their lost work; without any, below every priority."""
    losses = [loss_of(ml_vm, now) for ml_vm in stops]
    return max((priority for priority, _ in losses), default=-(10**6)), sum(lost_s for _, lost_s in losses)


def _world_after(desktop: Vm, stops: Iterable[TakenVm], world: Inventory, catalog: Catalog) -> Inventory:
    """Return the snapshot after these ML VMs have stopped and the desktop has resumed."""
    for ml_vm in stops:
        if ml_vm.vm is not None:
            world = project(ShutDownGuest(ml_vm.vm.ref), world)
    return project(resume_or_power_on(desktop), world, catalog)


_AS_IT_WAS = (Whereabouts.BACK, Whereabouts.UNTOUCHED)


@dataclass(frozen=True, slots=True)
class RestoreVms:
    """Return only these VMs.

    Other ML VMs keep running, even if a desktop then finds no room: the user decides whose work is stopped in an
    emergency, or the policy of the night does (`user_wins`).

    A VM that only a marker records and that the policy does not cover is returned after a confirmation.
    """

    day: RotateDay
    names: tuple[str, ...]
    clears: bool = False
    """Whether only the markers are cleared (`gpuops rotate clear-marker`)."""

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        return ()

    def lock_vms(self, inventory: Inventory) -> Mapping[str, str | None]:
        """Map VM ref -> name of the lock VM whose lease is needed to return it; None = no lease is needed."""
        return self.day.lock_vms(inventory)

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """Return the plan of a morning for these VMs. It refuses names of no VM, and of VMs that no night took
        and that do not run."""
        if self.clears:
            return clear_markers(self.day, self.names, inventory)
        named_refs = {vm.ref for name in self.names for vm in _vms_called(name, inventory)}
        of_nights = taken_vms(self.day.policy, self.day.originals, inventory, trusted_refs=named_refs)
        # Names of VMs that no night took are accepted only if the VM is running.
        selected = [taken_vm for taken_vm in of_nights if any(_is_called(taken_vm, name) for name in self.names)]
        known_names = {name for name in self.names if any(_is_called(taken_vm, name) for taken_vm in selected)}
        other_vms = {name: _vms_called(name, inventory) for name in self.names if name not in known_names}
        not_taken = [_not_taken(name, vms) for name, vms in other_vms.items() if not _all_running(vms)]
        if not_taken:
            return refuse(*not_taken)
        # ML VMs that occupy the GPUs of a desktop stop if the policy of its night says `user_wins`.
        user_desktops = [desktop for desktop in away_desktops(selected) if desktop.policy.user_wins]
        others_running = [ml_vm for ml_vm in running_ml(of_nights) if ml_vm not in selected]
        desktop_return = return_desktops(user_desktops, others_running, inventory, catalog, inventory.taken_at)
        user_names = ", ".join(desktop.original.name for desktop in user_desktops)
        stopped_for = [
            f"{ml_vm.original.name}: is stopped for {user_names} (user_wins)" for ml_vm in desktop_return.stops
        ]
        selected += desktop_return.stops
        # Plan the complete morning for its order and limits, then keep only the steps of these VMs.
        limited_plan = _limited_to(self.day.return_plan(of_nights, inventory, catalog, now), selected)
        doubtful = {
            vm.ref: f"{vm.name}: {taken_vm.doubt}"
            for taken_vm in selected
            if taken_vm.doubt and (vm := taken_vm.vm) is not None
        }
        return replace(
            limited_plan,
            warnings=(*limited_plan.warnings, *doubtful.values(), *reverted_desktops(selected, limited_plan.steps)),
            disruptive=limited_plan.disruptive or any(step.vm in doubtful for step in limited_plan.steps),
            because=(
                *stopped_for,
                *(
                    f"{taken_vm.original.name}: {taken_vm.reason}"
                    for taken_vm in selected
                    if taken_vm.whereabouts in _AS_IT_WAS
                ),
                *(f"{name}: is running, and no night has taken it" for name in other_vms),
            ),
        )


def clear_markers(day: RotateDay, names: Iterable[str], inventory: Inventory) -> Plan:
    """Return the plan that clears the markers of these VMs and changes nothing else.

    This is for copies of VMs of a night, and for VMs whose marker cannot be read. A VM that belongs to an open night of
    the journal is refused: the return of that night clears its marker.
    """
    attributes = sorted({marker_of(day.policy), *(marker_of(original.policy) for original in day.originals)})
    open_originals = {
        vm.ref: original for original in day.originals if not original.returned for vm in vms_of(original, inventory)
    }
    refused, choices, steps = list[Rejection](), list[Choice](), list[SetAttribute]()
    for name in names:
        vms = _vms_called(name, inventory)
        if len(vms) != 1:
            refused.append(_not_one(name, vms))
            continue
        [vm] = vms
        if vm.ref in open_originals:
            reason = f"night {open_originals[vm.ref].night} has taken it: its return clears the marker"
            refused.append(Rejection(vm.name, reason, hint=RETURN_COMMAND))
            continue
        markers = {attribute: text for attribute in attributes if (text := vm.attributes.get(attribute, ""))}
        steps += [SetAttribute(vm.ref, attribute, "") for attribute in markers]
        shown_markers = " and ".join(f"{attribute} {text!r}" for attribute, text in markers.items())
        choices.append(Choice(vm.name, bool(markers), f"carries {shown_markers or 'no marker'}"))
    if refused:
        return refuse(*refused)
    return Plan(
        waves=(Wave("clear the markers", tuple(steps)),) if steps else (),
        choices=tuple(choices),
        because=tuple(f"{choice.subject}: {choice.reason}" for choice in choices if not choice.chosen),
        disruptive=bool(steps),
    )


def _not_one(name: str, vms: Collection[Vm]) -> Rejection:
    if not vms:
        return Rejection(name, "no VM has this name", hint="gpuops rotate status lists those that have a marker")
    return Rejection(
        name, "several VMs have this name", hint="select one with --vm moid:ID; gpuops rotate status lists them"
    )


def _limited_to(plan: Plan, selected: Iterable[TakenVm]) -> Plan:
    """Return the parts of the plan that concern these VMs."""
    refs = {taken_vm.vm.ref for taken_vm in selected if taken_vm.vm is not None}
    names = {taken_vm.original.name for taken_vm in selected}
    waves = (Wave(wave.title, tuple(step for step in wave.steps if step.vm in refs)) for wave in plan.waves)
    narrowed_waves = tuple(wave for wave in waves if wave.steps)
    return replace(
        plan,
        waves=narrowed_waves,
        unmet=tuple(rejection for rejection in plan.unmet if rejection.subject in names),
        choices=tuple(choice for choice in plan.choices if choice.subject in names),
        disruptive=any(isinstance(step, ShutDownGuest | SuspendVm) for wave in narrowed_waves for step in wave.steps),
    )


def _is_called(taken_vm: TakenVm, name: str) -> bool:
    """Return whether `--vm NAME` selects it: by its name when it was taken, or by its name now."""
    was_called = name in (taken_vm.original.name, f"moid:{taken_vm.original.vm}")
    return was_called or (taken_vm.vm is not None and taken_vm.vm.is_called(name))


def _vms_called(name: str, inventory: Inventory) -> list[Vm]:
    return [vm for vm in inventory.vms.values() if vm.is_called(name)]


def _all_running(vms: Collection[Vm]) -> bool:
    return bool(vms) and all(vm.power is PowerState.ON for vm in vms)


def _not_taken(name: str, vms: Collection[Vm]) -> Rejection:
    if not vms:
        return Rejection(name, "no VM of a night has this name", hint="gpuops rotate status lists the VMs of nights")
    return Rejection(name, "no night has taken it: not touched", hint="gpuops rotate status lists the VMs of nights")
