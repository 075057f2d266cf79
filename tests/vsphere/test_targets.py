"""Config targets out of vmomi values: the vendor's spellings end here."""

from __future__ import annotations

from typing import Any

from pyVmomi import vim

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import ConfigTarget
from gpuops.model.vcenter.host_settings import DeviceGroupMember
from gpuops.vsphere.reading.host_reads import config_target

KINDS = vim.vm.device.VirtualPCIPassthrough


def passthrough(address: str, *, vendor_id: int, device_id: int, name: str = "", device_name: str = "") -> Any:
    device = vim.host.PciDevice(id=address, vendorId=vendor_id, deviceId=device_id, deviceName=device_name)
    return vim.vm.PciPassthroughInfo(pciDevice=device, systemId="5f1c", name=name)


def component(kind: str, backing: Any, sequence_id: int | None) -> Any:
    device = KINDS(key=-1, backing=backing)
    if sequence_id is not None:
        device.deviceGroupInfo = vim.vm.device.VirtualDevice.DeviceGroupInfo(
            groupInstanceKey=-1, sequenceId=sequence_id
        )
    return vim.vm.VendorDeviceGroupInfo.ComponentDeviceInfo(
        type=kind, vendorName="NVIDIA", deviceName="", isConfigurable=False, device=device
    )


def group(*components: Any) -> Any:
    return vim.vm.VendorDeviceGroupInfo(deviceGroupName="g", componentDeviceInfo=list(components))


def test_ids_come_as_signed_shorts() -> None:
    offered = vim.vm.ConfigTarget(pciPassthrough=[passthrough("0000:3b:00.0", vendor_id=-32634, device_id=-22855)])
    [device] = config_target(offered).passthrough
    assert (device.vendor_id, device.device_id) == (0x8086, 0xA6B9)
    assert device.address == PciAddress.parse("3b:00.0")


def test_a_name_is_taken_from_where_there_is_one() -> None:
    offered = vim.vm.ConfigTarget(
        pciPassthrough=[
            passthrough("0000:3b:00.0", vendor_id=4318, device_id=1, name="L40S", device_name="AD102GL"),
            passthrough("0000:5e:00.0", vendor_id=4318, device_id=1, device_name="AD102GL"),
        ]
    )
    assert [device.name for device in config_target(offered).passthrough] == ["L40S", "AD102GL"]


def test_a_device_with_no_pci_address_is_left_out() -> None:
    offered = vim.vm.ConfigTarget(pciPassthrough=[passthrough("pcie-root", vendor_id=4318, device_id=1)])
    assert config_target(offered) == ConfigTarget()


def test_group_members_keep_the_order_of_their_templates() -> None:
    static = KINDS.DeviceBackingInfo(id="", deviceId="26b9", systemId="", vendorId=4318, deviceName="")
    dynamic = KINDS.DynamicBackingInfo(
        deviceName="", allowedDevice=[KINDS.AllowedDevice(vendorId=0x15B3, deviceId=0x1021)]
    )
    vgpu = KINDS.VmiopBackingInfo(vgpu="grid_a100d-80c")
    offered = vim.vm.ConfigTarget(
        vendorDeviceGroupInfo=[
            group(component("pciPassthru", dynamic, 2), component("nvidiaVgpu", vgpu, 0), component("x", static, 1))
        ]
    )
    [device_group] = config_target(offered).device_groups
    assert device_group.members == (
        DeviceGroupMember("nvidiaVgpu", 0, profile="grid_a100d-80c"),
        DeviceGroupMember("x", 1, vendor_id=0x10DE, device_id=0x26B9),
        DeviceGroupMember("pciPassthru", 2, vendor_id=0x15B3, device_id=0x1021),
    )


def test_a_template_without_group_info_or_with_odd_ids_is_no_crash() -> None:
    odd = KINDS.DeviceBackingInfo(id="", deviceId="GPU", systemId="", vendorId=4318, deviceName="")
    offered = vim.vm.ConfigTarget(vendorDeviceGroupInfo=[group(component("x", odd, None))])
    [device_group] = config_target(offered).device_groups
    assert device_group.members == (DeviceGroupMember("x", 0, vendor_id=0x10DE, device_id=None),)
