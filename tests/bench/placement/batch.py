"""A whole queue at once: how near to the bound, in which CPU time and memory; started on the simulator
(`batch_fleets.py`); and twelve scenarios of the trace.

The fleets are made up: 1,000 hosts of eight GPUs and 3,000 VMs, once all hosts empty and so alike, once no two alike.
The scenarios need the trace (`make bench OPENB=DIR`); with `BASELINES=DIR` they are held against the bounds there,
else against our own.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Final

from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.workload import Workload
from gpuops.plan.queue.batch.integer_program import Amounts, BatchProblem, GpuGroup, HostShape, PlacementOption
from gpuops.plan.queue.batch.solve import bound, solve
from gpuops.plan.queue.place import Place
from tests.bench.measure import python
from tests.bench.placement import batch_fleets
from tests.bench.placement.decisions import PROFILES, fleet
from tests.bench.trace.profiles import HOSTS_EACH, SEEDS, Bounds, drawn, read_known_bounds, scenarios
from tests.bench.trace.vgpu_world import GB, HOSTS, Scenario
from tests.bench.verdict import Figure, Result
from tests.plan.snapshots import catalog, gpu, host, inventory

FLEETS: Final = ("alike", "half-full")
SIZE: Final = 1000
VMS: Final = 3000
CPU_S: Final = 10.0
MEMORY_MIB: Final = 300
NODES: Final = 2


def run() -> Iterator[Result]:
    """The fleets, each in a process of its own, then the scenarios."""
    figures = []
    for kind in FLEETS:
        report = python(kind, "-m", "tests.bench.placement.batch", kind).run().said
        fleet_name = f"{SIZE} hosts, {VMS} VMs, {kind}"
        figures += [
            Figure(f"{fleet_name}: CPU time of `place --optimize`", report["cpu_s"], "s", CPU_S),
            Figure(f"{fleet_name}: GPU memory placed, below the bound", report["below"], "%", 1.0),
            Figure(f"{fleet_name}: hosts used", report["hosts"], ""),
            Figure(f"{fleet_name}: peak memory of the process", report["peak_mib"], "MiB", MEMORY_MIB),
        ]
    yield Result("batch: a queue placed at once", tuple(figures))
    yield batch_fleets.run()
    folder = os.environ.get("OPENB")
    if not folder:
        yield Result("batch: scenarios not run, they need the trace (make bench OPENB=DIR)", ())
        return
    yield Result(
        "batch: vGPU profiles, 16 hosts",
        tuple(_scenarios(Path(folder), read_known_bounds(os.environ.get("BASELINES")))),
    )


def main(kind: str) -> None:
    """One fleet; what was measured as JSON."""
    world = empty(SIZE) if kind == "alike" else fleet(SIZE)
    world.worked_out.clear()
    chance = random.Random(2)
    workloads = tuple(
        Workload(
            f"vm-{number}",
            chance.choice((4, 8, 16)),
            chance.choice((8, 16, 32, 48)) * 1024,
            f"grid_a100-{chance.choice(PROFILES)}",
        )
        for number in range(VMS)
    )
    started = time.process_time()
    placements = Place(workloads, optimize=True).placements(world, catalog())
    cpu_s = time.process_time() - started
    assert placements.optimum is not None
    assert placements.optimum.most_mib, placements.optimum.note
    report = {
        "cpu_s": cpu_s,
        "below": 100 * (1 - placements.optimum.placed_mib / placements.optimum.most_mib),
        "hosts": len({placed.placement.host.ref for placed in placements.placed}),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(report))


def empty(hosts: int) -> Inventory:
    """Hosts of eight A100 in same-size mode, four beside each NUMA node."""
    gpus = [gpu(f"0000:{16 + at:02x}:00.0", "a100", at // 4, VgpuMode.SAME_SIZE) for at in range(8)]
    return inventory([host(f"esx-{number:04}", *gpus) for number in range(1, hosts + 1)], [])


def _scenarios(folder: Path, bounds: Bounds) -> Iterator[Figure]:
    gaps, times_s = [], []
    for of in scenarios(folder):
        gaps_here = []
        for seed in SEEDS:
            problem, whole = problem_of(of, seed), HOSTS_EACH * 8 * GB
            started = time.process_time()
            solution = solve(problem)
            times_s.append(time.process_time() - started)
            placed = sum(times * problem.memory(pattern) for pattern, times in solution.patterns)
            most = bounds.get((of.trace, of.mode, of.host, seed, "fgd"))
            limit = 100 * bound(problem) / whole if most is None else most[0]
            gaps_here.append(limit - 100 * placed / whole)
        gaps += gaps_here
        yield Figure(f"{of.trace} {of.mode} {of.host}: below the bound", mean(gaps_here), "points")
    yield Figure("mean gap to the bound", mean(gaps), "points", 0.5)
    yield Figure("CPU time of one queue, the longest", max(times_s), "s", 30.0)


def problem_of(of: Scenario, seed: int) -> BatchProblem:
    """Requests until they ask for all GPU memory, on equal hosts. CPU is used up here, as in the other rows."""
    geometry = of.geometry()
    counts: Counter[tuple[int, int, int, int]] = Counter()
    came = 0
    for request in drawn(of, seed):
        ask = request.ask
        counts[ask.cpu, ask.memory, ask.kind, ask.count] += 1
        came += request.size(geometry)
        if came >= HOSTS_EACH * 8 * GB:
            break
    kinds = sorted(counts)
    cpu, memory = HOSTS[of.host]
    width = 2 + len(geometry.sizes)
    blocks = [(cpu // NODES, memory // NODES)] * NODES + [(cpu, memory)]
    capacity = tuple(much for block in blocks for much in (*block, *([0] * len(geometry.sizes))))
    groups = tuple(
        GpuGroup(
            8 // NODES,
            tuple(
                tuple((block * width + 2 + at, int(n)) for block in (node, NODES) for at, n in enumerate(filling) if n)
                for filling in geometry.fillings()
            ),
        )
        for node in range(NODES)
    )
    options = {number: tuple(_options(kind, of.host, width)) for number, kind in enumerate(kinds)}
    worth = tuple(count * geometry.sizes[at] for _, _, at, count in kinds)
    return BatchProblem(
        tuple(counts[kind] for kind in kinds), worth, (HostShape(HOSTS_EACH, capacity, groups, options),)
    )


def _options(kind: tuple[int, int, int, int], shape: str, width: int) -> Iterator[PlacementOption]:
    """Beside the GPUs on one node; a VM wider than a node half on each; or anywhere on the host."""
    cpu, memory, device, count = kind
    slots = 2 + device
    whole = tuple(size // NODES for size in HOSTS[shape])

    def rows(block: int, part: int, gpus: int) -> Amounts:
        """So much of the VM there."""
        return (
            (block * width, -(-cpu // part)),
            (block * width + 1, -(-memory // part)),
            (block * width + slots, gpus),
        )

    anywhere = rows(NODES, 1, count)
    if cpu <= whole[0] and memory <= whole[1] and count <= 8 // NODES:
        yield from (PlacementOption((*rows(node, 1, count), *anywhere)) for node in range(NODES))
    elif count > 8 // NODES:
        yield PlacementOption((*rows(0, 2, count // 2), *rows(1, 2, count - count // 2), *anywhere))
    else:
        for gpus in ((count, 0), (0, count)):
            whole_rows = (size for node in range(NODES) for size in rows(node, 2, gpus[node]) if size[1])
            yield PlacementOption((*whole_rows, *anywhere))
    yield PlacementOption(anywhere, remote=True)


if __name__ == "__main__":
    main(sys.argv[1])
