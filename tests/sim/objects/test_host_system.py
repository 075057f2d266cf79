"""Hosts through real pyVmomi: what they offer, graphics and passthrough settings, modules, maintenance, reboot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyVmomi import vim, vmodl

from gpuops.sim.core.sim_clock import VIRTUAL_START
from gpuops.sim.objects.host_system import HostProfile
from gpuops.sim.scenario.counter_values import measure
from gpuops.sim.vcenter.perf_counters import BY_NAME
from tests.sim.lab import Lab, serve_lab


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[Lab]:
    """For tests that only read, or are refused."""
    with serve_lab() as lab:
        yield lab


def target(lab: Lab, host: str | None = None) -> Any:
    return lab.cluster().environmentBrowser.QueryConfigTarget(lab.host(host) if host else None)


def stop_all(lab: Lab, host: str) -> None:
    for vm in lab.host(host).vm:
        if vm.runtime.question is not None:
            vm.AnswerVM(vm.runtime.question.id, "0")
        if vm.runtime.powerState == "poweredOn":
            lab.power_off(vm.name)


def test_numa_nodes_name_the_gpus_beside_them(shared_lab: Lab) -> None:
    nodes = shared_lab.host("esx-01.lab").hardware.numaInfo.numaNode
    assert ["0000:3b:00.0" in node.pciId for node in nodes] == [True, False]
    assert ["0000:d8:00.0" in node.pciId for node in nodes] == [False, True]
    assert sum(node.memorySize for node in nodes) == shared_lab.host("esx-01.lab").hardware.memorySize
    assert [len(node.cpuID) for node in nodes] == [64, 64]


def test_pci_ids_are_signed_shorts(shared_lab: Lab) -> None:
    devices = {device.id: device for device in shared_lab.host("esx-01.lab").hardware.pciDevice}
    gpu, bridge = devices["0000:af:00.0"], devices["0000:ae:00.0"]
    assert (gpu.vendorId, gpu.deviceId & 0xFFFF, gpu.subDeviceId) == (0x10DE, 0x20F1, 0x145F)
    assert (bridge.vendorId, bridge.vendorId & 0xFFFF) == (0x8086 - 0x10000, 0x8086)
    assert gpu.bus == 0xAF - 0x100
    assert gpu.parentBridge == bridge.id


def test_modes_decide_what_is_offered(shared_lab: Lab) -> None:
    config = shared_lab.host("esx-01.lab").config
    assert [(gpu.pciId, gpu.vgpuMode) for gpu in config.graphicsInfo] == [
        ("0000:3b:00.0", "multiInstanceGpu"),
        ("0000:af:00.0", "multiInstanceGpu"),
        ("0000:d8:00.0", "sameSize"),
    ]
    assert "grid_a100-3-20c" in config.sharedPassthruGpuTypes
    assert "grid_a100-20c" not in config.sharedPassthruGpuTypes
    supported = {profile.vgpu for profile in config.sharedGpuCapabilities}
    assert {"nvidia_a40-8q", "nvidia_a40-48c"} <= supported
    assert "nvidia_a40-48c" not in config.sharedPassthruGpuTypes


def test_passthrough_gpus_are_not_in_the_graphics_stack(shared_lab: Lab) -> None:
    host = shared_lab.host("esx-02.lab")
    listed = {gpu.pciId for gpu in host.config.graphicsInfo}
    active = {info.id for info in host.config.pciPassthruInfo if info.passthruActive}
    assert active == {"0000:5e:00.0", "0000:d8:00.0"}
    assert listed.isdisjoint(active)


def test_profile_info_says_class_and_sharing(shared_lab: Lab) -> None:
    manager = shared_lab.host("esx-01.lab").configManager.graphicsManager
    profiles = {info.profileName: info for info in manager.RetrieveVgpuProfileInfo()}
    mig, desktop = profiles["grid_a100-3-20c"], profiles["nvidia_a40-8q"]
    assert (mig.profileSharing, mig.profileClass, mig.fbSizeInGib) == ("mig", "compute", 20)
    assert (desktop.profileSharing, desktop.profileClass, desktop.deviceVendorId) == (
        "timeSliced",
        "quadro",
        0x2235 << 16 | 0x10DE,
    )


@pytest.mark.long
def test_config_target_is_of_the_host_asked(shared_lab: Lab) -> None:
    first_target, second_target, common_target = (
        target(shared_lab, "esx-01.lab"),
        target(shared_lab, "esx-02.lab"),
        target(shared_lab),
    )
    assert [device.pciDevice.id for device in first_target.pciPassthrough] == []
    assert [device.pciDevice.id for device in second_target.pciPassthrough] == ["0000:5e:00.0", "0000:d8:00.0"]
    assert [(device.deviceId, device.customLabel) for device in second_target.dynamicPassthrough] == [
        (0x26B9, "l40s-ml")
    ]
    assert second_target.pciPassthrough[0].systemId == shared_lab.host("esx-02.lab").hardware.systemInfo.uuid
    assert [group.deviceGroupName for group in second_target.vendorDeviceGroupInfo] == [
        "Nvidia:2@grid_a100d-80c%NVLink"
    ]
    names = {profile.vgpu for profile in first_target.sharedGpuPassthroughTypes} | {
        profile.vgpu for profile in second_target.sharedGpuPassthroughTypes
    }
    assert {profile.vgpu for profile in common_target.sharedGpuPassthroughTypes} == names


def graphics_config(host: Any, **devices: dict[str, str]) -> Any:
    """The host's whole config with some devices changed, as clients must send it."""
    config = host.config.graphicsConfig
    for device in config.deviceType:
        for name, value in devices.get(device.deviceId, {}).items():
            setattr(device, name, value)
    return config


