"""A night of 500 desktops and 60 ML VMs on 60 hosts: CPU time of its plan, and what the plan comes to.

Hosts of two A40. Desktops of four sizes, so that a GPU holds two to eight of them; three in a hundred are in use, and a
sixth of the GPUs is empty. ML VMs take a whole GPU, two, or half of one; half of them may be moved to other hosts.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from datetime import time as clock
from typing import Any, Final

from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.rotation import IdleRule, Policy, Pool
from gpuops.model.nights.selector import Selector
from gpuops.model.vcenter.host import Datastore
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.window import Window
from gpuops.plan.core.steps import PowerOnVm, SuspendVm
from gpuops.plan.rotation.nights.night import RotateNight
from tests.bench.measure import python
from tests.bench.verdict import Figure, Result
from tests.plan.snapshots import FIRST, SECOND, catalog, gpu, host, inventory, on_gpu, vm

HOSTS: Final = 60
DESKTOPS: Final = 500
ML_VMS: Final = 60
SIZES: Final = {"nvidia_a40-24q": 2, "nvidia_a40-12q": 4, "nvidia_a40-8q": 6, "nvidia_a40-6q": 8}
WANTED: Final = (("nvidia_a40-48c",),) * 6 + (("nvidia_a40-48c",) * 2, ("nvidia_a40-24c",))
GIB8: Final = 8192
CPU_S: Final = 2.0
MEMORY_MIB: Final = 200
EVENING: Final = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)


def run() -> Result:
    """The night, in a process of its own."""
    said = python("night", "-m", "tests.bench.nights.night", "said").run().said
    return Result(
        f"night: {DESKTOPS} desktops, {ML_VMS} ML VMs, {HOSTS} hosts",
        (
            Figure("CPU time of the plan", said["cpu_s"], "s", CPU_S),
            Figure("peak memory of the process", said["peak_mib"], "MiB", MEMORY_MIB),
            Figure("ML VMs that start", said["started"], ""),
            Figure("desktops that make room", said["suspended"], ""),
        ),
    )


def world(seed: int = 2, *, hosts: int = HOSTS, desktops: int = DESKTOPS, ml_vms: int = ML_VMS) -> Inventory:
    """The evening as vCenter shows it."""
    chance = random.Random(seed)
    datastore = Datastore("ds-1", "ssd", free_mib=10**9, accessible=True)
    found = [
        replace(host(f"esx-{number:04}", gpu(FIRST, "a40", 0), gpu(SECOND, "a40", 1)), datastores=("ds-1",))
        for number in range(1, hosts + 1)
    ]
    vms: list[Vm] = []
    places = [(number, address) for number in range(hosts) for address in (FIRST, SECOND)]
    chance.shuffle(places)
    for number, address in places:
        profile = chance.choice(list(SIZES))
        here: list[Vm] = []
        for _ in range(min(SIZES[profile], desktops - len(vms))):
            at = len(vms) + len(here) + 1
            used = 2000 if chance.random() < 0.03 else 10
            here.append(
                _vm(
                    at,
                    f"desk-{at:03}",
                    number,
                    (profile,),
                    PowerState.ON,
                    cpu_usage_mhz=used,
                    memory_mib=GIB8,
                    memory_reservation_mib=GIB8,
                )
            )
        found[number] = on_gpu(found[number], address, *(each.ref for each in here))
        vms += here
    for at in range(ml_vms):
        vms.append(waiting_vm(1000 + at, f"ml-{at:02}", chance.randrange(hosts), WANTED[at % len(WANTED)]))
    return replace(inventory(found, vms), datastores={"ds-1": datastore})


def waiting_vm(number: int, name: str, host: int, profiles: tuple[str, ...], **fields: Any) -> Vm:
    """An ML VM that is off, on the host of that number from 0 on."""
    return _vm(number, name, host, profiles, PowerState.OFF, **fields)


def _vm(number: int, name: str, host: int, profiles: tuple[str, ...], power: PowerState, **fields: Any) -> Vm:
    devices = tuple(f"vgpu {profile}" for profile in profiles)
    return vm(number, name, str(host + 1), *devices, power=power, datastores=("ds-1",), **fields)


def policy(ml_vms: int = ML_VMS) -> Policy:
    """All desktops are parked; every other ML VM may be moved."""
    entries = tuple(QueuedVm(f"ml-{at:02}", relocate=at % 2 == 0) for at in range(ml_vms))
    pool = Pool("desks", Selector(name="desk-*"), IdleRule(500), parked=True)
    return Policy("night", (pool,), ml=entries, windows=(Window(clock(20), clock(7), UTC),), digest="d")


def main() -> None:
    """Plan it; what was measured as JSON."""
    evening, request, facts = world(), RotateNight(policy()), catalog()
    started = time.process_time()
    plan = request.plan(evening, facts, EVENING)
    cpu_s = time.process_time() - started
    said = {
        "cpu_s": cpu_s,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "started": sum(1 for step in plan.steps if isinstance(step, PowerOnVm)),
        "suspended": sum(1 for step in plan.steps if isinstance(step, SuspendVm)),
    }
    print(json.dumps(said))


if __name__ == "__main__" and sys.argv[1:]:
    main()
