"""Names with `/`, `\\` and `%`, which vCenter hands out as %2f, %5c and %25: real everywhere but on the wire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from gpuops.errors import Refused, UsageError, VmAmbiguous
from gpuops.execute.site.host_shell import with_vgpus
from gpuops.execute.site.site import catalog_of
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.nights.selector import Selector
from gpuops.model.vcenter.host_settings import SmiState, SmiVgpu
from gpuops.plan.core.steps import CreateVm
from gpuops.plan.vm.clone import Clone
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of

if TYPE_CHECKING:
    from gpuops.execute.site.host_shell import HostShell

WORLD = r"""
description: names with slashes, backslashes and percent signs
start: 2026-11-02T18:00:00Z
datacenter: "dc/1"
models:
  s: {vendor: Dell Inc., model: R750xa, cpu: Xeon, cores_per_socket: 32, cpu_mhz: 2000, memory_gib: 1024}
guests:
  ubuntu: {id: ubuntu64Guest, name: Ubuntu Linux (64-bit)}
datastores: [{name: "ds\\1", capacity_gib: 20480, free_gib: 8192}]
networks: [VM Network]
switches: [{name: "dvs/1", groups: ["rdma/vm", "100%"]}]
clusters:
  - name: "GPU DEV/QA"
    hosts:
      - {name: "esx%1", model: s, driver: 550.90.05-1OEM.800.1.0.20613240,
         gpus: [{board: a40, at: "0000:3b:00.0", node: 0, mode: mixedSize}]}
vms:
  - {name: "train/bert", folder: "b%2fteam/a", "on": "esx%1", guest: ubuntu, cpus: 4, memory_gib: 16, disk_gib: 20,
     devices: [{vgpu: nvidia_a40-8q}], power: "on"}
  - {name: "bert", folder: "team%2fa/train", "on": "esx%1", guest: ubuntu, cpus: 4, memory_gib: 16, disk_gib: 20,
     devices: [{vgpu: nvidia_a40-8q}], power: "on"}
  - {name: "bert", folder: "team/a", "on": "esx%1", guest: ubuntu, cpus: 4, memory_gib: 16, disk_gib: 20,
     devices: [{vgpu: nvidia_a40-8q}], power: "on"}
  - {name: "100%25", folder: "b%2fteam/a", "on": "esx%1", guest: ubuntu, cpus: 4, memory_gib: 16, disk_gib: 20,
     devices: [], template: true}
