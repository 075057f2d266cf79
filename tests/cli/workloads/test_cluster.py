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
from gpuops.sim.wire import sim_client
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
        completed = self.run(*arguments, "--output", "json")
        assert completed.exit_code == code, completed.output
        document: dict[str, Any] = json.loads(completed.stdout)
        return document

    def changed(self, old: str, new: str) -> str:
        """The path of the file with other words in it."""
        text = self.file.read_text(encoding="utf-8")
        assert old in text
        changed_file = self.file.with_name("other.yaml")
        changed_file.write_text(text.replace(old, new), encoding="utf-8")
        return str(changed_file)

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
        sim_client.write(ready, sim_client.of(server))
        yield Typed(server, ready, file)
        assert server.world.bugs == []


def test_a_cluster_is_made_shown_and_removed(typed: Typed) -> None:
    make = (*MAKE, str(typed.file), "--yes")
    planned = typed.told(*MAKE, str(typed.file), "--dry-run")
    assert (planned["applied"], planned["changed"], planned["feasible"]) == (False, True, True)
    assert typed.vms == ["old-trainer", "trainer"]
    assert typed.told("cluster", "show")["clusters"] == []
    creation = typed.run(*make)
    assert creation.exit_code == 0, creation.output
    assert "cluster train runs: 2 VMs" in creation.stdout
    second_creation = typed.told(*make)
    assert (second_creation["applied"], second_creation["changed"]) == (True, False)
    assert [member["does"] for member in second_creation["members"]] == [[], []]
    [cluster] = typed.told("cluster", "show", "train")["clusters"]
    assert (cluster["whole"], cluster["nodes"], [member["rdma"] for member in cluster["members"]]) == (
        True,
        2,
        ["pvrdma"] * 2,
    )
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
    to_remove = typed.told("cluster", "delete", "train", "--dry-run")
    assert [vm_row["name"] for vm_row in to_remove["vms"]] == ["train-00", "train-01"]
    assert (to_remove["applied"], to_remove["changed"]) == (False, True)
    removed = typed.run("cluster", "delete", "--file", str(typed.file), "--yes")
    assert removed.stdout.splitlines() == ["removed: train-00", "removed: train-01"]
    assert typed.vms == ["old-trainer", "trainer"]
    second_deletion = typed.told("cluster", "delete", "train", "--yes")
    assert (second_deletion["vms"], second_deletion["changed"]) == ([], False)


@pytest.mark.long
def test_nothing_is_made_or_removed_where_nobody_is_asked(typed: Typed) -> None:
    unattended = typed.run(*MAKE, str(typed.file))
    assert unattended.exit_code == 2
    assert "makes and starts VMs, and there is no terminal to ask at" in unattended.stderr
    assert typed.vms == ["old-trainer", "trainer"]
    assert typed.run(*MAKE, str(typed.file), "--yes").exit_code == 0
    unattended = typed.run("cluster", "delete", "train")
    assert unattended.exit_code == 2
    assert "the VMs above are removed, and there is no terminal to ask at" in unattended.stderr
    assert "train-00" in typed.vms


HOSTS = "esx-01.trn, esx-02.trn, esx-03.trn"
EFI = "install the guest of a new template under EFI: one made under BIOS does not start with it"
UNTAGGED = "esx-04.trn: VMkernel adapter: none is tagged for paravirtual RDMA"
TAG = "tag a VMkernel adapter on that switch: advanced setting Net.PVRDMAVmknic"
ROOM = "train: VMs that hosts have room for: needs"
SLOTS = "room for grid_a100d-80c: needs 9 slots, 4 there"
LESS = "change in the file what each VM gets: gpus, cpus, memory, datastore"


