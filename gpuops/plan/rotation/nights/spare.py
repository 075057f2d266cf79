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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.rotation import GivesWayBy, SpareRule
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.scope import gpu_hosts
from gpuops.plan.core.steps import PowerOnVm, RelocateVm, ShutDownGuest
from gpuops.plan.devices.requested import profile_meant
from gpuops.plan.placement.keep_free import FreeSlots
from gpuops.plan.placement.project import project
from gpuops.plan.placement.reserved import place_name
from gpuops.plan.placement.return_order import suspend_or_shut_down
from gpuops.plan.rotation.ml_queue.ml_vms import Start
from gpuops.plan.rotation.ml_queue.whole_clusters import with_their_clusters
from gpuops.plan.rotation.nights.desktops import suspendable
from gpuops.plan.rotation.returns.way_free import loss_of, running_ml
from gpuops.plan.rotation.taken_vms import TakenVm

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
        """With one more look, and without those that tell nothing of the last `calm_s` seconds."""
        looks = (*self.looks, (passed_s, {state.key: state.free for state in states}))
        return SlotHistory(_since(passed_s - calm_s, looks))

    def lowest(self, passed_s: float, calm_s: float) -> Mapping[Key, int]:
        """The lowest count of each place in the last `calm_s` seconds; none where the first look was later."""
        looks = _since(passed_s - calm_s, self.looks)
        if not looks or looks[0][0] > passed_s - calm_s:
            return {}
        return {key: min(free.get(key, 0) for _, free in looks) for key in looks[0][1]}


def _since(
    since_s: float, looks: Sequence[tuple[float, Mapping[Key, int]]]
) -> tuple[tuple[float, Mapping[Key, int]], ...]:
    """The looks since then, and the last one before: it tells how that time began."""
    before = [at for at, _ in looks if at <= since_s]
    return tuple(look for look in looks if not before or look[0] >= before[-1])


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
    kept = with_their_memory(rule, running, inventory, catalog)
    world, chosen = inventory, list[GivesWay]()
    while True:
        missing = [state for state in kept_states(rule, world, catalog) if state.missing]
        offers = (
            _offer(with_their_clusters(together, running), missing, world, catalog, now, kept)
            for together in _together(running, world)
        )
        best = min((offer for offer in offers if offer is not None), key=lambda offer: offer.cost, default=None)
        if best is None:
            return GiveWay(tuple(_needed(chosen, rule, inventory, catalog)), tuple(missing))
        world = best.after
        chosen += best.gives
        running = [each for each in running if each not in [gives.taken_vm for gives in best.gives]]


def with_their_memory(
    rule: SpareRule, running: Iterable[TakenVm], inventory: Inventory, catalog: Catalog
) -> frozenset[str]:
    """Those of these ML VMs (refs) that give way by being suspended: none, unless the policy says so."""
    if rule.give_way is not GivesWayBy.SUSPEND:
        return frozenset()
    return suspendable((each.vm for each in running if each.vm is not None), inventory, catalog)


def _together(running: Sequence[TakenVm], world: Inventory) -> Iterator[tuple[TakenVm, ...]]:
    """Each of these alone; and all of them that are on one GPU, or on one host: two halves may have to leave a GPU
    before it takes another size, and all VMs of a host before its memory is enough."""
    yield from ((each,) for each in running)
    by_ref = {each.vm.ref: each for each in running if each.vm is not None}
    hosts = {each.vm.host for each in running if each.vm is not None and each.vm.host is not None}
    for ref in sorted(hosts & world.hosts.keys()):
        groups = {tuple(vm for vm in gpu.vms or () if vm in by_ref) for gpu in world.hosts[ref].gpus}
        groups.add(tuple(vm for vm, each in by_ref.items() if each.vm is not None and each.vm.host == ref))
        yield from (tuple(by_ref[vm] for vm in group) for group in sorted(groups) if len(group) > 1)


@dataclass(frozen=True, slots=True)
class _Offer:
    """ML VMs of one host that may stop together, with the others of their clusters, and what that frees."""

    cost: tuple[int, float, int, str]
    """(priority, seconds of work lost for each slot, how many, name)."""
    gives: tuple[GivesWay, ...]
    after: Inventory


def _offer(
    together: Sequence[TakenVm],
    missing: Sequence[KeptState],
    world: Inventory,
    catalog: Catalog,
    now: datetime,
    kept: Collection[str],
) -> _Offer | None:
    """What it costs to stop these; None = that frees nothing that is missing. Those of `kept` lose no work."""
    first = together[0].vm
    host = world.host_of(first) if first is not None else None
    here = [state for state in missing if host is not None and state.key[1] == place_of(host)]
    if host is None or not here:
        return None
    after = world
    for each in together:
        after = project(ShutDownGuest(each.vm.ref if each.vm is not None else each.original.vm), after)
    slots = FreeSlots(after, catalog, claims=False)
    gains = [min(state.missing, slots.in_cluster_of(host, state.key[0]) - state.free) for state in here]
    if max(gains) <= 0:
        return None
    losses = [
        (priority, 0.0 if each.vm is not None and each.vm.ref in kept else lost_s)
        for each in together
        for priority, lost_s in [loss_of(each, now)]
    ]
    state, gained = here[gains.index(max(gains))], sum(gain for gain in gains if gain > 0)
    gives = tuple(
        GivesWay(each, None if lost_s == inf else lost_s, state.key, state.where)
        for each, (_, lost_s) in zip(together, losses, strict=True)
    )
    lost_each_s = sum(lost_s for _, lost_s in losses) / gained
    cost = (max(priority for priority, _ in losses), lost_each_s, len(together), together[0].original.name)
    return _Offer(cost, gives, after)


def _needed(chosen: Sequence[GivesWay], rule: SpareRule, inventory: Inventory, catalog: Catalog) -> Iterator[GivesWay]:
    """Those without which something would be missing: a later one may have freed what an earlier one was chosen for."""
    kept = list(chosen)
    best = _missing(kept, rule, inventory, catalog)
    for gives in sorted(chosen, key=lambda each: -(inf if each.lost_s is None else each.lost_s)):
        together = with_their_clusters((gives.taken_vm,), [each.taken_vm for each in chosen])
        fewer = [other for other in kept if other.taken_vm not in together]
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
