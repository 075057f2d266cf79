"""Rotation, the guard: what is asked once more just before each step that takes something.

A plan is minutes old when its last step is sent. `hindrance` asks whether the step still makes sense for its VM; this
asks whether the night may go on taking at all: that the window is still open, that the pool keeps its floor, that
nobody withdrew a desktop, and that not too much has failed. It never speaks against the morning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from gpuops.advise.idle import in_use
from gpuops.errors import Trouble
from gpuops.model.inventory import Inventory
from gpuops.model.rotation import Policy
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.outcome import Outcome, Verdict
from gpuops.plan.rotation.ours import stays_running
from gpuops.plan.steps import PowerOnVm, RelocateVm, SetAttribute, ShutDownGuest, Step, SuspendVm

PER_HOST: Final = 3
"""So many failed steps on one host stop the taking,"""
SHARE: Final = 0.10
"""or this share of the plan, of whatever hosts,"""
FEWEST: Final = 3
"""but never fewer than so many: one failure of a night of five steps is no pattern."""
DENIED: Final = 2
"""So many refusals in a row stop it too: the next one would be refused as well."""

_TAKING: Final = (SuspendVm, ShutDownGuest)
"""What makes a desktop give up its GPUs; a night shuts down nothing else."""
_BAD: Final = (Verdict.FAILED, Verdict.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Guard:
    """What a night under this policy may still take. `steps`: how many the plan has."""

    policy: Policy
    steps: int
    not_after: Mapping[str, datetime] = field(default_factory=dict)
    """VM ref -> when the return to its host begins: from then on nothing is taken there."""

    def company(self, steps: Collection[Step], inventory: Inventory) -> frozenset[str]:
        """The other VMs that must be looked at before these steps: the pools whose floor they touch."""
        taken = [inventory.vms[step.vm] for step in steps if isinstance(step, _TAKING) and step.vm in inventory.vms]
        floors = {pool.name for vm in taken if (pool := self.policy.pool_of(vm)) is not None and pool.floor}
        if not floors:
            return frozenset()
        return frozenset(
            vm.ref
            for vm in inventory.vms.values()
            if vm.power is PowerState.ON and (pool := self.policy.pool_of(vm)) is not None and pool.name in floors
        )

    def against(
        self, step: Step, inventory: Inventory, now: datetime, ended: Sequence[Outcome], leaving: Collection[str]
    ) -> str | None:
        """Why the step must not be sent now; None = nothing speaks against it.

        `ended`: this run's outcomes so far; `leaving`: VMs that are on their way out, whatever the inventory shows.
        """
        if not isinstance(step, SetAttribute | SuspendVm | ShutDownGuest | RelocateVm | PowerOnVm):
            return None
        night = self.policy.night_at(now)
        if self.policy.windows and not (night is not None and night.takes_at(now)):
            return "the window has closed"
        if step.vm in self.not_after and now >= self.not_after[step.vm]:
            return "too late: the return to its host has to begin"
        tripped = self.tripped(ended, inventory)
        if tripped is not None:
            return f"the night takes nothing more: {tripped}"
        vm = inventory.vms.get(step.vm)
        if not isinstance(step, _TAKING) or vm is None:
            return None
        return in_use(vm) or self._withdrawn(vm, inventory, leaving)

    def tripped(self, ended: Sequence[Outcome], inventory: Inventory) -> str | None:
        """Why this run takes nothing more; None = it goes on."""
        bad = [outcome for outcome in ended if outcome.verdict in _BAD]
        if len(bad) >= max(FEWEST, SHARE * self.steps):
            return f"{len(bad)} of its steps failed"
        hosts = Counter(vm.host for outcome in bad if (vm := inventory.vms.get(outcome.step.vm)) is not None)
        worst = next(((ref, count) for ref, count in hosts.items() if ref and count >= PER_HOST), None)
        if worst is not None:
            host = inventory.hosts.get(worst[0])
            return f"{worst[1]} steps failed on {host.name if host else worst[0]}"
        last = [outcome for outcome in ended if outcome.verdict is not Verdict.SKIPPED][-DENIED:]
        if len(last) == DENIED and all(each.verdict in _BAD and each.trouble is Trouble.DENIED for each in last):
            return "vCenter refuses one step after the other"
        return None

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
