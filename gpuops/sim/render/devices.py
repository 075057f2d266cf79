"""The virtual devices of a VM, passthrough devices (vGPUs, whole GPUs and others) included."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, assert_never

from pyVmomi import VmomiSupport, vim

from gpuops.sim.render.defaults import default, filled
from gpuops.sim.render.pci import FUNCTION_DEVICE, FUNCTION_NAME, MELLANOX, NIC_DEVICE, NIC_NAME
from gpuops.sim.state.hardware import FIRST_CARD, FIRST_DISK, IDE_KEYS, CdromDrive, Disk, NetworkCard, StorageController
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

Device = vim.vm.device
PCI_CONTROLLER: Final = 100
BRIDGE_SLOT: Final = 32
"""pciSlotNumber of the first passthrough device; the following ones count on from it."""


def virtual_device(vm: VmState, device: PciDevice, host: HostState | None, mac: str) -> Any:
    """Return a passthrough device or SR-IOV card as the API shows it.

    `mac` are the last three octets of the addresses of its VM's network cards.
    """
    if isinstance(device.backing, SriovBacking):
        return _sriov_card(vm, device, device.backing, host, mac)
    return _passthrough(vm, device, host)


def _passthrough(vm: VmState, device: PciDevice, host: HostState | None) -> Any:
    """One VirtualPCIPassthrough as the API shows it."""
    group = device.group and Device.VirtualDevice.DeviceGroupInfo(
        groupInstanceKey=device.group[0], sequenceId=device.group[1]
    )
    return filled(
        Device.VirtualPCIPassthrough,
        key=device.key,
        deviceInfo=vim.Description(label=f"PCI device {device.key - FIRST_PCI_KEY}", summary=_summary(device)),
        backing=_backing(vm, device, host),
        controllerKey=PCI_CONTROLLER,
        unitNumber=device.unit,
        slotInfo=Device.VirtualDevice.PciBusSlotInfo(pciSlotNumber=BRIDGE_SLOT + device.key - FIRST_PCI_KEY),
        numaNode=device.numa_node,
        deviceGroupInfo=group,
    )


def _summary(device: PciDevice) -> str:
    """Return the text that the vSphere Client shows for the device."""
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
    """Return the backing of a VirtualPCIPassthrough; for an SR-IOV network card it is the card's network."""
    backing = device.backing
    match backing:
        case VgpuBacking(type_name):
            size_mib = _framebuffer_mib(type_name, host)
            return Device.VirtualPCIPassthrough.VmiopBackingInfo(
                vgpu=type_name,
                migrateSupported=size_mib is not None,
                vgpuMigrateDataSizeMB=size_mib,
                enhancedMigrateCapability=False,
            )
        case StaticBacking(pci_id, device_id, system_id, vendor_id, device_name):
            return Device.VirtualPCIPassthrough.DeviceBackingInfo(
                deviceName=device_name, id=pci_id, deviceId=device_id, systemId=system_id, vendorId=vendor_id
            )
        case DynamicBacking(allowed, label):
            return Device.VirtualPCIPassthrough.DynamicBackingInfo(
                deviceName="",
                allowedDevice=[
                    Device.VirtualPCIPassthrough.AllowedDevice(vendorId=vendor, deviceId=device_id)
                    for vendor, device_id in allowed
                ],
                customLabel=label,
                assignedId=next((pci_id for key, pci_id in vm.held if key == device.key), None),
            )
        case DvxBacking(device_class, parameters):
            return Device.VirtualPCIPassthrough.DvxBackingInfo(
                deviceClass=device_class,
                configParams=[vim.option.OptionValue(key=key, value=value) for key, value in parameters],
            )
        case SriovBacking(card=card):
            return network_backing(card)
        case _:
            assert_never(backing)


def _sriov_card(vm: VmState, device: PciDevice, backing: SriovBacking, host: HostState | None, mac: str) -> Any:
    """Return a VirtualSriovEthernetCard: a network card for the VM, which passthrough binds to its host."""
    function = _nic_function(backing.physical_function, NIC_NAME, NIC_DEVICE, host)
    return default(
        "VirtualSriovEthernetCard",
        key=device.key,
        controllerKey=PCI_CONTROLLER,
        unitNumber=device.unit,
        macAddress=backing.card.mac or f"02:50:{device.key - FIRST_PCI_KEY:02x}:{mac}",
        backing=_backing(vm, device, host),
        sriovBacking=Device.VirtualSriovEthernetCard.SriovBackingInfo(
            physicalFunctionBacking=function, virtualFunctionBacking=_virtual_function(vm, device, host)
        ),
        connectable=Device.VirtualDevice.ConnectInfo(
            startConnected=True, allowGuestControl=True, connected=vm.power == "poweredOn", status="untried"
        ),
        # the card with the first key, 13031, is adapter 2
        deviceInfo=vim.Description(
            label=f"SR-IOV network adapter {FIRST_SRIOV_KEY - device.key + 2}", summary=_summary(device)
        ),
    )


