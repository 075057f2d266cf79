"""Placement under churn: how much of the GPU memory asked for finds a place, with the scorer for waste and without.

Synthetic: arrivals by chance at 1.2 times what the GPUs hold, log-normal stays, a request that finds no place is lost;
memory of one to four times the GPU memory asked for, on hosts of four GPUs with four GiB of memory per GiB of theirs.
The engine chooses the host, the host the GPU by its own policy, as everywhere. Seeds are fixed: a run can be repeated.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Final

from gpuops.model.devices.gpu import AssignmentPolicy, VgpuMode
from gpuops.model.vcenter.host import Host, NumaNode, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import VgpuDevice
from gpuops.model.workloads.workload import Workload
from gpuops.plan.placement.project import release, take
from gpuops.plan.placement.select import SCORERS, Scorer, place, score_loss
from gpuops.plan.placement.vm_demand import PinPolicy, Placement, Wanted, demands_of
from gpuops.plan.queue.workload import running, vm_of
from tests.bench.verdict import Figure, Result
from tests.plan.snapshots import FIRST, FOURTH, SECOND, THIRD, catalog, gpu, host, inventory

HOSTS, ARRIVALS, WARM, LOAD = 6, 500, 150, 1.2
SEEDS: Final = range(11, 15)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A GPU model in one mode, how its hosts choose GPUs, and the shares of the profiles among the requests."""

    name: str
    board: str
    mode: VgpuMode
    mix: Mapping[str, float]
    policy: AssignmentPolicy = AssignmentPolicy.CONSOLIDATION


SMALL: Final = {
    "nvidia_a40-4q": 25,
    "nvidia_a40-8q": 30,
    "nvidia_a40-12q": 20,
    "nvidia_a40-24q": 15,
    "nvidia_a40-48q": 10,
}
LARGE: Final = {"nvidia_a40-8q": 20, "nvidia_a40-16q": 20, "nvidia_a40-24q": 20, "nvidia_a40-48q": 40}
MIXED: Final = {
    "nvidia_l40s-4c": 25,
    "nvidia_l40s-8c": 25,
    "nvidia_l40s-16c": 20,
    "nvidia_l40s-24c": 15,
    "nvidia_l40s-48c": 15,
}
MIG_SMALL: Final = dict(zip(("1-5c", "2-10c", "3-20c", "4-20c", "7-40c"), (35, 25, 20, 10, 10), strict=True))
MIG_LARGE: Final = dict(zip(("1-5c", "2-10c", "3-20c", "4-20c", "7-40c"), (15, 15, 20, 20, 30), strict=True))
SCENARIOS: Final = (
    Scenario("same size, small, consolidation", "a40", VgpuMode.SAME_SIZE, SMALL),
    Scenario("same size, small, performance", "a40", VgpuMode.SAME_SIZE, SMALL, AssignmentPolicy.PERFORMANCE),
    Scenario("same size, large, consolidation", "a40", VgpuMode.SAME_SIZE, LARGE),
    Scenario("same size, large, performance", "a40", VgpuMode.SAME_SIZE, LARGE, AssignmentPolicy.PERFORMANCE),
    Scenario("mixed size", "l40s", VgpuMode.MIXED_SIZE, MIXED),
    Scenario("MIG, small", "a100", VgpuMode.MULTI_INSTANCE, {f"grid_a100-{k}": v for k, v in MIG_SMALL.items()}),
    Scenario("MIG, large", "a100", VgpuMode.MULTI_INSTANCE, {f"grid_a100-{k}": v for k, v in MIG_LARGE.items()}),
)


def run() -> Result:
    """The share of GPU memory asked for that was placed, per scenario; judged: the scorer is no loss on the whole."""
    without = tuple(scorer for scorer in SCORERS if scorer is not score_loss)
    figures = []
    gains = []
    for scenario in SCENARIOS:
        shares = [mean(placed_percent(scenario, stack, seed) for seed in SEEDS) for stack in (SCORERS, without)]
        gains.append(shares[0] - shares[1])
        figures.append(Figure(f"{scenario.name}: placed", shares[0], "%"))
        figures.append(Figure(f"{scenario.name}: without the scorer", shares[1], "%"))
    figures.append(Figure("lost by the scorer, on the mean", -mean(gains), "points", 0.0))
    return Result("placement under churn", tuple(figures))


def placed_percent(scenario: Scenario, scorers: Sequence[Scorer], seed: int) -> float:
    """Share of the GPU memory asked for, once the fleet has filled."""
    chance = random.Random(seed)
    profiles, shares = list(scenario.mix), list(scenario.mix.values())
    sizes = {name: facts.framebuffer_mib for name in profiles if (facts := catalog().profile(name)) is not None}
    world = fleet(scenario)
    gpu_mib = sum(gpu.memory_mib or 0 for each in world.hosts.values() for gpu in each.gpus)
    rate = LOAD * gpu_mib / (sum(sizes[name] * share for name, share in scenario.mix.items()) / sum(shares))
    now, asked, placed = 0.0, 0, 0
    leaving: list[tuple[float, str]] = []
    for number in range(ARRIVALS):
        now += chance.expovariate(rate)
        while leaving and leaving[0][0] <= now:
            world = _without(heapq.heappop(leaving)[1], world)
        [profile] = chance.choices(profiles, shares)
        stay, memory_mib = chance.lognormvariate(-0.5, 1), chance.randint(1, 4) * sizes[profile]
        arrival = Workload(f"vm-{number}", 4, memory_mib, profile)
        after = _with(arrival, world, scorers)
        if number >= WARM:
            asked += sizes[profile]
            placed += sizes[profile] if after is not None else 0
        if after is not None:
            world = after
            heapq.heappush(leaving, (now + stay, vm_of(arrival).ref))
    return 100 * placed / asked


def fleet(scenario: Scenario) -> Inventory:
    """Empty hosts of four GPUs, two beside each NUMA node."""
    return inventory([_host(number, scenario) for number in range(1, HOSTS + 1)], [])


def _host(number: int, scenario: Scenario) -> Host:
    gpus = [
        gpu(at, scenario.board, place // 2, scenario.mode) for place, at in enumerate((FIRST, SECOND, THIRD, FOURTH))
    ]
    memory_mib = 4 * 4 * (gpus[0].memory_mib or 0)
    made = host(f"esx-{number}", *gpus)
    nodes = tuple(NumaNode(node.id, 128, memory_mib // 2, node.devices) for node in made.numa_nodes)
    return replace(made, memory_mib=memory_mib, numa_nodes=nodes, assignment_policy=scenario.policy)


def _with(arrival: Workload, world: Inventory, scorers: Sequence[Scorer]) -> Inventory | None:
    assert arrival.profile is not None
    vm = vm_of(arrival, (VgpuDevice(13000, arrival.profile),))
    hosts = tuple(world.hosts)
    wanted = Wanted(
        vm, demands_of(vm.devices or (), {}), hosts, NumaPolicy.PREFERRED, PinPolicy.AUTO, (), False, chooses_gpu=True
    )
    found = place(wanted, world, catalog(), scorers)
    return take(running(vm, found, NumaPolicy.PREFERRED), world, catalog()) if isinstance(found, Placement) else None


def _without(ref: str, world: Inventory) -> Inventory:
    released = release(world.vms[ref], world)
    return replace(released, vms={other: vm for other, vm in released.vms.items() if other != ref})
