"""What is sent: specs as pyVmomi serialises them, texts that stay as they are, and what is known of a change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lxml import etree
from pyVmomi import SoapAdapter, vim

from gpuops.errors import OutcomeUnknown, ProtocolError, Refused, StepFailed, UsageError
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.target import Secret, Target
from gpuops.model.vcenter.task import LEASE_OPERATION
from gpuops.plan.core.steps import NewDirectPath, NewDynamic, NewVgpu, VmChange
from gpuops.vsphere.session import CANCEL_OPERATION, ChangeRecord
from gpuops.vsphere.transport.messages import escape_text
from gpuops.vsphere.transport.stub import Stub
from gpuops.vsphere.transport.wire import envelope
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
    with pytest.raises(Refused, match="the VM does not have the device 13005 any more"):
        wire(VmChange(remove=(13005,)))


def test_fields_newer_than_the_vcenter_are_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"has API version 7.0.3.0; a vendor device group needs 8.0.0.1"):
        wire(VmChange(add=(NewVgpu("grid_a100d-80c"),), device_group="g"), api="7.0.3.0")
    assert "vgpu" in wire(VmChange(add=(NewVgpu("grid_a100d-80c"),)), api="7.0.3.0")


@pytest.mark.parametrize(("identity", "signed"), [(0x10DE, 4318), (0x7FFF, 32767), (0x8000, -32768), (0xA100, -24320)])
def test_pci_ids_fit_a_signed_short(identity: int, signed: int) -> None:
    assert signed_short(identity) == signed
    assert signed & 0xFFFF == identity


STUB = Stub(Target("vc", "me", Secret("pw")), "8.0.3.0", "")
SESSION_MANAGER = ("SessionManager", "SessionManager")
RAW = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)
"""Any code points, controls and halves of characters among them."""
HOSTILE = '"></_this><privilege>Admin</privilege><x y="'
UNSENDABLE = "\0\x1b\x0b\ud800\ufffe"


def shape(request: bytes) -> list[tuple[str, dict[str, str], str]]:
    """Every element in its order: name, attributes, text."""
    parser = etree.XMLParser(resolve_entities=False, remove_blank_text=False)
    return [
        (str(element.tag), {str(key): str(value) for key, value in element.attrib.items()}, element.text or "")
        for element in etree.fromstring(request, parser).iter()
    ]


def login(text: str) -> bytes:
    """The request as the session writes it."""
    return envelope("Login", SESSION_MANAGER, f"<userName>{escape_text(text)}</userName><password>pw</password>")


def reconfigure(text: str) -> bytes:
    """As pyVmomi writes it: a name, a note and a setting's key and value."""
    vm = vim.VirtualMachine("vm-1", STUB)
    option = vim.option.OptionValue(key=text, value=text)
    spec = vim.vm.ConfigSpec(name=text, annotation=text, extraConfig=[option])
    method = next(
        candidate for candidate in vim.VirtualMachine._methodInfo.values() if candidate.wsdlName == "ReconfigVM_Task"
    )
    return STUB.SerializeRequest(vm, method, [spec])


@pytest.mark.parametrize("write", [login, reconfigure])
@given(text=RAW)
@example(text="Cn4ry&<é\"'>")
@example(text="]]>")
@example(text="a\rb\r\nc\td\n")
@example(text=HOSTILE)
def test_a_text_stays_the_text_it_was(write: Any, text: str) -> None:
    try:
        request = write(text)
    except UsageError as error:
        assert "cannot contain" in error.message
        assert any(
            (character < " " and character not in "\t\n\r")
            or "\ud800" <= character <= "\udfff"
            or character in "\ufffe\uffff"
            for character in text
        )
        return
    expected = [
        (tag, attributes, text if element_text == "X" else element_text)
        for tag, attributes, element_text in shape(write("X"))
    ]
    assert shape(request) == expected


@pytest.mark.parametrize("write", [login, reconfigure])
@pytest.mark.parametrize("character", UNSENDABLE)
def test_what_xml_cannot_carry_is_not_sent_nor_repeated(write: Any, character: str) -> None:
    with pytest.raises(UsageError, match="cannot contain") as caught:
        write(f"Cn4ry{character}")
    assert "Cn4ry" not in str(caught.value)
    assert caught.value.__cause__ is None


def by_hand(ref: str) -> bytes:
    return envelope("Login", ("SessionManager", ref))


def of_a_type(ref: str) -> bytes:
    return envelope("Login", (ref, "SessionManager"))


def by_pyvmomi(ref: str) -> bytes:
    method = next(
        candidate for candidate in vim.VirtualMachine._methodInfo.values() if candidate.wsdlName == "PowerOnVM_Task"
    )
    return STUB.SerializeRequest(vim.VirtualMachine(ref, STUB), method, [None])


@pytest.mark.parametrize("write", [by_hand, of_a_type, by_pyvmomi])
@given(ref=RAW)
@example(ref="vm-1" + HOSTILE)
@example(ref="vm-1\n")
@example(ref="")
def test_an_id_is_an_id_or_nothing_is_sent(write: Any, ref: str) -> None:
    try:
        request = write(ref)
    except ProtocolError as error:
        assert "is not the id of an object" in error.message
        return
    plain = "Z" if write is of_a_type else "vm-9"
    assert [element[0] for element in shape(request)] == [element[0] for element in shape(write(plain))]
    assert ref in {text for _, attributes, text in shape(request)} | {
        value for _, attributes, _ in shape(request) for value in attributes.values()
    }


TASK = SimpleNamespace(_moId="task-1")


def test_a_call_without_a_task_is_done_when_it_is_answered() -> None:
    record = ChangeRecord()
    assert record.applied is False
    record.note_accepted(None, "gpuops-1")
    assert record.applied is True


def test_a_task_counts_by_its_end() -> None:
    failed, succeeded, unknown = ChangeRecord(), ChangeRecord(), ChangeRecord()
    for record in (failed, succeeded, unknown):
        record.note_accepted(TASK, "gpuops-1")
        assert record.applied is None
    failed.note_ended("task-1", StepFailed("no"))
    succeeded.note_ended("task-1", None)
    unknown.note_ended("task-1", OutcomeUnknown("gone"))
    assert (failed.applied, succeeded.applied, unknown.applied) == (False, True, None)


def test_a_lost_reply_is_not_known() -> None:
    record = ChangeRecord()
    record.note_lost("gpuops-1")
    assert record.applied is None
    record.note_accepted(None, "gpuops-2")
    assert record.applied is True


def test_a_lease_and_a_task_that_is_taken_back_do_not_count() -> None:
    record = ChangeRecord()
    record.note_accepted(TASK, f"{LEASE_OPERATION}abc-1")
    record.note_accepted(None, f"{CANCEL_OPERATION}task-1")
    record.note_lost(f"{LEASE_OPERATION}abc-1")
    record.note_ended("task-1", None)
    assert record.applied is False