def _nic_function(pci_id: str, name: str, device_id: int, host: HostState | None) -> Any:
    return Device.VirtualPCIPassthrough.DeviceBackingInfo(
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
        return Device.VirtualEthernetCard.NetworkBackingInfo(
            deviceName=card.network_name, useAutoDetect=False, network=network
        )
    return Device.VirtualEthernetCard.DistributedVirtualPortBackingInfo(
        port=vim.dvs.PortConnection(
            switchUuid=card.switch, portgroupKey=card.network, portKey=card.port, connectionCookie=card.cookie
        )
    )


def _framebuffer_mib(type_name: str, host: HostState | None) -> int | None:
    types = (gpu.board.by_name.get(type_name) for gpu in (host.gpus if host else ()))
    return next((type_.framebuffer_mib for type_ in types if type_), None)


class Identity(NamedTuple):
    """The values in a device list that differ between any two VMs, apart from their names and uuids."""

    home: str
    """The path of its files up to the suffix."""
    disk_uuid: str
    """The part of its disks' uuids that follows the disk number."""
    mac: str
    """The last three octets of the addresses of its network cards."""
    address: str
    """The IP address that its guest reports: one of the documentation range, the same in every run."""


PLACEHOLDERS: Final = Identity("\ue000home\ue000", "\ue000disk\ue000", "\ue000mac\ue000", "\ue000address\ue000")
"""Enclosed in characters of private use, which no name contains."""


def identity(vm: VmState) -> Identity:
    """The VM's own names for its disk and network cards, and its address."""
    tail = vm.uuid.replace("-", "")[-6:]
    low_bits = int(tail[2:], 16)
    # 198.18.0.0/15 is reserved for benchmarks (RFC 2544); bit 15 chooses one of its halves, 198.18 or 198.19.
    # A guest whose processes are real is at an address of this machine, where each can listen on any port
    net = f"127.{64 + (low_bits >> 15 & 1)}" if vm.template.real_processes else f"198.{18 + (low_bits >> 15 & 1)}"
    return Identity(
        vm.home, vm.uuid[7:], f"{tail[:2]}:{tail[2:4]}:{tail[4:]}", f"{net}.{low_bits >> 8 & 0x7F}.{low_bits & 0xFF}"
    )


def devices(vm: VmState, host: HostState | None, vm_identity: Identity | None = None) -> list[Any]:
    """`config.hardware.device` of a VM: what it was made with, then its passthrough devices in their order."""
    vm_identity = vm_identity or identity(vm)
    return [
        *_controllers(vm),
        *_peripherals(vm, vm_identity),
        *(virtual_device(vm, device, host, vm_identity.mac) for device in vm.devices),
    ]


def shape_of(vm: VmState, host: HostState) -> tuple[Any, ...]:
    """Return everything that the device list depends on, except the identity: the key of its shape."""
    return (vm.hardware, vm.datastore, vm.devices, vm.held, vm.power == "poweredOn", host.board_names)


def _controllers(vm: VmState) -> list[Any]:
    """Return the controllers that every VM has, and its storage controllers."""
    # the PCI controller's `device` lists everything on it; 500 and 12000 are the keys of video card and VMCI device
    return [
        *(_ide_controller(vm, number) for number in range(len(IDE_KEYS))),
        default("VirtualPS2Controller"),
        default(
            "VirtualPCIController",
            device=[
                500,
                12000,
                *(controller.key for controller in vm.hardware.controllers),
                *(card.key for card in vm.hardware.cards),
                *(device.key for device in vm.devices),
            ],
        ),
        default("VirtualSIOController"),
        *(_storage_controller(vm, controller) for controller in vm.hardware.controllers),
    ]


PERIPHERALS: Final = ("VirtualKeyboard", "VirtualPointingDevice", "VirtualMachineVideoCard", "VirtualMachineVMCIDevice")


def _peripherals(vm: VmState, vm_identity: Identity) -> list[Any]:
    return [
        *(default(kind) for kind in PERIPHERALS),
        *(_disk(vm, disk, number, vm_identity) for number, disk in enumerate(vm.hardware.disks, start=1)),
        *(_drive(vm, drive, number) for number, drive in enumerate(vm.hardware.drives, start=1)),
        *(_network_card(vm, card, number, vm_identity) for number, card in enumerate(vm.hardware.cards, start=1)),
    ]


SUMMARIES: Final = {
    "ParaVirtualSCSIController": "VMware paravirtual SCSI",
    "VirtualLsiLogicController": "LSI Logic",
    "VirtualLsiLogicSASController": "LSI Logic SAS",
    "VirtualBusLogicController": "BusLogic",
    "VirtualAHCIController": "AHCI",
    "VirtualNVMEController": "NVME Controller",
}


def _attached_keys(vm: VmState, controller: int) -> list[int]:
    """The keys of the disks and drives on a controller."""
    return [part.key for part in vm.hardware.attached(controller)]


def _ide_controller(vm: VmState, number: int) -> Any:
    label, key = f"IDE {number}", IDE_KEYS[number]
    described = vim.Description(label=label, summary=label)
    return filled(
        Device.VirtualIDEController, key=key, busNumber=number, device=_attached_keys(vm, key), deviceInfo=described
    )


def _storage_controller(vm: VmState, controller: StorageController) -> Any:
    """Return a SCSI, SATA or NVMe controller with the keys of the devices on it."""
    kind = VmomiSupport.GetWsdlType("urn:vim25", controller.kind)
    is_scsi = issubclass(kind, Device.VirtualSCSIController)
    name = "SCSI" if is_scsi else "SATA" if issubclass(kind, Device.VirtualSATAController) else "NVME"
    fields = {"hotAddRemove": True, "sharedBus": "noSharing", "scsiCtlrUnitNumber": 7} if is_scsi else {}
    return filled(
        kind,
        key=controller.key,
        controllerKey=PCI_CONTROLLER,
        # the PCI controller's unit of the first controller of each type
        unitNumber={"SCSI": 3, "SATA": 24, "NVME": 30}[name] + controller.bus,
        busNumber=controller.bus,
        device=_attached_keys(vm, controller.key),
        deviceInfo=vim.Description(
            label=f"{name} controller {controller.bus}", summary=SUMMARIES.get(controller.kind, f"{name} controller")
        ),
        **fields,
    )


def disk_file(disk: Disk, home: str) -> str:
    """The path of a disk's file; `home` is the path of the VM's files up to the suffix."""
    number = disk.key - FIRST_DISK
    return disk.file or (f"{home}_{number}.vmdk" if number else f"{home}.vmdk")


def _disk(vm: VmState, disk: Disk, number: int, vm_identity: Identity) -> Any:
    backing = default(
        "VirtualDiskFlatVer2BackingInfo",
        fileName=disk_file(disk, vm_identity.home),
        datastore=vim.Datastore(vm.datastore, None),
        diskMode=disk.mode,
        thinProvisioned=disk.thin,
        uuid=f"6000C{0x28 + number:02x}{vm_identity.disk_uuid}",
    )
    return filled(
        Device.VirtualDisk,
        key=disk.key,
        controllerKey=disk.controller,
        unitNumber=disk.unit,
        backing=backing,
        capacityInKB=disk.kib,
        capacityInBytes=disk.kib << 10,
        shares=vim.SharesInfo(shares=1000, level="normal"),
        deviceInfo=vim.Description(label=f"Hard disk {number}", summary=f"{disk.kib:,} KB"),
    )


def _drive(vm: VmState, drive: CdromDrive, number: int) -> Any:
    backing: Any = Device.VirtualCdrom.RemotePassthroughBackingInfo(deviceName="", useAutoDetect=False, exclusive=False)
    if drive.iso:
        backing = Device.VirtualCdrom.IsoBackingInfo(fileName=drive.iso, datastore=vim.Datastore(vm.datastore, None))
    return filled(
        Device.VirtualCdrom,
        key=drive.key,
        controllerKey=drive.controller,
        unitNumber=drive.unit,
        backing=backing,
        connectable=_connectable(vm, starts=drive.starts_connected),
        deviceInfo=vim.Description(
            label=f"CD/DVD drive {number}", summary=f"ISO {drive.iso}" if drive.iso else "Remote device"
        ),
    )


def _connectable(vm: VmState, *, starts: bool) -> Any:
    return Device.VirtualDevice.ConnectInfo(
        startConnected=starts, allowGuestControl=True, connected=starts and vm.power == "poweredOn", status="untried"
    )


ALLOCATION: Final = Device.VirtualEthernetCard.ResourceAllocation(
    reservation=0, share=vim.SharesInfo(shares=50, level="normal"), limit=-1
)
"""The bandwidth allocation of every network card: vCenter's default for a card without one."""


def _network_card(vm: VmState, card: NetworkCard, number: int, vm_identity: Identity) -> Any:
    return filled(
        VmomiSupport.GetWsdlType("urn:vim25", card.kind),
        key=card.key,
        controllerKey=PCI_CONTROLLER,
        # units 0 to 6 of the PCI controller belong to other devices
        unitNumber=7 + card.key - FIRST_CARD,
        addressType="assigned",
        macAddress=card.mac or f"00:50:56:{vm_identity.mac}",
        wakeOnLanEnabled=True,
        resourceAllocation=ALLOCATION,
        backing=network_backing(card),
        connectable=_connectable(vm, starts=card.starts_connected),
        deviceInfo=vim.Description(label=f"Network adapter {number}", summary=network_of(card)),
        **({"deviceProtocol": card.protocol} if card.protocol else {}),
    )
