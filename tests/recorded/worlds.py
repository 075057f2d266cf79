"""Small vCenters and policies for recorded states, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

EVENING: Final = datetime(2026, 11, 2, 18, 0, tzinfo=UTC)
"""When each of them begins, by all clocks."""
MMIO: Final = {"pciPassthru.use64bitMMIO": "TRUE", "pciPassthru.64bitMMIOSizeGB": "128"}


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


def gpu(at: str = "0000:3b:00.0", **keys: Any) -> dict[str, Any]:
    return {"board": "a40", "at": at, "node": 0, **keys}


def scenario(
    vms: Sequence[dict[str, Any]],
    *,
    hosts: int = 2,
    gpus: Sequence[dict[str, Any]] = (gpu(),),
    guests: dict[str, Any] | None = None,
    drs: str = "manual",
    **keys: Any,
) -> dict[str, Any]:
    """`hosts` like hosts esx-01... with these GPUs and these VMs; `keys` are keys of the scenario file."""
    server = {"vendor": "Dell Inc.", "model": "R750xa", "cpu": "Xeon", "cores_per_socket": 32, "cpu_mhz": 2000}
    return {
        "description": "a recorded state",
        "start": EVENING.isoformat(),
        "datacenter": "dc",
        "models": {"server": {**server, "memory_gib": 512}},
        "guests": {
            "windows": {"id": "windows11_64Guest", "name": "Windows 11", "linux": False},
            "ubuntu": {"id": "ubuntu64Guest", "name": "Ubuntu"},
            "bare": {"id": "ubuntu64Guest", "name": "Ubuntu", "tools": False},
            **(guests or {}),
        },
        "datastores": [{"name": "ds-1", "capacity_gib": 65536, "free_gib": 65536}],
        "networks": ["VM Network"],
        "clusters": [
            {
                "name": "c",
                "drs": drs,
                "hosts": [
                    {
                        "name": "esx-{:02}",
                        "count": hosts,
                        "model": "server",
                        "driver": "550.90.05",
                        "policy": "performance",
                        "gpus": list(gpus),
                    }
                ],
            }
        ],
        "vms": list(vms),
        **keys,
    }


def office(**ml: Any) -> dict[str, Any]:
    """Two hosts with three idle desktops on an A40 each, a busy one, and an ML VM for each A40."""
    vms = [desktop(number, f"esx-{1 + number // 4:02}") for number in range(1, 7)]
    vms.append(desktop(7, "esx-02", cpu_usage_mhz=5200))
    return scenario([*vms, ml_vm(1, "esx-01", **ml), ml_vm(2, "esx-02", **ml)])


def policy(*queue: dict[str, Any] | str, parked: bool = True, **keys: Any) -> dict[str, Any]:
    """A policy for the office; `keys` are keys of it."""
    entries = [{"vm": entry} if isinstance(entry, str) else entry for entry in queue or ("ml-01", "ml-02")]
    ml = {"queue": entries, "stop": {"grace_s": 60, "then": "power-off"}, **keys.pop("ml", {})}
    return {
        "version": 1,
        "name": "office-nights",
        "windows": "any",
        "pools": [
            {
                "name": "office",
                "parked": parked,
                "select": {"folder": "vdi"},
                "idle": {"cpu_below_mhz": 500},
                "owner": {"attribute": "gpuops.owner", "value": "office"},
            }
        ],
        "ml": ml,
        "limits": {"in_flight": 1},
        "marker": "gpuops.rotation",
        **keys,
    }


def fleet(**keys: Any) -> dict[str, Any]:
    """Three hosts, desktops on two of them: one host's desktops fit on the others, one of them cannot be moved."""
    pinned = {"extra_config": {"pciPassthru0.cfg.gpu-pci-id": "0000:3b:00.0"}}
    vms = [
        desktop(1, "esx-01", cpu_usage_mhz=900),
        desktop(2, "esx-01", cpu_usage_mhz=900, **pinned),
        desktop(3, "esx-02", cpu_usage_mhz=900),
        ml_vm(1, "esx-03", devices=[]),
    ]
    return scenario(vms, hosts=3, options={"vgpu.hotmigrate.enabled": True}, **keys)
