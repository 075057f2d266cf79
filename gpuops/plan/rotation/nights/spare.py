"""Spare capacity beyond the slots that a policy keeps free for desktops (`mode: spare-capacity`): whether a start
leaves enough slots, which slots are missing, and which ML VMs stop to free them.

`night.py` calls it before each start and `guard.py` once more just before the start is sent; `execute` uses it to
select the ML VMs that stop. Free slots are counted as by `--keep-free` (`placement/keep_free.py`), in each cluster or
on a host without a cluster: only what can certainly still start counts.

A start may only use the lowest count of the last `calm_s` seconds, not the current one: a slot that was taken and
returned meanwhile does not count, and neither does one that an ML VM has just left.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.rotation_policy import GivesWayBy, SpareRule
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.scope import gpu_hosts
from gpuops.plan.core.steps import PowerOnVm, RelocateVm, ShutDownGuest
from gpuops.plan.devices.goal import profile_meant
from gpuops.plan.placement.keep_free import FreeSlots, place_name
from gpuops.plan.placement.project import project
from gpuops.plan.placement.suspended_vms import suspend_or_shut_down
from gpuops.plan.rotation.ml_queue.ml_vms import Start
from gpuops.plan.rotation.ml_queue.whole_clusters import with_their_clusters
from gpuops.plan.rotation.nights.desktops import suspendable
from gpuops.plan.rotation.returns.restore import loss_of, running_ml
from gpuops.plan.rotation.taken_vms import TakenVm

Key = tuple[str, str]
"""(profile, ref of the cluster, or of the host if it is in no cluster)."""

_NO_VM: Final = Vm(ref="", name="")


@dataclass(frozen=True, slots=True)
class KeptState:
    """How many slots of a profile are kept free in one place (a cluster, or a host without one), and how many are
    free."""

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
    """Return the ref of the cluster of the host, or of the host itself if it is in no cluster."""
    return host.cluster or host.ref


def kept_states(rule: SpareRule, inventory: Inventory, catalog: Catalog) -> tuple[KeptState, ...]:
    """Return the state of each kept profile in each place where it runs or could start. Raises ProfileUnknown."""
    running: Counter[Key] = Counter()
    for vm in inventory.vms.values():
        host = inventory.host_of(vm)
        if vm.power is PowerState.ON and host is not None:
            running.update((profile, place_of(host)) for profile in vm.profiles)
    hosts_by_place: dict[str, list[Host]] = defaultdict(list)
    for host in gpu_hosts(inventory):
        hosts_by_place[place_of(host)].append(host)
    states: list[KeptState] = []
    # `claims=False`: slots of suspended VMs count as free.
    slots = FreeSlots(inventory, catalog, claims=False)
    for kept_slots in rule.keep_free:
        # Without a VM and a host: a name that any host offers or that the catalogue has.
        profile = profile_meant(kept_slots.profile, _NO_VM, None, inventory, catalog)
        for place, hosts in hosts_by_place.items():
            free, running_count = slots.in_cluster_of(hosts[0], profile), running[profile, place]
            if free or running_count or any(host.offers(profile) is not None for host in hosts):
                where = place_name(hosts[0], inventory)
                states.append(KeptState((profile, place), where, kept_slots.of(running_count, free), free))
    return tuple(states)


@dataclass(frozen=True, slots=True)
class SlotHistory:
    """The number of free slots at each look of the last seconds."""

    looks: tuple[tuple[float, Mapping[Key, int]], ...] = ()
    """(seconds since a fixed moment, free slots by profile and place), the oldest first."""

    def after(self, passed_s: float, states: Iterable[KeptState], calm_s: float) -> SlotHistory:
        """Return the history with one more look, and without looks that do not matter for the last `calm_s` seconds."""
        looks = (*self.looks, (passed_s, {state.key: state.free for state in states}))
        return SlotHistory(_since(passed_s - calm_s, looks))

    def lowest(self, passed_s: float, calm_s: float) -> Mapping[Key, int]:
        """Return the lowest counts of the last `calm_s` seconds; empty if the first look was later than that."""
        looks = _since(passed_s - calm_s, self.looks)
        if not looks or looks[0][0] > passed_s - calm_s:
            return {}
        return {key: min(free.get(key, 0) for _, free in looks) for key in looks[0][1]}


def _since(
    since_s: float, looks: Sequence[tuple[float, Mapping[Key, int]]]
) -> tuple[tuple[float, Mapping[Key, int]], ...]:
    """Return the looks since then, and the last one before: its counts hold at the beginning of that time."""
    earlier_moments = [moment_s for moment_s, _ in looks if moment_s <= since_s]
    return tuple(look for look in looks if not earlier_moments or look[0] >= earlier_moments[-1])


@dataclass(frozen=True, slots=True)
class SpareRoom:
    """Checks on one snapshot whether starts leave the slots that are kept free."""

    rule: SpareRule
    inventory: Inventory
    catalog: Catalog
    lowest: Mapping[Key, int] = field(default_factory=dict)

    def objection(self, starts: Sequence[Start]) -> str:
        """Return why the last start would leave too few free slots; empty = it leaves enough, or uses none of them."""
        *_, new_start = starts
        host, after = new_start.host, self.inventory
        for start in starts:
            for desktop in start.desktops:
                after = project(suspend_or_shut_down(desktop), after)
            if start.moves:
                after = project(RelocateVm(start.vm.ref, start.host.ref), after)
            after = project(PowerOnVm(start.vm.ref, start.host.ref), after, self.catalog)
        for state in kept_states(self.rule, self.inventory, self.catalog):
            if state.key[1] != place_of(host):  # the key is a profile and a place
                continue
            remaining = FreeSlots(after, self.catalog, claims=False).in_cluster_of(host, state.key[0])
            if remaining >= state.free and not new_start.desktops:
                continue  # it uses none of these slots
            lowest = self.lowest.get(state.key)
            if lowest is None:
                return f"{state.where}: it is not known yet that {state.key[0]} was free for {self.rule.calm_s} s"
            # Slots that were not free during all of the last `calm_s` seconds do not count as free.
            certainly_free = remaining - max(0, state.free - lowest)
            if certainly_free < state.kept:
                since = f" (at least that many for {self.rule.calm_s} s)" if lowest < state.free else ""
                left_free = f"{max(certainly_free, 0)} of {state.key[0]} would be left free{since}"
                return f"{state.where}: {left_free}, {state.kept} are kept"
        return ""

    def start_objection(self, step: PowerOnVm) -> str | None:
        """Return why the step must not start its VM now; None = it leaves enough free slots, or uses none of them."""
        vm = self.inventory.vms.get(step.vm)
        host = self.inventory.hosts.get(step.host or (vm.host if vm is not None else None) or "")
        if vm is None or host is None:
            return None
        after = project(step, self.inventory, self.catalog)
        for state in kept_states(self.rule, self.inventory, self.catalog):
            if state.key[1] == place_of(host):  # the key is a profile and a place
                remaining = FreeSlots(after, self.catalog, claims=False).in_cluster_of(host, state.key[0])
                # If fewer slots than `kept` are free already, the start must not use any of these.
                if remaining < min(state.free, state.kept):
                    return f"{state.where}: {remaining} of {state.key[0]} would be left free, {state.kept} are kept"
        return None


@dataclass(frozen=True, slots=True)
class StoppingMlVm:
    """An ML VM that stops so that the slots kept for desktops are free again."""

    taken_vm: TakenVm
    lost_s: float | None
    """Seconds of lost work; None = it is unknown."""
    for_key: Key
    where: str

    @property
    def name(self) -> str:
        return self.taken_vm.original.name


@dataclass(frozen=True, slots=True)
class StopsForDesktops:
    """The ML VMs that stop for desktops, and the slots that are still missing then."""

    vms: tuple[StoppingMlVm, ...]
    still_missing: tuple[KeptState, ...]


def choose_ml_stops(
    rule: SpareRule, taken_vms: Iterable[TakenVm], inventory: Inventory, catalog: Catalog, now: datetime
) -> StopsForDesktops:
    """Return the ML VMs that must stop so that the kept slots are free again.

    The lowest priority stops first; within it, the VMs that lose the least work for each slot that they free.

    Example: two slots are missing. A frees one and loses 10 minutes, B frees two and loses 12: only B stops.
    """
    running = [ml_vm for ml_vm in running_ml(taken_vms) if ml_vm.vm is not None and ml_vm.vm.devices]
    suspendable_refs = suspendable_ml_vms(rule, running, inventory, catalog)
    world, chosen = inventory, list[StoppingMlVm]()
    while True:
        missing = [state for state in kept_states(rule, world, catalog) if state.missing]
        offers = (
            _offer(with_their_clusters(group, running), missing, world, catalog, now, suspendable_refs)
            for group in _groups_to_stop(running, world)
        )
        best = min((offer for offer in offers if offer is not None), key=lambda offer: offer.cost, default=None)
        if best is None:  # no slot is missing, or no VM that still runs could free one
            return StopsForDesktops(_without_unneeded(chosen, rule, inventory, catalog), tuple(missing))
        world = best.after
        chosen += best.gives
        running = [ml_vm for ml_vm in running if ml_vm not in [gives.taken_vm for gives in best.gives]]


def suspendable_ml_vms(
    rule: SpareRule, running: Iterable[TakenVm], inventory: Inventory, catalog: Catalog
) -> frozenset[str]:
    """Return the ML VMs (refs) that can be suspended instead of stopped; none unless the policy allows it."""
    if rule.give_way is not GivesWayBy.SUSPEND:
        return frozenset()
    return suspendable((ml_vm.vm for ml_vm in running if ml_vm.vm is not None), inventory, catalog)


def _groups_to_stop(running: Sequence[TakenVm], world: Inventory) -> Iterator[tuple[TakenVm, ...]]:
    """Yield the groups that may stop together: each VM alone, all VMs on one GPU, and all VMs on one host.

    All VMs must leave a GPU before it accepts another size of vGPU, or a host before it has enough memory.
    """
    yield from ((ml_vm,) for ml_vm in running)
    by_ref = {ml_vm.vm.ref: ml_vm for ml_vm in running if ml_vm.vm is not None}
    refs_by_host: dict[str, list[str]] = defaultdict(list)
    for ref, ml_vm in by_ref.items():
        if ml_vm.vm is not None and ml_vm.vm.host is not None:
            refs_by_host[ml_vm.vm.host].append(ref)
    for host in sorted(refs_by_host.keys() & world.hosts.keys()):
        on_gpus = {tuple(ref for ref in gpu.vms or () if ref in by_ref) for gpu in world.hosts[host].gpus}
        groups = on_gpus | {tuple(refs_by_host[host])}
        yield from (tuple(by_ref[ref] for ref in group) for group in sorted(groups) if len(group) > 1)


@dataclass(frozen=True, slots=True)
class _Offer:
    """ML VMs of one host that may stop together, with the other VMs of their clusters, and the snapshot after that."""

    cost: tuple[int, float, int, str]
    """(priority, seconds of lost work for each slot, number of VMs, name)."""
    gives: tuple[StoppingMlVm, ...]
    after: Inventory


def _offer(
    group: Sequence[TakenVm],
    missing: Sequence[KeptState],
    world: Inventory,
    catalog: Catalog,
    now: datetime,
    suspendable_refs: Collection[str],
) -> _Offer | None:
    """Return the cost of stopping these VMs; None = it frees no missing slot. VMs in `suspendable_refs` lose no
    work."""
    first_vm = group[0].vm
    host = world.host_of(first_vm) if first_vm is not None else None
    states_here = [state for state in missing if host is not None and state.key[1] == place_of(host)]
    if host is None or not states_here:
        return None
    # 1. The missing slots that are free after these VMs have stopped, by kept profile.
    after = world
    for ml_vm in group:
        after = project(ShutDownGuest(ml_vm.vm.ref if ml_vm.vm is not None else ml_vm.original.vm), after)
    slots = FreeSlots(after, catalog, claims=False)
    gains = [min(state.missing, slots.in_cluster_of(host, state.key[0]) - state.free) for state in states_here]
    if max(gains) <= 0:
        return None
    state = states_here[gains.index(max(gains))]
    # 2. The work that is lost for them.
    gives: list[StoppingMlVm] = []
    priorities, all_lost_s = [], 0.0
    for ml_vm in group:
        priority, lost_s = loss_of(ml_vm, now)
        if ml_vm.vm is not None and ml_vm.vm.ref in suspendable_refs:
            lost_s = 0.0
        priorities.append(priority)
        all_lost_s += lost_s
        gives.append(StoppingMlVm(ml_vm, None if lost_s == inf else lost_s, state.key, state.where))
    lost_per_slot_s = all_lost_s / sum(gain for gain in gains if gain > 0)
    return _Offer((max(priorities), lost_per_slot_s, len(group), group[0].original.name), tuple(gives), after)


def _without_unneeded(
    chosen: Sequence[StoppingMlVm], rule: SpareRule, inventory: Inventory, catalog: Catalog
) -> tuple[StoppingMlVm, ...]:
    """Return the chosen VMs without those that need not stop, because a later one frees the same slots."""
    needed = list(chosen)
    fewest_missing = _count_missing(needed, rule, inventory, catalog)
    # Try to keep the VM that would lose the most work first.
    most_lost_first = sorted(chosen, key=lambda stopped_vm: -(inf if stopped_vm.lost_s is None else stopped_vm.lost_s))
    for candidate in most_lost_first:
        cluster = with_their_clusters((candidate.taken_vm,), [stopped_vm.taken_vm for stopped_vm in chosen])
        fewer = [needed_vm for needed_vm in needed if needed_vm.taken_vm not in cluster]
        if _count_missing(fewer, rule, inventory, catalog) == fewest_missing:
            needed = fewer
    return tuple(needed)


def _count_missing(stopped: Iterable[StoppingMlVm], rule: SpareRule, inventory: Inventory, catalog: Catalog) -> int:
    """Count the kept slots that are not free after these ML VMs have stopped."""
    world = inventory
    for stopped_vm in stopped:
        if stopped_vm.taken_vm.vm is not None:
            world = project(ShutDownGuest(stopped_vm.taken_vm.vm.ref), world)
    return sum(state.missing for state in kept_states(rule, world, catalog))
