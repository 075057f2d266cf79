"""One look of `rotate watch`: which slots are kept and free, which ML VMs start, which stop for desktops. `execute`
carries it out, and `report` shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.ml_queue import entry_of
from gpuops.model.nights.rotation_policy import Policy, SpareRule
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.plan import Choice, Outcome, Plan
from gpuops.plan.core.steps import PowerOnVm
from gpuops.plan.rotation.nights.desktops import KeptForUsers, running_desktops
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.nights.spare import KeptState, StopsForDesktops, choose_ml_stops, kept_states
from gpuops.plan.rotation.returns.restore import (
    DesktopReturn,
    away_desktops,
    return_cheapest_desktops,
    return_desktops,
    running_ml,
)
from gpuops.plan.rotation.taken_vms import TakenVm, Whereabouts

NO_RETURN: Final = DesktopReturn()
_ENDED: Final = (Whereabouts.BACK, Whereabouts.UNTOUCHED)


@dataclass(frozen=True, slots=True)
class PoolAhead:
    """The number of running desktops of a pool, and the number that its forecast needs now."""

    pool: str
    running: int
    """Desktops that run for users, in use or not."""
    expected: int | None
    """How many should run; None = there is no forecast, and only `at_least` holds."""


@dataclass(frozen=True, slots=True)
class WatchLook:
    """The state at one look, and its consequences: ML VMs stop for desktops first, and only if none has to, others
    start."""

    at: datetime
    states: tuple[KeptState, ...]
    gives: StopsForDesktops
    ended: tuple[TakenVm, ...]
    """ML VMs and desktops that the watch took and that are as before without its action: their markers are cleared."""
    running: tuple[TakenVm, ...]
    """Running ML VMs that the watch has started."""
    plan: Plan
    """The plan of the starts."""
    waiting: tuple[Choice, ...] = ()
    """Why the other VMs of the queue do not start."""
    back: DesktopReturn = NO_RETURN
    """Desktops that resume for users, and the ML VMs that stop for them."""
    ahead: tuple[PoolAhead, ...] = ()
    """The pools whose desktops resume ahead of their users."""

    @property
    def starts(self) -> tuple[str, ...]:
        """Refs of the ML VMs that start; none while others stop for desktops."""
        if self.gives.vms or self.back.desktops or not self.plan.feasible:
            return ()
        return tuple(step.vm for step in self.plan.steps if isinstance(step, PowerOnVm))


@dataclass(frozen=True, slots=True)
class WatchReport:
    """One look, and the outcomes of its steps."""

    look: WatchLook
    before: Inventory
    outcomes: tuple[Outcome, ...] = ()
    """The outcomes of its steps; empty if there was nothing to do, or the look was only shown."""


def look_at(
    request: RotateNight, rule: SpareRule, plan: Plan, inventory: Inventory, catalog: Catalog, now: datetime
) -> WatchLook:
    """Return the look at this snapshot. `plan`: the plan of the request on the same snapshot."""
    policy = request.policy
    all_taken = request.vms_of_nights(inventory)
    vms_of_watch = [taken_vm for taken_vm in all_taken if taken_vm.policy.name == policy.name]
    ended = [taken_vm for taken_vm in vms_of_watch if taken_vm.whereabouts in _ENDED and taken_vm.vm is not None]
    running = running_ml(vms_of_watch)
    queue = {waits.name for waits in request.queue(inventory)}
    pools_ahead = [pool for pool in policy.pools if pool.ready_ahead is not None]
    running_now = running_desktops(policy, inventory.vms.values()) if pools_ahead else {}
    return WatchLook(
        at=now,
        states=kept_states(rule, inventory, catalog),
        gives=choose_ml_stops(rule, running, inventory, catalog, now),
        ended=tuple(ended),
        running=tuple(running),
        plan=plan,
        waiting=tuple(choice for choice in plan.choices if not choice.chosen and choice.subject in queue),
        back=_plan_desktop_return(request, vms_of_watch, running, plan, inventory, catalog),
        ahead=tuple(
            PoolAhead(pool.name, running_now[pool.name], request.expected.get(pool.name)) for pool in pools_ahead
        ),
    )


def _plan_desktop_return(
    request: RotateNight,
    vms_of_watch: Sequence[TakenVm],
    running: Sequence[TakenVm],
    plan: Plan,
    inventory: Inventory,
    catalog: Catalog,
) -> DesktopReturn:
    """Return the desktops that resume.

    Each pool gets enough ready desktops for users, now and by a forecast. If no ML VM waits, all desktops resume that
    do not need an ML VM to stop.
    """
    away_vms = away_desktops(vms_of_watch)
    if not away_vms:
        return DesktopReturn()
    policy, now = request.policy, inventory.taken_at
    kept_for_users = KeptForUsers.of(policy, inventory.vms.values(), request.expected)
    requested: list[tuple[list[TakenVm], int]] = []
    for pool in policy.pools:
        desktops = [desktop for desktop in away_vms if desktop.vm is not None and policy.pool_of(desktop.vm) == pool]
        requested.append((desktops, kept_for_users.missing(pool)))
    desktop_return = return_cheapest_desktops(requested, running, inventory, catalog, now)
    queue = request.queue(inventory)
    # Pools that need desktops come first, then ML VMs that start now or wait: these may need the GPUs of the others.
    if desktop_return.desktops or plan.steps or any(waits.vm is not None and not waits.reason for waits in queue):
        return desktop_return
    return return_desktops(away_vms, (), inventory, catalog, now)


def shared_vms(policy: Policy, other_policy: Policy, inventory: Inventory) -> Sequence[Vm]:
    """Return the VMs that both policies select, as desktops or as ML VMs."""
    return [vm for vm in inventory.vms.values() if _selects(policy, vm) and _selects(other_policy, vm)]


def _selects(policy: Policy, vm: Vm) -> bool:
    return policy.pool_of(vm) is not None or entry_of(policy.ml, vm) is not None
