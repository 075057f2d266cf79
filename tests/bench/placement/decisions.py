"""Placement in a fleet: CPU time of one decision, of its index and of the next snapshot, and memory, at two sizes; and
of a request that finds no place, with every reason in words, at three.

Hosts of eight GPUs, four beside each NUMA node, six VMs on each; workloads of 72 kinds in turn, none explained. Where
nothing finds a place, a VM runs on each GPU. Each size is measured in a process of its own, a refusal once its index is
there, as it is for all but the first of a list.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from dataclasses import replace
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt

from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, VgpuDevice
from gpuops.model.workloads.workload import Workload
from gpuops.plan.placement.fleet.index import FleetIndex
from gpuops.plan.placement.project import take
from gpuops.plan.placement.select import place, place_exactly
from gpuops.plan.placement.vm_demand import PinPolicy, Placement, Wanted, demands_of
from gpuops.plan.queue.place import Place
from gpuops.plan.queue.workload_hosts import running, vm_of
from gpuops.report.advice.placement_view import placements_text
from tests.bench.measure import python
from tests.bench.verdict import Figure, Result
from tests.plan.snapshots import catalog, gpu, host, inventory

SIZES: Final = {256: 1.0, 1000: 3.0, 5000: 15.0}
"""Hosts, and the budget of a decision in milliseconds."""
REFUSED_SIZES: Final = {256: 0.1, 1000: 0.3, 5000: 1.0}
"""Hosts, and the budget of a refused request in CPU seconds."""
MEMORY_MIB: Final = 300
PROFILES: Final = ("4c", "5c", "8c", "10c", "20c", "40c")
SIZES_GB: Final = np.array([int(profile[:-1]) for profile in PROFILES])
ASKED: Final = 400


def run() -> tuple[Result, Result]:
    """Decisions, and refusals."""
    return _decisions(), _refusals()


def _decisions() -> Result:
    """Both sizes, judged by the median decision and the peak of memory."""
    figures = []
    for hosts, budget_ms in SIZES.items():
        report = python(f"{hosts} hosts", "-m", "tests.bench.placement.decisions", str(hosts)).run().said
        figures += [
            Figure(f"{hosts} hosts x 8 GPUs: one decision, median", report["decide_ms"], "ms", budget_ms),
            Figure(
                f"{hosts} hosts: one decision over one of FGD in numpy", report["decide_ms"] / report["fgd_ms"], "", 8
            ),
            Figure(f"{hosts} hosts: 99 of 100 decisions within", report["decide_p99_ms"], "ms"),
            Figure(f"{hosts} hosts: the index, once", report["index_ms"], "ms"),
            Figure(f"{hosts} hosts: the snapshot with the VM in it", report["take_ms"], "ms"),
            Figure(f"{hosts} hosts: every place looked at one by one", report["exact_ms"], "ms"),
            Figure(f"{hosts} hosts: peak memory of the process", report["peak_mib"], "MiB", MEMORY_MIB),
        ]
    return Result("placement: one decision in a fleet", tuple(figures))


def _refusals() -> Result:
    """Each kind of refused request at each size, judged by its budget."""
    figures = []
    for hosts, budget_s in REFUSED_SIZES.items():
        report = python(f"{hosts} hosts", "-m", "tests.bench.placement.decisions", str(hosts), "refused").run().said
        figures += [Figure(f"{hosts} hosts: {kind}", report[kind], "s", budget_s) for kind in refused_kinds()]
        figures.append(Figure(f"{hosts} hosts: the first refusal, with the index", report["first_s"], "s"))
    return Result("placement: a refused request in a fleet, with every reason", tuple(figures))


def refused_kinds() -> dict[str, Workload]:
    """Requests that a crowded fleet has no place for."""
    return {
        "one vGPU": Workload("one", 4, 8192, "a100-40c"),
        "several vGPUs": Workload("several", 4, 8192, "a100-20c", count=9),
        "more cores than any host has": Workload("large", 1000, 8192, "a100-4c"),
    }


def crowd_fleet(hosts: int) -> Inventory:
    """The same hosts with a VM on every GPU, of a profile by chance that leaves none of them empty."""
    chance = random.Random(hosts)
    hosts_made, vms = [], []
    for number in range(1, hosts + 1):
        on = [f"vm-{number}-{at}" for at in range(8)]
        gpus = [
            replace(gpu(f"0000:{16 + at:02x}:00.0", "a100", at // 4, VgpuMode.SAME_SIZE), vms=(f"vm-{ref}",))
            for at, ref in enumerate(on)
        ]
        new_host = host(f"esx-{number:04}", *gpus)
        hosts_made.append(new_host)
        for name in on:
            workload = draw_workload(name, chance, ()).vm
            devices = (VgpuDevice(13000, f"grid_a100-{chance.choice(PROFILES[:-1])}"),)
            vms.append(replace(workload, ref=f"vm-{name}", host=new_host.ref, power=PowerState.ON, devices=devices))
    return inventory(hosts_made, vms)


def refuse(hosts: int) -> None:
    """CPU seconds of each refused request, planned and put into words; as JSON."""
    world = crowd_fleet(hosts)
    seconds_by_kind: dict[str, float] = {}
    started = time.process_time()
    for kind, workload in refused_kinds().items():
        _refuse_workload(workload, world)
        seconds_by_kind.setdefault("first_s", time.process_time() - started)
        started = time.process_time()
        _refuse_workload(workload, world)
        seconds_by_kind[kind] = time.process_time() - started
    print(json.dumps(seconds_by_kind))


def _refuse_workload(workload: Workload, world: Inventory) -> None:
    placements = Place((workload,)).placements(world, catalog())
    assert placements.refused and placements_text(placements) is not None


def fleet(hosts: int) -> Inventory:
    """Hosts of eight A100 in same-size mode, with six VMs each by chance: half-full GPUs of every profile."""
    gpus = [gpu(f"0000:{16 + at:02x}:00.0", "a100", at // 4, VgpuMode.SAME_SIZE) for at in range(8)]
    world = inventory([host(f"esx-{number:04}", *gpus) for number in range(1, hosts + 1)], [])
    chance = random.Random(hosts)
    for number, ref in enumerate(world.hosts):
        for at in range(6):
            workload = draw_workload(f"there-{number}-{at}", chance, (ref,))
            placement = place(workload, world, catalog())
            if isinstance(placement, Placement):
                world = take(running(workload.vm, placement, workload.numa), world, catalog())
    return world


def draw_workload(name: str, chance: random.Random, hosts: tuple[str, ...]) -> Wanted:
    """A VM of one of 72 kinds."""
    profile = f"grid_a100-{chance.choice(PROFILES)}"
    workload = Workload(name, chance.choice((4, 8, 16)), chance.choice((8, 16, 32, 48)) * 1024, profile)
    vm = vm_of(workload, (VgpuDevice(13000, profile),))
    return Wanted(
        vm,
        demands_of(vm.devices or (), {}),
        hosts,
        NumaPolicy.PREFERRED,
        PinPolicy.AUTO,
        explain=False,
        chooses_gpu=True,
    )


def plain_fgd(world: Inventory, chance: random.Random) -> float:
    """Milliseconds of one decision by FGD (Weng et al., USENIX ATC 2023) with numpy alone, on the same GPUs: it knows
    vGPUs and nothing else, neither nodes nor memory nor what is requested of hosts."""
    kinds, most = np.arange(len(PROFILES)), 40 // SIZES_GB
    profile = np.array([chance.randrange(len(kinds)) for host in world.hosts.values() for _ in host.gpus])
    count = np.array([chance.randrange(most[kind] + 1) for kind in profile])
    decide = []
    for _ in range(ASKED):
        kind = chance.randrange(len(kinds))
        started = time.process_time()
        room = (count == 0) | ((profile == kind) & (count < most[kind]))
        added = _unusable(np.full(len(count), kind), count + 1) - _unusable(profile, count)
        gpu = int(np.where(room, added, np.inf).argmin())
        if room[gpu]:
            profile[gpu], count[gpu] = kind, count[gpu] + 1
        decide.append(1000 * (time.process_time() - started))
    return median(decide)


def _unusable(profile: npt.NDArray[np.int64], count: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The free memory of each GPU, with so many vGPUs of a profile on it, that the mean request cannot use."""
    empty, alike = (count == 0)[:, None], profile[:, None] == np.arange(len(PROFILES))
    slots = np.where(empty, 40 // SIZES_GB, np.where(alike, 40 // SIZES_GB - count[:, None], 0))
    free = 40 - SIZES_GB[profile] * count
    unusable: npt.NDArray[np.float64] = np.maximum(0, free[:, None] - slots * SIZES_GB).mean(axis=1)
    return unusable


def main(hosts: int) -> None:
    """One size; what was measured as JSON."""
    world = fleet(hosts)
    world.worked_out.clear()
    started = time.process_time()
    FleetIndex.of(world, catalog())
    index_ms = 1000 * (time.process_time() - started)
    decide, take_ms = [], []
    chance = random.Random(1)
    for number in range(ASKED):
        workload = draw_workload(f"vm-{number}", chance, tuple(world.hosts))
        started = time.process_time()
        placement = place(workload, world, catalog())
        decide.append(1000 * (time.process_time() - started))
        assert isinstance(placement, Placement), "every host has an empty GPU at first"
        started = time.process_time()
        world = take(running(workload.vm, placement, workload.numa), world, catalog())
        take_ms.append(1000 * (time.process_time() - started))
    fgd_ms = plain_fgd(world, chance)
    started = time.process_time()
    place_exactly(draw_workload("last", chance, tuple(world.hosts)), world, catalog())
    report = {
        "decide_ms": median(decide),
        "fgd_ms": fgd_ms,
        "decide_p99_ms": sorted(decide)[len(decide) * 99 // 100],
        "index_ms": index_ms,
        "take_ms": median(take_ms),
        "exact_ms": 1000 * (time.process_time() - started),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    (refuse if "refused" in sys.argv else main)(int(sys.argv[1]))
