"""Site: a small vCenter with desktops, ML VMs, servers and clients of pools, and the policy of its nights, by seed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from gpuops.model.workloads.lease_book import LendingPool, PoolFileWish
from gpuops.sim.scenario.scenario_file import ScenarioFile

FIRST: Final = datetime(2026, 11, 2, 18, 0, tzinfo=UTC)
MINUTE: Final = timedelta(minutes=1)
GRACE: Final = 10 * MINUTE
"""Of the policy: what clients keep of a server that a night takes back; how long before the return they lose another.
"""
OPENS, CLOSES, BACK_BY = 20, 23, 25
"""Hours of a night, counted from the midnight before it."""
WHOLE_MIB: Final = 48 * 1024
"""Of a GPU."""
NETWORK: Final = "VM Network"
TAKEN, KEPT, GIVEN, NIGHT, CLIENT = "gpu-", "kept-", "lend-", "night-", "ds-"
"""How names begin: of servers that nights may take back, that no policy lends, and that nights give; of ML VMs that
run by night alone, and of clients."""
GPUS: Final = 4
"""Of a host, at the most."""
_ADDRESSES: Final = ("0000:3b:00.0", "0000:5e:00.0", "0000:af:00.0", "0000:d8:00.0")
_MODEL: Final = {
    "vendor": "Dell Inc.", "model": "R750xa", "cpu": "Xeon", "cores_per_socket": 32, "cpu_mhz": 2000,
    "memory_gib": 1024,
}  # fmt: skip
_DIRECT: Final = {
    "devices": [{"dynamic": {"boards": ["a40"]}}],
    "extra_config": {"pciPassthru.use64bitMMIO": "TRUE", "pciPassthru.64bitMMIOSizeGB": "128"},
}
"""A whole A40 by DirectPath I/O: such a VM cannot be suspended, and is shut down."""


@dataclass(frozen=True)
class PoolSite:
    """What a seed comes to."""

    declared: ScenarioFile
    policy: str
    """Its text."""
    pools: tuple[PoolFileWish, ...]
    desktops: frozenset[str]
    """Names of all that run in the evening."""
    takeable: frozenset[str]
    """Names of the desktops and servers that a night may take."""
    servers: frozenset[str]
    clients: tuple[str, ...]
    several: bool
    """Whether the program lends several GPUs to one client."""


def site_of(seed: int) -> PoolSite:
    """By turns a pool whose servers nights take back, one whose servers they give, both, and both beside a pool that no
    policy names. Of some the servers have their GPUs by DirectPath I/O."""
    rng, kind = Random(f"{seed}:site"), seed % 4
    taken = [f"{TAKEN}{each:02}" for each in range(1, rng.randint(1, 3) + 1)] if kind != 1 else []
    given = [f"{GIVEN}{each:02}" for each in range(1, rng.randint(1, 2) + 1)] if kind != 0 else []
    kept = [f"{KEPT}01"] if kind == 3 else []
    nights = [f"{NIGHT}{each:02}" for each in range(1, rng.randint(1, 2) + 1)] if taken else []
    clients = tuple(f"{CLIENT}{each:02}" for each in range(1, rng.randint(3, 5) + 1))
    desktops = [f"desktop-{each:03}" for each in range(1, 2 * rng.randint(1, 2) * (2 if given else 1) + 1)]
    idle = {"cpu_usage_mhz": 60, "attributes": {"gpuops.owner": "office"}}
    busy = [{**idle, "cpu_usage_mhz": 4000}, {**idle, "attributes": {"gpuops.opt-out": "yes"}}]
    kinds = {name: rng.choice(busy) if rng.random() < 0.15 else idle for name in desktops}
    whole: dict[str, Any] = {"cpus": 8, "memory_gib": 64, "disk_gib": 100, "devices": [{"vgpu": "nvidia_a40-48c"}]}
    direct = Random(f"{seed}:direct").random() < 0.3
    own = {**whole, **_DIRECT} if direct else whole
    small: dict[str, Any] = {"cpus": 4, "memory_gib": 8, "disk_gib": 80}
    full = [*([each] for each in (*taken, *kept)), *(desktops[each : each + 2] for each in range(0, len(desktops), 2))]
    """The VMs of each GPU."""
    rng.shuffle(full)
    on = {name: f"esx-{1 + number // GPUS:02}" for number, names in enumerate(full) for name in names}
    vms = [
        *(_vm(each, "gpu", on[each], **own, power="on", cpu_usage_mhz=60) for each in (*taken, *kept)),
        *(_vm(each, "vdi", on[each], **small, **kinds[each], power="on", devices=[{"vgpu": "nvidia_a40-24q"}])
          for each in desktops),
        *(_vm(each, "ml", "esx-01", **own, power="off") for each in nights),
        *(_vm(each, "ml", "esx-01", **whole, power="off") for each in given),
        *(_vm(each, "ds", "esx-01", **small, power="on") for each in clients),
    ]  # fmt: skip
    hosts = [
        {"name": f"esx-{1 + first // GPUS:02}", "model": "server", "driver": "550.90.05", "policy": "consolidation",
         "gpus": [{"board": "a40", "at": at, "node": int(at > _ADDRESSES[1]), "mode": "sameSize",
                   "passthrough": direct and names[0].startswith((TAKEN, KEPT))}
                  for at, names in zip(_ADDRESSES, full[first : first + GPUS], strict=False)]}
        for first in range(0, len(full), GPUS)
    ]  # fmt: skip
    scenario = {
        "description": "a night with pools", "start": FIRST, "datacenter": "dc", "models": {"server": _MODEL},
        "guests": {"linux": {"id": "ubuntu64Guest", "name": "Ubuntu"}},
        "datastores": [{"name": "ds-1", "capacity_gib": 65536, "free_gib": 65536}], "networks": [NETWORK],
        "clusters": [{"name": "c", "drs": "manual", "hosts": hosts}], "vms": vms,
    }  # fmt: skip
    lending = ([{"pool": "lab", "by_night": "take-back"}] if taken else []) + (
        [{"pool": "evening", "by_night": "give"}] if given else []
    )
    first = rng.random() < 0.7  # whether servers are taken before desktops
    lenders = {
        "name": "lenders", "parked": True, "owner": "none", "priority": 1 if first else 20,
        "select": {"folder": "gpu", "name": "*"}, "directpath": "shut-down-guest", "idle": {"cpu_below_mhz": 500},
    }  # fmt: skip
    policy = {
        "version": 1, "name": "lending",
        "windows": [{"name": "all", "zone": "UTC", "opens": f"{OPENS}:00", "closes": f"{CLOSES}:00",
                     "back_by": f"{BACK_BY - 24:02}:00"}],
        "pools": [
            *([lenders] if taken else []),  # a night is refused where no VM is in the folder of a pool
            {"name": "office", "parked": True, "owner": "none", "priority": 10,
             "select": {"folder": "vdi", "name": "desktop-*"}, "idle": {"cpu_below_mhz": 500}}],
        "lending": [{**each, "grace": f"{int(GRACE / MINUTE)}m"} for each in lending],
        "ml": {"queue": [{"vm": each, "relocate": True} for each in rng.sample(nights + given, len(nights + given))],
               "stop": {"grace_s": 60, "then": "power-off"}},
    }  # fmt: skip
    program = rng.choice(["lupine", "juice"])
    pools = {"lab": taken, "evening": given, "own": kept}
    return PoolSite(
        ScenarioFile.of(scenario), json.dumps(policy),
        tuple(PoolFileWish(LendingPool(name, NETWORK, program, longest=timedelta(hours=6), grace=GRACE), tuple(servers))
              for name, servers in pools.items() if servers),
        frozenset(desktops), frozenset({each for each in desktops if kinds[each] is idle} | set(taken)),
        frozenset((*taken, *kept, *given)), clients, program == "lupine",
    )  # fmt: skip


def _vm(name: str, folder: str, host: str, **words: Any) -> dict[str, Any]:
    prefix, _, number = name.partition("-")
    pattern = f"{prefix}-{{:0{len(number)}}}"
    return {"name": pattern, "first": int(number), "count": 1, "folder": folder, "on": host, "guest": "linux", **words}
