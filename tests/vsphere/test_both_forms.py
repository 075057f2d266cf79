"""Any values of the types that are read, written as XML and as VI/JSON by the simulator, become equal records."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from lxml import etree
from pyVmomi import VmomiSupport, vim

from gpuops.sim.core.encoder import encoder
from gpuops.sim.core.json_encoder import json_encoder
from gpuops.vsphere.reading import networks
from gpuops.vsphere.reading.bulk import reader as paths
from gpuops.vsphere.reading.bulk.pages import BOXED, ReadObject
from gpuops.vsphere.reading.collect import _decode
from gpuops.vsphere.reading.decoding.decode_host import host_with_gpus, pci_devices, thin_host
from gpuops.vsphere.reading.decoding.decode_vm import thin_vm, with_detail
from gpuops.vsphere.transport.network import UNREADABLE_ERRORS
from tests.sample import mostly_long

VERSION = VmomiSupport.versionMap["vim25/8.0.3.0"]
DEEPEST = 6
WORDS = [
    "0000:3b:00.0",
    "d8:00.0",
    "20f1",
    "0x20f1",
    "poweredOn",
    "sharedDirect",
    "nvidia_a100-3-20c",
    "vmx-21",
    "pciPassthru0.cfg.gpu",
    "gpuops.x",
    "sched.mem",
    "true",
    "7",
    "efi",
    "connected",
    "guestToolsRunning",
]
READ: dict[str, tuple[type, tuple[str, ...]]] = {
    "VirtualMachine": (vim.VirtualMachine, (*paths.VM, *paths.VM_DETAIL)),
    "HostSystem": (vim.HostSystem, (*paths.HOST, *paths.HOST_DEVICES)),
    "ClusterComputeResource": (vim.ClusterComputeResource, paths.CLUSTER),
    "Datastore": (vim.Datastore, paths.DATASTORE),
    "Task": (vim.Task, paths.TASK),
    "CustomFieldsManager": (vim.CustomFieldsManager, paths.CUSTOM_FIELDS),
    "Folder": (vim.Folder, paths.FOLDERS),
}
NETWORKS: dict[str, tuple[type, tuple[str, ...]]] = {
    "HostSystem": (vim.HostSystem, (*paths.NETWORK_OF_HOST, *paths.RDMA_SETTINGS)),
    "VmwareDistributedVirtualSwitch": (vim.dvs.VmwareDistributedVirtualSwitch, paths.SWITCH),
    "DistributedVirtualPortgroup": (vim.dvs.DistributedVirtualPortgroup, paths.PORT_GROUP),
}


@pytest.mark.parametrize("seed", mostly_long(range(200), range(20)))
@pytest.mark.parametrize("kind", READ)
def test_both_forms_are_one_record(kind: str, seed: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    managed, listed = READ[kind]
    values = {path: Maker(rng).value(type_of_path(managed, path)) for path in listed if rng.random() < 0.9}
    given_values = {path: value for path, value in values.items() if value is not None}
    missing = tuple(path for path in listed if path not in values)
    over_soap = ReadObject(kind, "object-1", {path: as_xml(value) for path, value in given_values.items()}, missing)
    over_json = ReadObject(kind, "object-1", {path: as_json(value) for path, value in given_values.items()}, missing)
    assert outcome(over_json) == outcome(over_soap)


@pytest.mark.parametrize("seed", mostly_long(range(200), range(20)))
@pytest.mark.parametrize("kind", NETWORKS)
def test_both_forms_of_networks_are_one_record(kind: str, seed: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    managed, listed = NETWORKS[kind]
    made_values = {path: Maker(rng).value(type_of_path(managed, path)) for path in listed if rng.random() < 0.95}
    given_values = {path: value for path, value in made_values.items() if value is not None}
    over_soap, over_json = (
        ReadObject(kind, "object-1", {path: form(value) for path, value in given_values.items()})
        for form in (as_xml, as_json)
    )
    decoders = (networks._decode, networks._settings) if kind == "HostSystem" else (networks._decode,)
    for decode_one in decoders:
        assert decode_one(over_json) == decode_one(over_soap)


def test_some_of_what_is_made_says_something() -> None:
    """Else the comparison above would be one of nothing."""
    rng = random.Random(0)
    records = []
    for _ in range(60):
        given_values = {
            path: Maker(rng).value(type_of_path(vim.VirtualMachine, path)) for path in READ["VirtualMachine"][1]
        }
        read_object = ReadObject(
            "VirtualMachine",
            "vm-1",
            {path: as_json(property_value) for path, property_value in given_values.items() if property_value},
        )
        records.append(decode(read_object))
    assert any(vm.devices for vm in records)
    assert any(nic.network and nic.mac for vm in records for nic in vm.nics or ())
    assert any(vm.extra_config for vm in records)
    assert any(vm.datastores for vm in records)


class Maker:
    """Values of vmomi types, by their tables."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def value(self, kind: Any, depth: int = 0) -> Any:
        """A value of that type."""
        rng = self._rng
        if kind is object:
            return self.value(rng.choice([str, int, bool]), depth)
        if issubclass(kind, list):
            return kind([self.value(kind.Item, depth + 1) for _ in range(rng.choice([0, 1, 1, 2, 5]))])
        if issubclass(kind, VmomiSupport.ManagedObject):
            return kind(rng.choice(["vm-1", "host-7", "datastore-3", "group-v4"]))
        if issubclass(kind, VmomiSupport.DataObject):
            return self._structure(kind, depth)
        return self._leaf(kind)

    def _structure(self, kind: Any, depth: int) -> Any:
        structure = self._rng.choice(below(kind))()
        for property_info in structure._GetPropertyList():
            required = not property_info.flags & VmomiSupport.F_OPTIONAL
            if property_info.version not in VmomiSupport.parentMap[VERSION] or (depth > DEEPEST and not required):
                continue
            if required or self._rng.random() < 0.7:
                value = self.value(property_info.type, depth + 1)
                if required and isinstance(value, list) and not value:
                    value = property_info.type([self.value(property_info.type.Item, depth + 1)])
                setattr(structure, property_info.name, value)
        return structure

    def _leaf(self, kind: Any) -> Any:
        rng = self._rng
        if issubclass(kind, bool):
            return rng.random() < 0.5
        if issubclass(kind, datetime):
            return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=rng.randrange(10**8))
        if issubclass(kind, VmomiSupport.Enum):
            return kind(rng.choice(kind.values))
        if issubclass(kind, int):
            most = {"byte": 127, "short": 32_767, "long": 2**63 - 1}.get(VmomiSupport.GetWsdlName(kind), 2**31 - 1)
            return kind(rng.choice([0, 1, 0x10DE, 4318, -1, -12_345, 65_536, most, -most]) % (most + 1))
        if issubclass(kind, float):
            return kind(rng.random())
        if issubclass(kind, VmomiSupport.binary):
            return kind(b"\x00\xff")
        if kind is type:
            return vim.VirtualMachine
        text = "".join(rng.choices(string.printable[:95] + "é\u2028\U0001f5a5\t", k=rng.randrange(12)))
        return rng.choice([*WORDS, text])


