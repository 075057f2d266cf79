"""Decodes the kind of PCI devices, and what their host uses them for, from class codes, names, uplinks and disk paths.

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
from gpuops.vsphere.reading.bulk.pages import ReadObject, child, children, count, items, leaf_text, leaves, text, whole
from gpuops.vsphere.transport.messages import pci_address, unsigned_short

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
def may_be_function(pci_class: Any, *, for_passthrough: bool) -> bool:
    """Return whether a VM can be given a device of this class, which is a number or the text of the reply.

    With `for_passthrough` every class except PCI bridges counts. Cached and checked first, because a host has sixty
    devices, most of them bridges.
    """
    code = unsigned_short(pci_class if type(pci_class) is int else whole(pci_class))
    return code >> 8 in (_DISPLAY, _ACCELERATOR) or (for_passthrough and code != _PCI_TO_PCI)


def kind_of(pci_class: int, vendor: int, name: str, class_name: str) -> DeviceKind | None:
    """Return the kind of the device; None for a virtual function (SR-IOV), which is not a complete device.

    The PCI ID Repository has `Virtual Function` in the names of virtual functions.
    """
    words = f"{name} {class_name}".lower()
    if "virtual function" in words or name.endswith(("[VF]", " VF")):
        return None
    base = pci_class >> 8  # a PCI class is a base class (high byte) and a subclass
    # these two come first: their class may be that of any other kind
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


def read_device_uses(read_object: ReadObject) -> Mapping[PciAddress, tuple[str, ...]] | None:
    """Return what the host uses each device for, in words; None if a property is missing or this login cannot read it.

    A device with enabled virtual functions (SR-IOV) counts as used: it cannot be passed through as a complete device.
    """
    if any(path.startswith((NETWORK, "config.storageDevice", _PASSTHROUGH)) for path in read_object.unreadable):
        return None
    if any(read_object.properties.get(path) is None for path in (NETWORK, ADAPTERS, DISK_PATHS, _PASSTHROUGH)):
        return None
    uses: defaultdict[PciAddress, list[str]] = defaultdict(list)
    for address, use in (
        *_uplinks(read_object.properties.get(NETWORK)),
        *_disks(read_object),
        *_sriov_functions(read_object),
    ):
        uses[address].append(use)
    return {address: tuple(uses_of_device) for address, uses_of_device in uses.items()}


def _uplinks(network: Any) -> Iterator[tuple[PciAddress, str]]:
    """Yield each physical adapter that is an uplink of a switch: its address, and this use in words.

    The words name the switch and its VMkernel adapters.
    """
    specs = [child(group, "spec") for group in children(network, "portgroup")]
    switch_of_group = {text(spec, "name"): text(spec, "vswitchName") for spec in specs}
    kernel_adapters_by_switch: defaultdict[str | None, list[str]] = defaultdict(list)
    for vnic in children(network, "vnic"):
        port = child(child(vnic, "spec"), "distributedVirtualPort")
        switch = switch_of_group.get(text(vnic, "portgroup")) if port is None else text(port, "switchUuid")
        kernel_adapters_by_switch[switch].append(text(vnic, "device") or "a VMkernel adapter")
    # (node, name to show, identity): VMkernel adapters name a standard switch, and have the UUID of a distributed one
    switch_nodes = [
        (switch_node, text(switch_node, "name"), text(switch_node, "name"))
        for switch_node in children(network, "vswitch")
    ]
    switch_nodes += [
        (switch_node, text(switch_node, "dvsName"), text(switch_node, "dvsUuid"))
        for switch_node in children(network, "proxySwitch")
    ]
    # by key of a physical adapter: the name of its switch, and the VMkernel adapters on that switch
    switches = {
        key: (name or "a switch", kernel_adapters_by_switch[identity] if identity else [])
        for switch_node, name, identity in switch_nodes
        for nic in children(switch_node, "pnic")
        if (key := text(nic))
    }
    for nic in map(leaves, children(network, "pnic")):
        address, key = pci_address(leaf_text(nic.get("pci"))), leaf_text(nic.get("key"))
        if address is not None and key in switches:
            name, adapters = switches[key]
            kernel_adapters = f", which carries {', '.join(sorted(adapters))}" if adapters else ""
            yield address, f"{leaf_text(nic.get('device')) or 'it'} is an uplink of {name}{kernel_adapters}"


def _disks(read_object: ReadObject) -> Iterator[tuple[PciAddress, str]]:
    """Yield the address of each storage adapter that has disks, and this use in words; the boot disk is not listed."""
    topology = read_object.properties.get(DISK_PATHS)
    disk_counts = {
        text(adapter_node, "adapter"): count(adapter_node, "target") for adapter_node in children(topology, "adapter")
    }
    for adapter in map(leaves, items(read_object.properties.get(ADAPTERS))):
        address, disk_count = pci_address(leaf_text(adapter.get("pci"))), disk_counts.get(leaf_text(adapter.get("key")))
        if address is not None and disk_count:
            yield address, f"{leaf_text(adapter.get('device')) or 'it'} has disks of the host ({disk_count})"


def _sriov_functions(read_object: ReadObject) -> Iterator[tuple[PciAddress, str]]:
    for device in map(leaves, items(read_object.properties.get(_PASSTHROUGH))):
        address, functions = pci_address(leaf_text(device.get("id"))), whole(device.get("numVirtualFunction"))
        if address is not None and functions:
            yield address, f"it is divided into {functions} virtual functions (SR-IOV)"
