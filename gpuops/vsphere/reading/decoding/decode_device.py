"""What a PCI device is, and what its host has it for: by class codes, names, uplinks and disk paths.

Class codes: PCI Code and ID Assignment Specification (base class 01 mass storage, 02 network, 03 display, 06 bridge, 0c
serial bus, of which 0c04 is Fibre Channel and 0c06 InfiniBand, 12 processing accelerators; an FPGA card may have any,
and says so in its name). Uplinks and disk paths: vSphere API, HostNetworkInfo and HostStorageDeviceInfo.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.other_device import DeviceKind
from gpuops.vsphere.reading.bulk.pages import ReadObject
from gpuops.vsphere.reading.bulk.values import child, children, count, items, leaves, said, text, whole
from gpuops.vsphere.transport.xml_values import pci_address, unsigned

NETWORK: Final = "config.network"
ADAPTERS: Final = "config.storageDevice.hostBusAdapter"
DISK_PATHS: Final = "config.storageDevice.scsiTopology"
_PASSTHROUGH: Final = "config.pciPassthruInfo"

_STORAGE: Final = 0x01
_NETWORK: Final = 0x02
_DISPLAY: Final = 0x03
_BRIDGE: Final = 0x06
_ACCELERATOR: Final = 0x12
_FIBRE_CHANNEL: Final = 0x0C04
_INFINIBAND: Final = 0x0C06
_PCI_TO_PCI: Final = 0x0604
_AMD: Final = 0x1002
"""Its Instinct GPUs show as processing accelerators, and not as display controllers (from memory)."""
_BOARD_GRAPHICS: Final = frozenset({0x1A03, 0x102B})
"""ASPEED and Matrox: the graphics of a server's own management controller (PCI ID Repository; from memory)."""
_FPGA_VENDORS: Final = frozenset({0x10EE, 0x1172})
"""Xilinx and Altera (PCI ID Repository; from memory)."""


@lru_cache(maxsize=512)
def may_be_function(pci_class: Any, *, given: bool) -> bool:
    """Whether a device of that class, as a number or as the wire has it, may be one that a VM is given.

    Asked before anything else of a device, and remembered: a host has sixty, most of them bridges. `given`: of
    whatever class, but a bridge to other devices.
    """
    code = unsigned(pci_class if type(pci_class) is int else whole(pci_class))
    return code >> 8 in (_DISPLAY, _ACCELERATOR) or (given and code != _PCI_TO_PCI)


def kind_of(pci_class: int, vendor: int, name: str, class_name: str) -> DeviceKind | None:
    """What the device is. None: a virtual function, which comes and goes with SR-IOV and is never given as a whole
    device (the PCI ID Repository has `Virtual Function` in the names of those)."""
    words = f"{name} {class_name}".lower()
    if "virtual function" in words or name.endswith(("[VF]", " VF")):
        return None
    base = pci_class >> 8
    if "fpga" in words or (base == _ACCELERATOR and vendor in _FPGA_VENDORS):
        return DeviceKind.FPGA
    if vendor in _BOARD_GRAPHICS:
        return DeviceKind.OTHER
    if base == _STORAGE or pci_class == _FIBRE_CHANNEL:
        return DeviceKind.STORAGE
    if base == _NETWORK or pci_class == _INFINIBAND:
        return DeviceKind.NIC
    if base == _DISPLAY or (base == _ACCELERATOR and vendor == _AMD):
        return DeviceKind.GPU
    return DeviceKind.ACCELERATOR if base == _ACCELERATOR else DeviceKind.OTHER


def carried(found: ReadObject) -> Mapping[PciAddress, tuple[str, ...]] | None:
    """What the host has its devices for, in words; None where not all of that is told, or may be read by this login.

    One that VMs are given as virtual functions is divided, and cannot be given whole beside them.
    """
    if any(path.startswith((NETWORK, "config.storageDevice", _PASSTHROUGH)) for path in found.unreadable):
        return None
    if any(found.properties.get(path) is None for path in (NETWORK, ADAPTERS, DISK_PATHS, _PASSTHROUGH)):
        return None
    uses: defaultdict[PciAddress, list[str]] = defaultdict(list)
    for address, use in (*_uplinks(found.properties.get(NETWORK)), *_disks(found), *_divided(found)):
        uses[address].append(use)
    return {address: tuple(each) for address, each in uses.items()}


def _uplinks(network: Any) -> Iterator[tuple[PciAddress, str]]:
    """The physical adapters of switches, with the VMkernel adapters of those switches."""
    specs = [child(group, "spec") for group in children(network, "portgroup")]
    switch_of = {text(spec, "name"): text(spec, "vswitchName") for spec in specs}
    kernel: defaultdict[str | None, list[str]] = defaultdict(list)
    for vnic in children(network, "vnic"):
        port = child(child(vnic, "spec"), "distributedVirtualPort")
        switch = switch_of.get(text(vnic, "portgroup")) if port is None else text(port, "switchUuid")
        kernel[switch].append(text(vnic, "device") or "a VMkernel adapter")
    named = [(each, text(each, "name"), text(each, "name")) for each in children(network, "vswitch")]
    named += [(each, text(each, "dvsName"), text(each, "dvsUuid")) for each in children(network, "proxySwitch")]
    switches = {
        key: (name or "a switch", kernel[identity] if identity else [])
        for each, name, identity in named
        for nic in children(each, "pnic")
        if (key := text(nic))
    }
    for nic in map(leaves, children(network, "pnic")):
        address, key = pci_address(said(nic.get("pci"))), said(nic.get("key"))
        if address is not None and key in switches:
            name, adapters = switches[key]
            beside = f", which carries {', '.join(sorted(adapters))}" if adapters else ""
            yield address, f"{said(nic.get('device')) or 'it'} is an uplink of {name}{beside}"


def _disks(found: ReadObject) -> Iterator[tuple[PciAddress, str]]:
    """The storage adapters that have disks; which of them the host boots from vCenter does not tell here."""
    topology = found.properties.get(DISK_PATHS)
    disks = {text(each, "adapter"): count(each, "target") for each in children(topology, "adapter")}
    for adapter in map(leaves, items(found.properties.get(ADAPTERS))):
        address, targets = pci_address(said(adapter.get("pci"))), disks.get(said(adapter.get("key")))
        if address is not None and targets:
            yield address, f"{said(adapter.get('device')) or 'it'} has disks of the host ({targets})"


def _divided(found: ReadObject) -> Iterator[tuple[PciAddress, str]]:
    for told in map(leaves, items(found.properties.get(_PASSTHROUGH))):
        address, functions = pci_address(said(told.get("id"))), whole(told.get("numVirtualFunction"))
        if address is not None and functions:
            yield address, f"it is divided into {functions} virtual functions (SR-IOV)"
