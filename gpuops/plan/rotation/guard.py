"""Rotation, the guard: what is asked once more just before each step that takes something.

A plan is minutes old when its last step is sent. `hindrance` asks whether the step still makes sense for its VM; this
asks whether the night may go on taking at all: that the window is still open by clocks that agree, that the pool keeps
its floor and stays parked, that nobody withdrew a desktop, and that not too much has failed. It never speaks against
the morning.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from gpuops.advise.idle import in_use
from gpuops.model.inventory import Inventory
from gpuops.model.rotation import Policy
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.outcome import Outcome, Verdict
from gpuops.plan.rotation.breaker import Setbacks, tripped
from gpuops.plan.rotation.clocks import apart
from gpuops.plan.rotation.ours import stays_running
from gpuops.plan.rotation.restless import WHY, restless
from gpuops.plan.steps import PowerOnVm, RelocateVm, SetAttribute, SetVmDrs, ShutDownGuest, Step, SuspendVm

_TAKING: Final = (SuspendVm, ShutDownGuest)
"""What makes a desktop give up its GPUs; a night shuts down nothing else."""


@dataclass(frozen=True, slots=True)
class Guard:
    """What a night under this policy may still take."""

    policy: Policy
    before: Setbacks
    """How the night went until now, with the plan that is begun."""
    not_after: Mapping[str, datetime] = field(default_factory=dict)
    """VM ref -> when the return to its host begins: from then on nothing is taken there."""
    taken: frozenset[str] = frozenset()
    """Desktops (refs) that earlier runs of the night have taken."""

    def pools(self, steps: Collection[Step], inventory: Inventory) -> frozenset[str]:
        """Names of the pools that these steps take from."""
        taken = [inventory.vms[step.vm] for step in steps if isinstance(step, _TAKING) and step.vm in inventory.vms]
        return frozenset(pool.name for vm in taken if (pool := self.policy.pool_of(vm)) is not None)

    def company(self, pools: Collection[str], inventory: Inventory, ended: Sequence[Outcome]) -> frozenset[str]:
        """The VMs that count in these pools, as far as is known: towards their floors, and as taken tonight."""
        taken = self._taken(ended)
        return frozenset(
            vm.ref
            for vm in inventory.vms.values()
            if (vm.ref in taken or vm.power is PowerState.ON)
            and (pool := self.policy.pool_of(vm)) is not None
            and pool.name in pools
            and (vm.ref in taken or pool.floor)
        )

    def _taken(self, ended: Sequence[Outcome]) -> frozenset[str]:
        """The desktops that the night has taken: before this run, and in it."""
        done = (each for each in ended if each.verdict is Verdict.DONE and isinstance(each.step, _TAKING))
        return self.taken.union(each.step.vm for each in done)

    def against(
        self,
        step: Step,
        inventory: Inventory,
        now: datetime,
        ended: Sequence[Outcome],
        leaving: Collection[str],
        ahead: timedelta | None = None,
    ) -> str | None:
        """Why the step must not be sent now; None = nothing speaks against it.

        `ended`: this run's outcomes so far; `leaving`: VMs that are on their way out, whatever the inventory shows;
        `ahead`: how far vCenter's clock was ahead of ours at the last look, None = they do not compare.
        """
        if not isinstance(step, SetAttribute | SetVmDrs | SuspendVm | ShutDownGuest | RelocateVm | PowerOnVm):
            return None
        wrong = apart(ahead)
        if wrong is not None:
            return f"clocks: {wrong}"
        night = self.policy.night_at(now)
        if self.policy.windows and not (night is not None and night.takes_at(now)):
            return "the window has closed"
        if step.vm in self.not_after and now >= self.not_after[step.vm]:
            return "too late: the return to its host has to begin"
        stopped = tripped(self.before, ended, inventory)
        if stopped is not None:
            return f"the night takes nothing more: {stopped}"
        vm = inventory.vms.get(step.vm)
        if not isinstance(step, _TAKING) or vm is None:
            return None
        return in_use(vm) or self._withdrawn(vm, inventory, leaving) or self._unparked(vm, inventory, ended)

    def _unparked(self, vm: Vm, inventory: Inventory, ended: Sequence[Outcome]) -> str | None:
        """Whether so many of its pool, taken tonight, run again that the pool is left alone."""
        taken = (inventory.vms.get(ref) for ref in self._taken(ended))
        pool = self.policy.pool_of(vm)
        woken = [each for each in taken if each is not None and stays_running(each)]
        return WHY if pool is not None and pool.name in restless(woken, self.policy) else None

    def _withdrawn(self, vm: Vm, inventory: Inventory, leaving: Collection[str]) -> str | None:
        """What the policy, read anew on this desktop, says against taking it."""
        pool = self.policy.pool_of(vm)
        if pool is None:
            return "is in no pool of the policy any more"
        if self.policy.opt_out.on(vm) is not False:
            return f"opted out ({self.policy.opt_out})"
        if pool.owner is not None and pool.owner.on(vm) is not True:
            return f"its owner has not agreed ({pool.owner})"
        if pool.floor:
            running = sum(
                1
                for other in inventory.vms.values()
                if stays_running(other) and other.ref not in leaving and self.policy.pool_of(other) == pool
            )
            if running <= pool.floor:
                return f"floor: {pool.floor} of pool {pool.name} stay running"
        return None
