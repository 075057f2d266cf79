"""Clusters of VMs on the scenario `training`, over the wire: each kind of RDMA card, refusals, privileges."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from pyVmomi import vim

from gpuops import api, sim
from gpuops.api import Site
from gpuops.clock import wall_clock
from gpuops.errors import Refused, UsageError
from gpuops.extras.clusters.cluster_members import marked_vms
from gpuops.extras.clusters.cluster_runs import running_cluster
from gpuops.extras.clusters.creating import (
    ALLOCATE_SPACE,
    ASSIGN_NETWORK,
    CREATE_PRIVILEGES,
    MAKE_IN_FOLDER,
    create_cluster,
)
from gpuops.extras.clusters.existing import read_clusters
from gpuops.extras.clusters.view import ClusterCreateDocument
from gpuops.model.devices.other_device import Networks
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.login import ASSIGN_TO_POOL
from gpuops.model.vcenter.task import TaskRef
from gpuops.model.vcenter.vm import PowerState, VmDrs, pins_of
from gpuops.model.workloads.cluster import Arrangement, ClusterWish, LatencyLevel
from gpuops.plan.core.privileges import EDIT_CLUSTER
from gpuops.plan.core.scope import Scope
from gpuops.plan.doctor.host_findings import Severity
from gpuops.sim.server import start
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of
from tests.wire.workloads.training import DECLARED, PVRDMA, SRIOV, TEMPLATE, WHOLE, Training


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("wish", "node", "devices", "cards"),
    [(PVRDMA, 0, 1, ["vmxnet3vrdma"]), (SRIOV, 1, 2, ["sriov"]), (WHOLE, 1, 2, [])],
    ids=["pvrdma", "sriov", "directpath"],
)
def test_a_cluster_runs_with_gpu_and_card_on_one_node_and_the_same_again_changes_nothing(
    training: Training, wish: ClusterWish, node: int, devices: int, cards: list[str]
) -> None:
    report = training.create(replace(wish, latency=LatencyLevel.HIGH, huge_pages=True))
    assert (report.exit_code, report.failed, report.changed) == (0, "", True)
    assert all(member.says.endswith(f"on NUMA node {node}") for member in report.plan.members)
    inventory = training.site.vcenter.inventory()
    members = marked_vms(inventory, "train")
    assert [(marked_vm.vm.name, marked_vm.marker.rank, marked_vm.marker.rdma) for marked_vm in members] == [
        ("train-00", 0, wish.rdma),
        ("train-01", 1, wish.rdma),
    ]
    for marked_vm in members:
        vm, host = marked_vm.vm, inventory.host_of(marked_vm.vm)
        assert host is not None
        assert (vm.vcpus, vm.memory_mib, vm.memory_reservation_mib) == (16, 65536, 65536)
        assert vm.cpu_reservation_mhz == 16 * (host.cpu_mhz or 0)
        assert (vm.extra_config or {})["sched.mem.lpage.enable1GPage"] == "TRUE"
        assert len(vm.devices or ()) == devices
        pins = {key: value for key, value in (vm.extra_config or {}).items() if key.endswith("gpu-pci-id")}
        assert [nic.kind for nic in vm.nics or ()] == cards
        assert inventory.drs_of(vm) is VmDrs.MANUAL
        [gpu] = [gpu for gpu in host.gpus if vm.ref in (gpu.vms or ())]
        assert gpu.numa_node == node
        # whatever cards it has, its only vGPU is the device with the key 13000
        assert pins == ({"pciPassthru0.cfg.gpu-pci-id": str(gpu.address)} if wish.profile else {})
    cluster = running_cluster("train", training.site)
    assert [(member.rdma, member.gpus) for member in cluster.members] == [(wish.rdma.value, 1)] * 2
    assert {member.name: member.address for member in cluster.members} == report.addresses
    [summary] = read_clusters(None, training.site)
    assert (summary.name, summary.problems) == ("train", [])
    training.site.vcenter = WithoutGpus(training.site.vcenter)
    [lacking] = read_clusters(None, training.site)
    lack = f"{devices - 1} of the {devices} devices that it was made with"
    assert lacking.problems == [f"train-00 has {lack}", f"train-01 has {lack}"]
    training.site.vcenter = training.site.vcenter.real
    before = len(training.server.world.ledger)
    second_run = training.create(replace(wish, latency=LatencyLevel.HIGH, huge_pages=True))
    assert (second_run.exit_code, second_run.changed, len(training.server.world.ledger)) == (0, False, before)


@pytest.mark.long
@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        (replace(PVRDMA, template="old-trainer"), "old-trainer: firmware: BIOS"),
        (replace(PVRDMA, port_group="none-such"), "there is no such distributed port group; there: rdma-vm"),
        (replace(PVRDMA, port_group="sriov-vm"), "vmk1, which is tagged, is not on switch dvs-sriov"),
        (replace(SRIOV, port_group="rdma-vm"), "vmnic2 has no free virtual function"),
        (replace(WHOLE, device="15b3:0001"), "has no 15b3:0001 that is passed through"),
        (replace(PVRDMA, nodes=13), "train: VMs that hosts have room for: needs 13, 12 there"),
        (replace(WHOLE, nodes=5), "train: VMs that hosts have room for: needs 5, 4 there"),
        (replace(PVRDMA, profile=None, model="h100"), "no host has a GPU of model h100"),
        (replace(PVRDMA, datastore="none-such"), "has no datastore 'none-such' that this login can see"),
        (replace(PVRDMA, memory_mib=2 << 20), "memory to reserve in full"),
        (
            replace(PVRDMA, nodes=4, cpus=64, latency=LatencyLevel.HIGH),
            "takes 1 of the VMs, not one more: CPU to reserve",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_its_reason_and_nothing_is_made(
    training: Training, wish: ClusterWish, reason: str
) -> None:
    before = len(training.server.world.ledger)
    report = training.create(wish)
    assert report.exit_code == 3
    assert any(reason in rejection.line for rejection in report.plan.rejections), [
        rejection.line for rejection in report.plan.rejections
    ]
    assert len(report.plan.reasons) <= 2, "old-trainer is too old besides"
    assert len(training.server.world.ledger) == before


PLAIN = (
    ("switches:\n", "switches:\n  - {name: dvs-plain, mtu: 9000, groups: [plain-vm]}\n"),
    ("dvs-sriov: [vmnic3]}\n", "dvs-sriov: [vmnic3], dvs-plain: [vmnic1]}\n"),
)
"""What the scenario has besides: a switch whose uplinks have no RDMA."""


@pytest.mark.long
def test_a_switch_without_rdma_is_one_line_and_the_document_keeps_each_host(tmp_path: Path) -> None:
    text = (Path(sim.__file__).parent / "scenarios" / "training.yaml").read_text(encoding="utf-8")
    for old, new in PLAIN:
        assert old in text
        text = text.replace(old, new)
    scenario = tmp_path / "plain.yaml"
    scenario.write_text(text, encoding="utf-8")
    with start(str(scenario), clock="virtual") as server, Connection(target_of(server)) as connection:
        training = Training(server, Site(connection, tmp_path / "state", wall_clock))
        report = training.create(replace(PVRDMA, port_group="plain-vm"))
        assert (report.exit_code, len(server.world.ledger)) == (3, 0)
    assert report.plan.reasons == (
        (
            "esx-01.trn, esx-02.trn, esx-03.trn and 1 more: uplink: vmnic1 of switch dvs-plain has no RDMA device "
            "(next: use a port group of a switch whose uplink is RoCE-capable)"
        ),
    )
    uplinks = [
        rejection.subject
        for rejection in ClusterCreateDocument.made_of(report).rejections
        if "uplink" in rejection.reason
    ]
    assert uplinks == [f"esx-0{n}.trn" for n in range(1, 5)]


@dataclass
class WithoutSwitches:
    """The same vCenter, whose distributed switches this login cannot read."""

    real: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def networks(self) -> Networks:
        networks: Networks = self.real.networks()
        return replace(networks, switches=())


@pytest.mark.long
def test_no_vm_is_made_without_its_card_where_the_switch_cannot_be_read(training: Training) -> None:
    training.site.vcenter = WithoutSwitches(training.site.vcenter)
    report = training.create(PVRDMA)
    assert (report.exit_code, training.names()) == (3, DECLARED)
    assert report.plan.reasons == (
        "rdma-vm: port group: its switch cannot be read (next: give this login read access to the switch)",
    )
    training.site.vcenter = training.site.vcenter.real


@pytest.mark.long
def test_names_that_mean_nothing_are_said(training: Training) -> None:
    with pytest.raises(UsageError, match="none-such"):
        training.create(replace(PVRDMA, template="none-such"))
    with pytest.raises(UsageError, match="no folder"):
        training.create(replace(PVRDMA, folder="/trn-dc/vm/none"))
    with pytest.raises(UsageError, match="there is no cluster 'train'"):
        running_cluster("train", training.site)
    with pytest.raises(UsageError, match="there is no cluster 'train'"):
        read_clusters("train", training.site)


@pytest.mark.long
def test_another_wish_of_the_same_name_is_refused(training: Training) -> None:
    training.create(PVRDMA)
    other_wish_report = training.create(replace(PVRDMA, nodes=3))
    assert other_wish_report.exit_code == 3
    assert "made from another version of the file" in other_wish_report.plan.rejections[0].line
    assert training.names() == ["old-trainer", "train-00", "train-01", "trainer"]


@dataclass
class WithoutGpus:
    """The same vCenter, whose VMs have each lost their first device."""

    real: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def inventory(self) -> Inventory:
        inventory: Inventory = self.real.inventory()
        for vm in inventory.vms.values():
            inventory = inventory.with_vm(replace(vm, devices=(vm.devices or ())[1:]))
        return inventory


@dataclass
class CountedLooks:
    """The same vCenter, whose bulk reads are counted."""

    real: Any
    looks: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def inventory(self) -> Inventory:
        self.looks += 1
        inventory: Inventory = self.real.inventory()
        return inventory


@pytest.mark.long
def test_a_vm_that_is_bound_to_gpus_gets_them_before_one_of_a_lower_rank_that_is_not(training: Training) -> None:
    wish = replace(SRIOV, gpus=2, profile="a100d-80c", placement=Arrangement.PACKED)
    training.create(wish)
    port: Any = training.site.vcenter
    first, second = marked_vms(port.inventory(), "train")
    assert (first.vm.host, bool(pins_of(first.vm)), bool(pins_of(second.vm))) == (second.vm.host, True, False)
    bound = {key: text for key, text in (first.vm.extra_config or {}).items() if "gpu-pci-id" in key or "numa" in key}
    for member, entries in ((first, dict.fromkeys(bound, "")), (second, bound)):
        task = port.vm(member.vm.ref).PowerOffVM_Task()
        assert [end.error for end in port.wait([TaskRef(task._moId)], 600.0)] == [None]
        options = [vim.option.OptionValue(key=key, value=text) for key, text in entries.items()]
        training.reconfigure(member.vm.ref, extraConfig=options)
    assert training.create(wish).exit_code == 0
    running = [member.vm for member in marked_vms(port.inventory(), "train")]
    assert [(vm.power, bool(pins_of(vm))) for vm in running] == [(PowerState.ON, False), (PowerState.ON, True)]


@pytest.mark.long
def test_few_bulk_reads_make_and_remove_a_cluster(training: Training) -> None:
    """Creation reads at first, with the lock, before and after the clones, and before the start."""
    counted = training.site.vcenter = CountedLooks(training.site.vcenter)
    assert training.create(PVRDMA).failed == ""
    assert counted.looks == 5
    training.delete()
    assert counted.looks == 5 + 5
    training.site.vcenter = counted.real


@pytest.mark.long
def test_doctor_names_what_hosts_lack_that_are_meant_for_paravirtual_rdma(training: Training) -> None:
    """esx-04 is a member of the switch on which the others have a tagged VMkernel adapter."""
    findings = [
        finding for finding in api.doctor(training.site, Scope()).findings if "paravirtual RDMA: " in finding.reason
    ]
    assert [
        (finding.severity, finding.subject, finding.reason.removeprefix("paravirtual RDMA: ")) for finding in findings
    ] == [
        (Severity.WARNING, "esx-04.trn", "VMkernel adapter: none is tagged for paravirtual RDMA"),
        (Severity.WARNING, "esx-04.trn", "firewall: rule set pvrdma is closed"),
        (Severity.NOTE, "esx-04.trn", "MTU: it cannot be read"),
    ]
    assert all(finding.fix for finding in findings)
    findings_of_one_host = api.doctor(training.site, Scope(host="esx-01.trn")).findings
    assert not any("paravirtual RDMA: " in finding.reason for finding in findings_of_one_host)
    saved = api.offline(training.site.vcenter.inventory())
    assert not any("paravirtual RDMA: " in finding.reason for finding in api.doctor(saved, Scope()).findings)


@pytest.mark.long
def test_a_saved_inventory_makes_nothing(training: Training) -> None:
    saved = api.offline(training.site.vcenter.inventory())
    with pytest.raises(Refused, match="saved inventory"):
        create_cluster(PVRDMA, saved, apply=False, keep=False, consent=lambda plan: None)


ALL_TO_CREATE: Final = frozenset(
    {*CREATE_PRIVILEGES, *EDIT_CLUSTER, *MAKE_IN_FOLDER, *ALLOCATE_SPACE, *ASSIGN_NETWORK, *ASSIGN_TO_POOL}
)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("missing", "subject"),
    [
        ("VirtualMachine.Provisioning.DeployTemplate", "trainer"),
        ("VirtualMachine.Inventory.Delete", "trainer"),
        ("Host.Inventory.EditCluster", "trn-cluster"),
        ("Resource.AssignVMToPool", "trn-cluster"),
        ("Datastore.AllocateSpace", "trn-ds-1"),
        ("VirtualMachine.Inventory.CreateFromExisting", "trainer"),
        ("Network.Assign", "rdma-vm"),
    ],
)
def test_a_privilege_that_the_login_lacks_is_named_before_anything_is_made(
    tmp_path: Path, missing: str, subject: str
) -> None:
    with start("training", clock="virtual") as server:
        authority = server.world.authority
        every = ALL_TO_CREATE - {missing}
        authority.permit(server.username, authority.add_role("clusters", every))
        with Connection(target_of(server)) as connection:
            training = Training(server, Site(connection, tmp_path / "state", wall_clock))
            report = training.create(PVRDMA)
        assert report.exit_code == 3
        assert [str(rejection) for rejection in report.plan.rejections] == [f"{subject}: this login lacks {missing}"]
        assert len(server.world.ledger) == 0


def test_the_pools_of_standalone_hosts_are_asked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Connection.inventory

    def without_clusters(connection: Connection) -> Inventory:
        inventory = read(connection)
        hosts = {ref: replace(host, cluster=None) for ref, host in inventory.hosts.items()}
        return replace(inventory, hosts=hosts)

    monkeypatch.setattr(Connection, "inventory", without_clusters)
    with start("training", clock="virtual") as server:
        authority = server.world.authority
        authority.permit(server.username, authority.add_role("clusters", ALL_TO_CREATE - ASSIGN_TO_POOL))
        with Connection(target_of(server)) as connection:
            report = Training(server, Site(connection, tmp_path / "state", wall_clock)).create(PVRDMA)
        assert report.exit_code == 3
        lacks = {str(rejection) for rejection in report.plan.rejections}
        assert lacks == {
            f"{member.host.name}: this login lacks Resource.AssignVMToPool" for member in report.plan.members
        }
        assert lacks
        assert len(server.world.ledger) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "missing",
    [
        "Resource.AssignVMToPool",
        "Datastore.AllocateSpace",
        "VirtualMachine.Inventory.CreateFromExisting",
        "Network.Assign",
    ],
)
def test_a_privilege_that_nobody_asked_for_is_missed_by_vcenter(
    tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "lacking_on_objects", lambda *arguments: {})
    with start("training", clock="virtual") as server:
        authority = server.world.authority
        authority.permit(server.username, authority.add_role("clusters", ALL_TO_CREATE - {missing}))
        with Connection(target_of(server)) as connection:
            report = Training(server, Site(connection, tmp_path / "state", wall_clock)).create(PVRDMA)
        assert report.exit_code != 0
        assert missing in report.failed


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("wish", [PVRDMA, SRIOV, WHOLE], ids=["pvrdma", "sriov", "directpath"])
def test_the_roles_that_come_with_gpuops_are_enough(tmp_path: Path, wish: ClusterWish) -> None:
    roles = yaml.safe_load((TEMPLATE.parent / "roles" / "cluster.yaml").read_text(encoding="utf-8"))["roles"]
    with start("training", clock="virtual") as server:
        authority = server.world.authority
        every = {privilege for role in roles for privilege in role["privileges"]}
        authority.permit(server.username, authority.add_role("clusters", every))
        with Connection(target_of(server)) as connection:
            training = Training(server, Site(connection, tmp_path / "state", wall_clock))
            assert training.create(wish).failed == ""
            assert len(running_cluster("train", training.site).members) == 2
            training.delete()
            assert training.names() == DECLARED
