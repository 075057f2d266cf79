"""A VM as com.vmware.vcenter.VM shows it, made from what SOAP clients read of it. `inventory_reads.py` calls it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, Final

from pyVmomi import vim

from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.vcenter.vapi_values import Enumeration, MapValue, OptionalValue, Struct

D = vim.vm.device
_VM: Final = "com.vmware.vcenter.vm"
_HARDWARE: Final = f"{_VM}.hardware"
_POWER: Final = {"poweredOn": "POWERED_ON", "poweredOff": "POWERED_OFF", "suspended": "SUSPENDED"}
POWER_STATE: Final = Enumeration(f"{_VM}.power.state", tuple(_POWER.values()))
_FIRMWARE: Final = {"bios": "BIOS", "efi": "EFI"}
_SHARING: Final = {"noSharing": "NONE", "virtualSharing": "VIRTUAL", "physicalSharing": "PHYSICAL"}
_MAC_TYPES: Final = {"manual": "MANUAL", "generated": "GENERATED", "assigned": "ASSIGNED"}
_SCSI_TYPES: Final = (
    (D.ParaVirtualSCSIController, "PVSCSI"),
    (D.VirtualLsiLogicSASController, "LSILOGICSAS"),
    (D.VirtualLsiLogicController, "LSILOGIC"),
    (D.VirtualBusLogicController, "BUSLOGIC"),
)
_CARD_TYPES: Final = (
    (D.VirtualVmxnet3, "VMXNET3"),
    (D.VirtualE1000e, "E1000E"),
    (D.VirtualE1000, "E1000"),
    (D.VirtualPCNet32, "PCNET32"),
    (D.VirtualVmxnet2, "VMXNET2"),
    (D.VirtualVmxnet, "VMXNET"),
)
"""hardware.ethernet.emulation_type; it has none for an SR-IOV card."""
_BUSES: Final = (
    (D.VirtualIDEController, "IDE"),
    (D.VirtualSCSIController, "SCSI"),
    (D.VirtualSATAController, "SATA"),
    (D.VirtualNVMEController, "NVME"),
)
_BOOT_DEVICES: Final = (
    (vim.vm.BootOptions.BootableCdromDevice, "CDROM"),
    (vim.vm.BootOptions.BootableDiskDevice, "DISK"),
    (vim.vm.BootOptions.BootableEthernetDevice, "ETHERNET"),
    (vim.vm.BootOptions.BootableFloppyDevice, "FLOPPY"),
)
_GUESTS: Final = {
    "amazonlinux2_64Guest": "AMAZONLINUX2_64",
    "amazonlinux3_64Guest": "AMAZONLINUX3_64",
    "crxPod1Guest": "CRXPOD_1",
    "crxSys1Guest": "CRXSYS_1",
    "eComStationGuest": "ECOMSTATION",
    "eComStation2Guest": "ECOMSTATION_2",
    "openServer5Guest": "OPENSERVER_5",
    "openServer6Guest": "OPENSERVER_6",
    "os2Guest": "OS2",
    "otherGuest64": "OTHER_64",
    "unixWare7Guest": "UNIXWARE_7",
    "windows2019srv_64Guest": "WINDOWS_SERVER_2019",
    "windows2019srvNext_64Guest": "WINDOWS_SERVER_2021",
    "windows2022srvNext_64Guest": "WINDOWS_SERVER_2025",
    "windowsHyperVGuest": "WINDOWS_HYPERV",
    "winXPHomeGuest": "WIN_XP_HOME",
    "winXPProGuest": "WIN_XP_PRO",
    "winXPPro64Guest": "WIN_XP_PRO_64",
}
"""Identifiers of guest operating systems whose name in com.vmware.vcenter.vm.guest_OS the rule below does not make."""
_WORDS: Final = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[0-9])(?=64$)|(?<=[0-9x])(?=[A-Z])")


def guest_os(guest_id: str) -> str:
    """The name of a guest operating system in com.vmware.vcenter.vm.guest_OS: UBUNTU_64 for ubuntu64Guest."""
    return _GUESTS.get(guest_id) or _WORDS.sub("_", guest_id.removesuffix("Guest")).upper()


def power_state(vm: ManagedObject) -> str:
    """A value of POWER_STATE."""
    return _POWER[str(vm.read("runtime.powerState"))]


def summary(vm: ManagedObject) -> Mapping[str, Any]:
    """The fields of com.vmware.vcenter.VM.summary besides the identifier."""
    return {
        "name": vm.display_name,
        "power_state": power_state(vm),
        "cpu_count": OptionalValue(vm.read("config.hardware.numCPU")),
        "memory_size_MiB": OptionalValue(vm.read("config.hardware.memoryMB")),
    }


def info(vm: ManagedObject) -> Struct:
    """com.vmware.vcenter.VM.info."""
    config = vm.read("config")
    devices = config.hardware.device
    controllers = {device.key: device for device in devices if isinstance(device, D.VirtualController)}
    identity = {"name": config.name, "bios_uuid": config.uuid, "instance_uuid": config.instanceUuid}
    fields = {
        "guest_OS": guest_os(config.guestId),
        "name": vm.display_name,
        "identity": OptionalValue(Struct(f"{_VM}.identity.info", identity)),
        "power_state": power_state(vm),
        "instant_clone_frozen": OptionalValue(bool(vm.read("runtime").instantCloneFrozen)),
        "hardware": _version(config),
        "boot": _boot(config),
        "boot_devices": _boot_devices(config.bootOptions.bootOrder),
        "cpu": _cpu(config),
        "memory": _memory(config),
        "disks": _map(devices, D.VirtualDisk, lambda disk: _disk(disk, controllers)),
        "nics": _map(devices, tuple(kind for kind, _ in _CARD_TYPES), _network_card),
        "cdroms": _map(devices, D.VirtualCdrom, lambda drive: _cdrom(drive, controllers)),
        "floppies": MapValue({}),
        "parallel_ports": MapValue({}),
        "serial_ports": MapValue({}),
        "sata_adapters": _map(devices, D.VirtualSATAController, _sata_adapter),
        "scsi_adapters": _map(devices, D.VirtualSCSIController, _scsi_adapter),
        "nvme_adapters": OptionalValue(_map(devices, D.VirtualNVMEController, _nvme_adapter)),
    }
    return Struct("com.vmware.vcenter.VM.info", fields)


def _map(devices: list[Any], kinds: Any, shown: Callable[[Any], Struct]) -> MapValue:
    """The devices of these types by their keys; the identifier of a device is its key as text."""
    return MapValue({str(device.key): shown(device) for device in devices if isinstance(device, kinds)})


def _kind(device: Any, names: tuple[tuple[Any, str], ...]) -> str:
    return next(name for kind, name in names if isinstance(device, kind))


def _version(config: Any) -> Struct:
    upgrade = {"upgrade_policy": "NEVER", "upgrade_version": OptionalValue(None)}
    state = {"upgrade_status": "NONE", "upgrade_error": OptionalValue(None)}
    version = config.version.upper().replace("-", "_")
    return Struct(f"{_HARDWARE}.info", {"version": version, **upgrade, **state})


def _boot(config: Any) -> Struct:
    options, kind = config.bootOptions, _FIRMWARE[str(config.firmware)]
    protocol = str(options.networkBootProtocol or "ipv4").upper()
    fields = {
        "type": kind,
        "efi_legacy_boot": OptionalValue(False if kind == "EFI" else None),
        "network_protocol": OptionalValue(protocol if kind == "EFI" else None),
        "delay": options.bootDelay,
        "retry": options.bootRetryEnabled,
        "retry_delay": options.bootRetryDelay,
        "enter_setup_mode": options.enterBIOSSetup,
    }
    return Struct(f"{_HARDWARE}.boot.info", fields)


def _boot_devices(order: list[Any]) -> list[Struct]:
    """The devices in the order of boot; disks that follow each other are one entry."""
    entries: list[Struct] = []
    for kind, devices in groupby(order, key=lambda device: _kind(device, _BOOT_DEVICES)):
        keys = [str(device.deviceKey) for device in devices] if kind in ("DISK", "ETHERNET") else [None]
        each = [(None, keys)] if kind == "DISK" else [(key, None) for key in keys]
        for nic, disks in each:
            fields = {"type": kind, "nic": OptionalValue(nic), "disks": OptionalValue(disks)}
            entries.append(Struct(f"{_HARDWARE}.boot.device.entry", fields))
    return entries


def _cpu(config: Any) -> Struct:
    fields = {
        "count": config.hardware.numCPU,
        "cores_per_socket": config.hardware.numCoresPerSocket,
        "hot_add_enabled": bool(config.cpuHotAddEnabled),
        "hot_remove_enabled": bool(config.cpuHotRemoveEnabled),
    }
    return Struct(f"{_HARDWARE}.cpu.info", fields)


def _memory(config: Any) -> Struct:
    fields = {
        "size_MiB": config.hardware.memoryMB,
        "hot_add_enabled": bool(config.memoryHotAddEnabled),
        "hot_add_increment_size_MiB": OptionalValue(config.hotPlugMemoryIncrementSize),
        "hot_add_limit_MiB": OptionalValue(config.hotPlugMemoryLimit),
    }
    return Struct(f"{_HARDWARE}.memory.info", fields)


def _address(device: Any, controllers: Mapping[int, Any]) -> tuple[str, dict[str, OptionalValue]]:
    """The kind of the bus that a disk or drive is on, and its address there under the name of that kind."""
    controller = controllers[device.controllerKey]
    kind = _kind(controller, _BUSES)
    given: dict[str, Any] = {"bus": controller.busNumber, "unit": device.unitNumber}
    if kind == "IDE":
        given = {"primary": controller.busNumber == 0, "master": device.unitNumber == 0}
    address = Struct(f"{_HARDWARE}.{kind.lower()}_address_info", given)
    return kind, {name.lower(): OptionalValue(address if name == kind else None) for _, name in _BUSES}


def _disk(disk: Any, controllers: Mapping[int, Any]) -> Struct:
    kind, address = _address(disk, controllers)
    backing = {"type": "VMDK_FILE", "vmdk_file": OptionalValue(disk.backing.fileName)}
    fields = {
        "label": disk.deviceInfo.label,
        "type": kind,
        **address,
        "backing": Struct(f"{_HARDWARE}.disk.backing_info", backing),
        "capacity": OptionalValue(disk.capacityInBytes),
    }
    return Struct(f"{_HARDWARE}.disk.info", fields)


def _cdrom(drive: Any, controllers: Mapping[int, Any]) -> Struct:
    kind, address = _address(drive, controllers)
    iso = isinstance(drive.backing, D.VirtualCdrom.IsoBackingInfo)
    backing = {
        "type": "ISO_FILE" if iso else "CLIENT_DEVICE",
        "iso_file": OptionalValue(drive.backing.fileName if iso else None),
        "host_device": OptionalValue(None),
        "auto_detect": OptionalValue(None),
        "device_access_type": OptionalValue(None if iso else "PASSTHRU"),
    }
    fields = {
        "type": kind,
        "label": drive.deviceInfo.label,
        "ide": address["ide"],
        "sata": address["sata"],
        "backing": Struct(f"{_HARDWARE}.cdrom.backing_info", backing),
        **_connection(drive),
    }
    return Struct(f"{_HARDWARE}.cdrom.info", fields)


_BACKING: Final = (
    "network", "network_name", "host_device", "distributed_switch_uuid", "distributed_port", "connection_cookie",
    "opaque_network_type", "opaque_network_id",
)  # fmt: skip


def _network_backing(backing: Any) -> Struct:
    known: dict[str, Any]
    if isinstance(backing, D.VirtualEthernetCard.DistributedVirtualPortBackingInfo):
        kind, port = "DISTRIBUTED_PORTGROUP", backing.port
        known = {
            "network": port.portgroupKey,
            "distributed_switch_uuid": port.switchUuid,
            "distributed_port": port.portKey,
            "connection_cookie": port.connectionCookie,
        }
    else:
        kind, known = "STANDARD_PORTGROUP", {"network": backing.network._moId, "network_name": backing.deviceName}
    fields = {name: OptionalValue(known.get(name)) for name in _BACKING}
    return Struct(f"{_HARDWARE}.ethernet.backing_info", {"type": kind, **fields})


def _network_card(card: Any) -> Struct:
    kind = _kind(card, _CARD_TYPES)
    fields = {
        "label": card.deviceInfo.label,
        "type": kind,
        "upt_compatibility_enabled": OptionalValue(bool(card.uptCompatibilityEnabled) if kind == "VMXNET3" else None),
        "upt_v2_compatibility_enabled": OptionalValue(None),
        "mac_type": _MAC_TYPES[card.addressType],
        "mac_address": OptionalValue(card.macAddress),
        "pci_slot_number": OptionalValue(None),
        "wake_on_lan_enabled": bool(card.wakeOnLanEnabled),
        "backing": _network_backing(card.backing),
        **_connection(card),
    }
    return Struct(f"{_HARDWARE}.ethernet.info", fields)


def _connection(device: Any) -> dict[str, Any]:
    given = device.connectable
    return {
        "state": "CONNECTED" if given.connected else "NOT_CONNECTED",
        "start_connected": given.startConnected,
        "allow_guest_control": given.allowGuestControl,
    }


def _adapter(controller: Any) -> dict[str, Any]:
    return {"label": controller.deviceInfo.label, "pci_slot_number": OptionalValue(None)}


def _sata_adapter(controller: Any) -> Struct:
    fields = {**_adapter(controller), "type": "AHCI", "bus": controller.busNumber}
    return Struct(f"{_HARDWARE}.adapter.sata.info", fields)


def _scsi_adapter(controller: Any) -> Struct:
    address = {"bus": controller.busNumber, "unit": controller.scsiCtlrUnitNumber}
    fields = {
        **_adapter(controller),
        "type": _kind(controller, _SCSI_TYPES),
        "scsi": Struct(f"{_HARDWARE}.scsi_address_info", address),
        "sharing": _SHARING[str(controller.sharedBus)],
    }
    return Struct(f"{_HARDWARE}.adapter.scsi.info", fields)


def _nvme_adapter(controller: Any) -> Struct:
    fields = {**_adapter(controller), "bus": controller.busNumber}
    return Struct(f"{_HARDWARE}.adapter.nvme.info", fields)
