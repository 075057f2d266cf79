"""DirectPath profiles of a simulated vCenter 9.0 by pyVmomi: capacity, and starts that a reservation refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVim.task import WaitForTask
from pyVmomi import vim, vmodl

from gpuops.sim.server import SimServer, start
from tests.sim.lab import connect

KIND = vim.DirectPathProfileManager


@pytest.fixture
def server() -> Iterator[SimServer]:
    with start("supervisor", tls=False, clock="stepped") as running:
        yield running
    assert running.world.bugs == []


@pytest.fixture
def si(server: SimServer) -> Iterator[Any]:
    instance = connect(server)
    yield instance
    Disconnect(instance)


def ref(server: SimServer, si: Any, kind: Any, name: str) -> Any:
    entity = next(
        candidate for candidate in server.world.by_type(kind.__name__.rpartition(".")[2]) if candidate.name == name
    )
    return kind(entity.moid, si._stub)


def of_vgpu(name: str) -> Any:
    return KIND.CapacityQueryByDeviceConfig(deviceConfig=KIND.VmiopDirectPathConfig(vgpuProfile=name))


def figures(answer: Any) -> tuple[int, int, int, int]:
    return answer.consumed, answer.remaining, answer.max, answer.unusedReservation


def cluster_target(server: SimServer, si: Any) -> Any:
    return KIND.TargetCluster(cluster=ref(server, si, vim.ClusterComputeResource, "sup-cluster"))


def test_a_cluster_has_what_its_gpus_have_room_for(server: SimServer, si: Any) -> None:
    manager = si.content.directPathProfileManager
    eight, whole = manager.DirectPathProfileManagerQueryCapacity(cluster_target(server, si), [])
    assert figures(eight) == (10, 14, 24, 4)
    assert figures(whole) == (0, 1, 4, 0)
    assert (eight.profile.name, eight.profile.deviceConfig.vgpuProfile) == ("vgpu-8q", "nvidia_a40-8q")


def test_a_host_answers_by_name_id_and_configuration(server: SimServer, si: Any) -> None:
    manager = si.content.directPathProfileManager
    target = KIND.TargetHost(host=ref(server, si, vim.HostSystem, "esx-02.sup"))
    specs = [KIND.CapacityQueryByName(name="vgpu-8q"), KIND.CapacityQueryById(id="dpp-1"), of_vgpu("nvidia_a40-8q")]
    answers = manager.DirectPathProfileManagerQueryCapacity(target, specs)
    assert [figures(answer) for answer in answers] == [(3, 9, 12, 0)] * 3
    [unnamed] = manager.DirectPathProfileManagerQueryCapacity(target, [of_vgpu("nvidia_a40-24q")])
    assert figures(unnamed) == (0, 2, 4, 0)


def test_what_cannot_be_told_is_unknown_with_its_fault(server: SimServer, si: Any) -> None:
    manager = si.content.directPathProfileManager
    specs = [KIND.CapacityQueryByName(name="no such")]
    [unknown] = manager.DirectPathProfileManagerQueryCapacity(cluster_target(server, si), specs)
    assert isinstance(unknown, KIND.CapacityUnknown)
    assert unknown.querySpec.name == "no such"
    assert isinstance(unknown.faultList[0], vim.fault.NotFound)


def test_groups_and_whole_devices_have_profiles_too(server: SimServer, si: Any) -> None:
    """A GPU that is not given to DirectPath I/O is no device, and one without NVLink is in no group."""
    manager, passthrough = si.content.directPathProfileManager, vim.vm.device.VirtualPCIPassthrough
    group = KIND.VirtualDeviceGroupDirectPathConfig(deviceGroupName="Nvidia:2@x%NVLink")
    allowed = [passthrough.AllowedDevice(vendorId=0x10DE, deviceId=0x2235)]
    backing = passthrough.DynamicBackingInfo(deviceName="", allowedDevice=allowed, customLabel="training")
    whole = KIND.DynamicDirectPathConfig(dynamicDirectPathBacking=backing)
    configs = {"pair": group, "whole": whole}
    profile_ids = [
        manager.DirectPathProfileManagerCreate(KIND.CreateSpec(name=name, deviceConfig=config))
        for name, config in configs.items()
    ]
    of_group, of_device = manager.DirectPathProfileManagerQueryCapacity(
        cluster_target(server, si), [KIND.CapacityQueryById(id=allowed_device) for allowed_device in profile_ids]
    )
    assert figures(of_group) == figures(of_device) == (0, 0, 0, 0)
    dynamic_backing = of_device.profile.deviceConfig.dynamicDirectPathBacking
    assert [(allowed_device.vendorId, allowed_device.deviceId) for allowed_device in dynamic_backing.allowedDevice] == [
        (0x10DE, 0x2235)
    ]
    assert (dynamic_backing.customLabel, of_group.profile.deviceConfig.deviceGroupName) == (
        "training",
        "Nvidia:2@x%NVLink",
    )


def test_profiles_are_made_changed_listed_and_deleted(server: SimServer, si: Any) -> None:
    manager = si.content.directPathProfileManager
    config = KIND.VmiopDirectPathConfig(vgpuProfile="nvidia_a40-24q")
    profile_id = manager.DirectPathProfileManagerCreate(KIND.CreateSpec(name="half", deviceConfig=config))
    with pytest.raises(vim.fault.AlreadyExists):
        manager.DirectPathProfileManagerCreate(KIND.CreateSpec(name="half", deviceConfig=config))
    with pytest.raises(vmodl.fault.InvalidArgument):
        manager.DirectPathProfileManagerCreate(KIND.CreateSpec(name="x" * 81, deviceConfig=config))
    manager.DirectPathProfileManagerUpdate(profile_id, KIND.UpdateSpec(name="half an A40", description="two of them"))
    [profile] = manager.DirectPathProfileManagerList(KIND.FilterSpec(ids=[profile_id]))
    assert (profile.name, profile.description, profile.vendorName) == ("half an A40", "two of them", "NVIDIA")
    manager.DirectPathProfileManagerDelete(profile_id)
    names = [listed_profile.name for listed_profile in manager.DirectPathProfileManagerList(KIND.FilterSpec())]
    assert names == ["vgpu-8q", "vgpu-48c"]
    with pytest.raises(vim.fault.NotFound):
        manager.DirectPathProfileManagerDelete(profile_id)
    with pytest.raises(vim.fault.ResourceInUse):
        manager.DirectPathProfileManagerDelete("dpp-1")


def task_error(task: Any) -> str:
    """What a task was refused with; empty = it was done."""
    try:
        WaitForTask(task)
    except vmodl.MethodFault as fault:
        return "; ".join(message.message or "" for message in fault.faultMessage)
    return ""


def power_on_error(server: SimServer, si: Any, name: str) -> str:
    return task_error(ref(server, si, vim.VirtualMachine, name).PowerOnVM_Task())


@pytest.mark.long
def test_a_start_that_takes_what_is_reserved_is_refused(server: SimServer, si: Any) -> None:
    """Fourteen more fit, four of them reserved: a whole GPU takes six, and then eight are left for the next."""
    assert power_on_error(server, si, "ml-01") == ""
    for number in range(6, 9):
        assert task_error(ref(server, si, vim.VirtualMachine, f"desk-{number:02}").SuspendVM_Task()) == ""
    refused = power_on_error(server, si, "ml-02")
    assert refused == "", "eleven are left and four reserved: a second whole GPU leaves five"
    # five are left, four of them reserved: one desktop of three comes back
    assert [bool(power_on_error(server, si, f"desk-{number:02}")) for number in (6, 7, 8)] == [False, True, True]
    assert power_on_error(server, si, "kube-03") == ""


def test_who_has_a_reservation_starts_on_it(server: SimServer, si: Any) -> None:
    manager, target = si.content.directPathProfileManager, cluster_target(server, si)
    assert power_on_error(server, si, "kube-03") == ""
    [eight] = manager.DirectPathProfileManagerQueryCapacity(target, [of_vgpu("nvidia_a40-8q")])
    assert figures(eight) == (11, 13, 24, 3)


@pytest.mark.parametrize("version", ["8.0.2.0", "8.0.3.0"])
def test_an_older_vcenter_has_none_of_it(version: str) -> None:
    with start("supervisor", tls=False, clock="stepped", api_version=version) as server:
        instance = connect(server)
        assert instance.content.about.apiVersion == version
        assert instance.content.directPathProfileManager is None
        with pytest.raises(vmodl.fault.MethodNotFound):
            KIND("DirectPathProfileMgr", instance._stub).DirectPathProfileManagerList(KIND.FilterSpec())
        Disconnect(instance)
        assert server.world.bugs == []
