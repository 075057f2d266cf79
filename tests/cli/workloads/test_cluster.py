"""`gpuops cluster` as typed, on a simulated vCenter that keeps what was made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyVmomi import vim
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.model.vcenter.task import TaskRef
from gpuops.sim.server import SimServer, start
from gpuops.sim.wire import ready_file
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of

TEMPLATE = Path(__file__).parents[3] / "templates" / "cluster.yaml"
MAKE = ("cluster", "create", "--file")


@dataclass(frozen=True)
class Typed:
    """The command line pointed at the scenario `training`."""

    server: SimServer
    ready: Path
    file: Path
    """templates/cluster.yaml with two nodes."""

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--vcenter", f"sim@{self.ready}"])

    def told(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """The document that it prints."""
        found = self.run(*arguments, "--output", "json")
        assert found.exit_code == code, found.output
        document: dict[str, Any] = json.loads(found.stdout)
        return document

    def changed(self, old: str, new: str) -> str:
        """The path of the file with other words in it."""
        text = self.file.read_text(encoding="utf-8")
        assert old in text
        other = self.file.with_name("other.yaml")
        other.write_text(text.replace(old, new), encoding="utf-8")
        return str(other)

    @property
    def vms(self) -> list[str]:
        with self.server.world.lock:
            return sorted(vm.name for vm in self.server.world.by_type("VirtualMachine"))


@pytest.fixture
def typed(tmp_path: Path) -> Iterator[Typed]:
    file = tmp_path / "cluster.yaml"
    file.write_text(TEMPLATE.read_text(encoding="utf-8").replace("nodes: 4 ", "nodes: 2 "), encoding="utf-8")
    with start("training", clock="virtual") as server:
        ready = tmp_path / "ready.json"
        ready_file.write(ready, ready_file.of(server))
        yield Typed(server, ready, file)
        assert server.world.bugs == []


def test_a_cluster_is_made_shown_and_removed(typed: Typed) -> None:
    make = (*MAKE, str(typed.file), "--yes")
    planned = typed.told(*MAKE, str(typed.file), "--dry-run")
    assert (planned["applied"], planned["changed"], planned["feasible"]) == (False, True, True)
    assert typed.vms == ["old-trainer", "trainer"]
    assert typed.told("cluster", "show")["clusters"] == []
    made = typed.run(*make)
    assert made.exit_code == 0, made.output
    assert "cluster train runs: 2 VMs" in made.stdout
    again = typed.told(*make)
    assert (again["applied"], again["changed"]) == (True, False)
    assert [each["does"] for each in again["members"]] == [[], []]
    [shown] = typed.told("cluster", "show", "--name", "train")["clusters"]
    assert (shown["whole"], shown["nodes"], [each["rdma"] for each in shown["members"]]) == (True, 2, ["pvrdma"] * 2)
    text = typed.run("cluster", "show", "--file", str(typed.file))
    assert "train: 2 VMs, runs" in text.stdout
    with Connection(target_of(typed.server)) as connection:
        [ref] = [vm.ref for vm in connection.inventory().vms.values() if vm.name == "train-00"]
        unlocked = vim.vm.ConfigSpec(
            memoryReservationLockedToMax=False, memoryAllocation=vim.ResourceAllocationInfo(reservation=65536 - 1024)
        )
        task = connection.vm(ref).ReconfigVM_Task(unlocked)
        assert [end.error for end in connection.wait([TaskRef(task._moId)], 600.0)] == [None]
    edited = typed.run(*make)
    assert "nothing to do" in edited.stdout
    assert "warning: train-00: has 64512 MiB of its 65536 MiB of memory reserved" in edited.stdout
    to_remove = typed.told("cluster", "delete", "--name", "train", "--dry-run")
    assert [each["name"] for each in to_remove["vms"]] == ["train-00", "train-01"]
    assert (to_remove["applied"], to_remove["changed"]) == (False, True)
    removed = typed.run("cluster", "delete", "--file", str(typed.file), "--yes")
    assert removed.stdout.splitlines() == ["removed: train-00", "removed: train-01"]
    assert typed.vms == ["old-trainer", "trainer"]
    gone = typed.told("cluster", "delete", "--name", "train", "--yes")
    assert (gone["vms"], gone["changed"]) == ([], False)


def test_nothing_is_made_or_removed_where_nobody_is_asked(typed: Typed) -> None:
    asked = typed.run(*MAKE, str(typed.file))
    assert asked.exit_code == 2
    assert "makes and starts VMs, and nobody is there to ask" in asked.stderr
    assert typed.vms == ["old-trainer", "trainer"]
    assert typed.run(*MAKE, str(typed.file), "--yes").exit_code == 0
    asked = typed.run("cluster", "delete", "--name", "train")
    assert asked.exit_code == 2
    assert "the VMs above are removed, and nobody is there to ask" in asked.stderr
    assert "train-00" in typed.vms


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("template: trainer", "template: old-trainer", "old-trainer: firmware: BIOS"),
        ("port_group: rdma-vm", "port_group: sriov-vm", "is not on switch dvs-sriov"),
        ("nodes: 2", "nodes: 40", "train: VMs that hosts have room for: needs 40, 12 there"),
    ],
)
def test_what_cannot_be_is_one_line_with_exit_code_3(typed: Typed, old: str, new: str, said: str) -> None:
    file = typed.changed(old, new)
    refused = typed.run(*MAKE, file, "--yes")
    assert refused.exit_code == 3
    assert any(said in line for line in refused.stdout.splitlines())
    told = typed.told(*MAKE, file, "--yes", code=3)
    assert (told["feasible"], told["applied"], told["changed"]) == (False, False, False)
    assert told["rejections"]
    assert typed.vms == ["old-trainer", "trainer"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cluster", "show", "--name", "none"), "there is no cluster 'none'"),
        (("cluster", "delete", "--yes"), "which cluster is not said"),
        (("cluster", "delete", "--yes", "--name", "a", "--file", str(TEMPLATE)), "exclude each other"),
        (("cluster", "create", "--file", "/nowhere.yaml", "--yes"), "/nowhere.yaml"),
    ],
)
def test_what_means_nothing_is_one_line(typed: Typed, arguments: tuple[str, ...], said: str) -> None:
    wrong = typed.run(*arguments)
    assert wrong.exit_code == 2
    assert len(wrong.stderr.strip().splitlines()) <= 2
    assert said in wrong.stderr
    assert typed.vms == ["old-trainer", "trainer"]
