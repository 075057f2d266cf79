"""Passthrough devices of a VM: vGPUs, whole GPUs, and what else is passed through."""

from __future__ import annotations

from typing import Any, Final, assert_never

from pyVmomi import vim

from gpuops.sim.render.defaults import filled
from gpuops.sim.render.pci import FUNCTION_DEVICE, FUNCTION_NAME, MELLANOX, NIC_DEVICE, NIC_NAME
from gpuops.sim.state.hardware import NetworkCard
from gpuops.sim.state.host_state import HostState
from gpuops.sim.state.vm_state import (
    FIRST_PCI_KEY,
    FIRST_SRIOV_KEY,
    DvxBacking,
    DynamicBacking,
    PciDevice,
    SriovBacking,
    StaticBacking,
    VgpuBacking,
    VmState,
)

D = vim.vm.device
PCI_CONTROLLER: Final = 100
BRIDGE_SLOT: Final = 32
"""pciSlotNumber of the first passthrough device; the following ones count on from it."""


def passed_through(vm: VmState, device: PciDevice, host: HostState | None, mac: str) -> Any:
    """The device as the API shows it; `mac` are the last three octets of the addresses of its VM's network cards."""
    if isinstance(device.backing, SriovBacking):
        return _sriov_card(vm, device, device.backing, host, mac)
    return _passthrough(vm, device, host)


def _passthrough(vm: VmState, device: PciDevice, host: HostState | None) -> Any:
    """One VirtualPCIPassthrough as the API shows it."""
    group = device.group and D.VirtualDevice.DeviceGroupInfo(
        groupInstanceKey=device.group[0], sequenceId=device.group[1]
    )
    return filled(
        D.VirtualPCIPassthrough,
        key=device.key,
        deviceInfo=vim.Description(label=f"PCI device {device.key - FIRST_PCI_KEY}", summary=_summary(device)),
        backing=_backing(vm, device, host),
        controllerKey=PCI_CONTROLLER,
        unitNumber=device.unit,
        slotInfo=D.VirtualDevice.PciBusSlotInfo(pciSlotNumber=BRIDGE_SLOT + device.key - FIRST_PCI_KEY),
        numaNode=device.numa_node,
        deviceGroupInfo=group,
    )


def _summary(device: PciDevice) -> str:
    """The line the client shows for the device."""
    match device.backing:
        case VgpuBacking(type_name):
            return f"NVIDIA GRID vGPU {type_name}"
        case StaticBacking(device_name=name):
            return name
        case DynamicBacking():
            return "Dynamic DirectPath IO"
        case DvxBacking(device_class):
            return device_class
        case SriovBacking(card=card):
            return network_of(card)
        case _:
            assert_never(device.backing)


def _backing(vm: VmState, device: PciDevice, host: HostState | None) -> Any:
    """The backing of a VirtualPCIPassthrough; of an SR-IOV network card, its network."""
    backing = device.backing
    match backing:
        case VgpuBacking(type_name):
            size_mib = _framebuffer_mib(type_name, host)
            return D.VirtualPCIPassthrough.VmiopBackingInfo(
                vgpu=type_name,
                migrateSupported=size_mib is not None,
                vgpuMigrateDataSizeMB=size_mib,
                enhancedMigrateCapability=False,
            )
        case StaticBacking(pci_id, device_id, system_id, vendor_id, device_name):
            return D.VirtualPCIPassthrough.DeviceBackingInfo(
                deviceName=device_name, id=pci_id, deviceId=device_id, systemId=system_id, vendorId=vendor_id
            )
        case DynamicBacking(allowed, label):
            return D.VirtualPCIPassthrough.DynamicBackingInfo(
                deviceName="",
                allowedDevice=[
                    D.VirtualPCIPassthrough.AllowedDevice(vendorId=vendor, deviceId=device_id)
                    for vendor, device_id in allowed
                ],
                customLabel=label,
                assignedId=next((pci_id for key, pci_id in vm.held if key == device.key), None),
            )
        case DvxBacking(device_class, parameters):
            return D.VirtualPCIPassthrough.DvxBackingInfo(
                deviceClass=device_class,
                configParams=[vim.option.OptionValue(key=key, value=value) for key, value in parameters],
            )
        case SriovBacking(card=card):
            return network_backing(card)
        case _:
            assert_never(backing)


def _sriov_card(vm: VmState, device: PciDevice, backing: SriovBacking, host: HostState | None, mac: str) -> Any:
    """A VirtualSriovEthernetCard: a network card to the VM, and a passthrough device to all that binds it to a host."""
    function = _nic_function(backing.physical_function, NIC_NAME, NIC_DEVICE, host)
    return filled(
        D.VirtualSriovEthernetCard,
        key=device.key,
        controllerKey=PCI_CONTROLLER,
        unitNumber=device.unit,
        addressType="assigned",
        macAddress=backing.card.mac
        or f"02:50:{device.key - FIRST_PCI_KEY:02x}:{mac}",  # locally administered: its port accepts any address
        wakeOnLanEnabled=False,
        allowGuestOSMtuChange=False,
        backing=_backing(vm, device, host),
        sriovBacking=D.VirtualSriovEthernetCard.SriovBackingInfo(
            physicalFunctionBacking=function, virtualFunctionBacking=_virtual_function(vm, device, host)
        ),
        connectable=D.VirtualDevice.ConnectInfo(
            startConnected=True, allowGuestControl=True, connected=vm.power == "poweredOn", status="untried"
        ),
        deviceInfo=vim.Description(
            label=f"SR-IOV network adapter {FIRST_SRIOV_KEY - device.key + 2}", summary=_summary(device)
        ),
    )


def _nic_function(pci_id: str, name: str, device_id: int, host: HostState | None) -> Any:
    return D.VirtualPCIPassthrough.DeviceBackingInfo(
        deviceName=name,
        id=pci_id,
        deviceId=f"{device_id:x}",
        systemId=host.system_id if host else "",
        vendorId=MELLANOX,
    )


def _virtual_function(vm: VmState, device: PciDevice, host: HostState | None) -> Any:
    """The virtual function that a card has while its VM runs."""
    held_pci_id = next((pci_id for key, pci_id in vm.held if key == device.key), None)
    return held_pci_id and _nic_function(held_pci_id, FUNCTION_NAME, FUNCTION_DEVICE, host)


def network_of(card: NetworkCard) -> str:
    """The line the client shows for a network card."""
    return card.network_name or f"DVSwitch: {card.switch}"


def network_backing(card: NetworkCard) -> Any:
    """The backing of a network card: a network, or a port of a distributed switch."""
    if not card.switch:
        network = vim.Network(card.network, None)
        return D.VirtualEthernetCard.NetworkBackingInfo(
            deviceName=card.network_name, useAutoDetect=False, network=network
        )
    return D.VirtualEthernetCard.DistributedVirtualPortBackingInfo(
        port=vim.dvs.PortConnection(
            switchUuid=card.switch, portgroupKey=card.network, portKey=card.port, connectionCookie=card.cookie
        )
    )


def _framebuffer_mib(type_name: str, host: HostState | None) -> int | None:
    types = (gpu.board.by_name.get(type_name) for gpu in (host.gpus if host else ()))
    return next((type_.framebuffer_mib for type_ in types if type_), None)
