"""A cluster of like hosts with work on them and room for one host's VMs, on a simulated vCenter."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from gpuops.sim.scenario.build import build_declared
from gpuops.sim.scenario.scenario_file import ScenarioFile
from gpuops.sim.world import World

START: Final = datetime(2026, 11, 7, 21, 30, tzinfo=UTC)
"""A Saturday evening."""

ADDRESSES: Final = ("0000:3b:00.0", "0000:af:00.0")
DESKTOP: Final = "nvidia_a40-8q"


def cluster(
    hosts: int,
    vms: Sequence[dict[str, Any]],
    *,
    drs: str = "manual",
    hot_migrate: bool = True,
    gpus: int = 1,
    in_directpath: Sequence[str] = (),
    board: str = "a40",
    mode: str = "sameSize",
    api_version: str | None = None,
    **options: Any,
) -> World:
    """`hosts` like hosts esx-01... of so many GPUs each, those `given` for DirectPath I/O, and these VMs.

    `more` is declared of the cluster.
    """
    return build_declared(
        ScenarioFile.of(
            {
                "description": "a cluster",
                "start": START,
                "api_version": api_version,
                "options": {"vgpu.hotmigrate.enabled": hot_migrate},
                "datacenter": "dc",
                "models": {
                    "server": {
                        "vendor": "Dell Inc.",
                        "model": "R750xa",
                        "cpu": "Xeon",
                        "cores_per_socket": 32,
                        "cpu_mhz": 2000,
                        "memory_gib": 512,
                    }
                },
                "guests": {
                    "windows": {"id": "windows11_64Guest", "name": "Windows 11", "linux": False},
                    "bare": {"id": "ubuntu64Guest", "name": "Ubuntu", "tools": False},
                },
                "datastores": [{"name": "ds-1", "capacity_gib": 65536, "free_gib": 65536}],
                "networks": ["VM Network"],
                "clusters": [
                    {
                        "name": "c",
                        "drs": drs,
                        **options,
                        "hosts": [
                            {
                                "name": "esx-{:02}",
                                "count": hosts,
                                "model": "server",
                                "driver": "550.90.05",
                                "policy": "performance",
                                "gpus": [
                                    {
                                        "board": board,
                                        "mode": mode,
                                        "at": at,
                                        "node": 0,
                                        "passthrough": at in in_directpath,
                                    }
                                    for at in ADDRESSES[:gpus]
                                ],
                            }
                        ],
                    }
                ],
                "vms": list(vms),
            }
        )
    )


def desktops(host: int, count: int, *, first: int, **options: Any) -> dict[str, Any]:
    """Running desktops on one host."""
    return {
        "name": "vdi-{:03}",
        "first": first,
        "count": count,
        "folder": "vdi",
        "on": f"esx-{host:02}",
        "guest": "windows",
        "cpus": 4,
        "memory_gib": 8,
        "disk_gib": 80,
        "devices": [{"vgpu": DESKTOP}],
        "power": "on",
        "cpu_usage_mhz": 900,
        **options,
    }