@pytest.mark.long
def test_mode_changes_on_an_empty_gpu_at_once(lab: Lab) -> None:
    host = lab.host("esx-02.lab")
    config = graphics_config(host, **{"0000:af:00.0": {"vgpuMode": "sameSize"}})
    host.configManager.graphicsManager.UpdateGraphicsConfig(config)
    assert {gpu.pciId: gpu.vgpuMode for gpu in host.config.graphicsInfo}["0000:af:00.0"] == "sameSize"
    assert lab.world.ledger.to_json()[-1]["name"] == "esx-02.lab"


@pytest.mark.parametrize(
    ("host", "gpu", "change", "fault"),
    [
        ("esx-02.lab", "0000:3b:00.0", {"vgpuMode": "mixedSize"}, vim.fault.ResourceInUse),
        ("esx-01.lab", "0000:3b:00.0", {"vgpuMode": "mixedSize"}, vmodl.fault.InvalidArgument),
        ("esx-01.lab", "0000:3b:00.0", {"graphicsType": "shared"}, vim.fault.ResourceInUse),
        ("esx-01.lab", "0000:3b:00.0", {"graphicsType": "fancy"}, vmodl.fault.InvalidArgument),
    ],
)
def test_graphics_changes_that_are_refused(
    shared_lab: Lab, host: str, gpu: str, change: dict[str, str], fault: Any
) -> None:
    with pytest.raises(fault):
        shared_lab.host(host).configManager.graphicsManager.UpdateGraphicsConfig(
            graphics_config(shared_lab.host(host), **{gpu: change})
        )
    assert len(shared_lab.world.ledger) == 0


@pytest.mark.long
def test_graphics_type_waits_for_a_reboot(lab: Lab) -> None:
    stop_all(lab, "esx-01.lab")
    host = lab.host("esx-01.lab")
    config = graphics_config(host, **{"0000:d8:00.0": {"graphicsType": "shared"}})
    host.configManager.graphicsManager.UpdateGraphicsConfig(config)
    assert host.config.graphicsInfo[2].graphicsType == "sharedDirect"
    assert host.config.graphicsConfig.deviceType[2].graphicsType == "shared"
    assert host.summary.rebootRequired is True
    reboot(lab, "esx-01.lab")
    assert host.config.graphicsInfo[2].graphicsType == "shared"
    with pytest.raises(vim.fault.InsufficientGraphicsResourcesFault):
        lab.power_on("vdi-01", "esx-01.lab")


