"""Datacenters, clusters, hosts, pools and folders that clients make, move and remove, as govc and Terraform do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVmomi import vim, vmodl

from gpuops.sim.server import start
from tests.sim.lab import Lab, connect

pytestmark = pytest.mark.long


def connection(name: str = "esx-09.lab", **fields: Any) -> Any:
    spec = {"hostName": name, "userName": "root", "password": "any", "force": True, **fields}
    return vim.host.ConnectSpec(**spec)


def unlimited_resources() -> Any:
    allocation = vim.ResourceAllocationInfo(
        reservation=0, expandableReservation=True, limit=-1, shares=vim.SharesInfo(shares=4000, level="normal")
    )
    return vim.ResourceConfigSpec(cpuAllocation=allocation, memoryAllocation=allocation)


def new_vm(lab: Lab, folder: Any, pool: Any, name: str = "small") -> Any:
    spec = vim.vm.ConfigSpec(name=name, files=vim.vm.FileInfo(vmPathName="[lab-ds-1]"), numCPUs=1, memoryMB=4)
    return lab.run(folder.CreateVM_Task(spec, pool))


def whole(lab: Lab) -> tuple[Any, Any, Any, Any]:
    """A datacenter of its own with a cluster, a host and a VM on it, in a folder and a pool."""
    datacenter = lab.si.content.rootFolder.CreateDatacenter("dc-2")
    cluster = datacenter.hostFolder.CreateClusterEx("cluster-2", vim.cluster.ConfigSpecEx())
    host = lab.run(cluster.AddHost_Task(connection(), True))
    pool = cluster.resourcePool.CreateResourcePool("pool-2", unlimited_resources())
    folder = datacenter.vmFolder.CreateFolder("folder-2")
    vm = new_vm(lab, folder, pool)
    assert (vm.runtime.host, vm.resourcePool, vm.parent) == (host, pool, folder)
    return datacenter, cluster, host, vm


def test_a_datacenter_with_all_that_a_vm_needs(lab: Lab) -> None:
    datacenter, cluster, host, vm = whole(lab)
    assert (cluster.configurationEx.drsConfig.enabled, cluster.summary.numEffectiveHosts) == (False, 1)
    assert (host.parent, host.runtime.connectionState, len(host.config.graphicsInfo)) == (cluster, "connected", 0)
    assert host.configManager.graphicsManager.graphicsInfo == []
    assert lab.si.content.searchIndex.FindByInventoryPath("dc-2/vm/folder-2/small") == vm
    lab.run(vm.PowerOnVM_Task())
    assert vm.runtime.powerState == "poweredOn"
    assert {store.name for store in cluster.datastore} == {"lab-ds-1"}
    assert datacenter in lab.si.content.rootFolder.childEntity


def test_all_of_it_is_removed_in_the_order_of_terraform(lab: Lab) -> None:
    datacenter, cluster, host, vm = whole(lab)
    with pytest.raises(vim.fault.ResourceInUse):
        lab.run(datacenter.Destroy_Task())
    with pytest.raises(vim.fault.ResourceInUse) as refused:
        lab.run(cluster.Destroy_Task())
    assert (refused.value.type, refused.value.name) == (vim.ClusterComputeResource, "cluster-2")
    with pytest.raises(vim.fault.ResourceInUse):
        lab.run(host.Destroy_Task())
    pool, folder = vm.resourcePool, vm.parent
    lab.run(pool.Destroy_Task())
    assert (vm.resourcePool, cluster.resourcePool.resourcePool) == (cluster.resourcePool, [])
    lab.run(vm.PowerOnVM_Task())
    with pytest.raises(vim.fault.InvalidPowerState):
        lab.run(folder.Destroy_Task())
    lab.run(vm.PowerOffVM_Task())
    lab.run(folder.Destroy_Task())
    for removed in (pool, folder, vm):
        with pytest.raises(vmodl.fault.ManagedObjectNotFound):
            removed.name  # noqa: B018
    with pytest.raises(vim.fault.InvalidState):
        lab.run(host.Destroy_Task())
    lab.run(host.EnterMaintenanceMode_Task(0))
    for entity in (host, cluster, datacenter):
        lab.run(entity.Destroy_Task())
    assert [child.name for child in lab.si.content.rootFolder.childEntity] == ["lab-dc"]
    assert [host.name for host in lab.datacenter().datastore[0].host[0].key.parent.host] == ["esx-01.lab", "esx-02.lab"]


def test_a_host_alone_has_a_compute_resource_that_goes_with_it(lab: Lab) -> None:
    compute_resource = lab.run(lab.datacenter().hostFolder.AddStandaloneHost_Task(connection(), None, False))
    (host,) = compute_resource.host
    assert (type(compute_resource), compute_resource.name, host.runtime.connectionState) == (
        vim.ComputeResource,
        "esx-09.lab",
        "disconnected",
    )
    with pytest.raises(vim.fault.AlreadyConnected):
        lab.run(lab.cluster().AddHost_Task(connection(), True))
    with pytest.raises(vim.fault.InvalidLogin):
        lab.run(lab.cluster().AddHost_Task(connection("esx-10.lab", password=""), True))
    lab.run(host.ReconnectHost_Task(None, None))
    new_vm(lab, lab.datacenter().vmFolder, compute_resource.resourcePool)
    lab.run(lab.vm("small").Destroy_Task())
    lab.run(host.DisconnectHost_Task())
    lab.run(host.Destroy_Task())
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        compute_resource.name  # noqa: B018


def test_a_host_moves_into_a_cluster_with_its_vms(lab: Lab) -> None:
    """ClusterComputeResource.MoveInto_Task of the vSphere API, as govc cluster.mv calls it."""
    cluster = lab.cluster()
    second_cluster = lab.datacenter().hostFolder.CreateClusterEx("other", vim.cluster.ConfigSpecEx())
    host = lab.host("esx-02.lab")
    with pytest.raises(vim.fault.InvalidState):
        lab.run(second_cluster.MoveInto_Task([host]))
    with pytest.raises(vim.fault.DuplicateName):
        lab.run(cluster.MoveInto_Task([host]))
    spare = lab.run(cluster.AddHost_Task(connection(), True))
    lab.run(spare.EnterMaintenanceMode_Task(0))
    lab.run(second_cluster.MoveInto_Task([spare]))
    assert (spare.parent, list(second_cluster.host), spare in cluster.host) == (second_cluster, [spare], False)
    assert (second_cluster.summary.numHosts, cluster.summary.numHosts) == (1, 2)
    alone = lab.run(lab.datacenter().hostFolder.AddStandaloneHost_Task(connection("esx-10.lab"), None, True))
    vm = new_vm(lab, lab.datacenter().vmFolder, alone.resourcePool)
    lab.run(vm.PowerOnVM_Task())
    (its_host,) = alone.host
    lab.run(second_cluster.MoveInto_Task([its_host]))
    assert (vm.runtime.host, vm.resourcePool, vm.runtime.powerState) == (
        its_host,
        second_cluster.resourcePool,
        "poweredOn",
    )
    assert list(second_cluster.resourcePool.vm) == [vm]
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        alone.name  # noqa: B018
    second = lab.si.content.rootFolder.CreateDatacenter("dc-2").hostFolder.CreateClusterEx(
        "far", vim.cluster.ConfigSpecEx()
    )
    with pytest.raises(vmodl.fault.InvalidArgument):
        lab.run(second.MoveInto_Task([spare]))


def test_a_reload_changes_nothing(lab: Lab) -> None:
    for entity in (lab.vm("ml-07"), lab.host("esx-01.lab"), lab.cluster()):
        entity.Reload()
    assert list(lab.world.ledger) == []


def test_a_host_is_disconnected_and_reconnected(lab: Lab) -> None:
    host = lab.host("esx-01.lab")
    with pytest.raises(vim.fault.InvalidState):
        lab.run(host.ReconnectHost_Task())
    lab.run(host.DisconnectHost_Task())
    assert (host.runtime.connectionState, lab.vm("vdi-01").runtime.connectionState) == ("disconnected", "disconnected")
    with pytest.raises(vmodl.MethodFault):
        lab.run(lab.vm("ml-07").PowerOnVM_Task(host))
    lab.run(host.ReconnectHost_Task())
    assert (host.runtime.connectionState, lab.power("vdi-01")) == ("connected", "poweredOn")


def test_folders_move_but_not_into_themselves_or_among_others(lab: Lab) -> None:
    home = lab.datacenter().vmFolder
    outer, inner = home.CreateFolder("outer"), home.CreateFolder("inner")
    lab.run(outer.MoveIntoFolder_Task([inner, lab.vm("ml-07")]))
    assert (inner.parent, lab.vm("ml-07").parent) == (outer, outer)
    for folder, member in ((inner, outer), (outer, outer)):
        with pytest.raises(vim.fault.InvalidFolder):
            lab.run(folder.MoveIntoFolder_Task([member]))
    for member in (lab.cluster(), lab.host("esx-01.lab")):
        with pytest.raises(vmodl.fault.NotSupported):
            lab.run(outer.MoveIntoFolder_Task([member]))
    racks = lab.datacenter().hostFolder.CreateFolder("racks")
    lab.run(racks.MoveIntoFolder_Task([lab.cluster()]))
    assert lab.cluster().parent == racks
    with pytest.raises(vim.fault.DuplicateName):
        home.CreateFolder("twin-a")
        outer.CreateFolder("twin-a")
        lab.run(outer.MoveIntoFolder_Task([lab.si.content.searchIndex.FindByInventoryPath("lab-dc/vm/twin-a")]))


def test_a_folder_goes_with_what_is_in_it(lab: Lab) -> None:
    outer = lab.datacenter().vmFolder.CreateFolder("outer")
    inner = outer.CreateFolder("inner")
    lab.run(outer.Destroy_Task())
    assert lab.world.find(inner._moId) is None


def test_the_root_pool_stays_and_alone_reserves_what_there_is(lab: Lab) -> None:
    root = lab.cluster().resourcePool
    with pytest.raises(vmodl.fault.InvalidType):
        lab.run(root.Destroy_Task())
    pool = root.CreateResourcePool("p", unlimited_resources())
    assert (pool.config.cpuAllocation.reservation, pool.config.memoryAllocation.reservation) == (0, 0)
    assert root.config.cpuAllocation.reservation == lab.cluster().summary.totalCpu


@pytest.mark.parametrize("try_name", ["vm folder", "cluster in a folder of vms", "pool with a limit"])
def test_what_vcenter_has_not(lab: Lab, try_name: str) -> None:
    limited = unlimited_resources()
    limited.cpuAllocation.limit = 1000
    tries = {
        "vm folder": lambda: lab.run(lab.datacenter().vmFolder.Destroy_Task()),
        "cluster in a folder of vms": lambda: lab.datacenter().vmFolder.CreateClusterEx(
            "c", vim.cluster.ConfigSpecEx()
        ),
        "pool with a limit": lambda: lab.cluster().resourcePool.CreateResourcePool("p", limited),
    }
    with pytest.raises(vmodl.fault.NotSupported):
        tries[try_name]()


def test_who_may_not_remove_is_refused(lab: Lab) -> None:
    folder = lab.datacenter().vmFolder.CreateFolder("mine")
    authority = lab.world.authority
    authority.permit(next(iter(lab.world.sessions)).user, authority.add_role("maker", {"Folder.Create"}))
    with pytest.raises(vim.fault.NoPermission) as refused:
        lab.run(folder.Destroy_Task())
    assert refused.value.privilegeId == "Folder.Delete"


def tree(entity: Any) -> Any:
    """Names and ids of all below an object."""
    below: list[Any]
    match entity:
        case vim.Folder():
            below = list(entity.childEntity)
        case vim.Datacenter():
            below = [entity.vmFolder, entity.hostFolder]
        case vim.ComputeResource():
            below = [*entity.host, entity.resourcePool]
        case vim.ResourcePool():
            below = [*entity.resourcePool]
        case _:
            below = []
    return entity.name, entity._moId, sorted((tree(child) for child in below), key=str)


def test_a_saved_state_has_what_was_made_moved_and_removed(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    with start("lab", tls=False, clock="stepped", state=state) as server:
        si = connect(server)
        lab = Lab(server.world, si)
        whole(lab)
        lab.run(lab.datacenter().vmFolder.CreateFolder("later").Rename_Task("renamed"))
        lab.run(lab.datacenter().hostFolder.AddStandaloneHost_Task(connection("esx-11.lab"), None, True))
        racks = lab.datacenter().hostFolder.CreateFolder("racks")
        lab.run(racks.MoveIntoFolder_Task([lab.cluster()]))
        spare = lab.run(lab.cluster().AddHost_Task(connection("esx-12.lab"), True))
        lab.run(spare.EnterMaintenanceMode_Task(0))
        lab.run(racks.CreateClusterEx("later cluster", vim.cluster.ConfigSpecEx()).MoveInto_Task([spare]))
        lab.run(racks.MoveIntoFolder_Task([lab.datacenter().hostFolder.CreateFolder("earlier")]))
        lab.run(lab.datacenter().hostFolder.CreateFolder("latest").MoveIntoFolder_Task([racks]))
        lab.run(si.content.searchIndex.FindByInventoryPath("lab-dc/vm/misc/a").Destroy_Task())
        before = tree(si.content.rootFolder)
        Disconnect(si)
    with start("lab", tls=False, clock="stepped", state=state) as server:
        si = connect(server)
        assert tree(si.content.rootFolder) == before
        lab = Lab(server.world, si)
        lab.run(lab.vm("small").PowerOnVM_Task())
        assert lab.vm("small").runtime.host.name == "esx-09.lab"
        Disconnect(si)
    assert server.world.bugs == []


def test_a_move_into_a_folder_is_read_while_it_runs(lab: Lab) -> None:
    task = lab.datacenter().vmFolder.MoveIntoFolder_Task([lab.vm("ml-07")])
    assert (task.info.state, task.info.result) == ("running", None)
    lab.run(task)
    assert lab.vm("ml-07").parent == lab.datacenter().vmFolder


def test_a_view_of_a_folder_of_hosts_holds_their_vms(lab: Lab) -> None:
    def vms_in_view(container: Any) -> set[str]:
        return {vm._moId for vm in views.CreateContainerView(container, [vim.VirtualMachine], True).view}

    views, datacenter = lab.si.content.viewManager, lab.datacenter()
    racks = datacenter.hostFolder.CreateFolder("racks")
    assert vms_in_view(racks) == set()
    lab.run(racks.MoveIntoFolder_Task([lab.cluster()]))
    assert vms_in_view(racks) == vms_in_view(datacenter.hostFolder) == vms_in_view(lab.cluster().resourcePool)
    template = next(vm for vm in lab.world.by_type("VirtualMachine") if vm.name == "golden")  # it is in no pool
    assert vms_in_view(racks) | {template.moid} == vms_in_view(datacenter.vmFolder) == vms_in_view(datacenter)
    assert vms_in_view(datacenter.networkFolder) == set()
