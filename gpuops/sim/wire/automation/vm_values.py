"""A VM as com.vmware.vcenter.VM shows it, made from the properties that SOAP clients read.

The table `structures.yaml` says which field of a structure comes from which property.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from pyVmomi import vim

from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.vcenter.vapi_values import Enumeration, MapValue, OptionalValue, Struct

Device = vim.vm.device
_VM: Final = "com.vmware.vcenter.vm"
_HARDWARE: Final = f"{_VM}.hardware"
_POWER: Final = {"poweredOn": "POWERED_ON", "poweredOff": "POWERED_OFF", "suspended": "SUSPENDED"}
POWER_STATE: Final = Enumeration(f"{_VM}.power.state", tuple(_POWER.values()))
_SHARING: Final = {"noSharing": "NONE", "virtualSharing": "VIRTUAL", "physicalSharing": "PHYSICAL"}
_SCSI_TYPES: Final = (
    (Device.ParaVirtualSCSIController, "PVSCSI"),
    (Device.VirtualLsiLogicSASController, "LSILOGICSAS"),
    (Device.VirtualLsiLogicController, "LSILOGIC"),
    (Device.VirtualBusLogicController, "BUSLOGIC"),
)
_CARD_TYPES: Final = (
    (Device.VirtualVmxnet3, "VMXNET3"),
    (Device.VirtualE1000e, "E1000E"),
    (Device.VirtualE1000, "E1000"),
    (Device.VirtualPCNet32, "PCNET32"),
    (Device.VirtualVmxnet2, "VMXNET2"),
    (Device.VirtualVmxnet, "VMXNET"),
)
"""hardware.ethernet.emulation_type; it has none for an SR-IOV card."""
_BUSES: Final = (
    (Device.VirtualIDEController, "IDE"),
    (Device.VirtualSCSIController, "SCSI"),
    (Device.VirtualSATAController, "SATA"),
    (Device.VirtualNVMEController, "NVME"),
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
"""Guest operating systems whose name in com.vmware.vcenter.vm.guest_OS does not follow from `_WORDS`."""
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
    controllers = {device.key: device for device in devices if isinstance(device, Device.VirtualController)}
    fields = {
        "guest_OS": guest_os(config.guestId),
        "name": vm.display_name,
        "identity": OptionalValue(structure_of("vm.identity.info", config)),
        "power_state": power_state(vm),
        "instant_clone_frozen": OptionalValue(bool(vm.read("runtime").instantCloneFrozen)),
        "hardware": structure_of("vm.hardware.info", config, version=config.version.upper().replace("-", "_")),
        "boot": _boot(config),
        "boot_devices": _boot_devices(config.bootOptions.bootOrder),
        "cpu": structure_of("vm.hardware.cpu.info", config),
        "memory": structure_of("vm.hardware.memory.info", config),
        "disks": _map(devices, Device.VirtualDisk, lambda disk: _disk(disk, controllers)),
        "nics": _map(devices, tuple(kind for kind, _ in _CARD_TYPES), _network_card),
        "cdroms": _map(devices, Device.VirtualCdrom, lambda drive: _cdrom(drive, controllers)),
        "floppies": MapValue({}),
        "parallel_ports": MapValue({}),
        "serial_ports": MapValue({}),
        "sata_adapters": _map(devices, Device.VirtualSATAController, _adapter("sata")),
        "scsi_adapters": _map(devices, Device.VirtualSCSIController, _scsi_adapter),
        "nvme_adapters": OptionalValue(_map(devices, Device.VirtualNVMEController, _adapter("nvme"))),
    }
    return Struct("com.vmware.vcenter.VM.info", fields)


def _map(devices: list[Any], kinds: Any, render: Callable[[Any], Struct]) -> MapValue:
    """The devices of these types by their keys; the identifier of a device is its key as text."""
    return MapValue({str(device.key): render(device) for device in devices if isinstance(device, kinds)})


def _kind_name(device: Any, names: tuple[tuple[Any, str], ...]) -> str:
    return next(name for kind, name in names if isinstance(device, kind))


def _boot(config: Any) -> Struct:
    if str(config.firmware) != "efi":
        return structure_of("vm.hardware.boot.info", config)
    protocol = str(config.bootOptions.networkBootProtocol or "ipv4").upper()
    return structure_of("vm.hardware.boot.info", config, efi_legacy_boot=False, network_protocol=protocol)


def _boot_devices(order: list[Any]) -> list[Struct]:
    """Return the boot devices in order; disks that follow each other form one entry."""
    entries: list[Struct] = []
    for kind, devices in groupby(order, key=lambda device: _kind_name(device, _BOOT_DEVICES)):
        keys = [str(device.deviceKey) for device in devices] if kind in ("DISK", "ETHERNET") else [None]
        nics_and_disks = [(None, keys)] if kind == "DISK" else [(key, None) for key in keys]
        entries += [
            structure_of("vm.hardware.boot.device.entry", None, type=kind, nic=nic, disks=disks)
            for nic, disks in nics_and_disks
        ]
    return entries


def _address(device: Any, controllers: Mapping[int, Any]) -> dict[str, Any]:
    """Return the kind of bus of a disk or drive, and its address in a field named after that kind."""
    controller = controllers[device.controllerKey]
    kind = _kind_name(controller, _BUSES)
    address: dict[str, Any] = {"bus": controller.busNumber, "unit": device.unitNumber}
    if kind == "IDE":
        address = {"primary": controller.busNumber == 0, "master": device.unitNumber == 0}
    return {"type": kind, kind.lower(): Struct(f"{_HARDWARE}.{kind.lower()}_address_info", address)}


def _disk(disk: Any, controllers: Mapping[int, Any]) -> Struct:
    backing = structure_of("vm.hardware.disk.backing_info", disk.backing)
    return structure_of("vm.hardware.disk.info", disk, backing=backing, **_address(disk, controllers))


def _cdrom(drive: Any, controllers: Mapping[int, Any]) -> Struct:
    backing_fields = {"type": "CLIENT_DEVICE", "device_access_type": "PASSTHRU"}
    if isinstance(drive.backing, Device.VirtualCdrom.IsoBackingInfo):
        backing_fields = {"type": "ISO_FILE", "iso_file": drive.backing.fileName}
    backing = structure_of("vm.hardware.cdrom.backing_info", None, **backing_fields)
    address, state = _address(drive, controllers), _state(drive)
    return structure_of("vm.hardware.cdrom.info", drive, backing=backing, state=state, **address)


def _network_backing(backing: Any) -> Struct:
    """Return the backing of a network card on a distributed or a standard port group."""
    backing_fields: dict[str, Any]
    if isinstance(backing, Device.VirtualEthernetCard.DistributedVirtualPortBackingInfo):
        port = backing.port
        backing_fields = {
            "type": "DISTRIBUTED_PORTGROUP",
            "network": port.portgroupKey,
            "distributed_switch_uuid": port.switchUuid,
            "distributed_port": port.portKey,
            "connection_cookie": port.connectionCookie,
        }
    else:
        backing_fields = {
            "type": "STANDARD_PORTGROUP",
            "network": backing.network._moId,
            "network_name": backing.deviceName,
        }
    return structure_of("vm.hardware.ethernet.backing_info", None, **backing_fields)


def _network_card(card: Any) -> Struct:
    kind = _kind_name(card, _CARD_TYPES)
    return structure_of(
        "vm.hardware.ethernet.info",
        card,
        type=kind,
        upt_compatibility_enabled=bool(card.uptCompatibilityEnabled) if kind == "VMXNET3" else None,
        backing=_network_backing(card.backing),
        state=_state(card),
    )


def _state(device: Any) -> str:
    return "CONNECTED" if device.connectable.connected else "NOT_CONNECTED"


def _adapter(bus: str) -> Callable[[Any], Struct]:
    return lambda controller: structure_of(f"vm.hardware.adapter.{bus}.info", controller)


def _scsi_adapter(controller: Any) -> Struct:
    return structure_of(
        "vm.hardware.adapter.scsi.info",
        controller,
        type=_kind_name(controller, _SCSI_TYPES),
        scsi=structure_of("vm.hardware.scsi_address_info", controller),
        sharing=_SHARING[str(controller.sharedBus)],
    )


VCENTER: Final = "com.vmware.vcenter"


def structure_of(name: str, source: Any, /, **own_fields: Any) -> Struct:
    """The structure of this name below com.vmware.vcenter, with the fields of `fields_of`."""
    return Struct(f"{VCENTER}.{name}", fields_of(name, source, **own_fields))


def fields_of(name: str, source: Any, /, **own_fields: Any) -> dict[str, Any]:
    """Its fields: those that the table takes from `source`, and those that only the caller knows."""
    return {field: _value(path, source, own_fields, field) for field, path in _table()[name].items()}


def _value(path: str | None, source: Any, own_fields: Mapping[str, Any], field: str) -> Any:
    """Return a field's value: the attribute `path` of `source`, or for None and "?" the one of `own_fields`.

    "=text" is a constant. A suffix converts the attribute: "?" to an optional, "!" to bool, "^" to upper case.
    """
    if path is None:
        return own_fields[field]
    if path == "?":
        return OptionalValue(own_fields.get(field))
    if path.startswith("="):
        return path[1:]
    setting = attrgetter(path.rstrip("?!^"))(source)
    match path[-1]:
        case "?":
            return OptionalValue(setting)
        case "!":
            return bool(setting)
        case "^":
            return str(setting).upper()
        case _:
            return setting


@cache
def _table() -> Mapping[str, Mapping[str, str | None]]:
    path = Path(__file__).with_name("structures.yaml")
    table: Any = parse_yaml(read_text(path), path.name)
    return dict(table)