@pytest.mark.long
@pytest.mark.parametrize(
    ("old", "new", "lines", "hosts"),
    [
        (
            "template: trainer",
            "template: old-trainer",
            [
                f"old-trainer: firmware: BIOS, where EFI is needed (next: {EFI})",
                (
                    "old-trainer: virtual hardware: vmx-11; paravirtual RDMA needs vmx-13 (next: "
                    "upgrade it (vSphere Client: Compatibility))"
                ),
            ],
            0,
        ),
        (
            "port_group: rdma-vm",
            "port_group: sriov-vm",
            [
                (
                    f"{HOSTS}: VMkernel adapter: vmk1, which is tagged, is not on switch dvs-sriov; "
                    f"{UNTAGGED} (next: {TAG})"
                ),
            ],
            4,
        ),
        (
            "kind: pvrdma",
            "kind: sriov",
            [
                (
                    f"{HOSTS} and 1 more: SR-IOV: vmnic2 has no free virtual function (next: enable SR-IOV on it, "
                    "with as many functions as VMs, or free some)"
                )
            ],
            4,
        ),
        (
            "port_group: rdma-vm",
            "port_group: none-such",
            [
                (
                    "none-such: port group: there is no such distributed port group; there: rdma-vm, rdma-vmk, "
                    "sriov-vm (next: name another one in the file: rdma.port_group)"
                )
            ],
            0,
        ),
        (
            "nodes: 2",
            "nodes: 40",
            [
                (
                    f"{ROOM} 40, 12 there; {HOSTS}: takes 4 of the VMs, and has GPUs for no more; {UNTAGGED} (next: "
                    "ask for 12 nodes or fewer)"
                )
            ],
            4,
        ),
        (
            "  count: 1",
            "  count: 9",
            [f"{ROOM} 2, 0 there; {HOSTS}: takes none: {SLOTS}; {UNTAGGED} (next: {LESS})"],
            4,
        ),
        (
            "  profile: a100d-80c",
            "  model: h100",
            [
                (
                    "train: no host has a GPU of model h100 (next: gpuops inventory --hosts shows the GPUs of each; "
                    "name one in the file: gpus.model)"
                )
            ],
            0,
        ),
    ],
    ids=["no EFI", "another switch", "no virtual function", "no port group", "nodes", "GPUs of a VM", "model"],
)
def test_each_thing_wrong_is_one_line_with_exit_code_3_and_nothing_is_made(
    typed: Typed, old: str, new: str, lines: list[str], hosts: int
) -> None:
    file = typed.changed(old, new)
    for last in ("--yes", "--dry-run"):
        refused = typed.run(*MAKE, file, last)
        assert (refused.exit_code, refused.stdout) == (3, "")
        assert refused.stderr.splitlines() == [f"error: {line}" for line in lines]
    refusal = typed.told(*MAKE, file, "--yes", code=3)
    assert (refusal["feasible"], refusal["applied"], refusal["changed"]) == (False, False, False)
    assert (
        len({rejection["subject"] for rejection in refusal["rejections"] if rejection["subject"].startswith("esx-")})
        == hosts
    )
    assert typed.vms == ["old-trainer", "trainer"]
    assert len(typed.server.world.ledger) == 0


@pytest.mark.long
def test_vms_of_another_file_and_more_ranks_than_gpus_are_one_line_each(typed: Typed) -> None:
    assert typed.run(*MAKE, str(typed.file), "--yes").exit_code == 0
    before = len(typed.server.world.ledger)
    refusal = typed.run(*MAKE, typed.changed("nodes: 2", "nodes: 3"), "--yes")
    assert (refusal.exit_code, refusal.stdout) == (3, "")
    assert refusal.stderr == (
        "error: train-00, train-01: belongs to a cluster train that was made from another version of the file "
        "(next: gpuops cluster delete train removes it)\n"
    )
    ranks = typed.run("cluster", "run", "train", "--ranks", "9", "--dry-run", "true")
    assert (ranks.exit_code, ranks.stdout) == (3, "")
    assert ranks.stderr.splitlines()[0] == (
        "error: train: more ranks than GPUs: needs 9 GPUs, 2 there (next: --ranks 2 is the maximum: each rank "
        "needs its own GPU)"
    )
    assert [line for line in ranks.stderr.splitlines()[1:] if "there is no login for guests" not in line] == []
    assert len(typed.server.world.ledger) == before


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("cluster", "show", "none"), "there is no cluster 'none'"),
        (("cluster", "delete", "--yes"), "no cluster is named"),
        (("cluster", "delete", "--yes", "a", "--file", str(TEMPLATE)), "exclude each other"),
        (("cluster", "create", "--file", "/nowhere.yaml", "--yes"), "/nowhere.yaml"),
        (("template: trainer", "template: none-such"), "no VM 'none-such'"),
        (("a100d-80c  ", "a100d-81c  "), "no host offers a vGPU profile 'a100d-81c'; near: "),
        (("nodes: 2", "nodes: 0"), "nodes: should be 1 or more"),
        (("nodes: 2", "nodes: 101"), "nodes: should be 100 or less"),
        (("  count: 1", "  count: 0"), "gpus.count: should be 1 or more"),
        (("nodes: 2", "nodes: 2\nnodez: 3"), "nodez"),
    ],
)
def test_what_means_nothing_is_one_line(typed: Typed, arguments: tuple[str, ...], reason: str) -> None:
    """Words of a file stand with those that take their place."""
    if arguments[0] != "cluster":
        arguments = (*MAKE, typed.changed(*arguments), "--yes")
    wrong = typed.run(*arguments)
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    first, next_move = wrong.stderr.splitlines()
    assert (first.startswith("error: "), reason in first, next_move.startswith("next: ")) == (True, True, True)
    assert typed.vms == ["old-trainer", "trainer"]
    assert len(typed.server.world.ledger) == 0
