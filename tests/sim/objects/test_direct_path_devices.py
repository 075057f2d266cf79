"""DirectPath devices and profiles of the simulated vCenter, by pyVmomi, the unmodified SDK and REST: from 9.0 on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVim.task import WaitForTask
from pyVmomi import vim, vmodl

from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer, start
from gpuops.sim.state.host_state import HostState
from gpuops.sim.vcenter.authority import READ_ONLY
from gpuops.vsphere.connection import Connection
from tests.sim.lab import connect
from tests.sim.wire.automation_clients import Rest, sdk_client
from tests.wire.conftest import target_of

BUSY = "0000:3b:00.0"


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SimServer]]:
    servers: list[SimServer] = []

    def start(scenario: str = "lab", version: str = "9.1.0.0", *, tls: bool = True) -> SimServer:
        servers.append(SimServer(build(scenario, api_version=version), tls=tls).__enter__())
        return servers[-1]

    yield start
    for server in servers:
        server.__exit__(None, None, None)
        assert server.world.bugs == []


def host(server: SimServer, name: str = "esx-02.lab") -> Any:
    return next(host for host in server.world.by_type("HostSystem") if host.name == name)


def gpu(server: SimServer, at: str, name: str = "esx-02.lab") -> Any:
    state: HostState = host(server, name).state
    return state.gpu(at)


def free(server: SimServer) -> str:
    """The address of a GPU of the host that nothing runs on and no VM has."""
    host_entity = host(server)
    used_addresses = {seat.pci_id for seat in host_entity.seats()} | {
        at for vm in host_entity.running_vms() for _, at in vm.state.held
    }
    return next(
        gpu.pci_id
        for gpu in host_entity.state.gpus
        if gpu.pci_id not in used_addresses and gpu.listed and gpu.mode == "sameSize"
    )


def devices_of(server: SimServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    client = sdk_client(server, monkeypatch)
    service = client.vcenter.host.hardware.DirectPathDevices
    service.client = client  # it logs out when it is garbage collected
    return service


def configure_device(service: Any, moid: str, device: str, mode: str) -> list[str]:
    """The impacts that the SDK's own task tells, once it has ended."""
    task = service.configure_task(moid, service.ConfigureSpec(device=device, new_mode=mode))
    statuses: list[str] = []
    while not statuses or statuses[-1] == "RUNNING":
        statuses.append(str(task.get_info().status))
    assert statuses == ["RUNNING", "SUCCEEDED"]
    return sorted(task.get_result().configure_impacts)


