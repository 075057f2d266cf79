"""One look of `rotate watch`: what is kept, what is free, what starts, what gives way. `execute` acts by it, and
`report` shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.ml_queue import entry_of
from gpuops.model.nights.rotation import Policy, SpareRule
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.outcome import Outcome
from gpuops.plan.core.plan import Choice, Plan
from gpuops.plan.core.steps import PowerOnVm
from gpuops.plan.rotation.nights.desktops import KeptForUsers, running_desktops
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.nights.spare import GiveWay, KeptState, give_way, kept_states
from gpuops.plan.rotation.returns.way_free import (
    DesktopReturn,
    away_desktops,
    return_cheapest_desktops,
    return_desktops,
    running_ml,
)
from gpuops.plan.rotation.taken_vms import TakenVm, Whereabouts

NOBODY: Final = DesktopReturn()
_ENDED: Final = (Whereabouts.BACK, Whereabouts.UNTOUCHED)


@dataclass(frozen=True, slots=True)
class PoolAhead:
    """What a forecast asks of a pool now."""

    pool: str
    running: int
    """Desktops that run for users, whoever uses them."""
    expected: int | None
    """So many are to run; None = nothing is known to go by, and `at_least` holds alone."""


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
    waiting: tuple[Choice, ...] = ()
    """Why the others of the queue do not start."""
    back: DesktopReturn = NOBODY
    """Desktops that come back to users, and the ML VMs that stop for them."""
    ahead: tuple[PoolAhead, ...] = ()
    """Of each pool whose desktops come back ahead of their users."""

    @property
    def starts(self) -> tuple[str, ...]:
        """Refs of the ML VMs that start; none while others give way."""
        if self.gives.vms or self.back.desktops or not self.plan.feasible:
            return ()
        return tuple(step.vm for step in self.plan.steps if isinstance(step, PowerOnVm))


@dataclass(frozen=True, slots=True)
class WatchTold:
    """One look, and what became of it."""

    look: WatchLook
    before: Inventory
    outcomes: tuple[Outcome, ...] = ()
    """Of the steps that it took; none where nothing was to be done, or it was only looked."""


def look_at(
    request: RotateNight, rule: SpareRule, plan: Plan, inventory: Inventory, catalog: Catalog, now: datetime
) -> WatchLook:
    """What this snapshot comes to. `plan`: that of the request on it."""
    own = [each for each in request.taken(inventory) if each.policy.name == request.policy.name]
    running = running_ml(own)
    queue = {waits.name for waits in request.queue(inventory)}
    return WatchLook(
        at=now,
        states=kept_states(rule, inventory, catalog),
        gives=give_way(rule, running, inventory, catalog, now),
        ended=tuple(each for each in own if each.whereabouts in _ENDED and each.vm is not None),
        running=tuple(running),
        plan=plan,
        waiting=tuple(choice for choice in plan.choices if not choice.chosen and choice.subject in queue),
        back=_back(request, own, running, plan, inventory, catalog),
        ahead=_ahead(request, inventory),
    )


def _ahead(request: RotateNight, inventory: Inventory) -> tuple[PoolAhead, ...]:
    pools = [pool for pool in request.policy.pools if pool.ready_ahead is not None]
    running = running_desktops(request.policy, inventory.vms.values()) if pools else {}
    return tuple(PoolAhead(pool.name, running[pool.name], request.expected.get(pool.name)) for pool in pools)


def _back(
    request: RotateNight,
    own: Sequence[TakenVm],
    running: Sequence[TakenVm],
    plan: Plan,
    inventory: Inventory,
    catalog: Catalog,
) -> DesktopReturn:
    """The desktops that come back: so many of each pool that enough are ready for users, now and by a forecast; and
    where no ML VM waits any more, all those that come back without one being stopped."""
    away = away_desktops(own)
    if not away:
        return DesktopReturn()
    policy, now = request.policy, inventory.taken_at
    kept = KeptForUsers.of(policy, inventory.vms.values(), request.expected)
    wanted = [
        (
            [each for each in away if each.vm is not None and policy.pool_of(each.vm) == pool],
            kept.missing(pool),
        )
        for pool in policy.pools
    ]
    back = return_cheapest_desktops(wanted, running, inventory, catalog, now)
    queue = request.queue(inventory)
    if back.desktops or plan.steps or any(waits.vm is not None and not waits.reason for waits in queue):
        return back
    return return_desktops(away, (), inventory, catalog, now)


def shared_vms(policy: Policy, other: Policy, inventory: Inventory) -> Sequence[Vm]:
    """The VMs that both policies mean, as desktops or as ML VMs."""
    return [vm for vm in inventory.vms.values() if _means(policy, vm) and _means(other, vm)]


def _means(policy: Policy, vm: Vm) -> bool:
    return policy.pool_of(vm) is not None or entry_of(policy.ml, vm) is not None
