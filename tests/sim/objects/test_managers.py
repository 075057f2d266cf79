"""Every manager that API 8.0 has is there: it answers reads, and says of its methods that they are not simulated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVmomi import VmomiSupport, vim, vmodl

from gpuops.sim.server import SimServer, start
from tests.sim.lab import connect

ABSENT = {"accountManager", "virtualizationManager", "directPathProfileManager"}
"""Of ServiceContent: on hosts alone, gone from vCenter, newer than 8.0."""


@pytest.fixture(scope="module")
def lab() -> Iterator[SimServer]:
    with start("lab", tls=False, clock="stepped") as server:
        yield server
    assert server.world.bugs == []


@pytest.fixture(scope="module")
def si(lab: SimServer) -> Iterator[Any]:
    instance = connect(lab)
    yield instance
    Disconnect(instance)


@pytest.fixture(scope="module")
def host(lab: SimServer, si: Any) -> Any:
    return vim.HostSystem(next(lab.world.by_type("HostSystem")).moid, si._stub)


def references(value: Any) -> dict[str, Any]:
    """Field -> value, of those fields that are references."""
    return {
        info.name: getattr(value, info.name)
        for info in type(value)._GetPropertyList()
        if issubclass(info.type, VmomiSupport.ManagedObject)
    }


def test_service_content_names_every_manager(si: Any) -> None:
    assert {field for field, manager in references(si.content).items() if manager is None} == ABSENT


def test_a_host_names_every_manager(host: Any) -> None:
    named = references(host.configManager)
    assert {field for field, manager in named.items() if manager is None} == set()
    assert len({manager._moId for manager in named.values()}) == len(named) == 39


def test_a_method_without_behaviour_is_not_supported(si: Any, host: Any) -> None:
    with pytest.raises(vmodl.fault.NotSupported, match="QueryVirtualDiskUuid is not simulated for VirtualDiskManager"):
        si.content.virtualDiskManager.QueryVirtualDiskUuid("[lab-ds-1] a.vmdk", None)
    with pytest.raises(vmodl.fault.NotSupported, match="FormatVffs is not simulated for HostStorageSystem"):
        host.configManager.storageSystem.FormatVffs(vim.host.VffsVolume.Specification(devicePath="a", majorVersion=1))


def test_the_licence_is_the_evaluation(si: Any, host: Any) -> None:
    licences = si.content.licenseManager
    (only,) = licences.licenses
    assert (only.editionKey, only.name) == ("eval", "Evaluation Mode")
    assigned = licences.licenseAssignmentManager.QueryAssignedLicenses(host._moId)
    assert [(assignment.entityId, assignment.assignedLicense.licenseKey) for assignment in assigned] == [
        (host._moId, only.licenseKey)
    ]


def test_logs_are_described(si: Any, host: Any) -> None:
    diagnostics = si.content.diagnosticManager
    assert "hostd" in {description.key for description in diagnostics.QueryDescriptions(host)}
    with pytest.raises(vmodl.fault.NotSupported):
        diagnostics.BrowseDiagnosticLog(host=host, key="hostd")


def test_empty_lists_are_answered(si: Any) -> None:
    content = si.content
    assert content.scheduledTaskManager.RetrieveEntityScheduledTask(None) == []
    assert content.extensionManager.FindExtension("com.example") is None
    assert content.customizationSpecManager.info == []
    names = [
        account.principal
        for account in content.userDirectory.RetrieveUserGroups(None, "", None, None, False, True, True)
    ]
    assert names == ["administrator@vsphere.local"]


def test_each_alarm_of_the_list_can_be_read(si: Any) -> None:
    names = [alarm.info.name for alarm in si.content.alarmManager.GetAlarm(si.content.rootFolder)]
    assert names == ["Host connection and power state"]


def test_managers_of_a_host_show_what_its_configuration_shows(host: Any) -> None:
    managers, config = host.configManager, host.config
    assert [service.key for service in managers.serviceSystem.serviceInfo.service] == [
        service.key for service in config.service.service
    ]
    assert managers.firewallSystem.firewallInfo.ruleset[0].key == config.firewall.ruleset[0].key
    network, network_config = managers.networkSystem.networkInfo, config.network
    assert (
        [vswitch.name for vswitch in network.vswitch]
        == [vswitch.name for vswitch in network_config.vswitch]
        == ["vSwitch0"]
    )
    assert [portgroup.spec.name for portgroup in network.portgroup] == ["VM Network", "Management Network"]
    assert [pnic.device for pnic in network.pnic] == ["vmnic0", "vmnic1"]
    assert [vnic.device for vnic in network.vnic] == ["vmk0"]
    assert network.vswitch[0].pnic == [network.pnic[0].key]
    assert managers.vsanSystem.config.networkInfo is not None  # govc host.vnic.service reads it unasked
    (volume,) = managers.storageSystem.fileSystemVolumeInfo.mountInfo
    assert volume.volume.name == "lab-ds-1"


def test_a_host_is_in_no_vsan_cluster(host: Any) -> None:
    status = host.configManager.vsanSystem.QueryHostStatus()
    assert (status.uuid, status.nodeUuid, status.nodeState.state) == (None, host.hardware.systemInfo.uuid, "disabled")


def test_managers_are_made_when_they_are_asked_for(lab: SimServer) -> None:
    last = list(lab.world.by_type("HostSystem"))[-1]
    assert last.managers == {}
    assert last.manager("vsanSystem").wsdl_name == "HostVsanSystem"
    assert set(last.managers) == {f"vsanSystem-{last.number}"}
