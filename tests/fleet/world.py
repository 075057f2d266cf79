"""The scenario and the policy of one of several vCenters: hosts with desktops in equal shares, and ML VMs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

DESKTOPS_A_HOST: Final = 32
"""So many vGPUs a GPU has at the most."""
HOSTS_A_DATASTORE: Final = 10
MARKER: Final = "gpuops.rotation"
OPENS, BACK_BY = "21:00", "23:30"
DESKTOP: Final = "vdi-{:04}"


@dataclass(frozen=True, slots=True)
class Size:
    """Of one vCenter."""

    hosts: int
    desktops: int
    ml_vms: int
    """Each takes the only GPU of its host, from all desktops there."""
    memory_gib: int
    """Of a desktop. A datastore writes or reads 1 GiB/s, and a suspend has the 1 GiB of its vGPU to write as well."""
    in_flight: int
    """Operations that the policy allows at once."""


def desktop_names(size: Size) -> list[str]:
    return [DESKTOP.format(number) for number in range(1, size.desktops + 1)]


def scenario(size: Size) -> dict[str, Any]:
    """For `gpuops sim serve`."""
    if size.desktops > size.hosts * DESKTOPS_A_HOST or size.ml_vms > size.hosts:
        raise ValueError(f"{size} does not fit: {DESKTOPS_A_HOST} desktops and one ML VM a host")
    server = {"vendor": "Dell Inc.", "model": "R750xa", "cpu": "Xeon", "cores_per_socket": 32, "cpu_mhz": 2000}
    gpus = [{"board": "a40", "at": "0000:3b:00.0", "node": 0}]
    hosts = {"name": "esx-{:03}", "count": size.hosts, "group": "gpu", "model": "server", "driver": "550.90.05"}
    stores = -(-size.hosts // HOSTS_A_DATASTORE)
    return {
        "description": "one of several vCenters of runners",
        "start": "2026-11-02T18:00:00Z",
        "datacenter": "dc",
        "models": {"server": {**server, "memory_gib": 512}},
        "guests": {
            "windows": {"id": "windows11_64Guest", "name": "Windows 11", "linux": False},
            "ubuntu": {"id": "ubuntu64Guest", "name": "Ubuntu"},
        },
        "datastores": [
            {"name": f"ds-{number}", "capacity_gib": 10**6, "free_gib": 10**6} for number in range(1, stores + 1)
        ],
        "networks": ["VM Network"],
        "clusters": [{"name": "c", "hosts": [{**hosts, "policy": "performance", "gpus": gpus}]}],
        "vms": [
            {
                "name": DESKTOP,
                "count": size.desktops,
                "folder": "vdi",
                "on": "gpu",
                "guest": "windows",
                "cpus": 4,
                "memory_gib": size.memory_gib,
                "disk_gib": 80,
                "devices": [{"vgpu": "nvidia_a40-1q"}],
                "power": "on",
                "cpu_usage_mhz": 60,
            },
            {
                "name": "ml-{:03}",
                "count": size.ml_vms,
                "folder": "ml",
                "on": "gpu",
                "guest": "ubuntu",
                "cpus": 8,
                "memory_gib": 64,
                "disk_gib": 200,
                "devices": [{"vgpu": "nvidia_a40-48c"}],
                "extra_config": {"pciPassthru.use64bitMMIO": "TRUE", "pciPassthru.64bitMMIOSizeGB": "128"},
            },
        ],
    }


def policy(name: str, closes: str, size: Size) -> dict[str, Any]:
    """Every desktop is idle and parked; `closes` is a clock time in UTC."""
    return {
        "version": 1,
        "name": name,
        "windows": [{"opens": OPENS, "closes": closes, "back_by": BACK_BY, "zone": "UTC"}],
        "pools": [
            {
                "name": "office",
                "parked": True,
                "select": {"folder": "vdi"},
                "idle": {"cpu_below_mhz": 500},
                "floor": 0,
                "owner": "none",
            }
        ],
        "ml": {
            "queue": [{"vm": f"ml-{number:03}"} for number in range(1, size.ml_vms + 1)],
            "stop": {"grace_s": 5, "then": "power-off"},
        },
        "limits": {"in_flight": size.in_flight, "per_host": 4},
        "marker": MARKER,
    }
