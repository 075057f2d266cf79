"""Fleets that fill: how much GPU memory runs when all of it was asked for, by the product's path beside other rules.

Each VM is placed alone on a snapshot of what runs, powered on as the simulator admits it, and read again, as `attach`
does one after another; the mix is learned from what runs. A VM whose power-on is refused is asked for again without
that host. Fleets in MIG and mixed-size mode are filled twice: once the hosts tell where vGPUs start (`--host-shell
ssh`), once they do not. The other rules ask for GPU after GPU until one is admitted, and know of starts what gpuops
knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from os import cpu_count
from statistics import mean, stdev
from typing import Final

from gpuops.model.workloads.workload import Workload
from gpuops.plan.placement.vm_demand import PinPolicy
from gpuops.plan.queue.one_by_one import Queue
from gpuops.plan.queue.one_workload import Placed, Refusal
from gpuops.sim.state.gpu_admission import NotAdmitted
from tests.bench.placement.filling_bound import bound
from tests.bench.placement.filling_fleet import FLEETS, MEMORY_MIB, SAME, VCPUS, FillingFleet, FleetKind
from tests.bench.placement.filling_rules import RULES, fill
from tests.bench.verdict import Figure, Result
from tests.plan.snapshots import catalog

SEEDS: Final = range(200, 260, 2)
"""Even ones; what is tuned is tuned on odd ones and below 200."""
OURS: Final = "gpuops"


@dataclass(frozen=True, slots=True)
class Filled:
    """One fleet of one seed, filled by one rule."""

    percent: float
    refused: int
    """Power-ons that were refused on the way."""


def run() -> Result:
    """Per kind of fleet; judged: that no rule with the same knowledge is better beyond doubt."""
    return Result(f"fleets that fill, by the product's path, {len(SEEDS)} seeds each", tuple(_figures()))


def _figures() -> Iterator[Figure]:
    with ProcessPoolExecutor(cpu_count()) as workers:
        for kind in FLEETS:
            for told in (True, False) if set(kind.modes) != {SAME} else (False,):
                jobs = [(rule, kind, seed, told) for rule in (OURS, *RULES) for seed in SEEDS]
                done = dict(zip(jobs, workers.map(_filled, jobs), strict=True))
                yield from _judged(
                    kind, told, {rule: [done[rule, kind, s, told] for s in SEEDS] for rule in (OURS, *RULES)}
                )


def _judged(kind: FleetKind, told: bool, by_rule: dict[str, list[Filled]]) -> Iterator[Figure]:
    starts = "" if set(kind.modes) == {SAME} else ", starts told" if told else ", starts not told"
    name = f"{kind.name}{starts}"
    filled = {rule: mean(each.percent for each in runs) for rule, runs in by_rule.items()}
    best = max((rule for rule in by_rule if rule != OURS), key=lambda rule: filled[rule])
    gains = [ours.percent - other.percent for ours, other in zip(by_rule[OURS], by_rule[best], strict=True)]
    doubt = 1.96 * stdev(gains) / len(gains) ** 0.5
    yield Figure(f"{name}: bound", mean(bound(kind, kind.requests(seed)) for seed in SEEDS), "%")
    yield from (Figure(f"{name}: {rule}", percent, "%") for rule, percent in filled.items())
    yield from (
        Figure(f"{name}: power-ons refused, {rule}", mean(each.refused for each in by_rule[rule]), "a fleet")
        for rule in (OURS, best)
    )
    yield Figure(f"{name}: above {best} by, 95 % within {doubt:.2f}", mean(gains), "points")
    behind = -mean(gains) if mean(gains) + doubt < 0 else 0.0
    yield Figure(f"{name}: behind the best other rule beyond doubt", behind, "points", 0.2)


def _filled(job: tuple[str, FleetKind, int, bool]) -> Filled:
    rule, kind, seed, told = job
    fleet = FillingFleet(kind, starts=told)
    requests = kind.requests(seed)
    refused = fill_by_place(fleet, requests) if rule == OURS else fill(RULES[rule], fleet, requests)
    return Filled(fleet.filled, refused)


def fill_by_place(fleet: FillingFleet, requests: list[tuple[str, int]]) -> int:
    """Starts the VMs where `place` says, each on the snapshot of those before it; the power-ons that were refused."""
    refused = 0
    for number, (profile, count) in enumerate(requests):
        without: frozenset[str] = frozenset()
        while isinstance(placed := answer(fleet, number, profile, count, without), Placed):
            there = placed.placement
            if not isinstance(fleet.power_on(placed.vm, there.host.ref, there.pins), NotAdmitted):
                break
            refused += 1
            without |= {there.host.ref}
    return refused


def answer(
    fleet: FillingFleet, number: int, profile: str, count: int, without: frozenset[str] = frozenset()
) -> Placed | Refusal:
    """Where `place` has the VM go, as the fleet is now."""
    workload = Workload(f"vm-{number}", VCPUS, MEMORY_MIB, profile=profile, count=count)
    queue = Queue(fleet.seen, catalog(), False, PinPolicy.AUTO)
    return replace(queue.trial(workload, without=without), every_reason=False).answer()
