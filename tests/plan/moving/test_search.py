"""The moves that are found, held against a search that knows nothing of kinds, bounds or rules of thumb.

The other search follows every order of moves on plain tuples. A host that may choose among several GPUs chooses any: it
follows all the worlds there may be then, and counts what is free in the worst of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from gpuops.model.devices.gpu import AssignmentPolicy, VgpuMode
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.steps import ReconfigureVm, VmChange
from gpuops.plan.moving.defrag import Defrag, Defragmentation
from gpuops.plan.placement.project import project
from gpuops.plan.placement.vm_demand import PinPolicy
from tests.plan.moving.worlds import ROOM, address, after, by_chance, free, world
from tests.plan.snapshots import catalog
from tests.sample import mostly_long

Gpu = frozenset[tuple[int, int]]
"""(VM, size) of all that is on it."""
Now = tuple[tuple[Gpu, ...], ...]
Worlds = frozenset[Now]


def with_numbers(sizes: tuple[tuple[tuple[int, ...], ...], ...]) -> Now:
    numbers = iter(range(1000))
    return tuple(tuple(frozenset((next(numbers), size) for size in vms) for vms in gpus) for gpus in sizes)


@cache
def takes(vms: Gpu, size: int) -> bool:
    return len(vms) < ROOM[size] and all(vm_size == size for _, vm_size in vms)


def move_vm(now: Now, vm: tuple[int, int], source: int, to: int, policy: AssignmentPolicy) -> Iterator[Now]:
    """Every world there may be when the VM goes from its own host to that one; none = it is refused."""
    open_to_it = [at for at, vms in enumerate(now[to]) if takes(vms, vm[1])]
    if not open_to_it:
        return
    sign = -1 if policy is AssignmentPolicy.CONSOLIDATION else 1
    first = min([sign * len(now[to][at]) for at in open_to_it])
    hosts = list(now)
    hosts[source] = tuple([vms - {vm} for vms in now[source]])
    for at in open_to_it:
        if sign * len(now[to][at]) == first:
            hosts[to] = (*now[to][:at], now[to][at] | {vm}, *now[to][at + 1 :])
            yield tuple(hosts)


def whole(now: Now) -> int:
    return sum(not vms for gpus in now for vms in gpus)


@cache
def slots_of_24_on(vms: Gpu) -> int:
    return ROOM[24] - len(vms) if all(size == 24 for _, size in vms) else 0


def slots_of_24(now: Now) -> int:
    return sum(slots_of_24_on(vms) for gpus in now for vms in gpus)


def following(worlds: Worlds, policy: AssignmentPolicy) -> Iterator[Worlds]:
    """The worlds there may be after each move that none of these refuses. A VM is on the same host in all of them."""
    some = next(iter(worlds))
    for vm, source in [(vm, at) for at, gpus in enumerate(some) for vms in gpus for vm in vms]:
        for to in range(len(some)):
            ends = [] if to == source else [list(move_vm(now, vm, source, to, policy)) for now in worlds]
            if ends and all(ends):
                yield frozenset(now for end in ends for now in end)


Bound = frozenset[int]
"""The VMs that were bound to a GPU: they stay there."""


def bound_to(worlds: Worlds, vm: tuple[int, int], source: int, to: int) -> Iterator[Worlds]:
    """The worlds after the VM was bound to one of the GPUs of that host, for each that has room in all of them."""
    for at in range(len(next(iter(worlds))[to])):
        if all(takes(now[to][at], vm[1]) for now in worlds):
            ends = []
            for now in worlds:
                hosts = list(now)
                hosts[source] = tuple([vms - {vm} for vms in now[source]])
                hosts[to] = (*now[to][:at], now[to][at] | {vm}, *now[to][at + 1 :])
                ends.append(tuple(hosts))
            yield frozenset(ends)


def best_bound(start: Now, policy: AssignmentPolicy, limit: int) -> tuple[int, int]:
    """As `best`, where each move may also bind its VM to a GPU, which then stays there."""
    layer: set[tuple[Worlds, Bound]] = {(frozenset({start}), frozenset())}
    visited, best_so_far = set(layer), (whole(start), 0)
    for moves in range(1, limit + 1):
        further: set[tuple[Worlds, Bound]] = set()
        for worlds, bound in layer:
            some = next(iter(worlds))
            for vm, source in [(vm, at) for at, gpus in enumerate(some) for vms in gpus for vm in vms]:
                for to in range(len(some)) if vm[0] not in bound else ():
                    if to == source:
                        continue
                    ends = [list(move_vm(now, vm, source, to, policy)) for now in worlds]
                    if all(ends):
                        further.add((frozenset(now for end in ends for now in end), bound))
                    further |= {(after, bound | {vm[0]}) for after in bound_to(worlds, vm, source, to)}
        layer = further - visited
        visited |= layer
        top = max((min(map(whole, worlds)) for worlds, _ in layer), default=0)
        best_so_far = (top, moves) if top > best_so_far[0] else best_so_far
    return best_so_far


def best(start: Now, policy: AssignmentPolicy, limit: int, free_in: Callable[[Now], int] = whole) -> tuple[int, int]:
    """(the most that is free, the fewest moves for that), by following all orders of moves."""
    first: Worlds = frozenset({start})
    layer, visited, best_so_far = {first}, {first}, (free_in(start), 0)
    for moves in range(1, limit + 1):
        layer = {ends for worlds in layer for ends in following(worlds, policy)} - visited
        visited |= layer
        top = max((min(map(free_in, worlds)) for worlds in layer), default=0)
        best_so_far = (top, moves) if top > best_so_far[0] else best_so_far
    return best_so_far


def plan_defrag(now: Inventory, limit: int | None = None, profile: str | None = None) -> Defragmentation:
    return Defrag(profile, max_moves=limit).find_moves(now, catalog())


def assert_confirmed(defrag: Defragmentation, now: Inventory) -> None:
    """What is promised is free at the end, by the rules that every other plan follows."""
    assert free(now) == defrag.before
    assert free(after([move.step for move in defrag.moves], now)) >= defrag.after
    assert defrag.before <= defrag.after <= defrag.bound


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_no_order_of_moves_does_better_where_hosts_have_one_gpu(seed: int) -> None:
    sizes = by_chance(Random(seed), hosts=5, gpus=1)
    now, limit = world(*sizes), 5
    defrag = plan_defrag(now, limit)
    assert defrag.proven
    assert (defrag.after, len(defrag.moves)) == best(with_numbers(sizes), AssignmentPolicy.CONSOLIDATION, limit)
    assert_confirmed(defrag, now)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("policy", AssignmentPolicy)
@pytest.mark.parametrize("seed", mostly_long([*range(8), 111, 118, 142], [1, 2, 5, 111, 118, 142]))
def test_no_order_of_moves_does_better_where_hosts_choose_the_gpu(seed: int, policy: AssignmentPolicy) -> None:
    sizes = by_chance(Random(seed), hosts=3, gpus=2, sizes=(24, 8))
    now, limit = world(*sizes, policy=policy), 4
    defrag = plan_defrag(now, limit)
    assert defrag.proven
    assert (defrag.after, len(defrag.moves)) == best(with_numbers(sizes), policy, limit)
    assert_confirmed(defrag, now)


@pytest.mark.long
@pytest.mark.parametrize("policy", AssignmentPolicy)
@pytest.mark.parametrize("seed", mostly_long(range(6), [1, 2, 4]))
def test_no_order_of_moves_frees_more_slots(seed: int, policy: AssignmentPolicy) -> None:
    sizes = by_chance(Random(seed), hosts=3, gpus=2, sizes=(24, 8))
    now, limit = world(*sizes, policy=policy), 4
    defrag = plan_defrag(now, limit, "nvidia_a40-24q")
    assert defrag.proven
    assert (defrag.after, len(defrag.moves)) == best(with_numbers(sizes), policy, limit, slots_of_24)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("policy", AssignmentPolicy)
@pytest.mark.parametrize("seed", mostly_long(range(60), [2, 5, 7, 12, 13, 15]))
def test_no_order_of_moves_does_better_where_vms_may_be_bound(seed: int, policy: AssignmentPolicy) -> None:
    """VMs that are off for their move are bound where that frees more, or as much in fewer moves, and nowhere else."""
    sizes = by_chance(Random(seed), hosts=3, gpus=2, sizes=(24, 8))
    now, limit = replace(world(*sizes, policy=policy), hot_migrate_enabled=False), 3
    defrag = Defrag(max_moves=limit, powered_off=True).find_moves(now, catalog())
    chosen_by_hosts = Defrag(max_moves=limit, powered_off=True, pin=PinPolicy.NEVER).find_moves(now, catalog())
    assert (chosen_by_hosts.after, len(chosen_by_hosts.moves)) == best(with_numbers(sizes), policy, limit)
    assert (defrag.after, len(defrag.moves)) == best_bound(with_numbers(sizes), policy, limit)
    better = (defrag.after, -len(defrag.moves)) > (chosen_by_hosts.after, -len(chosen_by_hosts.moves))
    assert any(move.pins for move in defrag.moves) == better
    assert defrag.proven_unpinned
    assert better == (defrag.moves != chosen_by_hosts.moves)
    assert free(after_bound(defrag, now)) >= defrag.after


def after_bound(defrag: Defragmentation, now: Inventory) -> Inventory:
    """The snapshot after the moves, each VM bound as it is planned."""
    for move in defrag.moves:
        if move.pins:
            now = project(ReconfigureVm(move.vm.ref, VmChange(extra_config=move.pin_entries)), now, catalog())
        now = project(move.step, now, catalog())
    return now


def test_a_vm_that_moves_while_it_runs_is_never_bound() -> None:
    sizes = (((24,), ()), ((), (24,)))
    now = world(*sizes, policy=AssignmentPolicy.PERFORMANCE)
    off = replace(now, hot_migrate_enabled=False)
    (bound,) = Defrag(max_moves=1, powered_off=True).find_moves(off, catalog()).moves
    assert [str(gpu) for gpu in bound.pins.values()] == [address(1)]
    assert Defrag(max_moves=1, powered_off=True).find_moves(now, catalog()).moves == ()


@pytest.mark.long
def test_in_a_fleet_too_large_for_all_orders_bound_vms_save_moves() -> None:
    """Where hosts put a VM on their emptiest GPU, it has to be moved twice, or a free GPU is lost for it."""
    sizes = by_chance(Random(2), hosts=40, gpus=4)
    now = replace(world(*sizes, policy=AssignmentPolicy.PERFORMANCE), hot_migrate_enabled=False)
    chosen_by_hosts = Defrag(powered_off=True, pin=PinPolicy.NEVER).find_moves(now, catalog())
    defrag = Defrag(powered_off=True).find_moves(now, catalog())
    assert chosen_by_hosts.after == defrag.after == defrag.bound
    assert len(defrag.moves) <= 2 / 3 * len(chosen_by_hosts.moves)
    assert not defrag.proven
    assert free(after_bound(defrag, now)) >= defrag.after


def test_nothing_is_proven_where_a_vm_is_counted_on_several_gpus() -> None:
    """Two moves free four GPUs whichever GPU the first VM gets, which counting it on both cannot see: no proof then."""
    sizes = (((24,), ()), ((), (24,)), ((24,), (24,)))
    now = world(*sizes, policy=AssignmentPolicy.PERFORMANCE)
    stays = replace(now.vms["vm-102"], extra_config={"sched.cpu.affinity": "1"})
    defrag = plan_defrag(now.with_vm(stays), 3)
    assert best(with_numbers(sizes), AssignmentPolicy.PERFORMANCE, 3) == (4, 2)
    assert (defrag.after, defrag.bound, defrag.proven, defrag.settled) == (
        3,
        4,
        False,
        0,
    )


@pytest.mark.parametrize(
    ("mode", "policy", "assumed"),
    [
        (VgpuMode.SAME_SIZE, "consolidation", "same-size mode, policy consolidation: the GPU with the most VMs"),
        (VgpuMode.SAME_SIZE, "performance", "same-size mode, policy performance: the GPU with the fewest VMs"),
        (VgpuMode.MIXED_SIZE, "performance", "mixed-size mode: the GPU with the least memory used"),
    ],
)
def test_what_is_assumed_of_the_hosts_is_named(mode: VgpuMode, policy: str, assumed: str) -> None:
    several = world([[8], []], [[8, 8], []], policy=AssignmentPolicy(policy), mode=mode)
    assert plan_defrag(several).assumes == (assumed,)
    assert plan_defrag(world([[8]], [[8, 8]], policy=AssignmentPolicy(policy), mode=mode)).assumes == ()
