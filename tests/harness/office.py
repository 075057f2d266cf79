"""Small vCenters and policies as plain data: scenarios of `gpuops sim serve` for tests that play whole nights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

EVENING: Final = datetime(2026, 11, 2, 18, 0, tzinfo=UTC)
"""When each of them begins, by all clocks."""
MMIO: Final = {"pciPassthru.use64bitMMIO": "TRUE", "pciPassthru.64bitMMIOSizeGB": "128"}
"""What a VM with a whole A40 needs."""

IDLE_MHZ, LIMIT_MHZ, BUSY_MHZ = 60, 500, 5200
FREE = "esx-01"
"""Each of its desktops may be suspended, in every night: there is always something to do, and somebody to kill."""
SPOILED = 0.2
"""In every other world: the share of the desktops elsewhere that opted out, of those that are off, and of the busy."""


def desktop(number: int, host: str, **keys: Any) -> dict[str, Any]:
    return {
        "name": f"vdi-{number:02}", "folder": "vdi", "on": host, "guest": "windows", "cpus": 4, "memory_gib": 8,
        "disk_gib": 80, "devices": [{"vgpu": "nvidia_a40-8q"}], "power": "on", "cpu_usage_mhz": 60,
        "attributes": {"gpuops.owner": "office"}, **keys,
    }  # fmt: skip


def ml_vm(number: int, host: str, **keys: Any) -> dict[str, Any]:
    return {
        "name": f"ml-{number:02}", "folder": "ml", "on": host, "guest": "ubuntu", "cpus": 8, "memory_gib": 64,
        "disk_gib": 200, "devices": [{"vgpu": "nvidia_a40-48c"}], "power": "off", "extra_config": MMIO, **keys,
    }  # fmt: skip


def small_vm(name: str, host: str, **keys: Any) -> dict[str, Any]:
    """A VM without a GPU."""
    return {"name": name, "on": host, "guest": "ubuntu", "cpus": 1, "memory_gib": 1, "disk_gib": 1, **keys}


def gpu(at: str = "0000:3b:00.0", **keys: Any) -> dict[str, Any]:
    return {"board": "a40", "at": at, "node": 0, **keys}


def hosts(count: int = 2, *, gpus: Sequence[Mapping[str, Any]] = (gpu(),), **keys: Any) -> dict[str, Any]:
    """So many equal hosts esx-01... with these GPUs; `keys` are keys of a host in the scenario file."""
    return {
        "name": "esx-{:02}", "count": count, "model": "server", "driver": "550.90.05", "policy": "performance",
        "gpus": list(gpus), **keys,
    }  # fmt: skip


def scenario(
    vms: Sequence[Mapping[str, Any]],
    *groups: Mapping[str, Any],
    memory_gib: int = 512,
    guests: Mapping[str, Any] | None = None,
    drs: str | None = "manual",
    **keys: Any,
) -> dict[str, Any]:
    """One cluster with these groups of hosts (default: two hosts) and VMs; `keys` are top-level keys of the file."""
    server = {"vendor": "Dell Inc.", "model": "R750xa", "cpu": "Xeon", "cores_per_socket": 32, "cpu_mhz": 2000}
    return {
        "description": "a small office",
        "start": EVENING.isoformat(),
        "datacenter": "dc",
        "models": {"server": {**server, "memory_gib": memory_gib}},
        "guests": {
            "windows": {"id": "windows11_64Guest", "name": "Windows 11", "linux": False},
            "ubuntu": {"id": "ubuntu64Guest", "name": "Ubuntu"},
            "bare": {"id": "ubuntu64Guest", "name": "Ubuntu", "tools": False},
            **(guests or {}),
        },
        "datastores": [{"name": "ds-1", "capacity_gib": 65536, "free_gib": 65536}],
        "networks": ["VM Network"],
        "clusters": [{"name": "c", "drs": drs, "hosts": list(groups or [hosts()])}],
        "vms": list(vms),
        **keys,
    }


def policy(
    *queue: dict[str, Any] | str, parked: bool = True, pool: Mapping[str, Any] | None = None, **keys: Any
) -> dict[str, Any]:
    """Return a policy for the desktops of the folder vdi; `pool` are keys of their pool, `keys` top-level keys."""
    entries = [{"vm": entry} if isinstance(entry, str) else entry for entry in queue or ("ml-01", "ml-02")]
    ml = {"queue": entries, "stop": {"grace_s": 60, "then": "power-off"}, **keys.pop("ml", {})}
    office = {
        "name": "office",
        "parked": parked,
        "select": {"folder": "vdi"},
        "idle": {"cpu_below_mhz": 500},
        "owner": {"attribute": "gpuops.owner", "value": "office"},
        **(pool or {}),
    }
    return {
        "version": 1,
        "name": "office-nights",
        "windows": "any",
        "pools": [office],
        "ml": ml,
        "limits": {"in_flight": 1},
        "marker": "gpuops.rotation",
        **keys,
    }


def drawn_office(dice: Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a scenario and a policy. One of the two hosts has nothing in a night's way."""
    hosts, vms = [FREE, "esx-02"], list[dict[str, Any]]()
    spoiled = {FREE: 0.0, "esx-02": SPOILED if dice.random() < 0.5 else 0.0}
    for host in hosts:
        for _ in range(dice.randint(3, 6)):
            vms.append(_drawn_desktop(len(vms) + 1, host, spoiled[host], dice))
    queue = [ml_vm(number, host) for number, host in enumerate(hosts, 1)]
    stranger = ml_vm(1, FREE, name="bare", folder="misc", devices=[], power="on")
    select = {"folder": "vdi"} if dice.random() < 0.5 else {"name": "vdi-*"}
    night = policy(
        *(vm["name"] for vm in queue),
        pool={"select": select, "idle": {"cpu_below_mhz": LIMIT_MHZ}, "floor": 0},
        opt_out={"attribute": "gpuops.opt-out"},
        limits={"in_flight": dice.choice((1, 2, 4)), "per_host": 2},
    )
    return scenario([*vms, *queue, stranger], drs="partiallyAutomated"), night


def _drawn_desktop(number: int, host: str, spoiled: float, dice: Random) -> dict[str, Any]:
    attributes = {"gpuops.owner": "office"}
    opted_out, off, busy = (dice.random() < spoiled for _ in range(3))
    if opted_out:
        attributes["gpuops.opt-out"] = "true"
    power, cpu_mhz = "off" if off else "on", BUSY_MHZ if busy else IDLE_MHZ
    return desktop(number, host, power=power, cpu_usage_mhz=cpu_mhz, attributes=attributes)
