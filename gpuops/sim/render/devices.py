"""Devices of a VM: the hardware every VM has, then what is passed through."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pyVmomi import VmomiSupport, vim

from gpuops.sim.render.defaults import default, filled
from gpuops.sim.render.passthrough import PCI_CONTROLLER, network_backing, network_of, passed_through
from gpuops.sim.state.hardware import FIRST_CARD, FIRST_DISK, IDE_KEYS, CdromDrive, Disk, NetworkCard, StorageController
from gpuops.sim.state.host_state import HostState
from gpuops.sim.state.vm_state import VmState

D = vim.vm.device


class Identity(NamedTuple):
    """What no two VMs have in common, beside their names and uuids."""

    home: str
    """The path of its files up to the suffix."""
    disk_uuid: str
    """The uuids of its disks after what tells them apart."""
    mac: str
    """The last three octets of the addresses of its network cards."""
    address: str
    """The IP address that its guest reports: one of the documentation range, the same in every run."""


PLACEHOLDERS: Final = Identity("\ue000home\ue000", "\ue000disk\ue000", "\ue000mac\ue000", "\ue000address\ue000")
"""Between characters of private use, which no name has."""


def identity(vm: VmState) -> Identity:
    """The VM's own names for its disk and network cards, and its address."""
    tail = vm.uuid.replace("-", "")[-6:]
    low = int(tail[2:], 16)
    # a guest whose processes are real is at an address of this machine, where each can listen on any port
    net = f"127.{64 + (low >> 15 & 1)}" if vm.template.real_processes else f"198.{18 + (low >> 15 & 1)}"
    return Identity(vm.home, vm.uuid[7:], f"{tail[:2]}:{tail[2:4]}:{tail[4:]}", f"{net}.{low >> 8 & 0x7F}.{low & 0xFF}")


def devices(vm: VmState, host: HostState | None, vm_identity: Identity | None = None) -> list[Any]:
    """`config.hardware.device` of a VM: what it was made with, then its passthrough devices in their order."""
    vm_identity = vm_identity or identity(vm)
    return [
        *_controllers(vm),
        *_peripherals(vm, vm_identity),
        *(passed_through(vm, device, host, vm_identity.mac) for device in vm.devices),
    ]


def shape_of(vm: VmState, host: HostState) -> tuple[Any, ...]:
    """All that the device list depends on besides the identity."""
    return (vm.hardware, vm.datastore, vm.devices, vm.held, vm.power == "poweredOn", host.board_names)


def _controllers(vm: VmState) -> list[Any]:
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
        D.VirtualIDEController, key=key, busNumber=number, device=_attached_keys(vm, key), deviceInfo=described
    )


def _storage_controller(vm: VmState, controller: StorageController) -> Any:
    kind = VmomiSupport.GetWsdlType("urn:vim25", controller.kind)
    scsi = issubclass(kind, D.VirtualSCSIController)
    name = "SCSI" if scsi else "SATA" if issubclass(kind, D.VirtualSATAController) else "NVME"
    fields = {"hotAddRemove": True, "sharedBus": "noSharing", "scsiCtlrUnitNumber": 7} if scsi else {}
    return filled(
        kind,
        key=controller.key,
        controllerKey=PCI_CONTROLLER,
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
    backing = D.VirtualDisk.FlatVer2BackingInfo(
        fileName=disk_file(disk, vm_identity.home),
        datastore=vim.Datastore(vm.datastore, None),
        diskMode=disk.mode,
        split=False,
        writeThrough=False,
        thinProvisioned=disk.thin,
        uuid=f"6000C{0x28 + number:02x}{vm_identity.disk_uuid}",
    )
    return filled(
        D.VirtualDisk,
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
    backing: Any = D.VirtualCdrom.RemotePassthroughBackingInfo(deviceName="", useAutoDetect=False, exclusive=False)
    if drive.iso:
        backing = D.VirtualCdrom.IsoBackingInfo(fileName=drive.iso, datastore=vim.Datastore(vm.datastore, None))
    return filled(
        D.VirtualCdrom,
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
    return D.VirtualDevice.ConnectInfo(
        startConnected=starts, allowGuestControl=True, connected=starts and vm.power == "poweredOn", status="untried"
    )


ALLOCATION: Final = D.VirtualEthernetCard.ResourceAllocation(
    reservation=0, share=vim.SharesInfo(shares=50, level="normal"), limit=-1
)
"""Of every network card: what vCenter gives one that is added without an allocation."""


def _network_card(vm: VmState, card: NetworkCard, number: int, vm_identity: Identity) -> Any:
    return filled(
        VmomiSupport.GetWsdlType("urn:vim25", card.kind),
        key=card.key,
        controllerKey=PCI_CONTROLLER,
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
