"""Repeats the checks of a night just before each step that takes something. `execute` calls it before it sends the
step; a return never does.

A plan is minutes old when its last step is sent, and hours old in a large night or while a question of vCenter waits
for its answer. `step_checks.objection` decides whether the step still makes sense for its VM. This module decides
whether the night may take anything at all: the window is still open by clocks that agree, few enough steps have failed,
the desktop still meets everything that the plan required of it, and the queue still has an entry for the ML VM.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.night_record import Role, parse_marker
from gpuops.model.nights.rotation_policy import IdleRule, Policy, Pool
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.steps import (
    CloseGate,
    PowerOnVm,
    RelocateVm,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
)
from gpuops.plan.placement.project import project
from gpuops.plan.placement.suspended_vms import suspend_or_shut_down
from gpuops.plan.rotation.nights.desktops import Floors, no_space_for, reason_to_stay
from gpuops.plan.rotation.nights.night_refusals import (
    POOL_LEFT_ALONE,
    StepCounts,
    clock_trouble,
    pools_to_leave_alone,
    reason_to_stop,
)
from gpuops.plan.rotation.nights.spare import SpareRoom, place_of
from gpuops.plan.rotation.taken_vms import stays_running

TAKING_STEPS: Final = (SuspendVm, ShutDownGuest)
"""The steps that free the GPUs of a desktop. A night shuts down desktops only."""


@dataclass(frozen=True, slots=True)
class Guard:
    """The conditions under which a night of this policy may still take something."""

    policy: Policy
    before: StepCounts
    """The step counts of the night so far, with the plan that has begun."""
    catalog: Catalog = field(repr=False)
    not_after: Mapping[str, datetime] = field(default_factory=dict)
    """VM ref -> when the return to its host begins. From then on the night takes nothing on that host."""
    taken_before: frozenset[str] = frozenset()
    """Desktops (refs) that earlier runs of the night have taken."""
    other_policies: tuple[Policy, ...] = ()
    """Other policies that have an open night. Their floors hold as well."""

    def idle_rule(self, step: Step, inventory: Inventory) -> IdleRule | None:
        """Return the rule by which the VM of the step is idle; None = it is in no pool."""
        vm = inventory.vms.get(step.vm)
        pool = self.policy.pool_of(vm) if vm is not None else None
        return pool.idle if pool is not None else None

    def pools(self, steps: Collection[Step], inventory: Inventory) -> frozenset[str]:
        """Return the names of the pools from which these steps take desktops."""
        desktops = [
            inventory.vms[step.vm] for step in steps if isinstance(step, TAKING_STEPS) and step.vm in inventory.vms
        ]
        return frozenset(pool.name for vm in desktops if (pool := self.policy.pool_of(vm)) is not None)

    def counted_vms(self, pools: Collection[str], inventory: Inventory, ended: Sequence[Outcome]) -> frozenset[str]:
        """Return the VMs (refs) whose state must be read again before a step.

        These are the running VMs that count towards a floor of these pools or of another policy, and the VMs of these
        pools that were taken tonight.
        """
        taken_tonight, floors = self._taken_tonight(ended), Floors(self.policy, self.other_policies)

        def must_be_read(vm: Vm) -> bool:
            pool = self.policy.pool_of(vm)
            is_of_pools = pool is not None and pool.name in pools
            # Number 0 is this policy: of its floors, only those of `pools` count.
            has_floor = any(number != 0 or is_of_pools for (number, _), _, _ in floors.pools_of(vm))
            return (is_of_pools and vm.ref in taken_tonight) or (vm.power is PowerState.ON and has_floor)

        return frozenset(vm.ref for vm in inventory.vms.values() if must_be_read(vm))

    def _taken_tonight(self, ended: Sequence[Outcome]) -> frozenset[str]:
        taking_outcomes = (
            outcome for outcome in ended if outcome.verdict is Verdict.DONE and isinstance(outcome.step, TAKING_STEPS)
        )
        return self.taken_before.union(outcome.step.vm for outcome in taking_outcomes)

    def objection(
        self,
        step: Step,
        inventory: Inventory,
        now: datetime,
        ended: Sequence[Outcome],
        leaving: Collection[str],
        ahead: timedelta | None = None,
        starting: Collection[PowerOnVm] = (),
    ) -> str | None:
        """Return why the step must not be sent now, or None.

        `ended`: this run's outcomes so far. `leaving`: VMs for which a suspend or shutdown was sent, even if the
        inventory does not show it yet. `ahead`: how far vCenter's clock was ahead of this machine's at the last look;
        None = the clocks cannot be compared. `starting`: starts that were sent, even if the inventory does not show
        them yet.
        """
        if not isinstance(
            step, SetAttribute | SetVmDrs | CloseGate | SuspendVm | ShutDownGuest | RelocateVm | PowerOnVm
        ):
            return None
        clock_problem = clock_trouble(ahead)
        if clock_problem is not None:
            return f"clocks: {clock_problem}"
        night = self.policy.night_at(now)
        if self.policy.windows and not (night is not None and night.takes_at(now)):
            return "the window has closed"
        if step.vm in self.not_after and now >= self.not_after[step.vm]:
            return "too late: the return to its host has to begin"
        stop_reason = reason_to_stop(self.before, ended, inventory)
        if stop_reason is not None:
            return f"the night takes nothing more: {stop_reason}"
        vm = inventory.vms.get(step.vm)
        if vm is None:
            return None
        return self._objection_to_vm(step, vm, inventory, ended, leaving) or self._spare_objection(
            step, inventory, ended, starting
        )

    def _objection_to_vm(
        self, step: Step, vm: Vm, inventory: Inventory, ended: Sequence[Outcome], leaving: Collection[str]
    ) -> str | None:
        """Return why the VM must not be taken as it is now. Everything that the plan required of it is required
        again."""
        # Closing the gate and setting the marker of a desktop only prepare its suspend or shutdown.
        only_prepares = isinstance(step, CloseGate) or (isinstance(step, SetAttribute) and _marks_a_desktop(step))
        if not (only_prepares or isinstance(step, TAKING_STEPS)):
            return self._not_in_queue(vm) if _starts_an_ml_vm(step) else None
        pool = self.policy.pool_of(vm)
        if pool is None:
            return "is in no pool of the policy any more"
        reason = reason_to_stay(self.policy, pool, vm, inventory)
        if reason is not None or only_prepares:
            return reason
        return (
            _planned_differently(step, vm)
            or _gate_open(pool, vm)
            or self._floor_objection(vm, inventory, leaving)
            or no_space_for(vm, inventory, self.catalog, self._suspended_tonight(inventory, ended, leaving))
            or self._pool_left_alone(pool, inventory, ended)
        )

    def vms_sharing_kept_slots(self, steps: Collection[Step], inventory: Inventory) -> frozenset[str]:
        """Return the VMs (refs) whose state must be read again before these starts.

        These are all VMs with vGPUs in the same clusters: they may use slots that are kept free for desktops.
        """
        if self.policy.spare is None:
            return frozenset()
        hosts = {step.host or "" for step in steps if isinstance(step, PowerOnVm)}
        places = {place_of(inventory.hosts[ref]) for ref in hosts if ref in inventory.hosts}
        hosts_of_places = (host for host in inventory.hosts.values() if place_of(host) in places)
        return frozenset(vm.ref for host in hosts_of_places for vm in inventory.vms_on(host) if vm.profiles)

    def _spare_objection(
        self, step: Step, inventory: Inventory, ended: Sequence[Outcome], starting: Collection[PowerOnVm]
    ) -> str | None:
        """Return the refusal of a start that would use slots kept free for desktops, or None."""
        if self.policy.spare is None or not isinstance(step, PowerOnVm):
            return None
        # Starts that were sent use slots, even if the inventory does not show them yet.
        failed_vms = {outcome.step.vm for outcome in ended if outcome.verdict is Verdict.FAILED}
        for start in starting:
            vm = inventory.vms.get(start.vm)
            if vm is not None and vm.power is not PowerState.ON and start.vm not in {step.vm, *failed_vms}:
                inventory = project(start, inventory, self.catalog)
        return SpareRoom(self.policy.spare, inventory, self.catalog).start_objection(step)

    def _not_in_queue(self, vm: Vm) -> str | None:
        """Return the refusal of an ML VM that no entry of the queue names any more because it was renamed, or None."""
        is_queued = any(
            queued.names_vm(vm) or (queued.fits(vm.name) and self.policy.pool_of(vm) is None)
            for queued in self.policy.ml
        )
        return None if is_queued else "no entry of the queue selects it any more"

    def _pool_left_alone(self, pool: Pool, inventory: Inventory, ended: Sequence[Outcome]) -> str | None:
        """Return the refusal for a pool of which too many desktops, taken tonight, are running again, or None."""
        taken_vms = (inventory.vms.get(ref) for ref in self._taken_tonight(ended))
        running_again = [desktop for desktop in taken_vms if desktop is not None and stays_running(desktop)]
        return POOL_LEFT_ALONE if pool.name in pools_to_leave_alone(running_again, self.policy) else None

    def _suspended_tonight(self, inventory: Inventory, ended: Sequence[Outcome], leaving: Collection[str]) -> list[Vm]:
        """Return the desktops that this night has suspended or is suspending."""
        suspended = (ref for ref in self._taken_tonight(ended) if _is_suspended(inventory.vms.get(ref)))
        return [inventory.vms[ref] for ref in {*suspended, *leaving} if ref in inventory.vms]

    def _floor_objection(self, vm: Vm, inventory: Inventory, leaving: Collection[str]) -> str | None:
        """Return which floor would be broken without the VM and those in `leaving`, or None."""
        floors = Floors(self.policy, self.other_policies)
        if not any(floors.pools_of(vm)):
            return None
        running = floors.count_running(other_vm for other_vm in inventory.vms.values() if other_vm.ref not in leaving)
        return floors.objection(vm, running)


def _marks_a_desktop(step: SetAttribute) -> bool:
    marker = parse_marker(step.value)
    return marker is not None and marker.role is not Role.ML


def _starts_an_ml_vm(step: Step) -> bool:
    if isinstance(step, SetAttribute):
        marker = parse_marker(step.value)
        return marker is not None and marker.role is Role.ML
    return isinstance(step, SetVmDrs | RelocateVm | PowerOnVm)


def _gate_open(pool: Pool, vm: Vm) -> str | None:
    if not pool.gated or (vm.gate is not None and vm.gate.closed is True):
        return None
    return "its gate at the broker is not closed"


def _planned_differently(step: Step, vm: Vm) -> str | None:
    """Return the refusal for a desktop that would now be shut down instead of suspended, or the reverse; None = the
    same."""
    return None if type(suspend_or_shut_down(vm)) is type(step) else "its devices have changed since the plan was made"


def _is_suspended(vm: Vm | None) -> bool:
    return vm is not None and vm.power is PowerState.SUSPENDED
