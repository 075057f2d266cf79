"""Draw a fleet of 60 hosts with 500 desktops and 60 waiting ML VMs, and the policy of its night.

Hosts of two A40. Desktops of four sizes, so that a GPU holds two to eight of them; three in a hundred are in use, and a
sixth of the GPUs is empty. ML VMs take a whole GPU, two, or half of one; half of them may be moved to other hosts.
"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime
from datetime import time as clock
from typing import Any, Final

from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.rotation_policy import IdleRule, Policy, Pool
from gpuops.model.nights.selector import Selector
from gpuops.model.vcenter.host import Datastore
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.window import Window
from tests.plan.snapshots import FIRST, SECOND, gpu, host, inventory, on_gpu, vm

HOSTS: Final = 60
DESKTOPS: Final = 500
ML_VMS: Final = 60
SIZES: Final = {"nvidia_a40-24q": 2, "nvidia_a40-12q": 4, "nvidia_a40-8q": 6, "nvidia_a40-6q": 8}
ML_PROFILES: Final = (("nvidia_a40-48c",),) * 6 + (("nvidia_a40-48c",) * 2, ("nvidia_a40-24c",))
GIB8: Final = 8192
EVENING: Final = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)


def world(seed: int = 2, *, hosts: int = HOSTS, desktops: int = DESKTOPS, ml_vms: int = ML_VMS) -> Inventory:
    """The evening as vCenter shows it."""
    chance = random.Random(seed)
    datastore = Datastore("ds-1", "ssd", free_mib=10**9, accessible=True)
    drawn_hosts = [
        replace(host(f"esx-{number:04}", gpu(FIRST, "a40", 0), gpu(SECOND, "a40", 1)), datastores=("ds-1",))
        for number in range(1, hosts + 1)
    ]
    vms: list[Vm] = []
    places = [(number, address) for number in range(hosts) for address in (FIRST, SECOND)]
    chance.shuffle(places)
    for number, address in places:
        profile = chance.choice(list(SIZES))
        desktops_on_gpu: list[Vm] = []
        for _ in range(min(SIZES[profile], desktops - len(vms))):
            at = len(vms) + len(desktops_on_gpu) + 1
            used = 2000 if chance.random() < 0.03 else 10
            desktops_on_gpu.append(
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
        drawn_hosts[number] = on_gpu(drawn_hosts[number], address, *(desktop.ref for desktop in desktops_on_gpu))
        vms += desktops_on_gpu
    for at in range(ml_vms):
        profiles = ML_PROFILES[at % len(ML_PROFILES)]
        vms.append(_vm(1000 + at, f"ml-{at:02}", chance.randrange(hosts), profiles, PowerState.OFF))
    return replace(inventory(drawn_hosts, vms), datastores={"ds-1": datastore})


def _vm(number: int, name: str, host: int, profiles: tuple[str, ...], power: PowerState, **fields: Any) -> Vm:
    devices = tuple(f"vgpu {profile}" for profile in profiles)
    return vm(number, name, str(host + 1), *devices, power=power, datastores=("ds-1",), **fields)


def policy(ml_vms: int = ML_VMS) -> Policy:
    """All desktops are parked; every other ML VM may be moved."""
    queue = tuple(QueuedVm(f"ml-{at:02}", relocate=at % 2 == 0) for at in range(ml_vms))
    pool = Pool("desks", Selector(name="desk-*"), IdleRule(500), parked=True)
    return Policy("night", (pool,), ml=queue, windows=(Window(clock(20), clock(7), UTC),), digest="d")
