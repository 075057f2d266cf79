"""NUMA-local VMs, counted on the simulator's ledger after power-on: with the GPUs that the hosts really gave.

Requests of the trace come to simulated hosts in threes, once until they have asked for all GPU memory and once with
departures. They are placed, made and powered on, so that the host chooses the GPU by its own policy unless it is bound.

* pinned: asked for with `--numa required`; where that has no place, with `preferred`, which counts as it falls.
* left to the host: `--numa preferred --pin never`. Where ESXi then puts the VM's memory nobody told it: it is taken to
  be the node with the most free memory, as the VMkernel looks at no PCI device (VMware vSphere Resource Management).

A VM is local when its memory is, all of it, on the nodes of all of its GPUs. Needs the trace: `make bench OPENB=DIR`.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Final

import numpy as np

from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.workloads.workload import Workload
from gpuops.plan.placement.vm_demand import PinPolicy
from gpuops.plan.queue.one_workload import Placed
from gpuops.plan.queue.place import Place
from tests.bench.simulator.simulated_fleet import GPUS, Seated, SimulatedFleet, simulated_fleet
from tests.bench.trace.profiles import drawn
from tests.bench.trace.vgpu_world import GB, Request, Scenario, scenario
from tests.bench.verdict import Figure, Result

FLEET: Final = 16
SEEDS: Final = {"fill": (42, 44, 46), "departures": (42,)}
AT_ONCE: Final = 3
LOAD: Final = 1.2
DEPARTING: Final = 600
WARM: Final = 200
NODE_MIB: Final = 384 * 1024
SCENARIOS: Final = (("default", "ts"), ("default#small70", "ts"), ("default#small70", "mig"))
BUDGETS: Final = {"fill": 0.1, "departures": 0.5}
"""Percent of the VMs that may not be local when they are pinned."""


@dataclass
class Homes:
    """On which nodes of its host the memory of each VM is, in MiB by (host, node)."""

    held: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)

    def local(self, placed: Placed, seated: Seated) -> bool:
        """Whether the VM, which starts now, is all on the nodes of all of its GPUs."""
        host, memory_mib = placed.placement.host.ref, placed.workload.memory_mib
        free = {node: NODE_MIB - sum(each.get((host, node), 0) for each in self.held.values()) for node in (0, 1)}
        most = max(free, key=lambda node: (free[node], -node))
        nodes = sorted(seated.bound_to) or ([most] if free[most] >= memory_mib else [0, 1])
        each_mib = -(-memory_mib // len(nodes))
        self.held[seated.name] = {(host, node): each_mib for node in nodes}
        return seated.nodes == set(nodes) and all(each_mib <= free[node] for node in nodes)


@dataclass
class Stream:
    """Requests placed and started on one fleet, and what became of them."""

    fleet: SimulatedFleet
    of: Scenario
    pinned: bool
    homes: Homes = field(default_factory=Homes)
    local: list[bool] = field(default_factory=list)
    as_planned: list[bool] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def come(self, requests: Sequence[Request]) -> list[tuple[str, Request]]:
        """The names of those that found a place, started."""
        asked = {f"vm-{next(self.numbers):05}": request for request in requests}
        found: list[Placed] = []
        for numa, pin in _WAYS[self.pinned]:
            names = sorted(set(asked) - {each.workload.name for each in found})
            workloads = tuple(self._workload(name, asked[name], numa) for name in names)
            placed = Place(workloads, pin=pin).placements(self.fleet.seen, self.fleet.catalog).placed
            for each, seated in zip(placed, self.fleet.start(placed) if placed else (), strict=True):
                self.local.append(self.homes.local(each, seated))
                self.as_planned.append(sorted(seated.gpus) == sorted(map(str, each.placement.seats.values())))
            found += placed
        return [(each.workload.name, asked[each.workload.name]) for each in found]

    def go(self, names: Sequence[str]) -> None:
        if names:
            self.fleet.remove(names)
        for name in names:
            del self.homes.held[name]

    def _workload(self, name: str, request: Request, numa: NumaPolicy) -> Workload:
        ask, geometry = request.ask, self.of.geometry()
        profile = f"grid_a100-{_PROFILES[type(geometry).__name__][ask.kind]}"
        return Workload(name, max(1, ask.cpu // 1000), ask.memory, profile, ask.count, numa=numa)


_WAYS: Final = {
    True: ((NumaPolicy.REQUIRED, PinPolicy.AUTO), (NumaPolicy.PREFERRED, PinPolicy.AUTO)),
    False: ((NumaPolicy.PREFERRED, PinPolicy.NEVER),),
}
_PROFILES: Final = {
    "SameSize": ("4c", "5c", "8c", "10c", "20c", "40c"),
    "Mig": ("1-5c", "2-10c", "3-20c", "4-20c", "7-40c"),
}
_MODES: Final = {"ts": "sameSize", "mig": "multiInstanceGpu"}


def run() -> Iterator[Result]:
    """Shares of VMs that are not local, by scenario and over all of them; judged with pinning alone."""
    folder = os.environ.get("OPENB")
    if not folder:
        yield Result("NUMA-local on the ledger: not run, it needs the trace (make bench OPENB=DIR)", ())
        return
    pinned: dict[str, list[bool]] = {kind: [] for kind in BUDGETS}
    for trace, mode in SCENARIOS:
        of = scenario(Path(folder), trace, mode, "G3")
        yield Result(f"NUMA-local VMs on the ledger, {trace} {mode}, {FLEET} hosts", tuple(_figures(of, pinned)))
    figures = [Figure(f"{kind}: not local", _percent(pinned[kind]), "%", most) for kind, most in BUDGETS.items()]
    yield Result("NUMA-local VMs on the ledger, pinned, all of them", tuple(figures))


def _figures(of: Scenario, all_pinned: dict[str, list[bool]]) -> Iterator[Figure]:
    # A host in MIG mode ignores its assignment policy (NVIDIA AI Enterprise docs).
    for policy in ("performance", "consolidation")[: 2 if of.mode == "ts" else 1]:
        for pinned in (True, False):
            for kind, play in (("fill", _fill), ("departures", _turn_over)):
                local: list[bool] = []
                as_planned: list[bool] = []
                for seed in SEEDS[kind]:
                    with simulated_fleet(FLEET, _MODES[of.mode], policy) as fleet:
                        stream = Stream(fleet, of, pinned)
                        play(stream, seed)
                    local += stream.local
                    as_planned += stream.as_planned
                all_pinned[kind] += local if pinned else []
                what = f"{kind}, {policy}, {'pinned' if pinned else 'left to the host'}"
                yield Figure(f"{what}: VMs", len(local), "")
                yield Figure(f"{what}: not local", _percent(local), "%")
                yield Figure(f"{what}: on other GPUs than planned", _percent(as_planned), "%")


def _percent(held: Sequence[bool]) -> float:
    return 100 * (1 - sum(held) / len(held))


def _fill(stream: Stream, seed: int) -> None:
    """Until they have asked for all GPU memory."""
    geometry, requests, came = stream.of.geometry(), drawn(stream.of, seed), 0
    while came < FLEET * GPUS * GB:
        those = list(islice(requests, AT_ONCE))
        came += sum(request.size(geometry) for request in those)
        stream.come(those)


def _turn_over(stream: Stream, seed: int) -> None:
    """At 1.2 times the load that the fleet can carry, counted once it is full."""
    geometry, requests, chance = stream.of.geometry(), drawn(stream.of, seed), np.random.default_rng(seed)
    sample = list(islice(drawn(stream.of, seed + 1), 5000))
    rate = LOAD * FLEET * GPUS * GB / float(np.mean([each.size(geometry) * each.stay_s for each in sample]))
    leaving: list[tuple[float, str]] = []
    now, warm = 0.0, 0
    for at in range(0, DEPARTING, AT_ONCE):
        now += float(chance.exponential(AT_ONCE / rate))
        gone = []
        while leaving and leaving[0][0] <= now:
            gone.append(heapq.heappop(leaving)[1])
        stream.go(gone)
        for name, request in stream.come(list(islice(requests, AT_ONCE))):
            heapq.heappush(leaving, (now + request.stay_s, name))
        warm = len(stream.local) if at < WARM else warm
    del stream.local[:warm], stream.as_planned[:warm]
