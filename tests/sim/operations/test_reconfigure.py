"""ReconfigVM_Task through real pyVmomi: devices, reservations, options; all of it or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyVmomi import vim, vmodl

from tests.sim.lab import Lab, P, serve_lab

DeviceSpec = vim.vm.device.VirtualDeviceSpec


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[Lab]:
    """For tests that are refused, and so change nothing."""
    with serve_lab() as lab:
        yield lab


def vgpu(profile: str, key: int = -1, **fields: Any) -> Any:
    return P(key=key, backing=P.VmiopBackingInfo(vgpu=profile), **fields)


def reconfigure(lab: Lab, name: str, /, **fields: Any) -> None:
    lab.run(lab.vm(name).ReconfigVM_Task(vim.vm.ConfigSpec(**fields)))


def change(operation: str, *devices: Any) -> list[Any]:
    return [DeviceSpec(operation=operation, device=device) for device in devices]


def test_new_devices_get_the_servers_keys(lab: Lab) -> None:
    reconfigure(lab, "ml-07", deviceChange=change("add", vgpu("grid_a100-3-20c", -5), vgpu("grid_a100-3-20c", -6)))
    devices = lab.passthrough("ml-07")
    assert [(device.key, device.controllerKey, device.unitNumber) for device in devices] == [
        (13000, 100, 18),
        (13001, 100, 19),
    ]
    assert lab.vm("ml-07").summary.config.numVmiopBackings == 2
    backing = devices[0].backing
    assert (backing.vgpu, backing.migrateSupported, backing.vgpuMigrateDataSizeMB) == ("grid_a100-3-20c", True, 20480)


def test_edit_changes_the_profile_in_place(lab: Lab) -> None:
    reconfigure(lab, "ml-01", deviceChange=change("edit", vgpu("grid_a100-2-10c", 13000)))
    (device,) = lab.passthrough("ml-01")
    assert (device.key, device.backing.vgpu) == (13000, "grid_a100-2-10c")


def test_what_changes_nothing_is_read_back(lab: Lab) -> None:
    """Terraform sends all of these for every VM, and plans a change where one reads back otherwise."""
    flags = vim.vm.FlagInfo(enableLogging=False, diskUuidEnabled=True, vbsEnabled=False)
    tools = vim.vm.ToolsConfigInfo(beforeGuestReboot=True, toolsUpgradePolicy="upgradeAtPowerCycle")
    plain = {"cpuHotRemoveEnabled": True, "vPMCEnabled": True, "swapPlacement": "hostLocal", "alternateGuestName": "x"}
    reconfigure(lab, "ml-07", flags=flags, tools=tools, **plain)
    config = lab.vm("ml-07").config
    assert {name: getattr(config, name) for name in plain} == plain
    assert (config.flags.enableLogging, config.flags.diskUuidEnabled) == (False, True)
    assert (config.flags.vbsEnabled, config.flags.monitorType) == (False, "release")
    assert (config.tools.beforeGuestReboot, config.tools.afterPowerOn) == (True, True)
    assert lab.vm("ml-08").config.flags.enableLogging is True
    with pytest.raises(vmodl.fault.NotSupported, match=r"tools\.toolsVersion"):
        reconfigure(lab, "ml-07", tools=vim.vm.ToolsConfigInfo(toolsVersion=1))


def test_a_running_vm_may_be_sent_what_it_has(lab: Lab) -> None:
    config = lab.vm("bare").config
    same = {"numCPUs": config.hardware.numCPU, "memoryMB": config.hardware.memoryMB, "firmware": config.firmware}
    reconfigure(lab, "bare", annotation="of Terraform", flags=config.flags, **same)
    assert lab.vm("bare").config.annotation == "of Terraform"
    with pytest.raises(vim.fault.InvalidPowerState):
        reconfigure(lab, "bare", firmware="bios")


@pytest.mark.long
def test_removed_key_is_given_again(lab: Lab) -> None:
    reconfigure(lab, "ml-01", deviceChange=change("remove", lab.passthrough("ml-01")[0]))
    assert lab.passthrough("ml-01") == []
    reconfigure(lab, "ml-01", deviceChange=change("add", vgpu("grid_a100-1-5c")))
    assert [device.key for device in lab.passthrough("ml-01")] == [13000]


def test_one_fault_undoes_the_whole_spec(lab: Lab) -> None:
    before = lab.vm("ml-01").config.changeVersion
    wrong = [*change("add", vgpu("grid_a100-1-5c")), *change("remove", P(key=13099))]
    with pytest.raises(vim.fault.DeviceNotFound) as refused:
        reconfigure(lab, "ml-01", deviceChange=wrong, memoryReservationLockedToMax=True, numCPUs=16)
    assert refused.value.deviceIndex == 1
    vm = lab.vm("ml-01")
    assert (vm.config.changeVersion, vm.config.hardware.numCPU) == (before, 8)
    assert len(lab.passthrough("ml-01")) == 1
    assert len(lab.world.ledger) == 0


@pytest.mark.long
def test_stale_change_version_is_concurrent_access(lab: Lab) -> None:
    version = lab.vm("ml-07").config.changeVersion
    reconfigure(lab, "ml-07", changeVersion=version, annotation="mine")
    with pytest.raises(vim.fault.ConcurrentAccess):
        reconfigure(lab, "ml-07", changeVersion=version, annotation="yours")
    assert lab.vm("ml-07").config.annotation == "mine"


@pytest.mark.long
def test_empty_value_removes_an_option_and_modelled_keys_are_ignored(lab: Lab) -> None:
    option = vim.option.OptionValue
    added = [option(key="a.b", value="1"), option(key="pciPassthru0.id", value="0"), option(key="numa.x", value="2")]
    reconfigure(lab, "ml-07", extraConfig=added)
    reconfigure(lab, "ml-07", extraConfig=[option(key="A.B", value="")])
    assert {option.key: option.value for option in lab.vm("ml-07").config.extraConfig} == {"numa.x": "2"}


@pytest.mark.long
def test_locked_memory_follows_the_size(lab: Lab) -> None:
    reconfigure(lab, "ml-07", memoryReservationLockedToMax=True)
    reconfigure(lab, "ml-07", memoryMB=32768)
    assert lab.vm("ml-07").config.memoryAllocation.reservation == 32768
    reconfigure(lab, "ml-07", memoryReservationLockedToMax=False)
    assert lab.vm("ml-07").summary.config.memoryReservation == 32768


@pytest.mark.long
def test_numa_and_hot_add_settings_are_kept(lab: Lab) -> None:
    reconfigure(lab, "ml-07", cpuHotAddEnabled=True, virtualNuma=vim.vm.VirtualNuma(coresPerNumaNode=4))
    config = lab.vm("ml-07").config
    assert (config.cpuHotAddEnabled, config.numaInfo.coresPerNumaNode) == (True, 4)
    assert config.numaInfo.autoCoresPerNumaNode is False
    reconfigure(lab, "ml-07", virtualNuma=vim.vm.VirtualNuma(coresPerNumaNode=0))
    assert lab.vm("ml-07").config.numaInfo.autoCoresPerNumaNode is True


@pytest.mark.long
def test_power_on_writes_numa_cookies_that_nobody_asked_for(lab: Lab) -> None:
    before = lab.vm("ml-07").config.changeVersion
    lab.power_on("ml-07")
    config = lab.vm("ml-07").config
    assert config.changeVersion != before
    assert "numa.autosize.cookie" in {option.key for option in config.extraConfig}


@pytest.mark.long
def test_device_group_comes_and_goes_as_a_whole(lab: Lab) -> None:
    target = lab.cluster().environmentBrowser.QueryConfigTarget(lab.host("esx-02.lab"))
    group = next(offer for offer in target.vendorDeviceGroupInfo if offer.deviceGroupName.endswith("%NVLink"))
    devices = [component.device for component in group.componentDeviceInfo]
    declared = vim.vm.VirtualDeviceGroups(
        deviceGroup=[
            vim.vm.VirtualDeviceGroups.VendorDeviceGroup(groupInstanceKey=-1, deviceGroupName=group.deviceGroupName)
        ]
    )
    reconfigure(lab, "ml-08", deviceChange=change("add", *devices), deviceGroups=declared)
    members = lab.passthrough("ml-08")
    assert [(member.deviceGroupInfo.groupInstanceKey, member.deviceGroupInfo.sequenceId) for member in members] == [
        (1, 0),
        (1, 1),
    ]
    assert lab.vm("ml-08").config.deviceGroups.deviceGroup[0].deviceGroupName == group.deviceGroupName
    with pytest.raises(vmodl.fault.InvalidArgument, match="as a whole"):
        reconfigure(lab, "ml-08", deviceChange=change("remove", members[0]))
    reconfigure(lab, "ml-08", deviceChange=change("remove", *members))
    assert lab.vm("ml-08").config.deviceGroups is None


@pytest.mark.long
def test_half_a_device_group_is_refused(shared_lab: Lab) -> None:
    member = vgpu("grid_a100d-80c", deviceGroupInfo=vim.vm.device.VirtualDevice.DeviceGroupInfo())
    member.deviceGroupInfo.groupInstanceKey, member.deviceGroupInfo.sequenceId = -1, 0
    declared = vim.vm.VirtualDeviceGroups.VendorDeviceGroup(
        groupInstanceKey=-1, deviceGroupName="Nvidia:2@grid_a100d-80c%NVLink"
    )
    with pytest.raises(vmodl.fault.InvalidArgument, match="as a whole"):
        reconfigure(
            shared_lab,
            "ml-08",
            deviceChange=change("add", member),
            deviceGroups=vim.vm.VirtualDeviceGroups(deviceGroup=[declared]),
        )


DYNAMIC = P(key=-1, backing=P.DynamicBackingInfo(deviceName="", allowedDevice=[]))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "fields", "fault"),
    [
        ("vdi-01", {"deviceChange": change("add", vgpu("nvidia_a40-8q"))}, vim.fault.InvalidPowerState),
        ("vdi-11", {"deviceChange": change("add", vgpu("nvidia_a40-8q"))}, vim.fault.InvalidPowerState),
        ("vdi-11", {"numCPUs": 8}, vim.fault.InvalidPowerState),
        ("vdi-01", {"firmware": "bios"}, vim.fault.InvalidPowerState),
        ("ml-07", {"deviceChange": change("add", vgpu("nvidia_z999-8q"))}, vim.fault.DeviceBackingNotSupported),
        (
            "ml-07",
            {"deviceChange": change("add", vgpu("grid_a100-1-5c"), vgpu("grid_a100-1-5c"))},
            vim.fault.InvalidDeviceSpec,
        ),
        ("ml-07", {"deviceChange": change("add", DYNAMIC)}, vim.fault.InvalidDeviceBacking),
        ("legacy", {"virtualNuma": vim.vm.VirtualNuma(coresPerNumaNode=2)}, vmodl.fault.InvalidArgument),
        ("ml-07", {"memoryAllocation": vim.ResourceAllocationInfo(reservation=1 << 30)}, vmodl.fault.InvalidArgument),
        ("ml-07", {"numCPUs": 1000}, vmodl.fault.InvalidArgument),
        ("ml-07", {"vAppConfigRemoved": True}, vmodl.fault.NotSupported),
        ("ml-07", {"name": "ml-01"}, vim.fault.DuplicateName),
    ],
)
def test_what_is_refused(shared_lab: Lab, name: str, fields: dict[str, Any], fault: type[Exception]) -> None:
    before = shared_lab.vm(name).config.changeVersion
    with pytest.raises(fault):
        reconfigure(shared_lab, name, **fields)
    assert shared_lab.vm(name).config.changeVersion == before


@pytest.mark.long
def test_running_vm_takes_reservations_and_options(lab: Lab) -> None:
    option = [vim.option.OptionValue(key="guestinfo.x", value="1")]
    reconfigure(lab, "bare", extraConfig=option, memoryReservationLockedToMax=True)
    assert lab.vm("bare").config.memoryReservationLockedToMax is True


@pytest.mark.long
def test_more_than_sixteen_vgpus_are_too_many(shared_lab: Lab) -> None:
    many = change("add", *[vgpu("grid_a100-1-5c", -number) for number in range(1, 18)])
    with pytest.raises(vim.fault.TooManyDevices):
        reconfigure(shared_lab, "ml-08", deviceChange=many)


@pytest.mark.long
def test_renamed_vm_is_found_by_its_new_name(lab: Lab) -> None:
    reconfigure(lab, "ml-07", name="ml-77")
    renamed_vm = lab.si.content.searchIndex.FindByInventoryPath("lab-dc/vm/ml/ml-77")
    assert renamed_vm.name == "ml-77"
    assert renamed_vm.summary.config.vmPathName == "[lab-ds-1] ml-07/ml-07.vmx"
    assert renamed_vm.layoutEx.file[0].name == renamed_vm.config.files.vmPathName


@pytest.mark.long
def test_boot_options_stay_until_they_are_changed(lab: Lab) -> None:
    kinds = vim.vm.BootOptions
    reconfigure(lab, "ml-07", bootOptions=kinds(bootDelay=1000, enterBIOSSetup=True, efiSecureBootEnabled=True))
    order = [kinds.BootableCdromDevice(), kinds.BootableDiskDevice(deviceKey=2000)]
    reconfigure(lab, "ml-07", bootOptions=kinds(bootOrder=order, bootRetryEnabled=True, networkBootProtocol="ipv6"))
    boot_options = lab.vm("ml-07").config.bootOptions
    assert (boot_options.bootDelay, boot_options.enterBIOSSetup, boot_options.efiSecureBootEnabled) == (
        1000,
        True,
        True,
    )
    assert (boot_options.bootRetryEnabled, boot_options.bootRetryDelay, boot_options.networkBootProtocol) == (
        True,
        10000,
        "ipv6",
    )
    assert [type(boot_device) for boot_device in boot_options.bootOrder] == [
        kinds.BootableCdromDevice,
        kinds.BootableDiskDevice,
    ]
    assert boot_options.bootOrder[1].deviceKey == 2000
    lab.power_on("ml-07")
    assert lab.vm("ml-07").config.bootOptions.enterBIOSSetup is False
    reconfigure(lab, "ml-07", bootOptions=kinds(enterBIOSSetup=True, bootOrder=[kinds.BootableDevice()]))
    boot_options = lab.vm("ml-07").config.bootOptions
    assert (boot_options.enterBIOSSetup, boot_options.bootOrder, boot_options.bootDelay) == (True, [], 1000)
    with pytest.raises(vim.fault.InvalidPowerState):
        reconfigure(lab, "ml-07", bootOptions=kinds(efiSecureBootEnabled=False))


@pytest.mark.long
@pytest.mark.parametrize(
    "wrong",
    [
        {"bootDelay": -1},
        {"networkBootProtocol": "ipx"},
        {"bootOrder": [vim.vm.BootOptions.BootableDiskDevice(deviceKey=2009)]},
    ],
)
def test_boot_options_that_cannot_be(shared_lab: Lab, wrong: dict[str, Any]) -> None:
    with pytest.raises(vmodl.fault.InvalidArgument):
        reconfigure(shared_lab, "ml-08", bootOptions=vim.vm.BootOptions(**wrong))