def reboot(lab: Lab, name: str) -> None:
    host = lab.host(name)
    lab.run(host.EnterMaintenanceMode_Task(0))
    lab.run(host.RebootHost_Task(force=False))
    assert host.runtime.connectionState == "notResponding"
    lab.let_pass(1200)
    assert host.runtime.connectionState == "connected"
    lab.run(host.ExitMaintenanceMode_Task(0))


@pytest.mark.long
def test_passthrough_is_configured_now_and_in_force_after_a_reboot(lab: Lab) -> None:
    stop_all(lab, "esx-01.lab")
    host = lab.host("esx-01.lab")
    change = vim.host.PciPassthruConfig(id="0000:3b:00.0", passthruEnabled=True, hardwareLabel="a100")
    host.configManager.pciPassthruSystem.UpdatePassthruConfig([change])
    info = next(gpu for gpu in host.config.pciPassthruInfo if gpu.id == "0000:3b:00.0")
    assert (info.passthruEnabled, info.passthruActive, info.hardwareLabel) == (True, False, "a100")
    reboot(lab, "esx-01.lab")
    info = next(gpu for gpu in host.config.pciPassthruInfo if gpu.id == "0000:3b:00.0")
    assert info.passthruActive is True
    assert "0000:3b:00.0" not in {gpu.pciId for gpu in host.config.graphicsInfo}


@pytest.mark.parametrize(
    ("host", "fields"),
    [
        ("esx-01.lab", {"id": "0000:3b:00.0", "passthruEnabled": True, "applyNow": True}),
        ("esx-01.lab", {"id": "0000:d8:00.0", "passthruEnabled": True}),
        ("esx-01.lab", {"id": "0000:99:00.0", "passthruEnabled": True}),
    ],
)
def test_passthrough_changes_that_are_refused(shared_lab: Lab, host: str, fields: dict[str, Any]) -> None:
    with pytest.raises(vim.fault.HostConfigFault):
        shared_lab.host(host).configManager.pciPassthruSystem.UpdatePassthruConfig(
            [vim.host.PciPassthruConfig(**fields)]
        )


@pytest.mark.long
def test_module_options_are_for_the_next_boot(lab: Lab) -> None:
    stop_all(lab, "esx-02.lab")
    system = lab.host("esx-02.lab").configManager.kernelModuleSystem
    system.UpdateModuleOptionString("nvidia", "NVreg_RegistryDwords=RmPVMRL=0x01")
    assert system.QueryConfiguredModuleOptionString("nvidia") == "NVreg_RegistryDwords=RmPVMRL=0x01"
    assert {module.name: module.optionString for module in system.QueryModules()}["nvidia"] == ""
    reboot(lab, "esx-02.lab")
    loaded = {module.name: module.optionString for module in system.QueryModules()}
    assert loaded["nvidia"] == "NVreg_RegistryDwords=RmPVMRL=0x01"
    with pytest.raises(vim.fault.NotFound):
        system.QueryConfiguredModuleOptionString("amd")


def test_driver_version_is_readable_from_the_packages(shared_lab: Lab) -> None:
    packages = shared_lab.host("esx-01.lab").configManager.imageConfigManager.fetchSoftwarePackages()
    assert {package.vendor: package.version for package in packages}["NVIDIA"].startswith("550.90")


def test_maintenance_mode_waits_for_running_vms_in_vain(lab: Lab) -> None:
    with pytest.raises(vim.fault.Timedout):
        lab.run(lab.host("esx-01.lab").EnterMaintenanceMode_Task(60))
    assert lab.host("esx-01.lab").runtime.inMaintenanceMode is False


@pytest.mark.long
def test_maintenance_mode_begins_when_the_last_vm_stops(lab: Lab) -> None:
    host = lab.host("esx-02.lab")
    entering = host.EnterMaintenanceMode_Task(0)
    stop_all(lab, "esx-02.lab")
    lab.run(entering)
    assert host.runtime.inMaintenanceMode is True
    assert (entering.info.completeTime - entering.info.startTime).total_seconds() < 60


