"""A small world of a seed for the kill loop: a scenario of `sim serve` and a policy, as plain data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

IDLE_MHZ, LIMIT_MHZ, BUSY_MHZ = 60, 500, 5200
FREE = "esx-01"
"""Each of its desktops may be suspended, in every night: there is always something to do, and somebody to kill."""
SPOILED = 0.2
"""In every other world: the share of the desktops elsewhere that opted out, of those that are off, and of the busy."""


@dataclass(frozen=True, slots=True)
class Files:
    """Where the loop puts what it made and saw; `judge.py` reads these and nothing else."""

    folder: Path

    @property
    def scenario(self) -> Path:
        return self.folder / "scenario.yaml"

    @property
    def policy(self) -> Path:
        return self.folder / "policy.yaml"

    @property
    def evening(self) -> Path:
        """Each VM before the first run: name, host, power, CPU."""
        return self.folder / "evening.json"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.json"

    @property
    def runs(self) -> Path:
        """Each process: what it was to do, how it was ended, its exit code, what it printed."""
        return self.folder / "runs.json"

    @property
    def mornings(self) -> Path:
        """How many entries of the ledger and how many runs there were when each night was over."""
        return self.folder / "mornings.json"

    @property
    def used(self) -> Path:
        """From when on somebody works on a desktop: name and moment of the simulated vCenter."""
        return self.folder / "used.json"


def make(seed: int, files: Files) -> Random:
    """Writes the world of a seed; the dice that go on after it. One of the two hosts has nothing in a night's way."""
    dice = Random(seed)
    hosts, vms = [FREE, "esx-02"], list[dict[str, Any]]()
    spoiled = {FREE: 0.0, "esx-02": SPOILED if dice.random() < 0.5 else 0.0}
    for host in hosts:
        for _ in range(dice.randint(3, 6)):
            vms.append(_desktop(len(vms) + 1, host, spoiled[host], dice))
    queue = [_ml(number, host) for number, host in enumerate(hosts, 1)]
    stranger = {**_ml(1, hosts[0]), "name": "bare", "folder": "misc", "devices": [], "power": "on"}
    files.folder.mkdir(parents=True)
    files.scenario.write_text(yaml.safe_dump(_scenario(hosts, [*vms, *queue, stranger])), encoding="utf-8")
    files.policy.write_text(yaml.safe_dump(_policy(queue, dice)), encoding="utf-8")
    told = [
        {"name": vm["name"], "on": vm["on"], "power": vm["power"], "cpu_mhz": vm.get("cpu_usage_mhz", 0)}
        for vm in (*vms, *queue, stranger)
    ]
    files.evening.write_text(json.dumps(told), encoding="utf-8")
    return dice


def _desktop(number: int, host: str, spoiled: float, dice: Random) -> dict[str, Any]:
    attributes = {"gpuops.owner": "office"}
    opted_out, off, busy = (dice.random() < spoiled for _ in range(3))
    if opted_out:
        attributes["gpuops.opt-out"] = "true"
    return {
        "name": f"vdi-{number:02}",
        "folder": "vdi",
        "on": host,
        "guest": "windows",
        "cpus": 4,
        "memory_gib": 8,
        "disk_gib": 80,
        "devices": [{"vgpu": "nvidia_a40-8q"}],
        "power": "off" if off else "on",
        "cpu_usage_mhz": BUSY_MHZ if busy else IDLE_MHZ,
        "attributes": attributes,
    }


def _ml(number: int, host: str) -> dict[str, Any]:
    return {
        "name": f"ml-{number:02}",
        "folder": "ml",
        "on": host,
        "guest": "ubuntu",
        "cpus": 8,
        "memory_gib": 64,
        "disk_gib": 200,
        "devices": [{"vgpu": "nvidia_a40-48c"}],
        "power": "off",
        "extra_config": {"pciPassthru.use64bitMMIO": "TRUE", "pciPassthru.64bitMMIOSizeGB": "128"},
    }


def _scenario(hosts: list[str], vms: list[dict[str, Any]]) -> dict[str, Any]:
    server = {"vendor": "Dell Inc.", "model": "R750xa", "cpu": "Xeon", "cores_per_socket": 32, "cpu_mhz": 2000}
    gpus = [{"board": "a40", "at": "0000:3b:00.0", "node": 0}]
    declared = [
        {"name": name, "model": "server", "driver": "550.90.05", "policy": "performance", "gpus": gpus}
        for name in hosts
    ]
    return {
        "description": "a small world for the kill loop",
        "start": "2026-11-02T18:00:00Z",
        "datacenter": "dc",
        "models": {"server": {**server, "memory_gib": 512}},
        "guests": {
            "windows": {"id": "windows11_64Guest", "name": "Windows 11", "linux": False},
            "ubuntu": {"id": "ubuntu64Guest", "name": "Ubuntu"},
        },
        "datastores": [{"name": "ds-1", "capacity_gib": 65536, "free_gib": 65536}],
        "networks": ["VM Network"],
        "clusters": [{"name": "c", "hosts": declared}],
        "vms": vms,
    }


def _policy(queue: list[dict[str, Any]], dice: Random) -> dict[str, Any]:
    return {
        "version": 1,
        "name": "loop",
        "windows": "any",  # its runs have no terminal
        "pools": [
            {
                "name": "office",
                "parked": True,
                "select": {"folder": "vdi"} if dice.random() < 0.5 else {"name": "vdi-*"},
                "idle": {"cpu_below_mhz": LIMIT_MHZ},
                "floor": 0,
                "owner": {"attribute": "gpuops.owner", "value": "office"},
            }
        ],
        "opt_out": {"attribute": "gpuops.opt-out"},
        "ml": {"queue": [{"vm": vm["name"]} for vm in queue], "stop": {"grace_s": 60, "then": "power-off"}},
        "limits": {"in_flight": dice.choice((1, 2, 4)), "per_host": 2},
        "marker": "gpuops.rotation",
    }
