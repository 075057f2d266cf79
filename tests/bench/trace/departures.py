"""vGPU profiles under churn: of the GPU memory-hours asked for at 1.2 times what there is, how much is placed.

The twelve scenarios of `profiles.py` with arrivals by chance and the stays of the trace; what finds no place is lost,
and nothing migrates. Every rule plays the same ten streams, so that differences are paired. The hours counted are those
between the end of the warm-up and the last arrival, of the VMs that run then: a VM that came in the warm-up takes room
from others, and one that comes last stays for hours without further requests. The fluid reference packs perfectly and
migrates for nothing: it takes every VM that fits in the GPU memory, cores and memory left in the whole fleet, and
refuses none on purpose.

Needs the trace: `make bench OPENB=DIR`; with `BASELINES=DIR` (`vgpu_churn.csv`) the other rules are held to the share
of GPU memory that they are known to place.
"""

from __future__ import annotations

import csv
import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Final

import numpy as np

from gpuops.plan.placement.fleet.geometry import PoolRequest
from tests.bench.trace.profiles import HOSTS_EACH, OURS, STEP, scenarios
from tests.bench.trace.vgpu_across import Engine, Hosts, NodePart, PoolSeat
from tests.bench.trace.vgpu_rules import RULES, pool_of
from tests.bench.trace.vgpu_world import GB, HOSTS, NODE_GPUS, Mig, Request, SameSize, Scenario
from tests.bench.verdict import Figure, Result

SEEDS: Final = tuple(range(42, 62, 2))
KNOWN_SEEDS: Final = (42, 44)
"""Those of the known figures of other rules."""
ARRIVALS, WARM, LOAD = 5000, 1500, 1.2
PAIRED: Final = ("FGD", "first fit")
"""Rules that play every stream."""

Known = dict[tuple[str, str, str, int, str], float]


@dataclass(frozen=True, slots=True)
class ChurnOutcome:
    """In percent: of the GPU memory-hours and, of VMs after the warm-up, of the GPU memory asked for that was placed,
    and of the placed VMs that are NUMA-local."""

    hours: float
    whole_hosts: float
    """The part of these hours that VMs with all GPUs of a host have."""
    allocated: float
    local: float


def run() -> Result:
    """The share of memory-hours per scenario, beside FGD and the fluid reference; judged: how far behind FGD."""
    folder = os.environ.get("OPENB")
    if not folder:
        return Result("vGPU profiles under churn: not run, it needs the trace (make bench OPENB=DIR)", ())
    return Result("vGPU profiles under churn: GPU memory-hours placed", tuple(_figures(Path(folder))))


def _figures(folder: Path) -> Iterator[Figure]:
    all_scenarios = list(scenarios(folder))
    jobs = [(at, name, seed) for at in range(len(all_scenarios)) for name in (OURS, *PAIRED) for seed in SEEDS]
    jobs += [
        (at, name, seed)
        for at in range(len(all_scenarios))
        for name in RULES
        if name not in PAIRED
        for seed in KNOWN_SEEDS
    ]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        played_so = workers.map(_churn_job, [(all_scenarios[at], name, seed) for at, name, seed in jobs], chunksize=4)
        outcomes = dict(zip(jobs, played_so, strict=True))
    hours = {
        name: [[outcomes[at, name, seed].hours for seed in SEEDS] for at in range(len(all_scenarios))]
        for name in (OURS, *PAIRED)
    }
    fluid = [[fluid_hours(of, seed) for seed in SEEDS] for of in all_scenarios]
    worst = 0.0
    for at, (of, ours, fgd, best) in enumerate(zip(all_scenarios, hours[OURS], hours["FGD"], fluid, strict=True)):
        name = f"{of.trace} {of.mode} {of.host}"
        gains = [our_hours - fgd_hours for our_hours, fgd_hours in zip(ours, fgd, strict=True)]
        worst = min(worst, mean(gains))
        yield Figure(f"{name}: ours", mean(ours), "%")
        yield Figure(f"{name}: above FGD by, 95 % within {_doubt(gains):.2f}", mean(gains), "points")
        yield Figure(f"{name}: fluid reference", mean(best), "%")
        for rule in (OURS, "FGD"):
            wide = mean(outcomes[at, rule, seed].whole_hosts for seed in SEEDS)
            yield Figure(f"{name}: of VMs with all GPUs of a host, {rule}", wide, "%")
        wide = mean(fluid_hours(of, seed, only=_whole_host) for seed in SEEDS)
        yield Figure(f"{name}: of VMs with all GPUs of a host, fluid reference", wide, "%")
    yield Figure("behind FGD in the worst scenario", -worst, "points", 1.0)
    for name, hours_of_rule in {**hours, "fluid reference": fluid}.items():
        yield Figure(f"placed: {name}", mean(map(mean, hours_of_rule)), "%")
    yield from _beside_known(all_scenarios, outcomes)
    local = [outcome.local for (_, name, _), outcome in outcomes.items() if name == OURS]
    yield Figure("VMs of ours not NUMA-local", 100 - mean(local), "%", 0.5)


