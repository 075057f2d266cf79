"""Rotation, the evening: idle desktops that the policy selects make room for the ML VMs that wait."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from gpuops.model.catalog import Catalog
from gpuops.model.inventory import Inventory
from gpuops.model.ml_queue import entry_of
from gpuops.model.rotation import Original, Policy, Role
from gpuops.model.vm import PowerState, Vm, VmDrs
from gpuops.plan.core.plan import Choice, Plan, Rejection
from gpuops.plan.core.steps import PowerOnVm, ShutDownGuest, Step, SuspendVm
from gpuops.plan.placement.project import project
from gpuops.plan.placement.return_order import may_return
from gpuops.plan.placement.room import Room
from gpuops.plan.rotation.bounds import Bounds
from gpuops.plan.rotation.breaker import NO_SETBACKS, Setbacks, tripped
from gpuops.plan.rotation.clocks import clocks_apart
from gpuops.plan.rotation.desktops import Survey, survey
from gpuops.plan.rotation.drs import drs_before, kept_off, unreadable
from gpuops.plan.rotation.durations import Durations
from gpuops.plan.rotation.evening import evening
from gpuops.plan.rotation.hours import closed
from gpuops.plan.rotation.ours import RETURN_COMMAND, Ours, Whereabouts, ours
from gpuops.plan.rotation.proposal import propose
from gpuops.plan.rotation.prospect import NO_NIGHT, Prospect
from gpuops.plan.rotation.queue import Returns, Served, serve
from gpuops.plan.rotation.restless import WHY, restless
from gpuops.plan.rotation.waiting import Waiting, waiting

_NOT_BACK: Final = (Whereabouts.AWAY, Whereabouts.CHANGING)
NAMED: Final = 3
"""So many VMs of an open night are named where it is refused."""
STOPPED: Final = "was started tonight and is off again: left alone"
_AGREE: Final = "put it on the desktops whose owners agree; `owner: none` lets the policy alone select"
_ROLES: Final[dict[type[Step], Role]] = {
    SuspendVm: Role.DESKTOP,
    ShutDownGuest: Role.SHUT_DOWN,
    PowerOnVm: Role.ML,
}
"""What each step of an evening makes of its VM."""


@dataclass(frozen=True, slots=True)
class RotateNight:
    """Suspend what the policy allows, start what fits. `originals` is what the journal knows of earlier nights."""

    policy: Policy
    originals: tuple[Original, ...] = ()
    durations: Durations = field(default_factory=Durations, repr=False)
    """How long operations took here so far."""
    skipped: frozenset[str] = frozenset()
    """Nights that somebody said are not to be taken."""
    setbacks: Mapping[str, Setbacks] = field(default_factory=dict, repr=False)
    """By night, how it went so far."""
    clock_ahead: timedelta | None = field(default=None, repr=False)
    """How far vCenter's clock is ahead of this machine's; None = the two do not compare."""
    over: frozenset[str] = frozenset()
    """Nights whose return has begun."""
    lease: int | None = None
    """Number of the lease under which it is taken; None = the policy has no lock VM, or nothing is to be done."""

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        return ()

    def night(self, inventory: Inventory, now: datetime) -> str:
        """The night this is: tonight's, or without a window the one that is still open."""
        if not self.policy.windows:
            nights = {mine.original.night for mine in self._away(inventory)}
            if nights:
                return max(nights)
        return self.policy.night(now)

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """Mark, suspend, start; refused outside the window, and while an earlier night is not returned."""
        found = self.may_take(inventory, catalog, now)
        return self.prospect(found, inventory, catalog, now).plan()

    def prospect(self, found: Survey, inventory: Inventory, catalog: Catalog, now: datetime) -> Prospect:
        """What this night comes to, with all that speaks for it and against it."""
        night = self.night(inventory, now)
        bounds = self._bounds(night, inventory, now)
        skipped = self.policy.night_at(now) is not None and night in self.skipped
        refusals = [] if skipped else self._refusals(night, found, inventory, now)
        queue = self._queue(night, inventory)
        if skipped or refusals or self._is_over(night, inventory):
            nothing = Served((), tuple(Choice(waits.name, False, waits.reason or NO_NIGHT) for waits in queue))
            return Prospect(
                self.policy, night, found, nothing, bounds, tuple(refusals), over=not refusals, skipped=skipped
            )
        room = Room(catalog, certain=True)
        served = serve(
            queue,
            found.free_to_take,
            inventory,
            room,
            self._may_return(bounds, inventory, catalog),
            objection=bounds.objection,
            priority=found.priority,
            proposals=propose(evening(queue, found.free_to_take, inventory, room, bounds, found.priority)),
        )
        unknown = tuple(unreadable(self.policy, served.starts, inventory))
        drs = self._drs(night, ((start.vm, start.host.ref) for start in served.starts), inventory)
        overrides = kept_off(drs, served.starts, inventory)
        return Prospect(
            self.policy, night, found, served, bounds, unknown, drs=drs, overrides=overrides, lease=self.lease
        )

    def _queue(self, night: str, inventory: Inventory) -> tuple[Waiting, ...]:
        """Who waits. A VM that this night has started and that is off again waits no more: whoever stopped it, or its
        own guest when the work was done, is not to be fought each time that cron calls."""
        stopped = {
            mine.vm.ref: mine.reason if mine.whereabouts is Whereabouts.CHANGING else STOPPED
            for mine in self._ours(inventory)
            if mine.original.night == night and mine.original.role is Role.ML and mine.original.taken
            # a marker alone does not tell whether the start that it was set for was ever sent
            if mine.foreign is None and mine.vm is not None and mine.vm.power is PowerState.OFF
        }
        return tuple(
            replace(waits, reason=waits.reason or stopped.get(waits.vm.ref, "")) if waits.vm is not None else waits
            for waits in waiting(self.policy, inventory)
        )

    def _drs(self, night: str, starts: Iterable[tuple[Vm, str]], inventory: Inventory) -> dict[str, VmDrs]:
        """What DRS does with the VMs that start on these hosts, where it is kept off them."""
        told = {
            vm.ref: drs_before(self.policy, night, vm, inventory.hosts[host], inventory)
            for vm, host in starts
            if host in inventory.hosts
        }
        return {ref: drs for ref, drs in told.items() if drs is not None}

    def at_return(self, bounds: Bounds, inventory: Inventory) -> Inventory:
        """The snapshot as the return will find it: the ML VMs that this night has started are stopped."""
        for vm, _ in bounds.running:
            inventory = project(ShutDownGuest(vm.ref), inventory)
        return inventory

    def _may_return(self, bounds: Bounds, inventory: Inventory, catalog: Catalog) -> Returns:
        """The question whether desktops can come back together with those that this night has taken before."""
        ask = may_return(self.at_return(bounds, inventory), catalog, Room(catalog, certain=False))

        def together(desktops: Sequence[Vm]) -> tuple[Rejection, ...]:
            hosts = {vm.host for vm in desktops}
            return ask([*(vm for vm in bounds.away if vm.host in hosts), *desktops])

        return together

    def may_take(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Survey:
        """Which desktops this night may suspend, whether or not the queue needs their GPUs."""
        night = self.night(inventory, now)
        return survey(
            self.policy, inventory, catalog, self._left_alone(night, inventory), self._suspended(night, inventory)
        )

    def _suspended(self, night: str, inventory: Inventory) -> list[Vm]:
        """Desktops that tonight has suspended, or is suspending."""
        tonight = (mine for mine in self._away(inventory) if mine.original.night == night)
        return [mine.vm for mine in tonight if mine.vm is not None and mine.original.role is Role.DESKTOP]

    def _bounds(self, night: str, inventory: Inventory, now: datetime) -> Bounds:
        tonight = [mine for mine in self._away(inventory) if mine.original.night == night and mine.vm is not None]
        entry = {waits.vm.ref: waits.queued for waits in waiting(self.policy, inventory) if waits.vm is not None}
        return Bounds(
            self.policy,
            self.policy.night_at(now),
            now,
            self.durations,
            tuple(mine.vm for mine in tonight if mine.vm and mine.original.role is not Role.ML),
            tuple((mine.vm, entry[mine.vm.ref]) for mine in tonight if mine.vm and mine.vm.ref in entry),
        )

    def saved(self, plan: Plan, inventory: Inventory, now: datetime) -> tuple[Original, ...]:
        """What the morning will need of every VM this plan touches."""
        night = self.night(inventory, now)
        roles = {step.vm: _ROLES[type(step)] for step in plan.steps if type(step) in _ROLES}
        found = [(inventory.vms[ref], role) for ref, role in roles.items()]
        started = (
            (inventory.vms[step.vm], step.host) for step in plan.steps if isinstance(step, PowerOnVm) and step.host
        )
        drs = self._drs(night, ((vm, host) for vm, host in started if host is not None), inventory)
        return tuple(
            Original(night, role, vm.ref, vm.instance_uuid, vm.name, vm.host, vm.profiles, drs=drs.get(vm.ref))
            for vm, role in found
        )

    def _away(self, inventory: Inventory) -> list[Ours]:
        """What is not back yet: away, or on its way to where nobody knows yet."""
        return [mine for mine in self._ours(inventory) if mine.whereabouts in _NOT_BACK]

    def _ours(self, inventory: Inventory) -> list[Ours]:
        """What nights of this policy have taken, and of others what this one selects as well."""
        marked = (vm for vm in inventory.vms.values() if vm.attributes.get(self.policy.marker))
        selected = {vm.ref for vm in marked if self._selects(vm)}
        found = ours(self.policy, self.originals, inventory, believed=selected)
        return [mine for mine in found if mine.policy.name == self.policy.name or self._selects(mine.vm)]

    def _selects(self, vm: Vm | None) -> bool:
        """Whether the VM is of a pool or of the queue."""
        return vm is not None and (self.policy.pool_of(vm) is not None or entry_of(self.policy.ml, vm) is not None)

    def _refusals(self, night: str, found: Survey, inventory: Inventory, now: datetime) -> list[Rejection]:
        apart = clocks_apart(self.clock_ahead)
        if apart:
            return apart
        shut = closed(self.policy, now, self.durations)
        if shut is not None:
            return [shut]
        earlier = [mine for mine in self._away(inventory) if mine.original.night != night]
        open_nights = sorted({mine.original.night for mine in earlier})
        not_over = [_not_over(each, [one for one in earlier if one.original.night == each]) for each in open_nights]
        return not_over or self._stopped(night, inventory) or self._nobody_agreed(found)

    def _stopped(self, night: str, inventory: Inventory) -> list[Rejection]:
        """So much of this night has failed that it takes nothing more, whoever begins it again."""
        if self._is_over(night, inventory):
            return []
        why = tripped(self.setbacks.get(night, NO_SETBACKS), (), inventory)
        hint = f"look what failed: gpuops rotate status; {RETURN_COMMAND} brings back what it took"
        return [] if why is None else [Rejection(f"night {night}", f"takes nothing more: {why}", hint=hint)]

    def _nobody_agreed(self, found: Survey) -> list[Rejection]:
        """One line for each pool, when in none of them a single desktop carries its owner's mark."""
        disowned = dict(found.disowned_pools)
        if any(pool.parked and pool.name not in disowned for pool in self.policy.pools):
            return []
        return [
            Rejection(f"pool {name}", f"none of its desktops carries {mark}", hint=_AGREE)
            for name, mark in disowned.items()
        ]

    def _is_over(self, night: str, inventory: Inventory) -> bool:
        """One window is one night: from its return on nothing more is taken in it, whatever cron does."""
        if night in self.over:
            return True
        tonight = [original for original in self.originals if original.night == night and original.taken]
        return any(original.returned and not original.given_up for original in tonight)

    def _left_alone(self, night: str, inventory: Inventory) -> dict[str, str]:
        """VMs that tonight's history speaks about: suspended by us, or come back by themselves since."""
        told: dict[str, str] = {}
        woken: list[Vm] = []
        for mine in self._ours(inventory):
            if mine.original.night != night or mine.vm is None or not mine.original.taken:
                continue
            if mine.whereabouts is Whereabouts.AWAY:
                told[mine.vm.ref] = "suspended tonight"
            elif mine.whereabouts is Whereabouts.CHANGING:
                told[mine.vm.ref] = mine.reason
            elif mine.vm.power is PowerState.ON:
                told[mine.vm.ref] = "came back by itself tonight: left alone"
                woken.append(mine.vm)
        return {**self._unparked(restless(woken, self.policy), inventory), **told}

    def _unparked(self, pools: Collection[str], inventory: Inventory) -> dict[str, str]:
        """Desktops of pools that somebody, or a broker, works against: they are no more parked than the policy says."""
        if not pools:
            return {}
        of_pool = {vm.ref: self.policy.pool_of(vm) for vm in inventory.vms.values()}
        return {ref: WHY for ref, pool in of_pool.items() if pool is not None and pool.name in pools}


def _not_over(night: str, away: Sequence[Ours]) -> Rejection:
    """One line for a night, however many VMs it still has."""
    names = [mine.original.name for mine in away]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    rule = f"is not over: {', '.join(names[:NAMED])}{more} not back yet"
    return Rejection(f"night {night}", rule, hint=f"{RETURN_COMMAND} ends it; gpuops rotate status names all of it")