"""


@pytest.fixture
def named_server(serve: Callable[[str], SimServer], tmp_path: Path) -> SimServer:
    path = tmp_path / "world.yaml"
    path.write_text(WORLD, encoding="utf-8")
    return serve(str(path))


def test_objects_of_all_types_have_their_real_names(named_server: SimServer) -> None:
    names = {entity.display_name for kind in ("VirtualMachine", "HostSystem", "Folder", "Datacenter", "Datastore",
             "ClusterComputeResource", "DistributedVirtualPortgroup", "VmwareDistributedVirtualSwitch")
             for entity in named_server.world.by_type(kind)}  # fmt: skip
    assert names > {"dc%2f1", "ds%5c1", "dvs%2f1", "rdma%2fvm", "100%25", "GPU DEV%2fQA", "esx%251", "train%2fbert"}
    with Connection(target_of(named_server)) as connection:
        inventory, networks = connection.inventory(), connection.networks()
    assert [cluster.name for cluster in inventory.clusters.values()] == ["GPU DEV/QA"]
    assert [host.name for host in inventory.hosts.values()] == ["esx%1"]
    assert [store.name for store in inventory.datastores.values()] == ["ds\\1"]
    assert [switch.name for switch in networks.switches] == ["dvs/1"]
    assert [group.name for group in networks.port_groups] == ["rdma/vm", "100%"]
    assert sorted(vm.path for vm in inventory.vms.values()) == [
        "/dc/1/vm/b/team/a/100%", "/dc/1/vm/b/team/a/train/bert", "/dc/1/vm/team/a/bert", "/dc/1/vm/team/a/train/bert"
    ]  # fmt: skip


def test_a_vm_is_found_by_its_real_name_and_by_its_path(named_server: SimServer) -> None:
    with Connection(target_of(named_server)) as connection:
        inventory = connection.inventory()
        observed = connection.observe(inventory, list(inventory.vms))
    for snapshot in (inventory, observed):
        bert = next(vm for vm in snapshot.vms.values() if vm.name == "train/bert")
        assert snapshot.find_vm("/dc/1/vm/b/team/a/train/bert") is bert
        assert snapshot.find_vm("100%").folder == bert.folder == "/dc/1/vm/b/team/a"
        with pytest.raises(VmAmbiguous, match="2 VMs are named 'train/bert'") as two:
            snapshot.find_vm("train/bert")  # the VM of that name, and `bert` in the folder `train`
        assert two.value.message.endswith("/dc/1/vm/b/team/a/train/bert, /dc/1/vm/team/a/train/bert")


@pytest.mark.parametrize(
    ("folder", "vms"),
    [
        ("team/a", ["bert", "bert"]),  # the folder `team/a`, and `a` in `team`; but not `a` in `b/team`
        ("b/team", ["100%", "train/bert"]),
        ("b/team/a", ["100%", "train/bert"]),
        ("/dc/1/vm/b/team", ["100%", "train/bert"]),
        ("/dc/1/vm/team", ["bert"]),
        ("team/a/train", ["bert"]),
        ("1/vm", []),
    ],
)
def test_a_policy_names_folders_by_their_real_names(named_server: SimServer, folder: str, vms: list[str]) -> None:
    with Connection(target_of(named_server)) as connection:
        inventory = connection.inventory()
    selector = Selector(folder=folder)
    assert sorted(vm.name for vm in inventory.vms.values() if selector.selects(vm)) == vms


def test_new_vms_are_written_as_vcenter_writes_names(named_server: SimServer) -> None:
    with Connection(target_of(named_server)) as connection:
        folder = connection.folder_at("/dc/1/vm/b/team/a")
        inventory = connection.inventory()
        cloning = Clone("50%\\2", "100%", folder="/dc/1/vm/b/team/a", datastore="ds\\1").planned(inventory, folder)
        assert cloning.new is not None, cloning.rejections
        task = connection.submit(cloning.new, inventory, "op-1")
        assert task is not None
        assert [end.error for end in connection.wait([task], 60)] == [None]
        host = next(iter(inventory.hosts.values()))
        lock = CreateVm("new:lock 5%", "lock 5%", host.ref, host.name, "ds\\1", "the lock")
        task = connection.submit(lock, inventory, "op-2")
        assert task is not None
        assert [end.error for end in connection.wait([task], 60)] == [None]
        vms_by_name = {vm.name: vm for vm in connection.inventory().vms.values()}
        assert vms_by_name["50%\\2"].path == cloning.new.path == "/dc/1/vm/b/team/a/50%\\2"
        connection.require_made(vms_by_name["lock 5%"].ref, "lock 5%", "the lock")
        with pytest.raises(Refused, match="not the VM that gpuops created"):
            connection.require_made(vms_by_name["lock 5%"].ref, "lock 5%25", "the lock")
    assert {vm.display_name for vm in named_server.world.by_type("VirtualMachine")} > {"50%25%5c2", "lock 5%25"}


class Shell:
    """A host whose nvidia-smi names VMs as people see them."""

    def mig(self, host: str) -> tuple[SmiState, ...]:
        return ()

    def vgpus(self, host: str) -> tuple[SmiVgpu, ...]:
        gpu, starts = PciAddress.parse("0000:3b:00.0"), {"train/bert": 0, "bert": 8}
        return tuple(SmiVgpu(gpu, vm, "nvidia_a40-8q", start, None, None, None) for vm, start in starts.items())


def test_what_nvidia_smi_says_is_of_the_vm_of_that_name(named_server: SimServer) -> None:
    messages = list[str]()
    with Connection(target_of(named_server)) as connection:
        read = connection.inventory()
        bert_in_folder = next(vm for vm in read.vms.values() if vm.path == "/dc/1/vm/team/a/bert")
        remaining_vms = {ref: vm for ref, vm in read.vms.items() if vm is not bert_in_folder}
        host = next(iter(read.hosts.values()))
        gpu = replace(host.gpus[0], vms=tuple(ref for ref in host.gpus[0].vms or () if ref != bert_in_folder.ref))
        inventory = replace(read, vms=remaining_vms, hosts={host.ref: replace(host, gpus=(gpu,))})
    shown_inventory = with_vgpus(inventory, cast("HostShell", Shell()), messages.append, catalog_of(inventory))
    (gpu_with_vgpus,) = next(iter(shown_inventory.hosts.values())).gpus
    assert {(inventory.vms[vgpu.vm].name, vgpu.start) for vgpu in gpu_with_vgpus.vgpus or ()} == {
        ("train/bert", 0),
        ("bert", 8),
    }
    assert messages == []


def test_a_folder_is_found_by_its_real_path(named_server: SimServer) -> None:
    with Connection(target_of(named_server)) as connection:
        assert connection.folder_at("/dc/1/vm/b/team") != connection.folder_at("/dc/1/vm/b/team/a")
        with pytest.raises(UsageError, match="no folder '/dc/1/vm/none' in this vCenter"):
            connection.folder_at("/dc/1/vm/none")
        with pytest.raises(UsageError, match="2 folders have the path '/dc/1/vm/team/a'"):
            connection.folder_at("/dc/1/vm/team/a")