def _doubt(gains: Sequence[float]) -> float:
    return float(1.96 * stdev(gains) / len(gains) ** 0.5)


def _beside_known(
    all_scenarios: Sequence[Scenario], outcomes: dict[tuple[int, str, int], ChurnOutcome]
) -> Iterator[Figure]:
    """How far the rules here are from what they are known to place."""
    known_hours = _read_known_shares(os.environ.get("BASELINES"))
    for name, (_, word) in RULES.items() if known_hours else ():
        off = [
            outcomes[at, name, seed].allocated - known_hours[of.trace, of.mode, of.host, seed, word]
            for at, of in enumerate(all_scenarios)
            for seed in KNOWN_SEEDS
        ]
        yield Figure(f"{name} differs from what is known by", abs(mean(off)), "points", 0.3)


def _churn_job(job: tuple[Scenario, str, int]) -> ChurnOutcome:
    of, name, seed = job
    return churn(of, Engine if name == OURS else RULES[name][0], seed)


@dataclass
class Stream:
    """The VMs that run, by the number of their arrival; a new VM gets the seat that the pool chooses."""

    of: Scenario
    pool: Hosts
    live: dict[int, tuple[PoolRequest, PoolSeat]] = field(default_factory=dict)
    geometry: SameSize | Mig = field(init=False)

    def __post_init__(self) -> None:
        self.geometry = self.of.geometry()

    def seat(self, ask: PoolRequest) -> PoolSeat | None:
        """Where it goes."""
        return self.pool.choose(ask)

    def come(self, number: int, ask: PoolRequest) -> PoolSeat | None:
        seat = self.seat(ask)
        if seat is not None:
            self.pool.take(seat)
            self.live[number] = (ask, seat)
        return seat

    def go(self, number: int) -> None:
        ask, seat = self.live.pop(number)
        for part in seat.parts:
            self.pool.give(part, self.without(part, ask))

    def without(self, part: NodePart, ask: PoolRequest) -> list[int]:
        """The states of its GPUs once the VM is gone."""
        now = [int(self.pool.state[part.row, gpu]) for gpu in part.gpus]
        return [
            self.geometry.without(state, ask.kind, before, after)
            for state, before, after in zip(now, part.before, part.after, strict=True)
        ]