@pytest.mark.long
def test_suspended_vms_do_not_block_maintenance_mode(lab: Lab) -> None:
    for vm in lab.host("esx-02.lab").vm:
        if vm.runtime.powerState == "poweredOn":
            lab.run(vm.SuspendVM_Task())
    lab.run(lab.host("esx-02.lab").EnterMaintenanceMode_Task(0))
    assert lab.host("esx-02.lab").runtime.inMaintenanceMode is True


def test_reboot_needs_maintenance_mode(lab: Lab) -> None:
    with pytest.raises(vim.fault.InvalidState):
        lab.run(lab.host("esx-01.lab").RebootHost_Task(force=False))


@pytest.mark.long
def test_gpu_counters_follow_what_runs(shared_lab: Lab) -> None:
    manager = shared_lab.si.content.perfManager
    names = {f"{c.groupInfo.key}.{c.nameInfo.key}.{c.rollupType}": c.key for c in manager.perfCounter}
    query = vim.PerformanceManager.QuerySpec(
        entity=shared_lab.host("esx-01.lab"),
        metricId=[vim.PerformanceManager.MetricId(counterId=names["gpu.mem.used.average"], instance="*")],
        intervalId=20,
        maxSample=1,
    )
    (metric,) = manager.QueryPerf([query])
    assert {series.id.instance: series.value[0] >> 20 for series in metric.value} == {
        "0000:3b:00.0": 0,
        "0000:af:00.0": 0,
        "0000:d8:00.0": 5 * 8,
    }


@pytest.mark.long
def test_host_profiles_are_found_by_what_they_are_attached_to(lab: Lab) -> None:
    manager = lab.si.content.hostProfileManager
    host, cluster = lab.host("esx-01.lab"), lab.cluster()
    assert (manager.profile, manager.FindAssociatedProfile(host), cluster.configManagerEnabled) == ([], [], False)
    lab.world.register(HostProfile(lab.world, "hostprofile-1", "golden", (cluster._moId,), "foreign=1"))
    [profile] = manager.FindAssociatedProfile(cluster)
    assert (profile.name, profile.entity, manager.profile) == ("golden", [cluster], [profile])
    assert manager.FindAssociatedProfile(host) == []
    stop_all(lab, "esx-01.lab")
    lab.run(host.RebootHost_Task(force=True))
    lab.let_pass(1200)
    modules = host.configManager.kernelModuleSystem
    assert modules.QueryConfiguredModuleOptionString("nvidia") == "foreign=1"


@pytest.mark.long
def test_vcls_machines_leave_a_host_for_maintenance_and_come_back(lab: Lab) -> None:
    stop_all(lab, "esx-01.lab")
    lab.vm("vdi-06").Rename_Task("vCLS-4711")
    lab.let_pass(60)
    lab.power_on("vCLS-4711", "esx-01.lab")
    spec = vim.host.MaintenanceSpec(vsanMode=vim.vsan.host.DecommissionMode(objectAction="noAction"))
    lab.run(lab.host("esx-01.lab").EnterMaintenanceMode_Task(0, False, spec))
    assert list(lab.world.ledger)[-1].after == {"in_maintenance": True, "vsan_mode": "noAction"}
    assert lab.power("vCLS-4711") == "poweredOff"
    lab.run(lab.host("esx-01.lab").ExitMaintenanceMode_Task(0))
    lab.let_pass(60)
    assert lab.power("vCLS-4711") == "poweredOn"


def test_what_hosts_and_machines_measure_are_counters_of_vcenter(shared_lab: Lab) -> None:
    for wsdl_name in ("HostSystem", "VirtualMachine"):
        measured = {name for obj in shared_lab.world.by_type(wsdl_name) for name, _ in measure(obj, VIRTUAL_START)}
        assert measured
        assert measured <= BY_NAME.keys()
