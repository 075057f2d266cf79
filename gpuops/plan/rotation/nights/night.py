"""The request `RotateNight`: suspend idle desktops that the policy selects, and start the ML VMs that wait on their
GPUs. `execute` carries it out, and `rotate plan` shows it (`preview.py`).

Under `mode: spare-capacity` it is what `rotate watch` takes at this moment. It has no window; what it has taken before,
under whatever name, is of one and the same watch; and each start leaves what is kept for desktops (`spare.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.history import PastNight
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.owner import NotedOwner
from gpuops.model.vcenter.vm import PowerState, Vm, VmDrs
from gpuops.plan.core.plan import Choice, Plan, Rejection
from gpuops.plan.core.steps import OpenGate, PowerOnVm, ShutDownGuest, Step, SuspendVm
from gpuops.plan.placement.project import project
from gpuops.plan.placement.return_order import may_return
from gpuops.plan.placement.room import Room
from gpuops.plan.rotation.ml_queue.ml_vms import (
    Start,
    WaitingVm,
    drs_before,
    drs_overrides,
    nobody_held_back,
    unreadable_drs,
    waiting_vms,
)
from gpuops.plan.rotation.ml_queue.proposals import build_schedule_input, propose
from gpuops.plan.rotation.ml_queue.queue import Objection, QueueDecision, ReturnCheck, decide_queue
from gpuops.plan.rotation.ml_queue.team_shares import TeamShares
from gpuops.plan.rotation.ml_queue.whole_clusters import decide_with_clusters
from gpuops.plan.rotation.nights.bounds import Bounds, closed, evening_off, hours_unsaid
from gpuops.plan.rotation.nights.desktops import IN_MAINTENANCE, KeptForUsers, Survey, survey
from gpuops.plan.rotation.nights.floors import floors_broken_by_others, other_open_policies
from gpuops.plan.rotation.nights.night_plan import NO_NIGHT, NightPlan
from gpuops.plan.rotation.nights.night_refusals import nobody_agreed, not_over, takes_nothing_more, unknown_folders
from gpuops.plan.rotation.nights.nights_of_policy import NightsOfPolicy
from gpuops.plan.rotation.nights.reserved import reserved_objection
from gpuops.plan.rotation.nights.spare import Key, SpareRoom
from gpuops.plan.rotation.nights.stop_conditions import (
    NO_STEP_COUNTS,
    POOL_LEFT_ALONE,
    StepCounts,
    clock_refusals,
    pools_to_leave_alone,
)
from gpuops.plan.rotation.power_moments import gave_way
from gpuops.plan.rotation.returns.return_time import Durations
from gpuops.plan.rotation.taken_vms import Whereabouts, vms_of

_STOPPED: Final = "was started tonight and is off again: left alone"
_FINISHED: Final = "is off again, and not by gpuops: its work is done; start it once by hand if there is more"
_ROLES: Final[dict[type[Step], Role]] = {
    SuspendVm: Role.DESKTOP,
    ShutDownGuest: Role.SHUT_DOWN,
    PowerOnVm: Role.ML,
}
"""The role of a VM in a night, by the step that is planned for it."""


@dataclass(frozen=True, slots=True)
class RotateNight(NightsOfPolicy):
    """Suspend the desktops that the policy allows, and start the ML VMs that fit."""

    durations: Durations = field(default_factory=Durations, repr=False)
    """How long operations took here so far."""
    skipped: frozenset[str] = frozenset()
    """Nights that `rotate skip-next` said are not to be taken."""
    step_counts: Mapping[str, StepCounts] = field(default_factory=dict, repr=False)
    """Night -> its steps so far."""
    clock_ahead: timedelta | None = field(default=None, repr=False)
    """How far vCenter's clock is ahead of this machine's; None = the two do not compare."""
    over: frozenset[str] = frozenset()
    """Nights whose return has begun."""
    lease: int | None = None
    """Number of the lease under which it is taken; None = the policy has no lock VM, or nothing is to be done."""
    unattended: bool = False
    """Whether a clock calls it and nobody watches: it then needs a policy that says its hours."""
    lowest: Mapping[Key, int] = field(default_factory=dict, repr=False)
    """Under `mode: spare-capacity`, the fewest slots that were free of late; where it is not known nothing starts."""
    not_yet: Mapping[str, str] = field(default_factory=dict, repr=False)
    """VM ref -> why an ML VM that waits is not started now."""
    finished: frozenset[str] = frozenset()
    """Instance uuids (or refs) of ML VMs that a watch has started and that ended by themselves."""
    gave_way: tuple[Original, ...] = field(default=(), repr=False)
    """ML VMs that a watch has suspended to make way for desktops, as the journal knows them."""
    expected: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Pool -> how many of its desktops are to run by a forecast, whoever uses them."""
    past: tuple[PastNight, ...] = field(default=(), repr=False)
    """What nights and watches of this vCenter came to, this one too, where the policy says `fair_share`."""

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        return ()

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """The plan of the night; refused outside the window, and while an earlier night is not returned."""
        desktops = self.may_take(inventory, catalog, now)
        return self.night_plan(desktops, inventory, catalog, now).plan()

    def night_plan(self, desktops: Survey, inventory: Inventory, catalog: Catalog, now: datetime) -> NightPlan:
        """This night with everything that speaks for it and against it. `desktops`: which desktops it may take."""
        # 1. Is there a night at all? Where there is none, the ML VMs and desktops are named all the same, with the
        # reason.
        night = self.night(inventory, now)
        bounds = self._bounds(night, inventory, now)
        skipped = self.policy.night_at(now) is not None and night in self.skipped
        # A clock calls on every evening, also on those that the policy leaves out: that is no mistake of the call.
        off = (evening_off(self.policy, now) if self.unattended else None) or ""
        refusals = [] if skipped else self._refusals(night, desktops, inventory, now, off=bool(off))
        queue = self.queue(inventory, night)
        shares = self._shares(queue, inventory, catalog, bounds)
        queue = queue if shares is None else shares.ordered(queue)
        if skipped or refusals or off or self._is_over(night, inventory):
            nothing = QueueDecision((), tuple(Choice(waits.name, False, waits.reason or NO_NIGHT) for waits in queue))
            return NightPlan(
                self.policy,
                night,
                desktops,
                nothing,
                bounds,
                tuple(refusals),
                over=not refusals,
                skipped=skipped,
                off=off,
                queue=queue,
                shares=shares,
            )
        # 2. Which ML VMs start, where, and which desktops make room. Only room that is certain counts: an ML VM that
        # does not start after all has cost its desktops for nothing.
        room = Room(catalog, certain=True)
        spare = self.policy.spare
        free_to_take = desktops.free_to_take if spare is None or spare.take_idle else ()
        held_back = nobody_held_back if shares is None else shares.held_back

        def decide(waiting: tuple[WaitingVm, ...]) -> QueueDecision:
            schedule_input = build_schedule_input(
                waiting, free_to_take, inventory, room, bounds, desktops.priority, held_back
            )
            return decide_queue(
                waiting,
                free_to_take,
                inventory,
                room,
                self._may_return(bounds, inventory, catalog),
                objection=self._objection(bounds, inventory, catalog),
                priority=desktops.priority,
                proposals=propose(schedule_input),
                held_back=held_back,
            )

        decision = decide_with_clusters(decide, queue, inventory)
        # 3. What DRS does with these VMs must be known before it is changed, or it could not be restored.
        unknown = tuple(unreadable_drs(self.policy, decision.starts, inventory))
        drs = self._drs(night, ((start.vm, start.host.ref) for start in decision.starts), inventory)
        overrides = drs_overrides(drs, decision.starts, inventory)
        return NightPlan(
            self.policy,
            night,
            desktops,
            decision,
            bounds,
            unknown,
            drs=drs,
            overrides=overrides,
            lease=self.lease,
            opened=tuple(self._not_taken_after_all(night, decision.desktops, inventory)),
            queue=queue,
            shares=shares,
            also_kept=tuple(other.name for other in self._others if any(pool.floor for pool in other.pools)),
            unmet=tuple(floors_broken_by_others(self.policy, self.away(inventory), inventory)),
        )

    def _shares(
        self, queue: Sequence[WaitingVm], inventory: Inventory, catalog: Catalog, bounds: Bounds
    ) -> TeamShares | None:
        """How the teams stand; None where the policy knows none."""
        rule = self.policy.fair_share
        if rule is None:
            return None
        return TeamShares.of(rule, queue, self.past, inventory, catalog, bounds)

    def _objection(self, bounds: Bounds, inventory: Inventory, catalog: Catalog) -> Objection:
        """Which limit a start would exceed, which pool it would leave with too few ready desktops, or which slots that
        are kept for desktops it would take."""
        policy, spare = self.policy, self.policy.spare
        kept = KeptForUsers.of(policy, inventory.vms.values(), self.expected)
        spare_room = SpareRoom(spare, inventory, catalog, self.lowest) if spare is not None else None

        def objection(starts: Sequence[Start]) -> str:
            taken = (desktop for start in starts for desktop in start.desktops)
            said = bounds.objection(starts) or kept.objection(taken) or reserved_objection(starts, inventory, catalog)
            return said or (spare_room.objection(starts) if spare_room is not None else "")

        return objection

    def _not_taken_after_all(self, night: str, taken: Collection[Vm], inventory: Inventory) -> Iterator[OpenGate]:
        """The steps that let users in to desktops that run, whose gate an earlier run of this night has closed, and
        that this plan does not take."""
        refs = {vm.ref for vm in taken}
        for each in self.taken(inventory):
            machine, vm = each.original.gated_as, each.vm
            runs = each.whereabouts in (Whereabouts.BACK, Whereabouts.UNTOUCHED)
            if (
                self.is_of(night, each.original)
                and runs
                and machine is not None
                and vm is not None
                and vm.ref not in refs
            ):
                yield OpenGate(vm.ref, machine)

    def queue(self, inventory: Inventory, night: str = "") -> tuple[WaitingVm, ...]:
        """The VMs of the queue. One that this night has started and that is off again is not started again each time
        that cron calls: somebody stopped it, or its guest shut down when the work was done."""
        stopped = {
            taken_vm.vm.ref: taken_vm.reason if taken_vm.whereabouts is Whereabouts.CHANGING else _STOPPED
            for taken_vm in self.taken(inventory)
            if self.is_of(night, taken_vm.original) and taken_vm.original.role is Role.ML and taken_vm.original.taken
            # a marker alone does not tell whether the start that it was set for was ever sent
            if taken_vm.foreign is None and taken_vm.vm is not None and taken_vm.vm.power is PowerState.OFF
        } | self._not_now(inventory)
        return tuple(
            replace(waits, reason=waits.reason or stopped.get(waits.vm.ref, "")) if waits.vm is not None else waits
            for waits in waiting_vms(self.policy, inventory, self._suspended_ml(inventory))
        )

    def _suspended_ml(self, inventory: Inventory) -> frozenset[str]:
        """The ML VMs (refs) that are suspended in the state in which they gave way: they start by going on."""
        found = ((each, vm) for each in self.gave_way for vm in vms_of(each, inventory))
        return frozenset(vm.ref for each, vm in found if gave_way(each, vm))

    def _not_now(self, inventory: Inventory) -> dict[str, str]:
        """VM ref -> why a watch does not start it, whatever room there is."""
        if not self.finished:
            return dict(self.not_yet)
        done = (vm.ref for vm in inventory.vms.values() if (vm.instance_uuid or vm.ref) in self.finished)
        return {**dict.fromkeys(done, _FINISHED), **self.not_yet}

    def _drs(self, night: str, starts: Iterable[tuple[Vm, str]], inventory: Inventory) -> dict[str, VmDrs]:
        """ML VM ref -> its DRS setting before this night, for those (VM, host ref) that DRS is kept off."""
        settings = {
            vm.ref: drs_before(self.policy, night, vm, inventory.hosts[host], inventory)
            for vm, host in starts
            if host in inventory.hosts
        }
        return {ref: drs for ref, drs in settings.items() if drs is not None}

    def at_return(self, bounds: Bounds, inventory: Inventory) -> Inventory:
        """The snapshot as the return will find it: the ML VMs that this night has started are stopped."""
        for vm, _ in bounds.running:
            inventory = project(ShutDownGuest(vm.ref), inventory)
        return inventory

    def _may_return(self, bounds: Bounds, inventory: Inventory, catalog: Catalog) -> ReturnCheck:
        """The check that desktops can come back together with those that this night has taken before."""
        check = may_return(self.at_return(bounds, inventory), catalog, Room(catalog, certain=False))

        def with_those_before(desktops: Sequence[Vm]) -> tuple[Rejection, ...]:
            hosts = {vm.host for vm in desktops}
            return check([*(vm for vm in bounds.away if vm.host in hosts), *desktops])

        return with_those_before

    def may_take(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Survey:
        """Which desktops this night may suspend, whether or not the queue needs their GPUs."""
        night = self.night(inventory, now)
        return survey(
            self.policy, inventory, catalog, self._left_alone(night, inventory), self.suspended(night, inventory),
            self._others,
        )  # fmt: skip

    @property
    def _others(self) -> tuple[Policy, ...]:
        """Other policies that have an open night: their floors hold as well."""
        return other_open_policies(self.policy, self.originals)

    def _bounds(self, night: str, inventory: Inventory, now: datetime) -> Bounds:
        """The limits of this night, with the desktops and ML VMs that it has taken before."""
        tonight = [
            taken_vm
            for taken_vm in self.away(inventory)
            if self.is_of(night, taken_vm.original) and taken_vm.vm is not None
        ]
        entry = {waits.vm.ref: waits.queued for waits in waiting_vms(self.policy, inventory) if waits.vm is not None}
        return Bounds(
            self.policy,
            self.policy.night_at(now),
            now,
            self.durations,
            tuple(taken_vm.vm for taken_vm in tonight if taken_vm.vm and taken_vm.original.role is not Role.ML),
            tuple(
                (taken_vm.vm, entry[taken_vm.vm.ref])
                for taken_vm in tonight
                if taken_vm.vm and taken_vm.vm.ref in entry
            ),
        )

    def saved(self, plan: Plan, inventory: Inventory, now: datetime) -> tuple[Original, ...]:
        """What the journal keeps of each VM of the plan, for its return."""
        night = self.night(inventory, now)
        roles = {step.vm: _ROLES[type(step)] for step in plan.steps if type(step) in _ROLES}
        with_role = [(inventory.vms[ref], role) for ref, role in roles.items()]
        started = (
            (inventory.vms[step.vm], step.host) for step in plan.steps if isinstance(step, PowerOnVm) and step.host
        )
        drs = self._drs(night, ((vm, host) for vm, host in started if host is not None), inventory)
        return tuple(
            Original(
                night, role, vm.ref, vm.instance_uuid, vm.name, vm.host, vm.profiles, drs=drs.get(vm.ref),
                gpu_modes=_gpu_modes(vm, inventory),
                owner=self._owner(vm) if role is Role.ML else None,
            )
            for vm, role in with_role
        )  # fmt: skip

    def _owner(self, vm: Vm) -> NotedOwner | None:
        """Whose hours the journal notes: of a VM that starts for a job its owner's; None where nobody shares."""
        rule = self.policy.fair_share
        if rule is None:
            return None
        of_job = next((each.owner for each in self.policy.ml if each.owner is not None and each.names_vm(vm)), None)
        return NotedOwner(str(rule.by), of_job or rule.by.of(vm))

    def _refusals(
        self, night: str, desktops: Survey, inventory: Inventory, now: datetime, *, off: bool
    ) -> list[Rejection]:
        """Why there is no night now; empty = there is one, or it is `off`. What must be mended first is named alone.

        Clocks come first, since a wrong clock makes everything below wrong; then the window; then earlier nights, whose
        return is more urgent than anything that this one could take.
        """
        clock_refused = clock_refusals(self.clock_ahead)
        if clock_refused:
            return clock_refused
        unsaid = hours_unsaid(self.policy) if self.unattended else None
        if unsaid is not None:
            return [unsaid]
        window_closed = None if off else closed(self.policy, now, self.durations)
        if window_closed is not None:
            return [window_closed]
        earlier = [taken_vm for taken_vm in self.away(inventory) if not self.goes_on_with(night, taken_vm)]
        open_nights = sorted({taken_vm.original.night for taken_vm in earlier})
        open_ones = [not_over(each, [one for one in earlier if one.original.night == each]) for each in open_nights]
        if open_ones or off:
            return open_ones
        if not self._is_over(night, inventory):
            steps = self.step_counts.get(night, NO_STEP_COUNTS)
            if stopped := takes_nothing_more(night, steps, inventory):
                return stopped
        return unknown_folders(self.policy, inventory) or nobody_agreed(self.policy, desktops)

    def _is_over(self, night: str, inventory: Inventory) -> bool:
        """Whether the return of this night has begun: nothing is taken in its window then, however often cron calls."""
        if self.policy.spare is not None:
            return False
        if night in self.over:
            return True
        tonight = [original for original in self.originals if original.night == night and original.taken]
        return any(original.returned and not original.given_up for original in tonight)

    def _left_alone(self, night: str, inventory: Inventory) -> dict[str, str]:
        """VM ref -> why this night leaves it alone: it has been suspended already, or has come back by itself since."""
        reasons: dict[str, str] = {}
        running_again: list[Vm] = []
        for taken_vm in self.taken(inventory):
            if not self.is_of(night, taken_vm.original) or taken_vm.vm is None:
                continue
            gate = taken_vm.vm.gate
            if gate is not None and gate.closed and taken_vm.original.gated_as is None:
                reasons[taken_vm.vm.ref] = IN_MAINTENANCE  # closed since it was marked, and not by this night
            if not taken_vm.original.taken:
                continue
            if taken_vm.whereabouts is Whereabouts.AWAY:
                reasons[taken_vm.vm.ref] = "suspended tonight"
            elif taken_vm.whereabouts is Whereabouts.CHANGING:
                reasons[taken_vm.vm.ref] = taken_vm.reason
            elif taken_vm.vm.power is PowerState.ON:
                reasons[taken_vm.vm.ref] = "came back by itself tonight: left alone"
                running_again.append(taken_vm.vm)
        return {**self._of_pools_left_alone(pools_to_leave_alone(running_again, self.policy), inventory), **reasons}

    def _of_pools_left_alone(self, pools: Collection[str], inventory: Inventory) -> dict[str, str]:
        """VM ref -> why it stays, for the desktops of pools that a broker or somebody keeps resuming."""
        if not pools:
            return {}
        of_pool = {vm.ref: self.policy.pool_of(vm) for vm in inventory.vms.values()}
        return {ref: POOL_LEFT_ALONE for ref, pool in of_pool.items() if pool is not None and pool.name in pools}


def _gpu_modes(vm: Vm, inventory: Inventory) -> tuple[tuple[str, str], ...]:
    """Address and vGPU mode of each GPU that the VM runs on: a return says where one is in another mode since."""
    host = inventory.host_of(vm)
    gpus = [gpu for gpu in host.gpus if vm.ref in (gpu.vms or ())] if host is not None else []
    return tuple((str(gpu.address), str(gpu.vgpu_mode)) for gpu in gpus if gpu.vgpu_mode is not None)
