"""One look of `rotate watch`: what is kept, what is free, what starts, what gives way. `execute` acts by it, and
`report` shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuops.model.catalog import Catalog
from gpuops.model.inventory import Inventory
from gpuops.model.ml_queue import entry_of
from gpuops.model.rotation import Policy, Role, SpareRule
from gpuops.model.vm import Vm
from gpuops.plan.core.plan import Choice, Plan
from gpuops.plan.core.steps import PowerOnVm
from gpuops.plan.rotation.night import RotateNight
from gpuops.plan.rotation.spare import GiveWay, KeptState, give_way, kept_states
from gpuops.plan.rotation.taken_vms import TakenVm, Whereabouts

_ENDED = (Whereabouts.BACK, Whereabouts.UNTOUCHED)


@dataclass(frozen=True, slots=True)
class WatchLook:
    """What one look found, and what follows from it: first ML VMs give way, and only where none has to, some start."""

    at: datetime
    states: tuple[KeptState, ...]
    gives: GiveWay
    ended: tuple[TakenVm, ...]
    """ML VMs and desktops that the watch has taken and that are as they were, by themselves: their markers go."""
    running: tuple[TakenVm, ...]
    """ML VMs that the watch has started and that run."""
    plan: Plan
    """What would start."""

    @property
    def starts(self) -> tuple[str, ...]:
        """Refs of the ML VMs that start; none while others give way."""
        if self.gives.vms or not self.plan.feasible:
            return ()
        return tuple(step.vm for step in self.plan.steps if isinstance(step, PowerOnVm))

    @property
    def waiting(self) -> tuple[Choice, ...]:
        """Why the others of the queue do not start."""
        return tuple(choice for choice in self.plan.choices if not choice.chosen)


def look_at(
    request: RotateNight, rule: SpareRule, plan: Plan, inventory: Inventory, catalog: Catalog, now: datetime
) -> WatchLook:
    """What this snapshot comes to. `plan`: that of the request on it."""
    own = [each for each in request.taken(inventory) if each.policy.name == request.policy.name]
    running = [each for each in own if each.original.role is Role.ML and each.whereabouts is Whereabouts.AWAY]
    return WatchLook(
        at=now,
        states=kept_states(rule, inventory, catalog),
        gives=give_way(request.policy, rule, running, inventory, catalog, now),
        ended=tuple(each for each in own if each.whereabouts in _ENDED and each.vm is not None),
        running=tuple(running),
        plan=plan,
    )


def shared_vms(policy: Policy, other: Policy, inventory: Inventory) -> Sequence[Vm]:
    """The VMs that both policies mean, as desktops or as ML VMs."""
    return [vm for vm in inventory.vms.values() if _means(policy, vm) and _means(other, vm)]


def _means(policy: Policy, vm: Vm) -> bool:
    return policy.pool_of(vm) is not None or entry_of(policy.ml, vm) is not None
