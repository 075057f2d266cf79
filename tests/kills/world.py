"""A small world of a seed for the kill loop: a scenario of `sim serve` and a policy, as plain data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tests.harness.office import desktop, ml_vm, policy, scenario

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


def drawn_world(dice: Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a scenario and a policy. One of the two hosts has nothing in a night's way."""
    hosts, vms = [FREE, "esx-02"], list[dict[str, Any]]()
    spoiled = {FREE: 0.0, "esx-02": SPOILED if dice.random() < 0.5 else 0.0}
    for host in hosts:
        for _ in range(dice.randint(3, 6)):
            vms.append(_desktop(len(vms) + 1, host, spoiled[host], dice))
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


def make(seed: int, files: Files) -> Random:
    """Write the world of a seed; return the dice that go on after it."""
    dice = Random(seed)
    declared, night = drawn_world(dice)
    files.folder.mkdir(parents=True)
    files.scenario.write_text(yaml.safe_dump(declared), encoding="utf-8")
    files.policy.write_text(yaml.safe_dump(night), encoding="utf-8")
    evening = [
        {"name": vm["name"], "on": vm["on"], "power": vm["power"], "cpu_mhz": vm.get("cpu_usage_mhz", 0)}
        for vm in declared["vms"]
    ]
    files.evening.write_text(json.dumps(evening), encoding="utf-8")
    return dice


def _desktop(number: int, host: str, spoiled: float, dice: Random) -> dict[str, Any]:
    attributes = {"gpuops.owner": "office"}
    opted_out, off, busy = (dice.random() < spoiled for _ in range(3))
    if opted_out:
        attributes["gpuops.opt-out"] = "true"
    power, cpu_mhz = "off" if off else "on", BUSY_MHZ if busy else IDLE_MHZ
    return desktop(number, host, power=power, cpu_usage_mhz=cpu_mhz, attributes=attributes)
