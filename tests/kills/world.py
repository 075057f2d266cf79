"""A small world of a seed for the kill loop: a scenario of `sim serve` and a policy, as plain data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random

import yaml

from tests.harness.office import drawn_office


@dataclass(frozen=True, slots=True)
class Files:
    """Where the loop puts what it made and saw; `judge.py` reads these files and nothing else.

    As JSON: `evening` (each VM before the first run: name, host, power, CPU), `ledger`, `runs` (each process: what it
    was to do, how it was ended, its exit code, what it printed), `used` (from when on somebody works on a desktop, in
    the simulated vCenter's time), and `mornings` (how many effects and runs there were when each night was over).
    """

    folder: Path

    @property
    def scenario(self) -> Path:
        return self.folder / "scenario.yaml"

    @property
    def policy(self) -> Path:
        return self.folder / "policy.yaml"

    def write(self, name: str, document: object) -> None:
        (self.folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")


def make(seed: int, files: Files) -> Random:
    """Write the world of a seed; return the dice that go on after it."""
    dice = Random(seed)
    declared, night = drawn_office(dice)
    files.folder.mkdir(parents=True)
    files.scenario.write_text(yaml.safe_dump(declared), encoding="utf-8")
    files.policy.write_text(yaml.safe_dump(night), encoding="utf-8")
    evening = [
        {"name": vm["name"], "on": vm["on"], "power": vm["power"], "cpu_mhz": vm.get("cpu_usage_mhz", 0)}
        for vm in declared["vms"]
    ]
    files.write("evening", evening)
    return dice
