"""Whether a host can be emptied or lost, beside a search of every order and every host."""

from __future__ import annotations

from random import Random

import pytest

from gpuops.model.devices.gpu import AssignmentPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import RelocateVm
from gpuops.plan.hosts.readiness import Readiness, readiness
from gpuops.plan.moving.movability import admitted_moves
from tests.plan.hosts.readiness.brute_force import Small, can_be_emptied
from tests.plan.moving.worlds import world
from tests.plan.snapshots import catalog

MOST_VMS = 8
SIZES = (48, 24, 16, 12, 8)


def small(chance: Random) -> Small:
    """Up to four hosts of one or two GPUs, and up to eight VMs, most of them on the first host; memory is short in
    some. Where hosts have two GPUs and spread what arrives, the order of arrivals decides more often than not."""
    while True:
        gpus = chance.choice((1, 2, 2))
        sizes = chance.sample(SIZES, chance.choice((2, 3)))
        hosts = tuple(
            tuple(_on_one(chance, sizes, 0.1 if at == 0 else 0.6) for _ in range(gpus))
            for at in range(chance.randint(2, 4))
        )
        if 0 < sum(len(gpu) for esx in hosts for gpu in esx) <= MOST_VMS:
            memory = chance.choice((8, 64))
            free = tuple(chance.choice((512, 512, 512, 2 * memory, memory, 0)) for _ in hosts)
            return Small(hosts, free, memory, chance.random() < 0.3)


def _on_one(chance: Random, sizes: list[int], empty: float) -> tuple[int, ...]:
    size = 0 if chance.random() < empty else chance.choice(sizes)
    return (size,) * chance.randint(1, 48 // size) if size else ()


def inventory_of(of: Small) -> Inventory:
    """The snapshot of it."""
    policy = AssignmentPolicy.CONSOLIDATION if of.consolidates else AssignmentPolicy.PERFORMANCE
    used_gib = [sum(map(len, gpus)) * of.memory_gib for gpus in of.hosts]
    memory = {number: used + free for number, (used, free) in enumerate(zip(used_gib, of.free_gib, strict=True), 1)}
    return world(*of.hosts, policy=policy, memory_gib=of.memory_gib, host_gib=memory)


def find_readiness(of: Small) -> Readiness:
    return readiness(Scope(), inventory_of(of), catalog())


def check(seed: int) -> int:
    """How many hosts of the world of this seed can be emptied."""
    of = small(Random(seed))
    answer = find_readiness(of)
    for number, readiness_of_host in enumerate(answer.hosts):
        assert readiness_of_host.proven, of
        assert readiness_of_host.ready == can_be_emptied(of, number), (
            seed,
            of,
            number,
            [str(blocker) for blocker in readiness_of_host.blockers],
        )
        # what restarts anew obeys the same rules of GPUs and memory: nothing else differs in these worlds
        assert readiness_of_host.loss.spared == readiness_of_host.ready, (seed, of, number)
        if readiness_of_host.ready:
            steps = [RelocateVm(move.vm.ref, move.target.ref) for move in readiness_of_host.moves if move.target]
            assert len(steps) == len(readiness_of_host.away)
            down = [host for host in answer.inventory.hosts.values() if host.ref != readiness_of_host.host.ref]
            assert admitted_moves(steps, answer.inventory, catalog()) == len(steps), (seed, of, number)
            assert {step.host for step in steps} <= {host.ref for host in down}
    return sum(esx.ready for esx in answer.hosts)


def test_where_the_usual_order_fails_another_one_is_found() -> None:
    """The host spreads: two of 24 GiB that come first take both GPUs, and nothing is left for the third VM."""
    esx = find_readiness(Small((((24, 24), (16,)), ((), ())), (512, 512), 8, consolidates=False)).hosts[0]
    assert [move.vm.profiles[0] for move in esx.moves] in (
        ["nvidia_a40-16q", "nvidia_a40-24q", "nvidia_a40-24q"],
        ["nvidia_a40-24q", "nvidia_a40-16q", "nvidia_a40-24q"],
    )
    assert esx.ready and esx.loss.spared


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("first", range(0, 300, 50))
def test_it_is_what_brute_force_finds(first: int) -> None:
    ready = sum(check(seed) for seed in range(first, first + 50))
    assert 20 < ready < 140, "worlds in which some hosts can be emptied, and some cannot"


@pytest.mark.long
@pytest.mark.parametrize("first", range(1_000, 2_000, 100))
def test_it_is_what_brute_force_finds_in_a_thousand_worlds(first: int) -> None:
    for seed in range(first, first + 100):
        check(seed)
