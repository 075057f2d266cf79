"""What is spare beside what a policy keeps for desktops (`mode: spare-capacity`): whether a start leaves enough, what
there is too little of, and which ML VMs give way.

`night.py` asks it before each start and `guard.py` once more just before the start is sent; `execute` asks it what
gives way. Counted is as by `--keep-free` (`placement/keep_free.py`), in each cluster, or on a host of none: what can
surely still start.

A start goes by the lowest count of the last `calm_s` seconds, not by that of the moment: a slot that was taken and
given back meanwhile is no room, and neither is one that an ML VM has just left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Final

from gpuops.model.catalog import Catalog
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.rotation import SpareRule
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.core.scope import gpu_hosts
from gpuops.plan.core.steps import PowerOnVm, RelocateVm, ShutDownGuest
from gpuops.plan.devices.requested import profile_meant
from gpuops.plan.placement.keep_free import FreeSlots, place_name
from gpuops.plan.placement.project import project
from gpuops.plan.placement.return_order import suspend_or_shut_down
from gpuops.plan.rotation.ml_vms import Start
from gpuops.plan.rotation.taken_vms import TakenVm
from gpuops.plan.rotation.way_free import loss_of, running_ml

Key = tuple[str, str]
"""(profile, ref of the cluster, or of the host where it is in none)."""

_NO_VM: Final = Vm(ref="", name="")


@dataclass(frozen=True, slots=True)
class KeptState:
    """What is kept free of a profile in a cluster, or on a host of none, and how many can start there now."""

    key: Key
    where: str
    """Name of the cluster or host."""
    kept: int
    free: int

    @property
    def missing(self) -> int:
        return max(0, self.kept - self.free)

    def __str__(self) -> str:
        return f"{self.where}: {self.free} of {self.key[0]} free, {self.kept} are kept for desktops"


def place_of(host: Host) -> str:
    """Ref of the host's cluster, or its own where it is in none."""
    return host.cluster or host.ref


def kept_states(rule: SpareRule, inventory: Inventory, catalog: Catalog) -> tuple[KeptState, ...]:
    """Each profile that is kept, in each place where one runs or could start. Raises ProfileUnknown."""
    found: list[KeptState] = []
    running = _running(inventory)
    for kept in rule.keep_free:
        profile = profile_meant(kept.profile, _NO_VM, None, inventory, catalog)
        slots = FreeSlots(inventory, catalog, claims=False)
        for place, host in _places(inventory).items():
            free, runs = slots.in_cluster_of(host, profile), running[profile, place]
            if free or runs or _offered_in(place, profile, inventory):
                found.append(KeptState((profile, place), place_name(host, inventory), kept.of(runs, free), free))
    return tuple(found)


def _places(inventory: Inventory) -> dict[str, Host]:
    """A host of each cluster with GPUs, and each host with GPUs that is in none."""
    places: dict[str, Host] = {}
    for host in gpu_hosts(inventory):
        places.setdefault(place_of(host), host)
    return places


def _offered_in(place: str, profile: str, inventory: Inventory) -> bool:
    return any(place_of(host) == place and host.offers(profile) is not None for host in gpu_hosts(inventory))


def _running(inventory: Inventory) -> Counter[Key]:
    """How many vGPUs run, by profile and place."""
    running: Counter[Key] = Counter()
    for vm in inventory.vms.values():
        host = inventory.host_of(vm)
        if vm.power is PowerState.ON and host is not None:
            running.update((profile, place_of(host)) for profile in vm.profiles)
    return running


@dataclass(frozen=True, slots=True)
class SlotHistory:
    """How many slots were free at each look of the last seconds."""

    looks: tuple[tuple[float, Mapping[Key, int]], ...] = ()
    """(seconds since some moment, what was free), the oldest first."""

    def after(self, passed_s: float, states: Iterable[KeptState], calm_s: float) -> SlotHistory:
        """With one more look; of those older than `calm_s` the latest is kept, for it tells how that time began."""
        looks = (*self.looks, (passed_s, {state.key: state.free for state in states}))
        old = [at for at, _ in looks if passed_s - at >= calm_s]
        return SlotHistory(tuple(look for look in looks if not old or look[0] >= old[-1]))

    def lowest(self, calm_s: float) -> Mapping[Key, int]:
        """The lowest count of each place over that time; of one that was not looked at for so long there is none."""
        if not self.looks or self.looks[-1][0] - self.looks[0][0] < calm_s:
            return {}
        told = [free for _, free in self.looks]
        return {key: min(free.get(key, 0) for free in told) for key in told[0]}


