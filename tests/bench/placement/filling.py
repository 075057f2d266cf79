"""Fleets that fill: how much GPU memory runs when all of it was asked for, by the product's path beside other rules.

Each VM is placed alone on a snapshot of what runs, powered on as the simulator admits it, and read again, as `attach`
does one after another; the mix is learned from what runs. A VM whose power-on is refused is asked for again without
that host. Fleets in MIG and mixed-size mode are filled twice: once the hosts tell where vGPUs start (`--host-shell
ssh`), once they do not. The other rules ask for GPU after GPU until one is admitted, and know of starts what gpuops
knows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from os import cpu_count
from statistics import mean, stdev
from typing import Final

from gpuops.model.workloads.workload import Workload
from gpuops.plan.placement.vm_demand import PinPolicy
from gpuops.plan.queue.one_by_one import Queue
from gpuops.plan.queue.one_workload import Placed, Refusal
from gpuops.sim.state.gpu_admission import Deviation, GpuOrder, NotAdmitted, StartOrder
from tests.bench.placement.filling_bound import memory_bound, repack
from tests.bench.placement.filling_fleet import FLEETS, MEMORY_MIB, SAME, VCPUS, FillingFleet, FleetKind
from tests.bench.placement.filling_rules import RULES, fill
from tests.bench.verdict import Figure, Result
from tests.plan.snapshots import catalog

SEED: Final = int(os.environ.get("SEED", "200"))
"""The first of the seeds; `SEED=N` draws other fleets."""
COUNT: Final = int(os.environ.get("FLEETS", "30"))
SEEDS: Final = range(SEED, SEED + COUNT)
KINDS: Final = os.environ.get("KINDS", "")
"""`KINDS=A100` measures only the kinds of fleet with this text in their name."""
OURS: Final = "gpuops"
MOST_BEHIND: Final = 0.2
"""Points of GPU memory."""
ONE_SIDED: Final = 1.7
"""Student's t of a one-sided interval of 95 % of 30 fleets; a little less than that of fewer."""
DEVIATIONS: Final = {
    "lowest free start": Deviation(starts=StartOrder.LOWEST),
    "highest free start": Deviation(starts=StartOrder.HIGHEST),
    "emptiest GPU": Deviation(gpus=GpuOrder.EMPTIEST),
}
"""What hosts may do otherwise than the table of assumptions expects."""


@dataclass(frozen=True, slots=True)
class Filled:
    """One fleet of one seed, filled by one rule."""

    percent: float
    refused: int
    """Power-ons that were refused on the way."""


def run() -> Iterator[Result]:
    """Per kind of fleet; judged: that no rule with the same knowledge is better beyond doubt."""
    yield measure_fleets("fleets that fill, by the product's path", FLEETS)
    yield Result(f"fleets whose hosts choose otherwise than documented, {_drawn()}", tuple(_deviating()))


def measure_fleets(title: str, kinds: Sequence[FleetKind]) -> Result:
    """Fill fleets of these kinds by every rule."""
    return Result(f"{title}, {_drawn()}", tuple(_figures(kinds)))


def _drawn() -> str:
    return f"{COUNT} fleets each, seeds from {SEED} on"


def _figures(kinds: Sequence[FleetKind]) -> Iterator[Figure]:
    with ProcessPoolExecutor(cpu_count()) as workers:
        for kind in (kind for kind in kinds if KINDS in kind.name):
            for starts_known in (True, False) if set(kind.modes) != {SAME} else (False,):
                jobs = [(rule, kind, seed, starts_known) for rule in (OURS, *RULES) for seed in SEEDS]
                filled_by_job = dict(zip(jobs, workers.map(_fill_fleet, jobs), strict=True))
                yield from _judge_fleet(
                    kind,
                    starts_known,
                    {rule: [filled_by_job[rule, kind, s, starts_known] for s in SEEDS] for rule in (OURS, *RULES)},
                )


