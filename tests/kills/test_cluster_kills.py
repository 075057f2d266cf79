"""Real `gpuops cluster` processes that are killed on their way, against a simulated vCenter in a process of its own.

What is left is judged by the vCenter's ledger alone: each VM that came has gone, and while it was there its notes said
whose it was. `tests/wire/workloads/test_cluster_cut_off.py` cuts calls off in 500 schedules, within one process.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.harness.simulator import ROOT
from tests.kills.loop import Loop

SCENARIO: Final = ROOT / "gpuops" / "sim" / "scenarios" / "training.yaml"
CLUSTER: Final = """\
version: 1
name: train
template: trainer
nodes: 3
gpus: {profile: a100d-80c}
rdma: {kind: sriov, port_group: sriov-vm}
placement: spread
"""
OWNER: Final = re.compile(r"Made by gpuops cluster create: rank \d of 3, cluster train, id [0-9a-f]{8}\.")
SEEDS: Final = 20


@dataclass(slots=True)
class ClusterLoop(Loop):
    """Calls that make and remove a cluster, killed after so many writes to the journal."""

    def play_cluster(self, kills: int) -> list[dict[str, Any]]:
        """The ledger, after so many kills and one undisturbed removal."""
        dice = Random(self.seed)
        file = self.folder / "cluster.yaml"
        file.write_text(CLUSTER, encoding="utf-8")
        with self.serving(SCENARIO):
            for _ in range(kills):
                self._call(dice.choices(("create", "delete"), (4, 1))[0], file, dice)
            if dice.random() < 0.5 or not _has_made(self.vcenter.ledger()):  # some are all killed before their first VM
                assert self._call("create", file) == 0, self.runs[-1]["said"]
                assert self._call("create", file) == 0, self.runs[-1]["said"]
                assert "nothing to do" in self.runs[-1]["said"]
            assert self._call("delete", file) == 0, self.runs[-1]["said"]
            return self.vcenter.ledger()

    def _call(self, verb: str, file: Path, dice: Random | None = None) -> int:
        disturb = None if dice is None else lambda process: self._kill(process, dice)
        return self.run(verb, ["cluster", verb, "--file", str(file)], disturb)

    def _kill(self, process: subprocess.Popen[str], dice: Random) -> str:
        self.wait_for_writes(process, dice.randint(1, 14), 60.0, dice.uniform(0, 0.3))
        if process.poll() is not None:
            return ""
        process.send_signal(signal.SIGKILL)
        self.kills += 1
        return signal.SIGKILL.name


def _has_made(ledger: list[dict[str, Any]]) -> bool:
    return any(OWNER.search(json.dumps(change["after"])) for change in ledger)


def broken(ledger: list[dict[str, Any]]) -> list[str]:
    """VMs that came without an owner, or that are still there."""
    created_vms = {
        change["moid"]: change
        for change in ledger
        if change["object_type"] == "VirtualMachine" and not change["before"]
    }
    removed_vms = {
        change["moid"] for change in ledger if change["object_type"] == "VirtualMachine" and not change["after"]
    }
    problems = [f"{creation['name']} is left" for moid, creation in created_vms.items() if moid not in removed_vms]
    problems += [
        f"{creation['name']} has no owner"
        for creation in created_vms.values()
        if not OWNER.search(json.dumps(creation["after"]))
    ]
    return problems + [f"{moid} was removed without having been created" for moid in removed_vms - created_vms.keys()]


def check_seed(seed: int, folder: Path, kills: int) -> None:
    loop = ClusterLoop(seed, folder)
    ledger = loop.play_cluster(kills)
    assert _has_made(ledger), f"seed {seed}: nothing was ever made"
    assert broken(ledger) == [], f"seed {seed}: {loop.runs}"
    assert loop.kills, f"seed {seed}: no call was killed"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_call_that_is_killed_is_gone_on_with(tmp_path: Path) -> None:
    check_seed(3, tmp_path, 2)


@pytest.mark.drawn_cases(20)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(100, 100 + SEEDS))
def test_calls_are_killed_again_and_again(seed: int, tmp_path: Path) -> None:
    check_seed(seed, tmp_path, 6)
