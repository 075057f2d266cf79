"""Devices of a VM: the hardware every VM has, then what is passed through."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pyVmomi import vim

from gpuops.sim.render.passthrough import NIC, PCI_CONTROLLER, passed_through
from gpuops.sim.render.required_fields import filled
from gpuops.sim.state.host_state import HostState
from gpuops.sim.state.vm_state import VmState

D = vim.vm.device
SCSI_CONTROLLER = 1000
IDE_CONTROLLER = 200
DISK = 2000


class Identity(NamedTuple):
    """What no two VMs' devices have in common."""

    home: str
    """The path of its files up to the suffix."""
    disk_uuid: str
    mac: str
    """The last three octets of the addresses of its network cards."""


PLACEHOLDERS: Final = Identity("\ue000home\ue000", "\ue000disk\ue000", "\ue000mac\ue000")
"""Between characters of private use, which no name has."""


def identity(vm: VmState) -> Identity:
    """The VM's own names for its disk and network cards."""
    tail = vm.uuid.replace("-", "")[-6:]
    return Identity(
        f"[{vm.template.datastore}] {vm.name}/{vm.name}",
        f"6000C29{vm.uuid[7:]}",
        f"{tail[:2]}:{tail[2:4]}:{tail[4:]}",
    )


def devices(vm: VmState, host: HostState | None, own: Identity | None = None) -> list[Any]:
    """`config.hardware.device` of a VM: what it was made with, then its passthrough devices in their order."""
    own = own or identity(vm)
    return [
        *_controllers(vm),
        *_peripherals(vm, own),
        *(passed_through(vm, device, host, own.mac) for device in vm.devices),
    ]


def shape_of(vm: VmState, host: HostState) -> tuple[Any, ...]:
    """All that the device list depends on besides the identity."""
    return (vm.template, vm.datastore, vm.devices, vm.held, vm.power == "poweredOn", host.board_names)


def _controllers(vm: VmState) -> list[Any]:
    described = vim.Description
    return [
        filled(D.VirtualIDEController, key=IDE_CONTROLLER, deviceInfo=described(label="IDE 0", summary="IDE 0")),
        filled(D.VirtualIDEController, key=201, busNumber=1, deviceInfo=described(label="IDE 1", summary="IDE 1")),
        filled(
            D.VirtualPS2Controller,
            key=300,
            device=[600, 700],
            deviceInfo=described(label="PS2 controller 0", summary="PS2 controller 0"),
        ),
        filled(
            D.VirtualPCIController,
            key=PCI_CONTROLLER,
            device=[500, 12000, SCSI_CONTROLLER, NIC, *(device.key for device in vm.devices)],
            deviceInfo=described(label="PCI controller 0", summary="PCI controller 0"),
        ),
        filled(
            D.VirtualSIOController, key=400, deviceInfo=described(label="SIO controller 0", summary="SIO controller 0")
        ),
        filled(
            D.ParaVirtualSCSIController,
            key=SCSI_CONTROLLER,
            controllerKey=PCI_CONTROLLER,
            unitNumber=3,
            device=[DISK],
            hotAddRemove=True,
            sharedBus="noSharing",
            scsiCtlrUnitNumber=7,
            deviceInfo=described(label="SCSI controller 0", summary="VMware paravirtual SCSI"),
        ),
    ]


def _peripherals(vm: VmState, own: Identity) -> list[Any]:
    described = vim.Description
    return [
        filled(
            D.VirtualKeyboard,
            key=600,
            controllerKey=300,
            unitNumber=0,
            deviceInfo=described(label="Keyboard", summary="Keyboard"),
        ),
        filled(
            D.VirtualPointingDevice,
            key=700,
            controllerKey=300,
            unitNumber=1,
            backing=D.VirtualPointingDevice.DeviceBackingInfo(
                deviceName="", useAutoDetect=False, hostPointingDevice="autodetect"
            ),
            deviceInfo=described(label="Pointing device", summary="Pointing device; Device"),
        ),
        filled(
            D.VirtualVideoCard,
            key=500,
            controllerKey=PCI_CONTROLLER,
            unitNumber=0,
            videoRamSizeInKB=16384,
            numDisplays=1,
            useAutoDetect=False,
            enable3DSupport=False,
            use3dRenderer="automatic",
            graphicsMemorySizeInKB=262144,
            deviceInfo=described(label="Video card", summary="Video card"),
        ),
        filled(
            D.VirtualVMCIDevice,
            key=12000,
            controllerKey=PCI_CONTROLLER,
            unitNumber=17,
            id=-1,
            allowUnrestrictedCommunication=False,
            filterEnable=True,
            deviceInfo=described(label="VMCI device", summary="Device on the virtual machine PCI bus"),
        ),
        *([_disk(vm, own)] if vm.template.disk_gib else []),
        *([_network_card(vm, own)] if vm.template.network else []),
    ]


def _disk(vm: VmState, own: Identity) -> Any:
    gib = vm.template.disk_gib
    backing = D.VirtualDisk.FlatVer2BackingInfo(
        fileName=f"{own.home}.vmdk",
        datastore=vim.Datastore(vm.datastore, None),
        diskMode="persistent",
        split=False,
        writeThrough=False,
        thinProvisioned=True,
        uuid=own.disk_uuid,
    )
    return filled(
        D.VirtualDisk,
        key=DISK,
        controllerKey=SCSI_CONTROLLER,
        unitNumber=0,
        backing=backing,
        capacityInKB=gib << 20,
        capacityInBytes=gib << 30,
        shares=vim.SharesInfo(shares=1000, level="normal"),
        deviceInfo=vim.Description(label="Hard disk 1", summary=f"{gib << 20:,} KB"),
    )


def _network_card(vm: VmState, own: Identity) -> Any:
    return filled(
        D.VirtualVmxnet3,
        key=NIC,
        controllerKey=PCI_CONTROLLER,
        unitNumber=7,
        addressType="assigned",
        macAddress=f"00:50:56:{own.mac}",
        wakeOnLanEnabled=True,
        backing=D.VirtualEthernetCard.NetworkBackingInfo(
            deviceName=vm.template.network,
            useAutoDetect=False,
            network=vim.Network(vm.template.network_ref, None),
        ),
        connectable=D.VirtualDevice.ConnectInfo(
            startConnected=True,
            allowGuestControl=True,
            connected=vm.power == "poweredOn",
            status="untried",
        ),
        deviceInfo=vim.Description(label="Network adapter 1", summary=vm.template.network),
    )
