"""Rotation, the guard: what is asked once more just before each step that takes something.

A plan is minutes old when its last step is sent. `hindrance` asks whether the step still makes sense for its VM; this
asks whether the night may go on taking at all: that the window is still open, that the pool keeps its floor, that
nobody withdrew a desktop, and that not too much has failed. It never speaks against the morning.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from gpuops.advise.idle import in_use
from gpuops.model.inventory import Inventory
from gpuops.model.rotation import Policy
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.outcome import Outcome
from gpuops.plan.rotation.breaker import Setbacks, tripped
from gpuops.plan.rotation.ours import stays_running
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

    def floors(self, steps: Collection[Step], inventory: Inventory) -> frozenset[str]:
        """Names of the pools whose floor these steps touch."""
        taken = [inventory.vms[step.vm] for step in steps if isinstance(step, _TAKING) and step.vm in inventory.vms]
        return frozenset(pool.name for vm in taken if (pool := self.policy.pool_of(vm)) is not None and pool.floor)

    def company(self, pools: Collection[str], inventory: Inventory) -> frozenset[str]:
        """The VMs that count towards the floors of these pools, as far as is known."""
        return frozenset(
            vm.ref
            for vm in inventory.vms.values()
            if vm.power is PowerState.ON and (pool := self.policy.pool_of(vm)) is not None and pool.name in pools
        )

    def against(
        self, step: Step, inventory: Inventory, now: datetime, ended: Sequence[Outcome], leaving: Collection[str]
    ) -> str | None:
        """Why the step must not be sent now; None = nothing speaks against it.

        `ended`: this run's outcomes so far; `leaving`: VMs that are on their way out, whatever the inventory shows.
        """
        if not isinstance(step, SetAttribute | SetVmDrs | SuspendVm | ShutDownGuest | RelocateVm | PowerOnVm):
            return None
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
        return in_use(vm) or self._withdrawn(vm, inventory, leaving)

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