@pytest.mark.long
def test_the_sdk_lists_what_a_host_has(serve: Callable[..., SimServer], monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    service = devices_of(server, monkeypatch)
    items = {device.device: device.info for device in service.list(host(server).moid).items}
    assert set(items) == {"0000:31:00.0", "0000:31:00.1", *(gpu.pci_id for gpu in host(server).state.gpus)}
    device_info = items[BUSY]
    assert device_info.name == gpu(server, BUSY).board.name
    assert device_info.current_mode == "VGPU_SAME_SIZE"
    assert (device_info.driver_name, device_info.interconnect_type) == ("nvidia", "PCIe")
    seats = [seat for seat in host(server).seats() if seat.pci_id == BUSY]
    assert seats
    assert device_info.vms == {seat.vm for seat in seats}
    assert device_info.memory_info.used_memory == sum(seat.type.framebuffer_mib for seat in seats)
    assert device_info.memory_info.total_memory == gpu(server, BUSY).board.framebuffer_mib
    assert items["0000:31:00.0"].current_mode == "HOST", "a network card"
    some = service.list(host(server).moid, filter_spec=service.FilterSpec(devices={BUSY})).items
    assert [device.device for device in some] == [BUSY]


@pytest.mark.long
def test_what_is_reserved_is_told_where_it_is_asked_for(
    serve: Callable[..., SimServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve("supervisor")
    service = devices_of(server, monkeypatch)
    moids = [host.moid for host in server.world.by_type("HostSystem")]
    infos = [element.info for moid in moids for element in service.list(moid).items if element.info.memory_info]
    assert all(info.vm_classes_info is None for info in infos)
    assert [info.memory_info.total_reserved_memory for info in infos] == [6 * 8192, 0, 0, 0]
    assert [info.memory_info.reserved_used_memory for info in infos] == [2 * 8192, 0, 0, 0]
    detailed = service.list(moids[0], list_details=service.ListDetails(vm_class=True)).items[-1].info
    classes = {element.vm_class: element for element in detailed.vm_classes_info}
    assert classes.keys() == {"vgpu-8q", "vgpu-48c"}
    assert (classes["vgpu-8q"].vm_class_reserved_total, classes["vgpu-8q"].vm_class_reserved_in_use) == (6, 2)
    assert {vm_class.dpp_id for vm_class in classes.values()} == detailed.direct_path_profiles


@pytest.mark.long
def test_a_size_is_in_force_at_once(serve: Callable[..., SimServer], monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    at = free(server)
    service = devices_of(server, monkeypatch)
    assert configure_device(service, host(server).moid, at, "VGPU_MIXED_SIZE") == ["NONE"]
    assert gpu(server, at).mode == "mixedSize"
    assert configure_device(service, host(server).moid, at, "VGPU_MIXED_SIZE") == ["NONE"], "it is so already"


@pytest.mark.long
@pytest.mark.parametrize("rebinds", [False, True])
def test_who_has_a_gpu_waits_for_a_reboot_or_for_maintenance_mode(
    serve: Callable[..., SimServer], monkeypatch: pytest.MonkeyPatch, *, rebinds: bool
) -> None:
    server = serve()
    at, state = free(server), host(server).state
    state.rebinds_without_reboot = rebinds
    service = devices_of(server, monkeypatch)
    impact = "HOST_MAINTENANCE_MODE_REQUIRED" if rebinds else "HOST_REBOOT_REQUIRED"
    assert configure_device(service, host(server).moid, at, "DIRECTPATH") == [impact]
    assert (gpu(server, at).passthrough_enabled, gpu(server, at).passthrough_active) == (True, False)
    assert state.reboot_required is not rebinds
    listed = service.list(host(server).moid, filter_spec=service.FilterSpec(devices={at})).items
    assert [str(device.info.current_mode) for device in listed] == ["VGPU_SAME_SIZE"], "in force is what was"
    with Connection(target_of(server)) as connection:
        for vm in host(server).running_vms():
            connection.vm(vm.moid).PowerOffVM_Task()
        server.world.clock.advance(600)
        connection.host(host(server).moid).EnterMaintenanceMode_Task(600, False)
        server.world.clock.advance(600)
    assert state.in_maintenance
    assert gpu(server, at).passthrough_active is rebinds
    if rebinds:
        assert configure_device(service, host(server).moid, at, "VGPU_SAME_SIZE") == ["NONE"], (
            "in maintenance mode already"
        )
        assert gpu(server, at).passthrough_active is False


@pytest.mark.long
def test_soap_tells_the_configured_mode_to_a_client_of_9_1(serve: Callable[..., SimServer]) -> None:
    for version, is_told in (("8.0.3.0", False), ("9.0.0.0", False), ("9.1.0.0", True)):
        server = serve(version=version)
        with Connection(target_of(server)) as connection:
            system = connection.host(host(server).moid).configManager.pciPassthruSystem
            states = {gpu.id: gpu.directPathState for gpu in system.pciPassthruInfo}
        assert (states[BUSY] is not None) is is_told
        if is_told:
            assert states[BUSY].mode == "vGpuSameSize"
            assert set(states[BUSY].configurableModes) >= {"directPath", "vGpuSameSize"}


@pytest.mark.parametrize("version", ["8.0.3.0", "9.0.0.0"])
def test_before_9_1_there_is_no_such_service(
    serve: Callable[..., SimServer], monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    from com.vmware.vapi.std.errors_client import OperationNotFound

    server = serve(version=version)
    with pytest.raises(OperationNotFound):
        devices_of(server, monkeypatch).list(host(server).moid)


def test_rest(serve: Callable[..., SimServer]) -> None:
    server = serve(tls=False)
    at = free(server)
    rest = Rest(server)
    path = f"/api/vcenter/host/{host(server).moid}/hardware/direct-path-devices"
    status, listing = rest("GET", path)
    assert status == 200
    assert {device["device"] for device in listing["items"]} >= {at, "0000:31:00.0"}
    assert rest("GET", f"{path}?devices={at}")[1]["items"][0]["info"]["current_mode"] == "VGPU_SAME_SIZE"
    configure = f"{path}?action=configure&vmw-task=true"
    status, task = rest("POST", configure, {"device": at, "new_mode": "VGPU_MIXED_SIZE"})
    assert status == 202
    assert rest("GET", f"/api/cis/tasks/{task}")[1]["status"] == "RUNNING"
    assert rest("GET", f"/api/cis/tasks/{task}")[1]["result"] == {"configure_impacts": ["NONE"]}
    assert rest("GET", "/api/cis/tasks/none")[0] == 404
    busy = rest("POST", configure, {"device": BUSY, "new_mode": "DIRECTPATH"})[1]
    rest("GET", f"/api/cis/tasks/{busy}")
    failed = rest("GET", f"/api/cis/tasks/{busy}")[1]
    assert failed["status"] == "FAILED"
    assert "in use" in failed["error"]["messages"][0]["default_message"]
    assert rest("POST", configure, {"device": "0000:99:00.0", "new_mode": "HOST"})[0] == 404
    assert rest("POST", configure, {"device": at, "new_mode": "MIG"})[0] == 400
    assert rest("POST", configure, {"device": at, "new_mode": "ENHANCED_DIRECTPATH"})[0] == 400
    assert (
        rest("POST", configure, {"device": "0000:31:00.0", "new_mode": "DIRECTPATH"})[1]["error_type"] == "UNSUPPORTED"
    )
    assert rest("POST", configure, b"")[0] == 400
    assert rest("GET", path.replace(host(server).moid, "host-none"))[0] == 404
    rest.close()


def test_a_login_without_the_privilege_is_refused(serve: Callable[..., SimServer]) -> None:
    server = serve(tls=False)
    rest = Rest(server)
    server.world.authority.permit(server.username, READ_ONLY)
    path = f"/api/vcenter/host/{host(server).moid}/hardware/direct-path-devices"
    assert rest("GET", path)[0] == 200
    spec = {"device": free(server), "new_mode": "VGPU_MIXED_SIZE"}
    assert rest("POST", f"{path}?action=configure&vmw-task=true", spec)[0] == 403
    assert gpu(server, spec["device"]).mode == "sameSize"
    rest.close()


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