@dataclass(frozen=True, slots=True)
class SpareRoom:
    """Whether starts leave what is kept, on this snapshot."""

    rule: SpareRule
    inventory: Inventory
    catalog: Catalog
    lowest: Mapping[Key, int] = field(default_factory=dict)

    def objection(self, starts: Sequence[Start]) -> str:
        """Why the last of these starts would leave too little; empty = it leaves enough, or takes nothing away."""
        *_, last = starts
        host, after = last.host, self.inventory
        for start in starts:
            for desktop in start.desktops:
                after = project(suspend_or_shut_down(desktop), after)
            if start.moves:
                after = project(RelocateVm(start.vm.ref, start.host.ref), after)
            after = project(PowerOnVm(start.vm.ref, start.host.ref), after, self.catalog)
        for state in kept_states(self.rule, self.inventory, self.catalog):
            if state.key[1] != place_of(host):
                continue
            left = FreeSlots(after, self.catalog, claims=False).in_cluster_of(host, state.key[0])
            if left >= state.free and not last.desktops:
                continue  # it takes none of them away
            lowest = self.lowest.get(state.key)
            if lowest is None:
                return f"{state.where}: it is not known yet that {state.key[0]} was free for {self.rule.calm_s} s"
            spared = left - max(0, state.free - lowest)
            if spared < state.kept:
                since = f" (at least so many for {self.rule.calm_s} s)" if lowest < state.free else ""
                left_free = f"{max(spared, 0)} of {state.key[0]} would be left free{since}"
                return f"{state.where}: {left_free}, {state.kept} are kept"
        return ""

    def start_objection(self, step: PowerOnVm) -> str | None:
        """Why the VM of the step must not start as things are now; None = it leaves enough, or takes nothing away."""
        vm = self.inventory.vms.get(step.vm)
        host = self.inventory.hosts.get(step.host or (vm.host if vm is not None else None) or "")
        if vm is None or host is None:
            return None
        after = project(step, self.inventory, self.catalog)
        for state in kept_states(self.rule, self.inventory, self.catalog):
            if state.key[1] == place_of(host):
                left = FreeSlots(after, self.catalog, claims=False).in_cluster_of(host, state.key[0])
                if left < min(state.free, state.kept):
                    return f"{state.where}: {left} of {state.key[0]} would be left free, {state.kept} are kept"
        return None


@dataclass(frozen=True, slots=True)
class GivesWay:
    """An ML VM that is stopped so that desktops find what is kept for them."""

    taken_vm: TakenVm
    lost_s: float | None
    """Seconds of its work that are lost by that; None = not known."""
    for_key: Key
    where: str

    @property
    def name(self) -> str:
        return self.taken_vm.original.name


@dataclass(frozen=True, slots=True)
class GiveWay:
    """Which ML VMs give way, and of what there is still too little then."""

    vms: tuple[GivesWay, ...]
    still_missing: tuple[KeptState, ...]


def give_way(
    rule: SpareRule, taken: Iterable[TakenVm], inventory: Inventory, catalog: Catalog, now: datetime
) -> GiveWay:
    """The ML VMs of these that must stop so that what is kept is free again: of the lowest priority, and of that those
    that lose the least work for each slot that they free.

    Example: two slots are missing. A frees one and loses 10 minutes, B frees two and loses 12: B gives way alone.
    """
    running = [each for each in running_ml(taken) if each.vm is not None and each.vm.devices]
    world, chosen = inventory, list[GivesWay]()
    while True:
        missing = [state for state in kept_states(rule, world, catalog) if state.missing]
        best: tuple[tuple[int, float, str], GivesWay, Inventory] | None = None
        for taken_vm in running:
            offer = _offer(taken_vm, missing, world, catalog, now)
            if offer is not None and (best is None or offer[0] < best[0]):
                best = offer
        if best is None:
            return GiveWay(tuple(_needed(chosen, rule, inventory, catalog)), tuple(missing))
        _, gives, world = best
        chosen.append(gives)
        running.remove(gives.taken_vm)


def _offer(
    taken_vm: TakenVm,
    missing: Sequence[KeptState],
    world: Inventory,
    catalog: Catalog,
    now: datetime,
) -> tuple[tuple[int, float, str], GivesWay, Inventory] | None:
    """What it costs to stop this VM, and the snapshot then; None = that frees nothing that is missing."""
    vm = taken_vm.vm
    host = world.host_of(vm) if vm is not None else None
    if vm is None or host is None:
        return None
    here = [state for state in missing if state.key[1] == place_of(host)]
    if not here:
        return None
    after = project(ShutDownGuest(vm.ref), world)
    slots = FreeSlots(after, catalog, claims=False)
    gains = [min(state.missing, slots.in_cluster_of(host, state.key[0]) - state.free) for state in here]
    if max(gains) <= 0:
        return None
    priority, lost_s = loss_of(taken_vm, now)
    state = here[gains.index(max(gains))]
    gives = GivesWay(taken_vm, None if lost_s == inf else lost_s, state.key, state.where)
    cost = (priority, lost_s / sum(gain for gain in gains if gain > 0), taken_vm.original.name)
    return cost, gives, after


def _needed(chosen: Sequence[GivesWay], rule: SpareRule, inventory: Inventory, catalog: Catalog) -> Iterator[GivesWay]:
    """Those without which something would be missing: a later one may have freed what an earlier one was chosen for."""
    kept = list(chosen)
    best = _missing(kept, rule, inventory, catalog)
    for gives in sorted(chosen, key=lambda each: -(inf if each.lost_s is None else each.lost_s)):
        fewer = [other for other in kept if other is not gives]
        if _missing(fewer, rule, inventory, catalog) == best:
            kept = fewer
    return iter(kept)


def _missing(stopped: Iterable[GivesWay], rule: SpareRule, inventory: Inventory, catalog: Catalog) -> int:
    """How many slots are missing in all once these are stopped."""
    world = inventory
    for gives in stopped:
        if gives.taken_vm.vm is not None:
            world = project(ShutDownGuest(gives.taken_vm.vm.ref), world)
    return sum(state.missing for state in kept_states(rule, world, catalog))
