"""What is checked once more just before each step that takes something. `execute` asks it before it sends the step; a
return never asks.

A plan is minutes old when its last step is sent, hours old in a large night or while a question of vCenter waits for
its answer. `step_checks.objection` says whether the step still makes sense for its VM. This says whether the night may
take anything at all: the window is still open by clocks that agree, not too much has failed, everything that the plan
required of the desktop still holds, and the queue still means the ML VM.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.night_record import Role, parse_marker
from gpuops.model.nights.rotation import IdleRule, Policy, Pool
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.outcome import Outcome, Verdict
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
from gpuops.plan.placement.return_order import suspend_or_shut_down
from gpuops.plan.rotation.nights.desktops import no_space_for, reason_to_stay
from gpuops.plan.rotation.nights.floors import Floors
from gpuops.plan.rotation.nights.spare import SpareRoom, place_of
from gpuops.plan.rotation.nights.stop_conditions import (
    POOL_LEFT_ALONE,
    StepCounts,
    clock_trouble,
    pools_to_leave_alone,
    reason_to_stop,
)
from gpuops.plan.rotation.taken_vms import stays_running

TAKING_STEPS: Final = (SuspendVm, ShutDownGuest)
"""The steps that make a desktop give up its GPUs; a night shuts down nothing else."""


@dataclass(frozen=True, slots=True)
class Guard:
    """What a night under this policy may still take."""

    policy: Policy
    before: StepCounts
    """How the night went until now, with the plan that is begun."""
    catalog: Catalog = field(repr=False)
    not_after: Mapping[str, datetime] = field(default_factory=dict)
    """VM ref -> when the return to its host begins: from then on nothing is taken there."""
    taken: frozenset[str] = frozenset()
    """Desktops (refs) that earlier runs of the night have taken."""
    others: tuple[Policy, ...] = ()
    """Other policies that have an open night: their floors hold as well."""

    def idle_rule(self, step: Step, inventory: Inventory) -> IdleRule | None:
        """When the VM of the step is idle; None = it is in no pool."""
        vm = inventory.vms.get(step.vm)
        pool = self.policy.pool_of(vm) if vm is not None else None
        return pool.idle if pool is not None else None

    def pools(self, steps: Collection[Step], inventory: Inventory) -> frozenset[str]:
        """Names of the pools that these steps take from."""
        taken = [
            inventory.vms[step.vm] for step in steps if isinstance(step, TAKING_STEPS) and step.vm in inventory.vms
        ]
        return frozenset(pool.name for vm in taken if (pool := self.policy.pool_of(vm)) is not None)

    def counted_vms(self, pools: Collection[str], inventory: Inventory, ended: Sequence[Outcome]) -> frozenset[str]:
        """The VMs whose state must be fresh: they count towards a floor of these pools or of another policy, or were
        taken tonight."""
        taken, floors = self._taken(ended), Floors(self.policy, self.others)

        def counts(vm: Vm) -> bool:
            pool = self.policy.pool_of(vm)
            of_pools = pool is not None and pool.name in pools
            numbers = [number for (number, _), _, _ in floors.pools_of(vm) if number or of_pools]
            return (of_pools and vm.ref in taken) or (vm.power is PowerState.ON and bool(numbers))

        return frozenset(vm.ref for vm in inventory.vms.values() if counts(vm))

    def _taken(self, ended: Sequence[Outcome]) -> frozenset[str]:
        """The desktops (refs) that the night has taken, in earlier runs and in this one."""
        done = (each for each in ended if each.verdict is Verdict.DONE and isinstance(each.step, TAKING_STEPS))
        return self.taken.union(each.step.vm for each in done)

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
        """Why the step must not be sent now; None = nothing speaks against it.

        `ended`: this run's outcomes so far; `leaving`: VMs for which a suspend or shutdown was sent, whatever the
        inventory shows; `ahead`: how far vCenter's clock was ahead of this machine's at the last look, None = they do
        not compare; `starting`: starts that were sent, whatever the inventory shows.
        """
        if not isinstance(
            step, SetAttribute | SetVmDrs | CloseGate | SuspendVm | ShutDownGuest | RelocateVm | PowerOnVm
        ):
            return None
        wrong = clock_trouble(ahead)
        if wrong is not None:
            return f"clocks: {wrong}"
        night = self.policy.night_at(now)
        if self.policy.windows and not (night is not None and night.takes_at(now)):
            return "the window has closed"
        if step.vm in self.not_after and now >= self.not_after[step.vm]:
            return "too late: the return to its host has to begin"
        stopped = reason_to_stop(self.before, ended, inventory)
        if stopped is not None:
            return f"the night takes nothing more: {stopped}"
        vm = inventory.vms.get(step.vm)
        if vm is None:
            return None
        return self._objection_to_vm(step, vm, inventory, ended, leaving) or self._too_few_free(
            step, inventory, ended, starting
        )

    def _objection_to_vm(
        self, step: Step, vm: Vm, inventory: Inventory, ended: Sequence[Outcome], leaving: Collection[str]
    ) -> str | None:
        """Why the VM must not be taken as it is now; whatever the plan required of it is required again."""
        marks = isinstance(step, CloseGate) or (isinstance(step, SetAttribute) and _marks_a_desktop(step))
        if not (marks or isinstance(step, TAKING_STEPS)):
            return self._not_in_queue(vm) if _starts_an_ml_vm(step) else None
        pool = self.policy.pool_of(vm)
        if pool is None:
            return "is in no pool of the policy any more"
        reason = reason_to_stay(self.policy, pool, vm, inventory)
        if reason is not None or marks:
            return reason
        return (
            _planned_differently(step, vm)
            or _gate_open(pool, vm)
            or self._floor(vm, inventory, leaving)
            or no_space_for(vm, inventory, self.catalog, self._away(inventory, ended, leaving))
            or self._pool_left_alone(pool, inventory, ended)
        )

    def beside_kept_slots(self, steps: Collection[Step], inventory: Inventory) -> frozenset[str]:
        """The VMs that may run on what is kept for desktops where these steps start something: whether they do must be
        fresh."""
        if self.policy.spare is None:
            return frozenset()
        hosts = {step.host or "" for step in steps if isinstance(step, PowerOnVm)}
        places = {place_of(inventory.hosts[ref]) for ref in hosts if ref in inventory.hosts}
        there = (host for host in inventory.hosts.values() if place_of(host) in places)
        return frozenset(vm.ref for host in there for vm in inventory.vms_on(host) if vm.profiles)

    def _too_few_free(
        self, step: Step, inventory: Inventory, ended: Sequence[Outcome], starting: Collection[PowerOnVm]
    ) -> str | None:
        """That the start would take what is kept free for desktops; None = it takes none of that."""
        if self.policy.spare is None or not isinstance(step, PowerOnVm):
            return None
        failed = {each.step.vm for each in ended if each.verdict is Verdict.FAILED}
        for other in starting:
            vm = inventory.vms.get(other.vm)
            if vm is not None and vm.power is not PowerState.ON and other.vm not in {step.vm, *failed}:
                inventory = project(other, inventory, self.catalog)
        return SpareRoom(self.policy.spare, inventory, self.catalog).start_objection(step)

    def _not_in_queue(self, vm: Vm) -> str | None:
        """That no entry of the queue means the ML VM any more, since it was renamed; None = one does."""
        meant = any(
            queued.names_vm(vm) or (queued.fits(vm.name) and self.policy.pool_of(vm) is None)
            for queued in self.policy.ml
        )
        return None if meant else "is in no entry of the queue any more"

    def _pool_left_alone(self, pool: Pool, inventory: Inventory, ended: Sequence[Outcome]) -> str | None:
        """That so many desktops of the pool, taken tonight, run again that no more of it are taken; None = fewer do."""
        taken = (inventory.vms.get(ref) for ref in self._taken(ended))
        running_again = [each for each in taken if each is not None and stays_running(each)]
        return POOL_LEFT_ALONE if pool.name in pools_to_leave_alone(running_again, self.policy) else None

    def _away(self, inventory: Inventory, ended: Sequence[Outcome], leaving: Collection[str]) -> list[Vm]:
        """The VMs that the night has suspended, or is suspending."""
        suspended = (ref for ref in self._taken(ended) if _is_suspended(inventory.vms.get(ref)))
        return [inventory.vms[ref] for ref in {*suspended, *leaving} if ref in inventory.vms]

    def _floor(self, vm: Vm, inventory: Inventory, leaving: Collection[str]) -> str | None:
        """That no more desktops of a pool of the VM run than must stay running; None = more do."""
        floors = Floors(self.policy, self.others)
        if not any(floors.pools_of(vm)):
            return None
        running = floors.count_running(other for other in inventory.vms.values() if other.ref not in leaving)
        return floors.objection(vm, running)


def _marks_a_desktop(step: SetAttribute) -> bool:
    marked = parse_marker(step.value)
    return marked is not None and marked.role is not Role.ML


def _starts_an_ml_vm(step: Step) -> bool:
    """Whether the step starts an ML VM or prepares one for that."""
    if isinstance(step, SetAttribute):
        marked = parse_marker(step.value)
        return marked is not None and marked.role is Role.ML
    return isinstance(step, SetVmDrs | RelocateVm | PowerOnVm)


def _gate_open(pool: Pool, vm: Vm) -> str | None:
    """That the broker may give the desktop to a user now; None = it does not, or its pool is parked."""
    if not pool.gated or (vm.gate is not None and vm.gate.closed is True):
        return None
    return "its gate at the broker is not closed"


def _planned_differently(step: Step, vm: Vm) -> str | None:
    """That the desktop would now need another step than the planned one, suspend or shutdown; None = the same."""
    return None if type(suspend_or_shut_down(vm)) is type(step) else "its devices have changed since the plan was made"


def _is_suspended(vm: Vm | None) -> bool:
    return vm is not None and vm.power is PowerState.SUSPENDED
