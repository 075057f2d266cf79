"""Decoding of replies and config targets: vendor quirks become values; what is missing or odd becomes unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from lxml import etree
from pyVmomi import vim

from gpuops.errors import ProtocolError
from gpuops.model.devices.gpu import GraphicsType, PciAddress, VgpuMode
from gpuops.model.vcenter.host import ConfigTarget
from gpuops.model.vcenter.host_settings import DeviceGroupMember
from gpuops.model.vcenter.vm import (
    DirectPathDevice,
    DynamicDevice,
    Firmware,
    OtherPassthrough,
    PowerState,
    VgpuDevice,
    Vm,
    VmNic,
    pin_key,
)
from gpuops.plan.devices.rules import SIZE_KEY, USE_KEY
from gpuops.plan.placement.host_filters import AFFINITY_KEY
from gpuops.vsphere.reading.bulk.pages import ReadObject
from gpuops.vsphere.reading.bulk.soap_pages import read_objects
from gpuops.vsphere.reading.decoding.decode_device import read_device_uses
from gpuops.vsphere.reading.decoding.decode_host import host_with_gpus, pci_devices, thin_host
from gpuops.vsphere.reading.decoding.decode_vm import thin_vm, with_detail
from gpuops.vsphere.reading.host_reads import config_target
from gpuops.vsphere.transport.wire import SessionEnded, parse_reply

XSI = 'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'


def read_object(kind: str, properties: Mapping[str, str], unreadable: tuple[str, ...] = ()) -> ReadObject:
    values = {
        path: etree.fromstring(f'<val xmlns="urn:vim25" {XSI}>{inner}</val>') for path, inner in properties.items()
    }
    return ReadObject(kind, "object-1", values, unreadable)


def device(key: int, backing_type: str, backing: str, *, kind: str = "VirtualPCIPassthrough") -> str:
    return (
        f'<VirtualDevice xsi:type="{kind}"><key>{key}</key>'
        f"<deviceInfo><label>PCI device {key}</label></deviceInfo>"
        f'<backing xsi:type="{backing_type}">{backing}</backing></VirtualDevice>'
    )


def decode_vm(properties: dict[str, str]) -> Vm:
    return with_detail(thin_vm(read_object("VirtualMachine", {})), read_object("VirtualMachine", properties)).vm


def test_a_vm_of_which_nothing_is_told_is_unknown_throughout() -> None:
    vm = with_detail(thin_vm(read_object("VirtualMachine", {})), read_object("VirtualMachine", {})).vm
    assert vm == Vm(ref="object-1", name="object-1", snapshots=0)


@pytest.mark.parametrize(
    ("suspend_time", "moment"),
    [
        ("2026-11-02T20:05:00.25Z", datetime(2026, 11, 2, 20, 5, 0, 250_000, UTC)),
        ("2026-11-02T21:05:00+01:00", datetime(2026, 11, 2, 20, 5, tzinfo=UTC)),
        ("2026-11-02T20:05:00", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_when_a_vm_was_suspended_is_a_moment_or_unknown(suspend_time: str, moment: datetime | None) -> None:
    assert thin_vm(read_object("VirtualMachine", {"runtime.suspendTime": suspend_time})).vm.suspended_at == moment


def test_a_member_of_a_vapp_has_it_for_a_parent() -> None:
    """vCenter may leave the folder of such a VM out (vSphere API, ManagedEntity.parent)."""
    thin = thin_vm(read_object("VirtualMachine", {"parentVApp": "resgroup-v7"}))
    assert (thin.vm.vapp, thin.parent) == ("resgroup-v7", "resgroup-v7")
    thin = thin_vm(read_object("VirtualMachine", {"parent": "group-v3"}))
    assert (thin.vm.vapp, thin.parent) == (None, "group-v3")


@pytest.mark.parametrize(
    ("automatic", "cores_set", "cores"),
    [("true", "8", 0), ("false", "8", 8), (None, "8", 8), ("true", None, 0), (None, None, None)],
)
def test_virtual_numa_nodes_that_esxi_makes_are_nobodys_wish(
    automatic: str | None, cores_set: str | None, cores: int | None
) -> None:
    numa_info = {"autoCoresPerNumaNode": automatic, "coresPerNumaNode": cores_set}
    properties = {f"config.numaInfo.{name}": value for name, value in numa_info.items() if value is not None}
    assert decode_vm(properties).cores_per_numa_node == cores


def test_the_datastores_of_a_host_are_known_or_unknown_and_none_is_not_unknown() -> None:
    two = '<ManagedObjectReference type="Datastore">{}</ManagedObjectReference>'
    read_host = thin_host(
        read_object("HostSystem", {"datastore": two.format("datastore-1") + two.format("datastore-2")})
    ).host
    assert read_host.datastores == ("datastore-1", "datastore-2")
    assert thin_host(read_object("HostSystem", {})).host.datastores == ()
    assert thin_host(read_object("HostSystem", {}, unreadable=("datastore",))).host.datastores is None


def test_unreadable_snapshots_are_unknown_and_named() -> None:
    vm = thin_vm(read_object("VirtualMachine", {}, unreadable=("rootSnapshot", "runtime.powerState"))).vm
    assert vm.snapshots is None
    assert vm.power is None
    assert vm.unreadable == ("rootSnapshot", "runtime.powerState")


@pytest.mark.parametrize("odd", ["", "sleeping", "POWEREDON"])
def test_a_power_state_nobody_knows_is_unknown(odd: str) -> None:
    assert thin_vm(read_object("VirtualMachine", {"runtime.powerState": odd})).vm.power is None
    assert thin_vm(read_object("VirtualMachine", {"runtime.powerState": "suspended"})).vm.power is PowerState.SUSPENDED


@pytest.mark.parametrize("spelled", [str.lower, str.upper, str.swapcase])
def test_settings_have_one_spelling_whatever_a_client_wrote(spelled: Callable[[str], str]) -> None:
    keys = (USE_KEY, SIZE_KEY, AFFINITY_KEY, "sched.mem.lpage.enable1GPage", pin_key(31), "pciPassthru0.cfg.enable_uvm")
    values = "".join(
        f"<OptionValue><key>{spelled(key)}</key><value xsi:type='xsd:string'>{number}</value></OptionValue>"
        for number, key in enumerate(keys)
    )
    assert decode_vm({"config.extraConfig": values}).extra_config == {key: str(at) for at, key in enumerate(keys)}


def test_passthrough_devices_are_told_apart_by_their_backing() -> None:
    devices = "".join(
        [
            '<VirtualDevice xsi:type="VirtualDisk"><key>2000</key></VirtualDevice>',
            device(13000, "VirtualPCIPassthroughVmiopBackingInfo", "<vgpu>nvidia_a40-8q</vgpu>"),
            device(
                13001,
                "VirtualPCIPassthroughDeviceBackingInfo",
                "<id>00000000:3B:00.0</id><deviceId>26b9</deviceId><systemId>s</systemId><vendorId>-32634</vendorId>",
            ),
            device(
                13002,
                "VirtualPCIPassthroughDynamicBackingInfo",
                "<allowedDevice><vendorId>4318</vendorId><deviceId>9913</deviceId></allowedDevice>"
                "<customLabel>ml</customLabel>",
            ),
            device(13003, "VirtualPCIPassthroughDvxBackingInfo", ""),
            device(13031, "VirtualEthernetCardNetworkBackingInfo", "", kind="VirtualSriovEthernetCard"),
            device(13004, "VirtualPCIPassthroughDeviceBackingInfo", "<id>no address</id>"),
        ]
    )
    vm = decode_vm({"config.hardware.device": devices})
    assert vm.devices == (
        VgpuDevice(13000, "nvidia_a40-8q"),
        DirectPathDevice(13001, PciAddress(0, 0x3B, 0, 0), vendor_id=0x8086, device_id=0x26B9, system_id="s"),
        DynamicDevice(13002, ((0x10DE, 0x26B9),), label="ml"),
        OtherPassthrough(13003, "PCI device 13003"),
        OtherPassthrough(13004, "PCI device 13004", unreadable=True),
        OtherPassthrough(13031, "PCI device 13031"),
    )
    assert vm.has_passthrough


def test_rdma_network_cards_are_told_apart_by_their_kind_and_network_and_others_left_out() -> None:
    standard, port = "VirtualEthernetCardNetworkBackingInfo", "VirtualEthernetCardDistributedVirtualPortBackingInfo"
    on_port = "<port><switchUuid>50 2e</switchUuid><portgroupKey>dvportgroup-9</portgroupKey></port>"
    named = "<deviceName>VM Network</deviceName>"
    devices = "".join(
        [
            device(4000, standard, f'{named}<network type="Network">network-7</network>', kind="VirtualVmxnet3"),
            device(4001, port, on_port, kind="VirtualVmxnet3Vrdma"),
            device(4002, standard, named, kind="VirtualSriovEthernetCard"),
            device(4003, port, "<port><switchUuid>50 2e</switchUuid></port>", kind="VirtualE1000e"),
            (
                '<VirtualDevice xsi:type="VirtualSriovEthernetCard"><backing><network>network-8</network></backing>'
                "<macAddress>00:50:56:00:00:07</macAddress></VirtualDevice>"
            ),
            device(13000, "VirtualPCIPassthroughVmiopBackingInfo", "<vgpu>nvidia_a40-8q</vgpu>"),
        ]
    )
    assert decode_vm({"config.hardware.device": devices}).nics == (
        VmNic(4001, "vmxnet3vrdma", "dvportgroup-9"),
        VmNic(4002, "sriov", "VM Network"),
        VmNic(0, "sriov", "network-8", "00:50:56:00:00:07"),
    )


@pytest.mark.parametrize(("written", "node"), [("0", 0), ("1", 1), ("-1", None), ("", None)])
def test_a_virtual_numa_node_of_zero_is_a_node_and_a_negative_one_is_none(written: str, node: int | None) -> None:
    inner = (
        '<VirtualDevice xsi:type="VirtualPCIPassthrough"><key>13000</key>'
        '<backing xsi:type="VirtualPCIPassthroughVmiopBackingInfo"><vgpu>p</vgpu></backing>'
        f"<numaNode>{written}</numaNode></VirtualDevice>"
    )
    vm = decode_vm({"config.hardware.device": inner})
    assert vm.devices == (VgpuDevice(13000, "p", numa_node=node),)


def test_only_the_extra_config_a_plan_may_need_is_kept() -> None:
    options = "".join(
        f"<OptionValue><key>{key}</key><value>{value}</value></OptionValue>"
        for key, value in [
            ("pciPassthru.use64bitMMIO", "TRUE"),
            ("guestinfo.secret", "x"),
            ("numa.nodeAffinity", "0"),
            ("gpuops.baseline", "{}"),
        ]
    )
    vm = decode_vm({"config.extraConfig": options, "config.version": "vmx-21", "config.firmware": "efi"})
    assert vm.extra_config == {"pciPassthru.use64bitMMIO": "TRUE", "numa.nodeAffinity": "0", "gpuops.baseline": "{}"}
    assert (vm.hardware_version, vm.firmware) == (21, Firmware.EFI)


def pci(address: str, vendor: int, device_id: int, subsystem: int, class_id: int, name: str) -> str:
    return (
        f"<HostPciDevice><id>{address}</id><classId>{class_id}</classId><vendorId>{vendor}</vendorId>"
        f"<deviceId>{device_id}</deviceId><subDeviceId>{subsystem}</subDeviceId><deviceName>{name}</deviceName>"
        "</HostPciDevice>"
    )


def test_gpus_come_from_the_pci_list_with_ids_as_people_know_them() -> None:
    devices = "".join(
        [
            pci("0000:81:00.0", 4318, 0xA100 - 0x10000, 0x1234, 0x0302, "a GPU with a high id"),
            pci("0000:81:00.4", 4318, 8433, 0, 0x0302, "a virtual function of it"),
            pci("0000:03:00.0", 6659, 8192, 8192, 0x0300, "the board's own VGA"),
            pci("0000:04:00.0", 4318, 4097, 1, 0x0200, "a NIC of the same vendor"),
        ]
    )
    host = host_with_gpus(
        thin_host(read_object("HostSystem", {})),
        pci_devices(read_object("HostSystem", {"hardware.pciDevice": devices})),
    )
    assert [(str(gpu.address), gpu.device_id) for gpu in host.gpus] == [("0000:81:00.0", 0xA100)]
    assert host.others == ()


PASSTHROUGH = (
    "<HostPciPassthruInfo><id>{}</id><dependentDevice>{}</dependentDevice><passthruEnabled>{}</passthruEnabled>"
    "<passthruCapable>true</passthruCapable><passthruActive>{}</passthruActive></HostPciPassthruInfo>"
)


def test_what_is_no_nvidia_gpu_is_known_by_its_class_and_name_and_never_among_the_gpus() -> None:
    devices = "".join(
        [
            pci("0000:3b:00.0", 4318, 8757, 5211, 0x0302, "NVIDIA A40"),
            pci("0000:41:00.0", 4098, 0x75A3, 1, 0x1200, "Aqua Vanjaram [Instinct MI355X]"),
            pci("0000:42:00.0", 0x8086 - 0x10000, 0x09C4, 0, 0x1200, "PAC with Intel Arria 10 GX FPGA"),
            pci("0000:42:00.1", 0x8086 - 0x10000, 0x09C5, 0, 0x1200, "PAC with Intel Arria 10 GX FPGA [VF]"),
            pci("0000:43:00.0", 0x10EE, 0x500C, 1, 0x1200, "Alveo U280"),
            pci("0000:44:00.0", 0x1DA3, 1, 1, 0x1200, "an accelerator"),
            pci("0000:45:00.0", 0x15B3, 0x101D, 1, 0x0200, "ConnectX-6 Dx"),
            pci("0000:45:00.2", 0x15B3, 0x101E, 1, 0x0200, "ConnectX Family mlx5Gen Virtual Function"),
            pci("0000:46:00.0", 0x144D, 0xA80A, 1, 0x0108, "NVMe SSD"),
            pci("0000:46:01.0", 0x1077, 0x2261, 1, 0x0C04, "ISP2722 Fibre Channel HBA"),
            pci("0000:46:02.0", 0x15B3, 0x101B, 1, 0x0C06, "MT28908 InfiniBand HCA"),
            pci("0000:46:03.0", 0x8086 - 0x10000, 0xA1AF, 1, 0x0C03, "USB 3.0 xHCI Controller"),
            pci("0000:47:00.0", 6659, 8192, 8192, 0x0300, "the board's own VGA"),
            pci("0000:48:00.0", 0x8086 - 0x10000, 0x0BD5, 1, 0x0380, ""),
            pci("0000:49:00.0", 4098, 0x74A1, 1, 0x1200, "one that is not capable"),
        ]
    )
    slots = ["45:00.0", "45:00.2", "46:00.0", "46:01.0", "46:02.0", "46:03.0"]
    able = ["41:00.0", "42:00.0", "42:00.1", "43:00.0", "44:00.0", "47:00.0", "48:00.0"]
    states = "".join(PASSTHROUGH.format(at, at, "true", "true") for at in (f"0000:{slot}" for slot in slots))
    states += "".join(PASSTHROUGH.format(at, at, "false", "false") for at in (f"0000:{slot}" for slot in able))
    read = read_object("HostSystem", {"hardware.pciDevice": devices, "config.pciPassthruInfo": states})
    thin = thin_host(read)
    host = host_with_gpus(thin, pci_devices(read, thin.passed_through))
    assert [gpu.name for gpu in host.gpus] == ["NVIDIA A40"]
    assert [(str(device.address)[5:10], device.kind.value) for device in host.others] == [
        ("41:00", "GPU"),
        ("42:00", "FPGA"),
        ("43:00", "FPGA"),
        ("44:00", "accelerator"),
        ("45:00", "NIC"),
        ("46:00", "storage controller"),
        ("46:01", "storage controller"),
        ("46:02", "NIC"),
        ("46:03", "PCI device"),
        ("48:00", "GPU"),
    ]
    assert host.others[1].vendor_id == 0x8086, "an id as people know it, though vSphere sends a signed short"
    assert all(device.carries is None for device in host.others), "uses were not read"


def test_a_gpu_of_another_vendor_is_none_of_nvidias_even_where_no_pci_list_can_be_read() -> None:
    graphics = "".join(
        f"<HostGraphicsInfo><deviceName>{name}</deviceName><vendorName>{vendor}</vendorName><pciId>{at}</pciId>"
        "<graphicsType>shared</graphicsType><memorySizeInKB>47185920</memorySizeInKB></HostGraphicsInfo>"
        for name, vendor, at in [
            ("Instinct MI355X", "Advanced Micro Devices, Inc. [AMD/ATI]", "0000:41:00.0"),
            ("NVIDIA A40", "NVIDIACorporation", "0000:3b:00.0"),
        ]
    )
    thin = thin_host(read_object("HostSystem", {"config.graphicsInfo": graphics}))
    assert [gpu.name for gpu in host_with_gpus(thin, ()).gpus] == ["NVIDIA A40"]
    amd = pci("0000:41:00.0", 4098, 0x75A3, 1, 0x1200, "Aqua Vanjaram [Instinct MI355X]")
    state = PASSTHROUGH.format("0000:41:00.0", "0000:41:00.0", "false", "false")
    read = read_object(
        "HostSystem",
        {"config.graphicsInfo": graphics, "hardware.pciDevice": amd, "config.pciPassthruInfo": state},
    )
    host = host_with_gpus(thin_host(read), pci_devices(read))
    assert [(device.kind.value, device.memory_mib) for device in host.others] == [("GPU", 46080)], "its memory is known"


def test_what_a_host_has_its_devices_for_is_told_by_its_switches_and_disks() -> None:
    network = (
        "<vswitch><name>vSwitch0</name><pnic>key-nic-0</pnic></vswitch>"
        "<proxySwitch><dvsUuid>50-1a</dvsUuid><dvsName>dvs</dvsName><pnic>key-nic-1</pnic></proxySwitch>"
        "<portgroup><spec><name>Management</name><vswitchName>vSwitch0</vswitchName></spec></portgroup>"
        "<pnic><key>key-nic-0</key><device>vmnic0</device><pci>0000:45:00.0</pci></pnic>"
        "<pnic><key>key-nic-1</key><device>vmnic1</device><pci>0000:45:00.1</pci></pnic>"
        "<pnic><key>key-nic-2</key><device>vmnic2</device><pci>0000:45:00.3</pci></pnic>"
        "<vnic><device>vmk0</device><portgroup>Management</portgroup><spec><mtu>1500</mtu></spec></vnic>"
        "<vnic><device>vmk1</device><portgroup></portgroup><spec><distributedVirtualPort><switchUuid>50-1a</switchUuid>"
        "</distributedVirtualPort></spec></vnic>"
    )
    adapters = (
        "<HostHostBusAdapter><key>key-hba-0</key><device>vmhba0</device><pci>0000:46:00.0</pci></HostHostBusAdapter>"
        "<HostHostBusAdapter><key>key-hba-1</key><device>vmhba1</device><pci>0000:46:01.0</pci></HostHostBusAdapter>"
    )
    topology = (
        "<adapter><key>a</key><adapter>key-hba-0</adapter><target><key>t</key></target><target><key>u</key></target>"
        "</adapter><adapter><key>b</key><adapter>key-hba-1</adapter></adapter>"
    )
    divided = (
        "<HostPciPassthruInfo><id>0000:45:00.3</id><numVirtualFunction>4</numVirtualFunction></HostPciPassthruInfo>"
    )
    read = {
        "config.network": network,
        "config.storageDevice.hostBusAdapter": adapters,
        "config.storageDevice.scsiTopology": topology,
        "config.pciPassthruInfo": divided,
    }
    uses_by_address = read_device_uses(read_object("HostSystem", read))
    assert uses_by_address is not None
    assert {str(address): uses for address, uses in uses_by_address.items()} == {
        "0000:45:00.0": ("vmnic0 is an uplink of vSwitch0, which carries vmk0",),
        "0000:45:00.1": ("vmnic1 is an uplink of dvs, which carries vmk1",),
        "0000:45:00.3": ("it is divided into 4 virtual functions (SR-IOV)",),
        "0000:46:00.0": ("vmhba0 has disks of the host (2)",),
    }
    for path in ("config.network", "config.storageDevice", "config.storageDevice.scsiTopology"):
        assert read_device_uses(replace(read_object("HostSystem", read), unreadable=(path,))) is None
    for path in read:
        untold = {key: value for key, value in read.items() if key != path}
        assert read_device_uses(read_object("HostSystem", untold)) is None, "what is absent is not nothing"


def test_a_host_whose_pci_list_is_unreadable_still_shows_the_gpus_it_lists_as_graphics() -> None:
    graphics = (
        "<HostGraphicsInfo><deviceName>NVIDIA A40</deviceName><pciId>0000:3b:00.0</pciId>"
        "<graphicsType>sharedDirect</graphicsType><vgpuMode>sameSize</vgpuMode><memorySizeInKB>47185920</memorySizeInKB>"
        '<vm type="VirtualMachine">vm-9</vm></HostGraphicsInfo>'
        "<HostGraphicsInfo><deviceName>BMC</deviceName><pciId>0000:03:00.0</pciId>"
        "<graphicsType>basic</graphicsType><memorySizeInKB>0</memorySizeInKB></HostGraphicsInfo>"
    )
    thin = thin_host(read_object("HostSystem", {"config.graphicsInfo": graphics}))
    assert thin.has_devices
    (gpu,) = host_with_gpus(thin, ()).gpus
    assert (gpu.name, gpu.memory_mib, gpu.vms) == ("NVIDIA A40", 46080, ("vm-9",))
    assert (gpu.graphics_type, gpu.vgpu_mode) == (GraphicsType.SHARED_DIRECT, VgpuMode.SAME_SIZE)


def test_profiles_are_those_offered_now_and_those_the_host_is_capable_of() -> None:
    capability = (
        "<HostSharedGpuCapabilities><vgpu>nvidia_a40-8q</vgpu><suspendSupported>true</suspendSupported>"
        "<migrateSupported>false</migrateSupported></HostSharedGpuCapabilities>"
    )
    assert thin_host(read_object("HostSystem", {})).host.profiles is None, "a host that tells nothing is unknown"
    (full,) = thin_host(read_object("HostSystem", {"config.sharedGpuCapabilities": capability})).host.profiles or ()
    assert (full.name, full.suspend, full.migrate, full.disk_snapshot) == ("nvidia_a40-8q", True, False, None)
    both_lists = {
        "config.sharedGpuCapabilities": capability,
        "config.sharedPassthruGpuTypes": "<string>nvidia_a40-4q</string>",
    }
    offered = {
        profile.name: profile.suspend
        for profile in thin_host(read_object("HostSystem", both_lists)).host.profiles or ()
    }
    assert offered == {"nvidia_a40-4q": None, "nvidia_a40-8q": True}


def test_numa_memory_is_read_under_either_name() -> None:
    nodes = (
        "<numNodes>2</numNodes>"
        "<numaNode><typeId>0</typeId><cpuID>0</cpuID><cpuID>1</cpuID><memorySize>1073741824</memorySize>"
        "<pciId>0000:3b:00.0</pciId></numaNode>"
        "<numaNode><typeId>1</typeId><memoryRangeLength>2147483648</memoryRangeLength></numaNode>"
    )
    first, second = thin_host(read_object("HostSystem", {"hardware.numaInfo": nodes})).host.numa_nodes
    assert (first.logical_cpus, first.memory_mib, first.devices) == (2, 1024, (PciAddress(0, 0x3B, 0, 0),))
    assert (second.memory_mib, second.devices) == (2048, ())


BILLION_LAUGHS = (
    b'<!DOCTYPE lolz [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">'
    b'<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">]>'
    b'<soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"><soapenv:Body><x>&c;</x>'
    b"</soapenv:Body></soapenv:Envelope>"
)


def test_a_document_type_is_refused_before_its_entities_are_met() -> None:
    with pytest.raises(ProtocolError, match="document type"):
        parse_reply(BILLION_LAUGHS, "vcenter.test")


@pytest.mark.parametrize(
    "reply", [b"", b"<html><body>503</body></html>", b'{"error": 1}', b"<a><b></a>", b"\xff\xfe\x00"], ids=repr
)
def test_a_reply_that_is_no_soap_is_a_protocol_error(reply: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"vcenter\.test"):
        parse_reply(reply, "vcenter.test")


def page(missing: str) -> Any:
    return etree.fromstring(
        f'<returnval xmlns="urn:vim25" {XSI}><objects><obj type="VirtualMachine">vm-1</obj>'
        f"<propSet><name>name</name><val>one</val></propSet>{missing}</objects></returnval>"
    )


def missing(fault: str) -> str:
    return (
        "<missingSet><path>config.extraConfig</path><fault>"
        f'<fault xsi:type="{fault}"/><localizedMessage/></fault></missingSet>'
    )


def test_what_vcenter_withholds_is_named() -> None:
    [vm] = read_objects(page(missing("NoPermission")))
    assert (vm.ref, list(vm.properties), vm.unreadable) == ("vm-1", ["name"], ("config.extraConfig",))


def test_a_session_that_ended_is_not_taken_for_an_unreadable_vm() -> None:
    """vCenter says NotAuthenticated property by property when the session ends in the middle of a page."""
    with pytest.raises(SessionEnded):
        list(read_objects(page(missing("NotAuthenticated"))))


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