def _judge_fleet(kind: FleetKind, starts_known: bool, by_rule: dict[str, list[Filled]]) -> Iterator[Figure]:
    starts = "" if set(kind.modes) == {SAME} else ", starts told" if starts_known else ", starts not told"
    name = f"{kind.name}{starts}"
    filled = {rule: mean(run.percent for run in runs) for rule, runs in by_rule.items()}
    best = max((rule for rule in by_rule if rule != OURS), key=lambda rule: filled[rule])
    requests = [kind.requests(seed) for seed in SEEDS]
    yield Figure(f"{name}: bound", mean(memory_bound(kind, request) for request in requests), "%")
    yield Figure(f"{name}: repacked for nothing", mean(repack(kind, request) for request in requests), "%")
    yield from (Figure(f"{name}: {rule}", percent, "%") for rule, percent in filled.items())
    yield from (
        Figure(
            f"{name}: power-ons refused, {rule}",
            mean(filled_fleet.refused for filled_fleet in by_rule[rule]),
            "a fleet",
        )
        for rule in (OURS, best)
    )
    behind = [
        best_of_rules.percent - ours.percent for ours, best_of_rules in zip(by_rule[OURS], by_rule[best], strict=True)
    ]
    upper = mean(behind) + ONE_SIDED * stdev(behind) / len(behind) ** 0.5
    yield Figure(f"{name}: behind {best}", mean(behind), "points")
    yield Figure(f"{name}: behind it at most, with 95 % confidence", upper, "points", MOST_BEHIND)


def _fill_fleet(job: tuple[str, FleetKind, int, bool]) -> Filled:
    rule, kind, seed, starts_known = job
    fleet = FillingFleet(kind.drawn(seed), starts=starts_known)
    requests = kind.requests(seed)
    refused = fill_by_place(fleet, requests) if rule == OURS else fill(RULES[rule], fleet, requests)
    return Filled(fleet.filled, refused)


def _deviating() -> Iterator[Figure]:
    """The simulator and the planner share the documented rule, so what they agree on proves nothing of real hosts."""
    jobs = [
        (kind, name, starts_known, seed)
        for kind in (FLEETS[0], FLEETS[2])
        for name in DEVIATIONS
        for starts_known in (True, False)
        for seed in SEEDS
    ]
    with ProcessPoolExecutor(cpu_count()) as workers:
        filled_by_job = dict(zip(jobs, workers.map(_deviating_fleet, jobs), strict=True))
    for kind, name, starts_known in dict.fromkeys(job[:3] for job in jobs):
        fleets = [filled_by_job[kind, name, starts_known, seed] for seed in SEEDS]
        fleet_name = f"{kind.name}, {name}, starts {'told' if starts_known else 'not told'}"
        yield Figure(f"{fleet_name}: gpuops", mean(fleet.percent for fleet in fleets), "%")
        yield Figure(f"{fleet_name}: power-ons refused", mean(fleet.refused for fleet in fleets), "a fleet")


def _deviating_fleet(job: tuple[FleetKind, str, bool, int]) -> Filled:
    kind, name, starts_known, seed = job
    fleet = FillingFleet(kind, starts=starts_known, deviation=DEVIATIONS[name])
    refused = fill_by_place(fleet, kind.requests(seed))
    return Filled(fleet.filled, refused)


def fill_by_place(fleet: FillingFleet, requests: list[tuple[str, int]]) -> int:
    """Starts the VMs where `place` says, each on the snapshot of those before it; the power-ons that were refused."""
    refused = 0
    for number, (profile, count) in enumerate(requests):
        without: frozenset[str] = frozenset()
        while isinstance(placed := answer(fleet, number, profile, count, without), Placed):
            placement = placed.placement
            if not isinstance(fleet.power_on(placed.vm, placement.host.ref, placement.pins), NotAdmitted):
                break
            refused += 1
            without |= {placement.host.ref}
    return refused


def answer(
    fleet: FillingFleet, number: int, profile: str, count: int, without: frozenset[str] = frozenset()
) -> Placed | Refusal:
    """Where `place` has the VM go, as the fleet is now."""
    workload = Workload(f"vm-{number}", VCPUS, MEMORY_MIB, profile=profile, count=count)
    queue = Queue(fleet.seen, catalog(), False, PinPolicy.AUTO)
    return replace(queue.question_for(workload, without=without), every_reason=False).answer()
