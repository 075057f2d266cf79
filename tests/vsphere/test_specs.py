"""Specs on the wire: what a change looks like after pyVmomi serialised it for the negotiated version."""

from __future__ import annotations

from typing import Any

import pytest
from pyVmomi import SoapAdapter, vim

from gpuops.errors import Refused
from gpuops.model.devices.gpu import PciAddress
from gpuops.plan.core.steps import NewDirectPath, NewDynamic, NewVgpu, VmChange
from gpuops.vsphere.writing.step_calls import config_spec, signed_short

API = "8.0.3.0"


def wire(change: VmChange, *, devices: tuple[Any, ...] = (), api: str = API) -> str:
    spec = config_spec(change, "2026-11-01T08:00:00Z", devices, api)
    sent: str = SoapAdapter.SerializeToStr(spec, version="vim.version.v8_0_3_0")
    return sent


def vgpu(key: int, profile: str) -> Any:
    backing = vim.vm.device.VirtualPCIPassthrough.VmiopBackingInfo(vgpu=profile)
    return vim.vm.device.VirtualPCIPassthrough(key=key, backing=backing)


def test_everything_of_an_attach_is_one_spec() -> None:
    sent = wire(
        VmChange(
            add=(NewVgpu("grid_a100-3-20c"), NewVgpu("grid_a100-3-20c", numa_node=0)),
            extra_config={"pciPassthru.use64bitMMIO": "TRUE", "pciPassthru.64bitMMIOSizeGB": "256"},
            memory_locked=True,
            cpu_hot_add=False,
            cores_per_numa_node=8,
        )
    )
    assert sent.count("<operation>add</operation>") == 2
    assert "<key>-101</key>" in sent
    assert "<key>-102</key>" in sent
    assert sent.count("<vgpu>grid_a100-3-20c</vgpu>") == 2
    assert sent.count("<numaNode>0</numaNode>") == 1
    assert "<memoryReservationLockedToMax>true</memoryReservationLockedToMax>" in sent
    assert "<cpuHotAddEnabled>false</cpuHotAddEnabled>" in sent
    assert "<coresPerNumaNode>8</coresPerNumaNode>" in sent
    assert "<changeVersion>2026-11-01T08:00:00Z</changeVersion>" in sent
    assert 'xsi:type="XSD:string">256</value>' in sent or 'xsi:type="xsd:string">256</value>' in sent


def test_a_static_backing_carries_hex_device_id_and_signed_vendor_id() -> None:
    device = NewDirectPath(PciAddress.parse("3b:00.0"), "L40S", "5f1c-system", vendor_id=0x8086, device_id=0xA6B9)
    sent = wire(VmChange(add=(device,)))
    assert "<id>0000:3b:00.0</id>" in sent
    assert "<deviceId>a6b9</deviceId>" in sent
    assert f"<vendorId>{0x8086 - 0x10000}</vendorId>" in sent
    assert "<systemId>5f1c-system</systemId>" in sent


def test_dynamic_devices_name_types_and_label() -> None:
    sent = wire(VmChange(add=(NewDynamic(((0x10DE, 0x20B5),), label="training"),)))
    assert 'xsi:type="VirtualPCIPassthroughDynamicBackingInfo"' in sent
    assert "<deviceId>8373</deviceId>" in sent
    assert "<customLabel>training</customLabel>" in sent


def test_a_device_group_binds_every_added_device_to_it() -> None:
    pair = (NewVgpu("grid_a100d-80c", sequence_id=0), NewVgpu("grid_a100d-80c", sequence_id=1))
    sent = wire(VmChange(add=pair, device_group="Nvidia:2@grid_a100d-80c%NVLink"))
    assert "<deviceGroupName>Nvidia:2@grid_a100d-80c%NVLink</deviceGroupName>" in sent
    assert sent.count("<groupInstanceKey>-1</groupInstanceKey>") == 3
    assert sent.index("<sequenceId>0</sequenceId>") < sent.index("<sequenceId>1</sequenceId>")


def test_removal_and_edit_carry_the_device_that_is_there() -> None:
    devices = (vgpu(13000, "nvidia_a40-8q"), vgpu(13001, "nvidia_a40-8q"))
    change = VmChange(remove=(13001,), replace_profile=((13000, "nvidia_a40-16q"),))
    sent = wire(change, devices=devices)
    assert sent.index("<operation>edit</operation>") < sent.index("<operation>remove</operation>")
    assert "<vgpu>nvidia_a40-16q</vgpu>" in sent
    assert "<key>13001</key>" in sent


def test_a_device_that_is_gone_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(Refused, match="device 13005 is not on the VM any more"):
        wire(VmChange(remove=(13005,)))


def test_fields_newer_than_the_vcenter_are_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"speaks API 7.0.3.0; a vendor device group needs 8.0.0.1"):
        wire(VmChange(add=(NewVgpu("grid_a100d-80c"),), device_group="g"), api="7.0.3.0")
    assert "vgpu" in wire(VmChange(add=(NewVgpu("grid_a100d-80c"),)), api="7.0.3.0")


@pytest.mark.parametrize(("identity", "signed"), [(0x10DE, 4318), (0x7FFF, 32767), (0x8000, -32768), (0xA100, -24320)])
def test_pci_ids_fit_a_signed_short(identity: int, signed: int) -> None:
    assert signed_short(identity) == signed
    assert signed & 0xFFFF == identity