def below(kind: Any) -> list[Any]:
    """The type, or those that stand in its place and matter to us, with one that does not."""
    return _BELOW.get(kind, [kind])


_DEVICE = vim.vm.device
_PASSTHROUGH = _DEVICE.VirtualPCIPassthrough
_CLUSTER = vim.cluster
_BELOW: dict[Any, list[Any]] = {
    _DEVICE.VirtualDevice: [
        _PASSTHROUGH,
        _PASSTHROUGH,
        _DEVICE.VirtualSriovEthernetCard,
        _DEVICE.VirtualVmxnet3Vrdma,
        _DEVICE.VirtualDisk,
    ],
    _DEVICE.VirtualDevice.BackingInfo: [
        _PASSTHROUGH.VmiopBackingInfo,
        _PASSTHROUGH.DeviceBackingInfo,
        _PASSTHROUGH.DynamicBackingInfo,
        _DEVICE.VirtualDisk.FlatVer2BackingInfo,
        _DEVICE.VirtualEthernetCard.NetworkBackingInfo,
        _DEVICE.VirtualEthernetCard.DistributedVirtualPortBackingInfo,
    ],
    vim.DistributedVirtualSwitch.ConfigInfo: [vim.dvs.VmwareDistributedVirtualSwitch.ConfigInfo],
    vim.dvs.HostMember.Backing: [vim.dvs.HostMember.PnicBacking],
    vim.host.PciPassthruInfo: [vim.host.PciPassthruInfo, vim.host.SriovInfo],
    vim.host.RdmaDevice.Backing: [vim.host.RdmaDevice.PnicBacking],
    vim.ComputeResource.ConfigInfo: [_CLUSTER.ConfigInfoEx],
    _CLUSTER.RuleInfo: [
        _CLUSTER.AffinityRuleSpec,
        _CLUSTER.AntiAffinityRuleSpec,
        _CLUSTER.VmHostRuleInfo,
        _CLUSTER.DependencyRuleInfo,
    ],
    _CLUSTER.GroupInfo: [_CLUSTER.VmGroup, _CLUSTER.HostGroup],
    _CLUSTER.DasAdmissionControlPolicy: [
        _CLUSTER.FailoverHostAdmissionControlPolicy,
        _CLUSTER.FailoverLevelAdmissionControlPolicy,
        _CLUSTER.FailoverResourcesAdmissionControlPolicy,
    ],
    vim.CustomFieldsManager.Value: [vim.CustomFieldsManager.StringValue],
}


def type_of_path(managed: Any, path: str) -> Any:
    """The declared type of a property path."""
    declared_type: Any = managed
    for part in path.split("."):
        declared_type = declared_type._GetPropertyInfo(part).type
    return declared_type


def as_xml(value: Any) -> Any:
    """The element of a property as SOAP has it."""
    fragment = encoder(VERSION).fragment(value).decode()
    return etree.fromstring(
        '<propSet xmlns="urn:vim25" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
        f' xmlns:xsd="http://www.w3.org/2001/XMLSchema">{fragment}</propSet>'
    )[0]


def as_json(value: Any) -> Any:
    """The value of a property as VI/JSON has it, unboxed as `json_pages` does."""
    encoded = msgspec.json.decode(json_encoder(VERSION).document(value, object))
    return encoded.get(BOXED, encoded)


def decode(read_object: ReadObject) -> Any:
    if read_object.type == "HostSystem":
        return host_with_gpus(thin_host(read_object), pci_devices(read_object))
    return (
        with_detail(thin_vm(read_object), read_object).vm
        if read_object.type == "VirtualMachine"
        else _decode(read_object)
    )


def outcome(read_object: ReadObject, by: Callable[[ReadObject], Any] = decode) -> Any:
    try:
        return by(read_object)
    except UNREADABLE_ERRORS as error:
        return type(error)
