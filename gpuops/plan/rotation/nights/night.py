"""The request `RotateNight`: suspend idle desktops that the policy selects, and start the waiting ML VMs on their GPUs.
`execute` carries it out, and `rotate plan` shows it (`preview.py`).

Under `mode: spare-capacity` it plans what `rotate watch` takes at this moment. A watch has no window. Everything that
it took before belongs to the same watch, and each start leaves the slots that are kept for desktops (`spare.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.history import PastNight
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.owner import NotedOwner
from gpuops.model.vcenter.vm import PowerState, Vm, VmDrs
from gpuops.plan.core.plan import Choice, Plan
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import OpenGate, PowerOnVm, ShutDownGuest, Step, SuspendVm
from gpuops.plan.placement.project import project
from gpuops.plan.placement.seating import Room
from gpuops.plan.placement.suspended_vms import return_check
from gpuops.plan.rotation.ml_queue.ml_vms import (
    Start,
    WaitingVm,
    drs_before,
    drs_overrides,
    hold_back_none,
    unreadable_drs,
    waiting_vms,
)
from gpuops.plan.rotation.ml_queue.proposals import build_schedule_input, propose
from gpuops.plan.rotation.ml_queue.queue import Objection, QueueDecision, ReturnCheck, decide_queue
from gpuops.plan.rotation.ml_queue.team_shares import TeamShares
from gpuops.plan.rotation.ml_queue.whole_clusters import decide_with_clusters
from gpuops.plan.rotation.nights.bounds import Bounds, evening_off, refuse_closed_window, refuse_without_hours
from gpuops.plan.rotation.nights.desktops import (
    IN_MAINTENANCE,
    KeptForUsers,
    Survey,
    floors_broken_by_others,
    other_open_policies,
    survey,
)
from gpuops.plan.rotation.nights.night_plan import NO_NIGHT, NightPlan
from gpuops.plan.rotation.nights.night_refusals import (
    NO_STEP_COUNTS,
    POOL_LEFT_ALONE,
    NightsOfPolicy,
    StepCounts,
    clock_refusals,
    pools_to_leave_alone,
    refuse_after_failures,
    refuse_open_night,
    refuse_unknown_folders,
    refuse_without_marks,
    reserved_objection,
)
from gpuops.plan.rotation.nights.spare import Key, SpareRoom
from gpuops.plan.rotation.power_moments import is_suspended_for_desktops
from gpuops.plan.rotation.returns.return_time import Durations
from gpuops.plan.rotation.taken_vms import Whereabouts, vms_of

_STOPPED: Final = "was started tonight and is off again: left alone"
_FINISHED: Final = "is off again, and gpuops did not stop it: its work is done; power it on in vCenter for more work"
_ROLES: Final[dict[type[Step], Role]] = {SuspendVm: Role.DESKTOP, ShutDownGuest: Role.SHUT_DOWN, PowerOnVm: Role.ML}
"""The role of a VM in a night, by the step that is planned for it."""


@dataclass(frozen=True, slots=True)
class RotateNight(NightsOfPolicy):
    """Suspend the desktops that the policy allows, and start the ML VMs that fit."""

    durations: Durations = field(default_factory=Durations, repr=False)
    """Measured durations of past operations on this vCenter."""
    skipped: frozenset[str] = frozenset()
    """Nights that `rotate skip-next` skips."""
    step_counts: Mapping[str, StepCounts] = field(default_factory=dict, repr=False)
    """Night -> counts of its steps so far."""
    clock_ahead: timedelta | None = field(default=None, repr=False)
    """How far vCenter's clock is ahead of this machine's; None = the clocks cannot be compared."""
    returning: frozenset[str] = frozenset()
    """Nights whose return has begun."""
    lease: int | None = None
    """Number of the lease of this night; None = the policy has no lock VM, or nothing is changed."""
    unattended: bool = False
    """Whether a timer started it: the policy must then have `windows`."""
    lowest: Mapping[Key, int] = field(default_factory=dict, repr=False)
    """Under `mode: spare-capacity`, the lowest recent number of free slots; nothing starts where it is unknown."""
    not_yet: Mapping[str, str] = field(default_factory=dict, repr=False)
    """VM ref -> why a waiting ML VM is not started now."""
    finished: frozenset[str] = frozenset()
    """Instance uuids (or refs) of ML VMs that a watch has started and that ended by themselves."""
    gave_way: tuple[Original, ...] = field(default=(), repr=False)
    """ML VMs that a watch has suspended to free GPUs for desktops, from the journal."""
    expected: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Pool -> number of its desktops that should run by the forecast, in use or not."""
    past: tuple[PastNight, ...] = field(default=(), repr=False)
    """The history of nights and watches of this vCenter, with this one, if the policy has `fair_share`."""

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        return ()

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """Return the plan of the night. It is refused outside the window, and while an earlier night is not
        returned."""
        desktops = self.survey_desktops(inventory, catalog, now)
        return self.night_plan(desktops, inventory, catalog, now).plan()

    def night_plan(self, desktops: Survey, inventory: Inventory, catalog: Catalog, now: datetime) -> NightPlan:
        """Return this night with its decisions and refusals. `desktops`: which desktops it may take."""
        # 1. Check whether there is a night now. If not, the plan still lists the ML VMs and desktops with the reason.
        night = self.night(inventory, now)
        bounds = self._bounds(night, inventory, now)
        skipped = self.policy.night_at(now) is not None and night in self.skipped
        # A timer calls on every evening, also on those that the policy leaves out: such a call is not an error.
        no_night_reason = (evening_off(self.policy, now) if self.unattended else None) or ""
        refusals = [] if skipped else self._refusals(night, desktops, inventory, now, off=bool(no_night_reason))
        queue = self.queue(inventory, night)
        shares: TeamShares | None = None
        if self.policy.fair_share is not None:
            shares = TeamShares.of(self.policy.fair_share, queue, self.past, inventory, catalog, bounds)
            queue = shares.order_queue(queue)
        if skipped or refusals or no_night_reason or self._is_over(night, inventory):
            empty_decision = QueueDecision(
                (), tuple(Choice(waits.name, False, waits.reason or NO_NIGHT) for waits in queue)
            )
            return NightPlan(
                self.policy,
                night,
                desktops,
                empty_decision,
                bounds,
                tuple(refusals),
                is_over=not refusals,  # then the plan is empty, with the reason, and is no error
                skipped=skipped,
                off=no_night_reason,
                queue=queue,
                shares=shares,
            )
        # 2. Decide which ML VMs start on which hosts, and which desktops make room. Only room that is certain counts:
        # if an ML VM does not start, its desktops were suspended for nothing.
        room = Room(catalog, certain=True)
        spare = self.policy.spare
        free_to_take = desktops.free_to_take if spare is None or spare.take_idle else ()
        held_back = hold_back_none if shares is None else shares.held_back

        def decide(waiting: tuple[WaitingVm, ...]) -> QueueDecision:
            schedule_input = build_schedule_input(
                waiting, free_to_take, inventory, room, bounds, desktops.priority, held_back
            )
            return decide_queue(
                waiting,
                free_to_take,
                inventory,
                room,
                self._return_check(bounds, inventory, catalog),
                objection=self._objection(bounds, inventory, catalog),
                priority=desktops.priority,
                proposals=propose(schedule_input),
                held_back=held_back,
            )

        decision = decide_with_clusters(decide, queue, inventory)
        # 3. Read the DRS settings of these VMs before they are changed, or they could not be restored.
        unknown_drs = tuple(unreadable_drs(self.policy, decision.starts, inventory))
        starts = ((start.vm, start.host.ref) for start in decision.starts)
        drs_before_night = self._drs_before_night(night, starts, inventory)
        overrides = drs_overrides(drs_before_night, decision.starts, inventory)
        return NightPlan(
            self.policy,
            night,
            desktops,
            decision,
            bounds,
            unknown_drs,
            drs=drs_before_night,
            overrides=overrides,
            lease=self.lease,
            opened=tuple(self._gates_to_reopen(night, decision.desktops, inventory)),
            queue=queue,
            shares=shares,
            also_kept=tuple(
                other_policy.name
                for other_policy in self._other_policies
                if any(pool.floor for pool in other_policy.pools)
            ),
            unmet=tuple(floors_broken_by_others(self.policy, self.away_vms(inventory), inventory)),
        )

    def _objection(self, bounds: Bounds, inventory: Inventory, catalog: Catalog) -> Objection:
        """Return the check of a start against all limits: those of the night, the desktops that pools need, reserved
        slots, and slots that are kept for desktops."""
        policy, spare = self.policy, self.policy.spare
        kept_for_users = KeptForUsers.of(policy, inventory.vms.values(), self.expected)
        spare_room = SpareRoom(spare, inventory, catalog, self.lowest) if spare is not None else None

        def objection(starts: Sequence[Start]) -> str:
            desktops = (desktop for start in starts for desktop in start.desktops)
            reason = (
                bounds.objection(starts)
                or kept_for_users.objection(desktops)
                or reserved_objection(starts, inventory, catalog)
            )
            return reason or (spare_room.objection(starts) if spare_room is not None else "")

        return objection

    def _gates_to_reopen(self, night: str, taken_desktops: Collection[Vm], inventory: Inventory) -> Iterator[OpenGate]:
        """Yield the steps that open the gates of running desktops that an earlier run of this night closed and that
        this plan does not take."""
        refs = {vm.ref for vm in taken_desktops}
        for taken_vm in self.vms_of_nights(inventory):
            machine, vm = taken_vm.original.gated_as, taken_vm.vm
            runs = taken_vm.whereabouts in (Whereabouts.BACK, Whereabouts.UNTOUCHED)
            if not self.is_of(night, taken_vm.original) or not runs:
                continue
            if machine is not None and vm is not None and vm.ref not in refs:
                yield OpenGate(vm.ref, machine)

    def queue(self, inventory: Inventory, night: str = "") -> tuple[WaitingVm, ...]:
        """Return the VMs of the queue.

        A VM that this night has started and that is off again is not started by the next call: a person stopped it, or
        its guest shut down when its work was done.
        """
        # 1. Why VMs are not started now, by ref. If several reasons hold, the last one counts.
        reasons: dict[str, str] = {}
        for taken_vm in self.vms_of_nights(inventory):
            original, vm = taken_vm.original, taken_vm.vm
            started_tonight = self.is_of(night, original) and original.role is Role.ML and original.taken
            # a marker does not show whether the start for which it was set was ever sent
            is_recorded = taken_vm.foreign is None
            if started_tonight and is_recorded and vm is not None and vm.power is PowerState.OFF:
                is_changing = taken_vm.whereabouts is Whereabouts.CHANGING
                reasons[vm.ref] = taken_vm.reason if is_changing else _STOPPED
        if self.finished:
            finished_vms = (vm for vm in inventory.vms.values() if (vm.instance_uuid or vm.ref) in self.finished)
            reasons |= {vm.ref: _FINISHED for vm in finished_vms}
        reasons |= self.not_yet
        # 2. VMs that a watch has suspended may be resumed.
        suspended_ml = {
            vm.ref
            for original in self.gave_way
            for vm in vms_of(original, inventory)
            if is_suspended_for_desktops(original, vm)
        }
        queue = waiting_vms(self.policy, inventory, suspended_ml)
        return tuple(
            replace(waits, reason=waits.reason or reasons.get(waits.vm.ref, "")) if waits.vm is not None else waits
            for waits in queue
        )

    def _drs_before_night(self, night: str, starts: Iterable[tuple[Vm, str]], inventory: Inventory) -> dict[str, VmDrs]:
        """Map ML VM ref -> its DRS setting before this night, for the starts (VM, host ref) that get an override."""
        settings = {
            vm.ref: drs_before(self.policy, night, vm, inventory.hosts[host], inventory)
            for vm, host in starts
            if host in inventory.hosts
        }
        return {ref: drs for ref, drs in settings.items() if drs is not None}

    def snapshot_at_return(self, bounds: Bounds, inventory: Inventory) -> Inventory:
        """Return the snapshot as the return will find it: the ML VMs that this night has started are stopped."""
        for vm, _ in bounds.running:
            inventory = project(ShutDownGuest(vm.ref), inventory)
        return inventory

    def _return_check(self, bounds: Bounds, inventory: Inventory, catalog: Catalog) -> ReturnCheck:
        """Return the check that desktops can return together with those that this night has already taken."""
        check_return = return_check(self.snapshot_at_return(bounds, inventory), catalog, Room(catalog, certain=False))

        def check_with_taken(desktops: Sequence[Vm]) -> tuple[Rejection, ...]:
            hosts = {vm.host for vm in desktops}
            return check_return([*(vm for vm in bounds.taken_desktops if vm.host in hosts), *desktops])

        return check_with_taken

    def survey_desktops(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Survey:
        """Return the desktops that this night may suspend, whether or not the queue needs their GPUs."""
        night = self.night(inventory, now)
        left_alone = self._left_alone(night, inventory)
        suspended = self.suspended_desktops(night, inventory)
        return survey(self.policy, inventory, catalog, left_alone, suspended, self._other_policies)

    @property
    def _other_policies(self) -> tuple[Policy, ...]:
        return other_open_policies(self.policy, self.originals)

    def _bounds(self, night: str, inventory: Inventory, now: datetime) -> Bounds:
        """Return the limits of this night, with the desktops and ML VMs that it has already taken."""
        waiting = waiting_vms(self.policy, inventory)
        queued_by_ref = {waits.vm.ref: waits.queued for waits in waiting if waits.vm is not None}
        desktops: list[Vm] = []
        running: list[tuple[Vm, QueuedVm]] = []
        for taken_vm in self.away_vms(inventory):
            vm = taken_vm.vm
            if vm is None or not self.is_of(night, taken_vm.original):
                continue
            if taken_vm.original.role is not Role.ML:
                desktops.append(vm)
            if vm.ref in queued_by_ref:
                running.append((vm, queued_by_ref[vm.ref]))
        night_now = self.policy.night_at(now)
        return Bounds(self.policy, night_now, now, self.durations, tuple(desktops), tuple(running))

    def originals_of(self, plan: Plan, inventory: Inventory, now: datetime) -> tuple[Original, ...]:
        """Return what the journal stores for the return of each VM of the plan."""
        night = self.night(inventory, now)
        starts = [
            (inventory.vms[step.vm], step.host)
            for step in plan.steps
            if isinstance(step, PowerOnVm) and step.host is not None
        ]
        drs = self._drs_before_night(night, starts, inventory)
        roles = {step.vm: _ROLES[type(step)] for step in plan.steps if type(step) in _ROLES}
        originals: list[Original] = []
        for ref, role in roles.items():
            vm, host = inventory.vms[ref], inventory.host_of(inventory.vms[ref])
            # A return reports a GPU whose vGPU mode has changed.
            gpus = [gpu for gpu in host.gpus if ref in (gpu.vms or ())] if host is not None else []
            gpu_modes = tuple((str(gpu.address), str(gpu.vgpu_mode)) for gpu in gpus if gpu.vgpu_mode is not None)
            originals.append(
                Original(
                    night,
                    role,
                    ref,
                    vm.instance_uuid,
                    vm.name,
                    vm.host,
                    vm.profiles,
                    drs=drs.get(ref),
                    gpu_modes=gpu_modes,
                    owner=self._owner(vm) if role is Role.ML else None,
                )
            )
        return tuple(originals)

    def _owner(self, vm: Vm) -> NotedOwner | None:
        """Return the owner whose hours the journal records; None without `fair_share`.

        For a VM that starts for a job, this is the owner of the job.
        """
        rule = self.policy.fair_share
        if rule is None:
            return None
        job_owner = next(
            (queued.owner for queued in self.policy.ml if queued.owner is not None and queued.names_vm(vm)), None
        )
        return NotedOwner(str(rule.by), job_owner or rule.by.of(vm))

    def _refusals(
        self, night: str, desktops: Survey, inventory: Inventory, now: datetime, *, off: bool
    ) -> list[Rejection]:
        """Return why there is no night now; empty = there is one. Only the first problem is reported.

        `off`: the policy leaves this evening out, so only the clocks and nights that are still open are checked.

        Clocks come first, because every later check depends on them; then the window; then earlier nights, because
        their return is more urgent than a new night.
        """
        clock_refused = clock_refusals(self.clock_ahead)
        if clock_refused:
            return clock_refused
        without_hours = refuse_without_hours(self.policy) if self.unattended else None
        if without_hours is not None:
            return [without_hours]
        window_closed = None if off else refuse_closed_window(self.policy, now, self.durations)
        if window_closed is not None:
            return [window_closed]
        earlier = [taken_vm for taken_vm in self.away_vms(inventory) if not self.keeps_taken(night, taken_vm)]
        open_nights = sorted({taken_vm.original.night for taken_vm in earlier})
        not_over_refusals = [
            refuse_open_night(open_night, [taken_vm for taken_vm in earlier if taken_vm.original.night == open_night])
            for open_night in open_nights
        ]
        if not_over_refusals or off:
            return not_over_refusals
        if not self._is_over(night, inventory):
            steps = self.step_counts.get(night, NO_STEP_COUNTS)
            if stopped := refuse_after_failures(night, steps, inventory):
                return stopped
        return refuse_unknown_folders(self.policy, inventory) or refuse_without_marks(self.policy, desktops)

    def _is_over(self, night: str, inventory: Inventory) -> bool:
        """Return whether the return of this night has begun: further calls in its window then take nothing."""
        if self.policy.spare is not None:
            return False
        if night in self.returning:
            return True
        tonight = [original for original in self.originals if original.night == night and original.taken]
        return any(original.returned and not original.given_up for original in tonight)

    def _left_alone(self, night: str, inventory: Inventory) -> dict[str, str]:
        """Map VM ref -> why this night leaves the VM alone: it is already suspended, or it runs again although gpuops
        did not resume it."""
        reasons: dict[str, str] = {}
        running_again: list[Vm] = []
        for taken_vm in self.vms_of_nights(inventory):
            if not self.is_of(night, taken_vm.original) or taken_vm.vm is None:
                continue
            gate = taken_vm.vm.gate
            if gate is not None and gate.closed and taken_vm.original.gated_as is None:
                reasons[taken_vm.vm.ref] = IN_MAINTENANCE  # closed after it was marked, but not by this night
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
        """Map the ref of each desktop of these pools -> why it is left alone."""
        if not pools:
            return {}
        pool_by_ref = {vm.ref: self.policy.pool_of(vm) for vm in inventory.vms.values()}
        return {ref: POOL_LEFT_ALONE for ref, pool in pool_by_ref.items() if pool is not None and pool.name in pools}