def churn(of: Scenario, kind: type[Hosts], seed: int) -> ChurnOutcome:
    """What one rule makes of one stream of arrivals."""
    return play_stream(Stream(of, pool_of(kind, of, HOSTS_EACH, STEP)), seed)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One stream: the number of each request, when it comes, its GPU memory and how long it stays."""

    numbers: Sequence[int]
    times: Sequence[float]
    sizes: Sequence[int]
    stays: Sequence[float]

    def hours(self, at: int) -> float:
        """The GPU memory-hours of a request, in hours that are counted."""
        begins, ends = max(self.times[at], self.times[WARM]), min(self.times[at] + self.stays[at], self.times[-1])
        return self.sizes[at] * max(0.0, ends - begins)


def arrivals(of: Scenario, seed: int) -> Arrivals:
    """Drawn so that 1.2 times the memory of the fleet is asked for."""
    geometry = of.geometry()
    sizes = np.array([request.size(geometry) for request in of.requests])
    stays = np.array([request.stay_s for request in of.requests])
    weights = np.array([request.weight for request in of.requests])
    chance = np.random.default_rng(seed)
    share = weights / weights.sum() if of.weighted else None
    numbers = chance.choice(len(sizes), ARRIVALS, p=share)
    rate = LOAD * HOSTS_EACH * 8 * GB / float(np.average(sizes * stays, weights=share))
    times = np.cumsum(chance.exponential(1 / rate, ARRIVALS))
    return Arrivals(numbers.tolist(), times.tolist(), sizes[numbers].tolist(), stays[numbers].tolist())


def play_stream(stream: Stream, seed: int) -> ChurnOutcome:
    """The same of this stream."""
    come = arrivals(stream.of, seed)
    leaving: list[tuple[float, int]] = []
    asked_memory = placed = asked_hours = placed_hours = wide_hours = 0.0
    count = local = 0
    for at, (number, now, size, stay) in enumerate(zip(come.numbers, come.times, come.sizes, come.stays, strict=True)):
        while leaving and leaving[0][0] <= now:
            stream.go(heapq.heappop(leaving)[1])
        seat = stream.come(at, stream.of.requests[number].ask)
        if seat is not None:
            heapq.heappush(leaving, (now + stay, at))
        asked_hours += come.hours(at)
        placed_hours += come.hours(at) * (seat is not None)
        wide_hours += come.hours(at) * (seat is not None and _whole_host(stream.of.requests[number]))
        asked_memory += size * (at >= WARM)
        if seat is not None and at >= WARM:
            placed, count, local = placed + size, count + 1, local + seat.local
    wide, hours = 100 * wide_hours / asked_hours, 100 * placed_hours / asked_hours
    return ChurnOutcome(hours, wide, 100 * placed / asked_memory, 100 * local / count)


def _everybody(request: Request) -> bool:
    return True


def _whole_host(request: Request) -> bool:
    """Whether it asks for all GPUs of a host."""
    return request.ask.count == 2 * NODE_GPUS


def fluid_hours(of: Scenario, seed: int, only: Callable[[Request], bool] = _everybody) -> float:
    """Percent of the memory-hours of a stream that fit a fleet that is one large host, first come, first served.

    `only`: the part of it that these VMs have.
    """
    come = arrivals(of, seed)
    cpu, memory = HOSTS[of.host]
    free = np.array([8 * GB, cpu, memory]) * HOSTS_EACH
    leaving: list[tuple[float, int]] = []
    takes = [np.array([0, request.ask.cpu, request.ask.memory]) for request in of.requests]
    needs = [takes[number] + (size, 0, 0) for number, size in zip(come.numbers, come.sizes, strict=True)]
    asked_hours = placed = 0.0
    for at, (now, stay) in enumerate(zip(come.times, come.stays, strict=True)):
        while leaving and leaving[0][0] <= now:
            free += needs[heapq.heappop(leaving)[1]]
        asked_hours += come.hours(at)
        if (needs[at] <= free).all():
            free -= needs[at]
            placed += come.hours(at) * only(of.requests[come.numbers[at]])
            heapq.heappush(leaving, (now + stay, at))
    return 100 * placed / asked_hours


def _read_known_shares(folder: str | None) -> Known:
    if not folder:
        return {}
    with (Path(folder) / "vgpu_churn.csv").open() as lines:
        return {
            (row["trace"].removeprefix("openb_pod_list_"), row["mode"], row["host"], int(row["seed"]), row["policy"]): (
                100 * float(row["placed"])
            )
            for row in csv.DictReader(lines)
        }
