"""What VMs can get that are served in the order of coming: why no rule meets the bounds of `profiles`.

Such a bound knows all requests and leaves out those that others are worth more than. The reference here takes each VM
that still fits beside those it has taken, and refuses none on purpose; it may pack them anew each time, for nothing, as
the bounds do: hosts are one large host, or GPUs count alone. No rule can place beside the same VMs what does not fit
so.

Example: a VM of one GPU comes, then as many of eight GPUs as there are hosts. The bound has all but the first, and no
GPU is free; the reference has the first, and one of the others finds no host.

The scenarios need the trace: `make bench OPENB=DIR`; with `BASELINES=DIR` their bound is shown beside the reference.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Final

from gpuops.plan.queue.batch.column_generation import bound_whole, solve_fluid
from gpuops.plan.queue.batch.integer_program import BatchProblem, with_loosest_options
from tests.bench.placement.batch import problem_of
from tests.bench.placement.filling_bound import taken_in_turn
from tests.bench.trace.profiles import HOSTS_EACH, SEEDS, drawn, inflate, read_known_bounds, scenarios
from tests.bench.trace.vgpu_across import Engine
from tests.bench.trace.vgpu_rules import RULES
from tests.bench.trace.vgpu_world import GB, Request, Scenario
from tests.bench.verdict import Figure, Result

WHOLE: Final = HOSTS_EACH * 8 * GB
NEGLIGIBLE: Final = 0.5
"""GB by which the solver's answer may miss a whole number."""


@dataclass(frozen=True, slots=True)
class Served:
    """In percent of the GPU memory: what the reference, ours and FGD have placed."""

    reference: float
    ours: float
    fgd: float


def run() -> Iterator[Result]:
    """Judged: how far ours is below the reference on the mean of the scenarios."""
    folder = os.environ.get("OPENB")
    if not folder:
        yield Result("first come, first served: scenarios not run, they need the trace (make bench OPENB=DIR)", ())
        return
    yield Result("vGPU profiles, first come, first served: GPU memory allocated", tuple(_scenarios(Path(folder))))


def _scenarios(folder: Path) -> Iterator[Figure]:
    all_scenarios = list(scenarios(folder))
    jobs = [(of, seed) for of in all_scenarios for seed in SEEDS]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        served_by_job = list(workers.map(_serve_job, jobs))
    bounds = read_known_bounds(os.environ.get("BASELINES"))
    for at, of in enumerate(all_scenarios):
        served_here, name = served_by_job[at * len(SEEDS) :][: len(SEEDS)], f"{of.trace} {of.mode} {of.host}"
        yield Figure(f"{name}: reference", mean(served.reference for served in served_here), "%")
        yield Figure(f"{name}: ours", mean(served.ours for served in served_here), "%")
    if bounds:
        most = [bounds[of.trace, of.mode, of.host, seed, "fgd"][0] for of, seed in jobs]
        yield Figure(
            "the offline bound, above the reference", mean(most) - mean(s.reference for s in served_by_job), "points"
        )
    yield Figure("below the reference: FGD", mean(served.reference - served.fgd for served in served_by_job), "points")
    yield Figure(
        "below the reference: ours", mean(served.reference - served.ours for served in served_by_job), "points", 1.0
    )


def _serve_job(job: tuple[Scenario, int]) -> Served:
    of, seed = job
    fgd, _ = RULES["FGD"]
    return Served(reference(of, seed), inflate(of, Engine, seed).allocated, inflate(of, fgd, seed).allocated)


def reference(of: Scenario, seed: int) -> float:
    """Percent of the GPU memory that is taken when requests have come for all of it."""
    problem, geometry = with_loosest_options(problem_of(of, seed)), of.geometry()
    came: list[Request] = []
    for request in drawn(of, seed):
        came.append(request)
        if sum(came_request.size(geometry) for came_request in came) >= WHOLE:
            break
    kinds = sorted({_kind(came_request) for came_request in came})
    numbers = [kinds.index(_kind(came_request)) for came_request in came]
    accepted = taken_in_turn(numbers, lambda some: _fit(problem, some))
    return 100 * sum(problem.worth[number] for number in accepted) / WHOLE


def _kind(request: Request) -> tuple[int, int, int, int]:
    """As `problem_of` numbers them, in this order."""
    return request.ask.cpu, request.ask.memory, request.ask.kind, request.ask.count


def _fit(problem: BatchProblem, numbers: Sequence[int]) -> bool:
    """Whether these VMs, by their kinds, may all run at once, for all that the bounds of the batch tell."""
    demand = tuple(numbers.count(number) for number in range(len(problem.demand)))
    subset = replace(problem, demand=demand)
    needed = sum(count * worth for count, worth in zip(demand, problem.worth, strict=True)) - NEGLIGIBLE
    return solve_fluid(subset)[0] >= needed and bound_whole(subset) >= needed
