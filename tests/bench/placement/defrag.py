"""Defragmentation of a churned fleet: CPU time of the plan, and how many moves free how many whole GPUs.

Hosts of eight A100 in same-size mode. VMs of six sizes arrive by chance until the fleet is full, each where `place`
puts it, and leave by chance; after three such rounds a part of them is gone. What is left is defragmented, without a
limit and with at most one VM in a hundred moved. Each policy is measured in a process of its own.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from dataclasses import replace
from typing import Final

from gpuops.advise.occupancy import gpu_states
from gpuops.model.devices.gpu import AssignmentPolicy, VgpuMode
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.moving.defrag import Defrag, Defragmentation
from gpuops.plan.placement.project import release, take
from gpuops.plan.placement.select import place
from gpuops.plan.placement.vm_demand import Placement
from gpuops.plan.queue.workload import running
from tests.bench.measure import python
from tests.bench.placement.decisions import asked
from tests.bench.verdict import Figure, Result
from tests.plan.snapshots import catalog, gpu, host, inventory, without_vm

HOSTS: Final = 64
LEAVING: Final = (0.3, 0.3, 0.5)
"""Share of the VMs that leave at the end of each round; new ones fill the room, but after the last."""
SHARE: Final = 0.01
"""VMs that may be migrated, of those there are (GRMU, arXiv 2502.01909)."""
SECONDS: Final = 10.0


def run() -> Result:
    """Both assignment policies."""
    figures = []
    for policy in AssignmentPolicy:
        said = python(f"{policy}", "-m", "tests.bench.placement.defrag", policy.value).run().said
        where = f"{HOSTS} hosts x 8 GPUs, {policy}"
        figures += [
            Figure(f"{where}: VMs", said["vms"], ""),
            Figure(f"{where}: whole GPUs free before", said["before"], ""),
            Figure(f"{where}: free after all moves", said["after"], ""),
            Figure(f"{where}: no more can be free than", said["bound"], ""),
            Figure(f"{where}: moves for that", said["moves"], ""),
            Figure(f"{where}: CPU time of the plan", said["plan_s"], "s", SECONDS),
            Figure(f"{where}: free when 1 % of the VMs move", said["after_share"], ""),
            Figure(f"{where}: share of all GPUs freed by 1 % of the VMs", said["freed_percent"], "%"),
            Figure(f"{where}: peak memory of the process", said["peak_mib"], "MiB"),
        ]
    return Result("defragmentation of a churned fleet", tuple(figures))


def churned(hosts: int, policy: AssignmentPolicy, seed: int = 1) -> Inventory:
    """A fleet after some rounds of VMs that come and go by chance; all of them may be moved by vMotion."""
    gpus = [gpu(f"0000:{16 + at:02x}:00.0", "a100", at // 4, VgpuMode.SAME_SIZE) for at in range(8)]
    empty = [replace(host(f"esx-{number:04}", *gpus), assignment_policy=policy) for number in range(1, hosts + 1)]
    world = replace(inventory(empty, []), hot_migrate_enabled=True)
    clusters = {ref: replace(cluster, rules=()) for ref, cluster in world.clusters.items()}
    world, chance, number = replace(world, clusters=clusters), random.Random(seed), 0
    for leaving in LEAVING:
        refused = 0
        while refused < 5:
            number += 1
            wanted = asked(f"vm-{number}", chance, tuple(world.hosts))
            found = place(wanted, world, catalog())
            if isinstance(found, Placement):
                world = take(running(wanted.vm, found, NumaPolicy.NONE), world, catalog())
            else:
                refused += 1
        for vm in chance.sample(sorted(world.vms.values(), key=lambda vm: vm.ref), int(leaving * len(world.vms))):
            world = without_vm(vm.ref, release(vm, world))
    return world


def whole(world: Inventory) -> int:
    """GPUs that nothing runs on."""
    return sum(not state.tenants for host in world.hosts.values() for state in gpu_states(host, world, catalog()))


def main(policy: AssignmentPolicy) -> None:
    """One policy; what was measured as JSON."""
    world = churned(HOSTS, policy)
    started = time.process_time()
    found = Defrag().find_moves(world, catalog())
    plan_s = time.process_time() - started
    few: Defragmentation = Defrag(max_moves=int(SHARE * len(world.vms))).find_moves(world, catalog())
    assert found.before == whole(world)
    said = {
        "vms": len(world.vms),
        "before": found.before,
        "after": found.after,
        "bound": found.bound,
        "moves": len(found.moves),
        "plan_s": plan_s,
        "after_share": few.after,
        "freed_percent": 100 * (few.after - few.before) / few.gpus,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main(AssignmentPolicy(sys.argv[1]))
