"""What pyVmomi's community samples do with the inventory, hosts, events and counters, written anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
from pyVmomi import VmomiSupport, vim, vmodl

from tests.waiting import wait_until

from .pyvmomi_client import Client, client

pytestmark = pytest.mark.peer

Q = vmodl.query.PropertyCollector


@pytest.fixture(scope="module")
def lab() -> Iterator[Client]:
    with client() as connected:
        yield connected


def names_in(view: Any, kind: Any) -> Any:
    """The filter that reads the names of the objects in a view."""
    through = Q.TraversalSpec(name="view", path="view", skip=False, type=type(view))
    return Q.FilterSpec(
        objectSet=[Q.ObjectSpec(obj=view, skip=True, selectSet=[through])],
        propSet=[Q.PropertySpec(type=kind, pathSet=["name"])],
    )


def test_all_vms_are_listed_page_by_page(lab: Client) -> None:
    view = lab.content.viewManager.CreateContainerView(lab.content.rootFolder, [vim.VirtualMachine], True)
    collector, pages, names = lab.content.propertyCollector, 0, []
    page = collector.RetrievePropertiesEx([names_in(view, vim.VirtualMachine)], Q.RetrieveOptions(maxObjects=10))
    while page is not None:
        pages += 1
        names += [each.propSet[0].val for each in page.objects]
        page = collector.ContinueRetrievePropertiesEx(page.token) if page.token else None
    assert pages == -(-len(view.view) // 10) > 1
    assert sorted(names) == sorted(vm.name for vm in view.view)


def test_the_tree_is_walked_property_by_property(lab: Client) -> None:
    found = []

    def walk(entity: Any) -> None:
        if isinstance(entity, vim.VirtualMachine):
            found.append(entity.summary.config.name)
        elif hasattr(entity, "childEntity"):
            for child in entity.childEntity:
                walk(child)

    for datacenter in lab.content.rootFolder.childEntity:
        walk(datacenter.vmFolder)
    assert sorted(found) == sorted(vm.name for vm in lab.all(vim.VirtualMachine))


def test_a_change_is_waited_for(lab: Client) -> None:
    collector, vm = lab.content.propertyCollector, lab.vm("ml-07")
    watching = collector.CreateFilter(
        Q.FilterSpec(
            objectSet=[Q.ObjectSpec(obj=vm)],
            propSet=[Q.PropertySpec(type=vim.VirtualMachine, pathSet=["runtime.powerState"])],
        ),
        True,
    )
    vm.PowerOnVM_Task()
    version, state = "", ""
    while state != "poweredOn":
        update = collector.WaitForUpdatesEx(version, Q.WaitOptions(maxWaitSeconds=5))
        if update is not None:
            version = update.version
            state = update.filterSet[0].objectSet[0].changeSet[0].val
    watching.Destroy()
    lab.result(vm.PowerOffVM_Task())


def test_folders_and_a_datacenter_are_made_and_destroyed(lab: Client) -> None:
    datacenter = lab.content.rootFolder.CreateDatacenter("dc-02")
    outer = datacenter.vmFolder.CreateFolder("outer")
    inner = outer.CreateFolder("inner")
    assert [folder.name for folder in (inner, inner.parent, inner.parent.parent)] == ["inner", "outer", "vm"]
    with pytest.raises(vim.fault.DuplicateName):
        outer.CreateFolder("inner")
    lab.result(outer.Destroy_Task())
    lab.result(datacenter.Destroy_Task())
    assert [each.name for each in lab.all(vim.Datacenter)] == ["lab-dc"]


def test_a_vm_moves_into_a_folder(lab: Client) -> None:
    folder = lab.named(vim.Folder, "misc")
    lab.result(folder.MoveInto([lab.vm("ml-08")]))
    assert lab.vm("ml-08").parent == folder


def test_a_cluster_gets_a_host_which_goes_into_maintenance_and_leaves(lab: Client) -> None:
    folder = lab.all(vim.Datacenter)[0].hostFolder
    cluster = folder.CreateClusterEx("second", vim.cluster.ConfigSpecEx())
    account = vim.host.ConnectSpec(hostName="esx-09.lab", userName="root", password="any", force=True)
    host = lab.result(cluster.AddHost_Task(spec=account, asConnected=True))
    lab.result(host.EnterMaintenanceMode_Task(0))
    assert host.runtime.inMaintenanceMode is True
    lab.result(host.ExitMaintenanceMode_Task(0))
    lab.result(host.DisconnectHost_Task())
    assert host.runtime.connectionState == "disconnected"
    lab.result(host.Destroy_Task())
    lab.result(cluster.Destroy_Task())


def test_events_are_queried_and_read_page_by_page(lab: Client) -> None:
    vm, manager = lab.vm("ml-08"), lab.content.eventManager
    lab.result(vm.PowerOnVM_Task())
    lab.result(vm.PowerOffVM_Task())
    of_vm = vim.event.EventFilterSpec.ByEntity(entity=vm, recursion="self")
    spec = vim.event.EventFilterSpec(entity=of_vm, eventTypeId=["VmPoweredOnEvent", "VmPoweredOffEvent"])
    queried = manager.QueryEvents(spec)
    assert [type(each) for each in queried] == [vim.event.VmPoweredOnEvent, vim.event.VmPoweredOffEvent]
    assert {each.vm.vm for each in queried} == {vm}
    collector, read = manager.CreateCollectorForEvents(spec), []
    while page := collector.ReadNextEvents(1):
        read += page
    collector.DestroyCollector()
    assert sorted(each.key for each in read) == sorted(each.key for each in queried)


def test_recent_tasks_are_listed(lab: Client) -> None:
    task = lab.vm("ml-08").ReconfigVM_Task(vim.vm.ConfigSpec(annotation="seen"))
    assert task in lab.content.taskManager.recentTask
    lab.result(task)
    assert (task.info.entityName, task.info.descriptionId) == ("ml-08", "VirtualMachine.reconfigure")


def test_counters_are_listed_and_queried(lab: Client) -> None:
    manager, vm = lab.content.perfManager, lab.vm("vdi-01")
    counters = {f"{c.groupInfo.key}.{c.nameInfo.key}.{c.rollupType}": c.key for c in manager.perfCounter}
    available = {each.counterId for each in manager.QueryAvailablePerfMetric(entity=vm, intervalId=20)}
    assert counters["cpu.usage.average"] in available
    metric = vim.PerformanceManager.MetricId(counterId=counters["cpu.usage.average"], instance="")
    query = vim.PerformanceManager.QuerySpec(entity=vm, metricId=[metric], intervalId=20, maxSample=1)
    found = wait_until(lambda: manager.QueryPerf(querySpec=[query]))
    assert found[0].entity == vm
    assert 0 <= found[0].value[0].value[0] <= 10_000


def test_a_host_answers_esxcli(lab: Client) -> None:
    host, stub = lab.named(vim.HostSystem, "esx-01.lab"), lab.si._stub
    kind = VmomiSupport.GetWsdlType("urn:vim25", "ReflectManagedMethodExecuter")
    executer = stub.InvokeMethod(host, kind._methodInfo["RetrieveManagedMethodExecuter"], ())
    told = stub.InvokeMethod(
        executer, kind._methodInfo["ExecuteSoap"], ("any", "urn:vim25/5.0", "vim.EsxCLI.graphics.device.list", [])
    )
    vendors = [each.text for each in ElementTree.fromstring(told.response).iter() if each.tag.endswith("VendorName")]
    assert len(vendors) == len(host.config.graphicsInfo) == 3


def test_hosts_and_datastores_are_summed_up(lab: Client) -> None:
    for host in lab.all(vim.HostSystem):
        summary = host.summary
        assert summary.quickStats.overallMemoryUsage < summary.hardware.memorySize >> 20
        assert len(host.hardware.numaInfo.numaNode) == summary.hardware.numCpuPkgs
        assert {card.device for card in host.config.network.pnic} == {"vmnic0", "vmnic1"}
    (store,) = lab.all(vim.Datastore)
    assert store.summary.freeSpace < store.summary.capacity
    assert {mount.key for mount in store.host} == set(lab.all(vim.HostSystem))


def test_a_role_and_its_permission_are_given_and_taken(lab: Client) -> None:
    manager, (datacenter,) = lab.content.authorizationManager, lab.all(vim.Datacenter)
    role = manager.AddAuthorizationRole(name="operator", privIds=["VirtualMachine.Interact.PowerOn"])
    given = vim.AuthorizationManager.Permission(
        principal="VSPHERE.LOCAL\\night", group=False, roleId=role, propagate=True
    )
    manager.SetEntityPermissions(entity=datacenter, permission=[given])
    assert [each.roleId for each in manager.RetrieveEntityPermissions(datacenter, False)] == [role]
    manager.RemoveEntityPermission(entity=datacenter, user="VSPHERE.LOCAL\\night", isGroup=False)
    manager.RemoveAuthorizationRole(roleId=role, failIfUsed=True)


def test_vms_are_kept_apart_by_a_rule(lab: Client) -> None:
    cluster = lab.named(vim.ClusterComputeResource, "lab-cluster")
    rule = vim.cluster.AntiAffinityRuleSpec(name="apart", enabled=True, vm=[lab.vm("ml-07"), lab.vm("ml-08")])
    spec = vim.cluster.ConfigSpecEx(rulesSpec=[vim.cluster.RuleSpec(info=rule, operation="add")])
    lab.result(cluster.ReconfigureEx(spec, modify=True))
    (made,) = cluster.configurationEx.rule
    removed = vim.cluster.RuleSpec(removeKey=made.key, operation="remove")
    lab.result(cluster.ReconfigureEx(vim.cluster.ConfigSpecEx(rulesSpec=[removed]), modify=True))
    assert cluster.configurationEx.rule == []


def test_the_session_is_named(lab: Client) -> None:
    session = lab.content.sessionManager.currentSession
    assert "administrator" in session.userName.lower()
    assert lab.content.sessionManager.SessionIsActive(session.key, session.userName) is True
