"""deviceChange of a ConfigSpec: storage controllers, disks, network cards and CD-ROM drives added, edited and removed.

Keys and unit numbers are given as vCenter gives them (govmomi, object.VirtualDeviceList): SCSI controllers from 1000,
NVMe from 31000, SATA from 15000, disks from 2000, CD-ROM drives from 3000, network cards from 4000. A device names its
controller by key, also by the negative one that the same spec adds it with (vSphere API, VirtualDevice.controllerKey).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import VmomiSupport, vim

from gpuops.sim.inventory import faults
from gpuops.sim.operations.distributed_switches import connected_card_fields, with_own_ports
from gpuops.sim.render.devices import disk_file
from gpuops.sim.state.hardware import (
    FIRST_CARD,
    FIRST_CDROM,
    FIRST_DISK,
    IDE_KEYS,
    CdromDrive,
    Disk,
    Hardware,
    NetworkCard,
    Part,
    StorageController,
    first_free_number,
)
from gpuops.sim.state.vm_state import PVRDMA

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuops.sim.inventory.entities import VmEntity
    from gpuops.sim.state.vm_state import VmState

Device = vim.vm.device
Rdma = Device.VirtualVmxnet3Vrdma
FIRST_RDMA_VERSION: Final = 13
PROTOCOLS: Final = ("rocev1", "rocev2")
CONTROLLERS: Final = (
    (Device.VirtualSCSIController, 1000),
    (Device.VirtualSATAController, 15000),
    (Device.VirtualNVMEController, 31000),
)
"""Kinds of controllers, each with the key of the first controller of that kind."""
MAX_CONTROLLERS: Final = 4
"""Controllers of one kind in a VM (VMware configuration maximums)."""
SCSI_OWN_UNIT: Final = 7
"""The unit of a SCSI controller itself."""
UNIT_COUNTS: Final = {"VirtualIDEController": 2, "VirtualSATAController": 30, "VirtualNVMEController": 64}
SCSI_UNITS: Final = 64
"""Units on a SCSI controller, its own unit included."""
KINDS: Final = (
    *(kind for kind, _ in CONTROLLERS),
    Device.VirtualIDEController,
    Device.VirtualDisk,
    Device.VirtualEthernetCard,
    Device.VirtualCdrom,
)


@dataclass(slots=True)
class _Change:
    """The changes of one spec so far."""

    vm: VmEntity
    state: VmState
    hardware: Hardware
    new_keys: dict[int, int] = field(default_factory=dict)
    """The key of a new controller in the spec -> the key that it got."""


def changes_hardware(device: Any) -> bool:
    """Whether a device is one of KINDS; an SR-IOV network card counts as a passthrough device instead."""
    return isinstance(device, KINDS) and not isinstance(device, Device.VirtualSriovEthernetCard)


def hot_plugged(device: Any) -> bool:
    """Whether it can be changed while the VM runs."""
    return changes_hardware(device) and not isinstance(device, Rdma)


def apply_hardware_changes(vm: VmEntity, state: VmState, changes: list[tuple[int, Any]]) -> None:
    """Change `state` (a copy) by these device specs, each with its index in deviceChange. Raises the first fault."""
    change = _Change(vm, state, state.hardware)
    for index, device_change in changes:
        match device_change.operation:
            case "add":
                _add(change, index, device_change)
            case "edit":
                existing = _find_part(change.hardware, index, device_change.device.key)
                change.hardware = change.hardware.with_part(_edit_part(change, index, existing, device_change.device))
            case "remove":
                existing = _find_part(change.hardware, index, device_change.device.key)
                _refuse_in_use(change.hardware, index, existing)
                change.hardware = change.hardware.without(existing.key)
            case _:
                raise faults.device_fault(vim.fault.InvalidDeviceOperation, index, "The operation is not supported.")
    state.hardware = change.hardware


def _add(change: _Change, index: int, spec: Any) -> None:
    """Add a device. For a controller, note its real key: the spec's other devices name it by the spec's key."""
    device = spec.device
    match device:
        case Device.VirtualIDEController():
            ide_count = len([key for key in change.new_keys.values() if key in IDE_KEYS])
            if ide_count == len(IDE_KEYS):
                raise vim.fault.TooManyDevices(msg="A virtual machine can have at most two IDE controllers.")
            change.new_keys[device.key] = IDE_KEYS[ide_count]  # every VM has them already
            return
        case Device.VirtualDisk():
            part: Part = _new_disk(change, index, spec)
        case Device.VirtualEthernetCard():
            part = _new_card(change, index, device)
        case Device.VirtualCdrom():
            part = _new_drive(change, index, device)
        case _:
            part = _new_controller(change, device)
            change.new_keys[device.key] = part.key
    change.hardware = change.hardware.with_part(part)


def _new_controller(change: _Change, device: Any) -> StorageController:
    first = next(first for kind, first in CONTROLLERS if isinstance(device, kind))
    used_keys = {controller.key for controller in change.hardware.controllers}
    key = first_free_number(first, used_keys)
    if key >= first + MAX_CONTROLLERS:
        raise vim.fault.TooManyDevices(msg=f"A virtual machine can have at most {MAX_CONTROLLERS} such controllers.")
    return StorageController(key, VmomiSupport.GetWsdlName(type(device)), key - first)


def _controller_and_unit(change: _Change, index: int, device: Any) -> tuple[int, int]:
    """Return (controller key, unit number) of a new disk or drive.

    Raises InvalidController for an unknown controller, InvalidDeviceSpec for a unit that is not free.
    """
    requested_key = device.controllerKey
    key = change.new_keys.get(requested_key, requested_key)
    controller = change.hardware.find(key) if key is not None else None
    if key not in IDE_KEYS and not isinstance(controller, StorageController):
        text = f"The controller {requested_key} is not in this virtual machine."
        raise faults.device_fault(vim.fault.InvalidController, index, text, controllerKey=requested_key)
    kind = controller.kind if isinstance(controller, StorageController) else "VirtualIDEController"
    unit_count = next((units for name, units in UNIT_COUNTS.items() if name in (kind, _base_kind(kind))), SCSI_UNITS)
    own_units = (SCSI_OWN_UNIT,) if unit_count == SCSI_UNITS and "SCSI" in _base_kind(kind) else ()
    used_units = change.hardware.units(key)
    unit = device.unitNumber
    if unit is None or unit < 0:
        unit = first_free_number(0, used_units, excluding=own_units)
    if unit in used_units or unit in own_units or unit >= unit_count:
        text = f"Unit {unit} of controller {key} is not free."
        raise faults.device_fault(vim.fault.InvalidDeviceSpec, index, text)
    return key, unit


def _base_kind(kind: str) -> str:
    """Return the kind in CONTROLLERS that a controller type derives from, or the type itself (IDE)."""
    controller_type = VmomiSupport.GetWsdlType("urn:vim25", kind)
    return next((VmomiSupport.GetWsdlName(base) for base, _ in CONTROLLERS if issubclass(controller_type, base)), kind)


def _new_disk(change: _Change, index: int, spec: Any) -> Disk:
    """Return a new disk with an empty file. Raises faults for an existing file, a wrong size or a full datastore."""
    device, backing = spec.device, spec.device.backing
    if not isinstance(backing, Device.VirtualDisk.FlatVer2BackingInfo):
        raise faults.device_fault(vim.fault.InvalidDeviceBacking, index, "A disk needs a backing of type FlatVer2.")
    file_name = (backing.fileName or "").strip()
    file = "" if file_name.endswith("]") else file_name  # with only `[datastore]` vCenter chooses the file's name
    if backing.parent is not None:
        raise _existing_file_fault(change.vm, backing.parent.fileName)
    if str(spec.fileOperation) != "create":
        raise _existing_file_fault(change.vm, file)
    kib = device.capacityInKB or (device.capacityInBytes or 0) >> 10
    if kib <= 0:
        raise faults.device_fault(vim.fault.InvalidDeviceSpec, index, "A new disk needs a capacity.")
    if (kib << 10) > change.vm.datastore().free_mib << 20 and not backing.thinProvisioned:
        raise faults.no_disk_space(file, change.vm.datastore().name)
    controller, unit = _controller_and_unit(change, index, device)
    key = first_free_number(FIRST_DISK, {disk.key for disk in change.hardware.disks})
    return Disk(key, controller, unit, kib, file, backing.diskMode or "persistent", bool(backing.thinProvisioned))


def _existing_file_fault(vm: VmEntity, file: str) -> Exception:
    """Return the fault for a new disk that uses an existing file or has a parent."""
    states = [registered_vm.state for registered_vm in vm.datastore().vms.values()]
    if any(disk_file(disk, state.home) == file for state in states for disk in state.hardware.disks):
        return faults.not_supported(
            "The simulated vCenter cannot attach an existing disk or make a disk with a parent."
        )
    return vim.fault.FileNotFound(msg=f"File {file} was not found", file=file)


def _new_card(change: _Change, index: int, device: Any) -> NetworkCard:
    _refuse_allocation(device.resourceAllocation)
    used_keys = {card.key for card in change.hardware.cards}
    protocol = _rdma_protocol(change, index, device, device.backing) if isinstance(device, Rdma) else ""
    network = network_of(change.vm, _cards(change), index, device.backing, None)
    requested_mac = device.macAddress if device.addressType != "generated" else None
    mac = requested_mac or assigned_mac(change.vm)
    key, kind = first_free_number(FIRST_CARD, used_keys), VmomiSupport.GetWsdlName(type(device))
    starts = starts_connected(device, default=True)
    return NetworkCard(key, kind, mac=mac, starts_connected=starts, protocol=protocol, **network)


def _refuse_allocation(allocation: Any) -> None:
    """Raises NotSupported for an allocation of network bandwidth other than the default."""
    if allocation and (allocation.reservation, allocation.share.level, allocation.limit) != (0, "normal", -1):
        raise faults.not_supported("The simulated vCenter does not support resourceAllocation of a network card.")


def _cards(change: _Change) -> tuple[NetworkCard, ...]:
    """Return the VM's network cards after the changes so far; SR-IOV cards are not changed here."""
    # VmState.network_cards lists the ordinary cards first, then those of SR-IOV
    return (*change.hardware.cards, *change.state.network_cards[len(change.state.hardware.cards) :])


def _rdma_protocol(change: _Change, index: int, device: Any, backing: Any) -> str:
    """Return the protocol of a paravirtual RDMA card; RoCE v2 if the client sets none (from memory).

    Raises DeviceUnsupportedForVmVersion, and InvalidDeviceBacking without a distributed switch (from memory).
    """
    require_version(change.state, index, FIRST_RDMA_VERSION, "A PVRDMA network adapter")
    if not isinstance(backing, Device.VirtualEthernetCard.DistributedVirtualPortBackingInfo):
        text = "A PVRDMA network adapter needs a port of a distributed switch."
        raise faults.device_fault(vim.fault.InvalidDeviceBacking, index, text)
    protocol = device.deviceProtocol or PROTOCOLS[-1]
    if protocol not in PROTOCOLS:
        raise faults.device_fault(vim.fault.InvalidDeviceSpec, index, f"{protocol} is not an RDMA protocol.")
    return str(protocol)


def require_version(state: VmState, index: int, version: int, device: str) -> None:
    """Raises DeviceUnsupportedForVmVersion for a VM whose hardware version is older."""
    if state.hardware_version < version:
        raise faults.device_fault(
            vim.fault.DeviceUnsupportedForVmVersion,
            index,
            f"{device} needs hardware version {version}.",
            currentVersion=f"vmx-{state.hardware_version:02d}",
            expectedVersion=f"vmx-{version}",
        )


def assigned_mac(vm: VmEntity) -> str:
    """An address of the range that vCenter assigns, 00:50:56:80 to bf (VMware vSphere networking docs)."""
    rng = vm.world.rng
    return f"00:50:56:{rng.randrange(0x80, 0xC0):02x}:{rng.randrange(256):02x}:{rng.randrange(256):02x}"


def as_a_clone(vm: VmEntity, state: VmState) -> None:
    """Give a copy of the VM's state disks with files, and network cards with addresses and ports, of its own."""
    state.hardware = replace(state.hardware, disks=tuple(replace(disk, file="") for disk in state.hardware.disks))
    cards = tuple(replace(card, mac=assigned_mac(vm)) if card.mac else card for card in state.network_cards)
    state.set_network_cards(with_own_ports(vm.world, cards))


def network_of(
    vm: VmEntity, cards: Iterable[NetworkCard], index: int, backing: Any, existing_card: NetworkCard | None
) -> dict[str, Any]:
    """Return the fields of a network card on the network of a backing.

    `cards` are all cards of the VM, `existing_card` is the card before the change. Raises InvalidDeviceBacking if the
    host does not have the network.
    """
    if isinstance(backing, Device.VirtualEthernetCard.DistributedVirtualPortBackingInfo):
        return connected_card_fields(vm, cards, index, backing.port, existing_card)
    if isinstance(backing, Device.VirtualEthernetCard.NetworkBackingInfo):
        for moid in vm.host().state.networks:
            network = vm.world.get(moid)
            is_requested = network.name == backing.deviceName or (backing.network and backing.network._moId == moid)
            if is_requested and network.wsdl_name == "Network":
                return {"network": moid, "network_name": network.name, "switch": "", "port": "", "cookie": 0}
    raise faults.device_fault(
        vim.fault.InvalidDeviceBacking, index, "The virtual machine's host does not have this network."
    )


def starts_connected(device: Any, *, default: bool) -> bool:
    connectable = device.connectable
    return default if connectable is None or connectable.startConnected is None else bool(connectable.startConnected)


def _new_drive(change: _Change, index: int, device: Any) -> CdromDrive:
    controller, unit = _controller_and_unit(change, index, device)
    key = first_free_number(FIRST_CDROM, {drive.key for drive in change.hardware.drives})
    return CdromDrive(key, controller, unit, _iso(device.backing), starts_connected(device, default=False))


def _iso(backing: Any) -> str:
    return str(backing.fileName or "") if isinstance(backing, Device.VirtualCdrom.IsoBackingInfo) else ""


def _edit_part(change: _Change, index: int, existing: Part, device: Any) -> Part:
    """Return a disk, network card or drive with the changes of the spec."""
    match existing:
        case Disk():
            kib = _requested_kib(existing, device)
            if kib < existing.kib:
                text = "A disk cannot be made smaller."
                raise faults.device_fault(vim.fault.InvalidDeviceOperation, index, text)
            return replace(existing, kib=kib)
        case NetworkCard():
            _refuse_allocation(device.resourceAllocation)
            cards, backing = _cards(change), device.backing
            network = network_of(change.vm, cards, index, backing, existing) if backing else {}
            if existing.kind == PVRDMA and backing:
                network["protocol"] = _rdma_protocol(change, index, device, backing)
            starts = starts_connected(device, default=existing.starts_connected)
            return replace(existing, mac=device.macAddress or existing.mac, starts_connected=starts, **network)
        case CdromDrive():
            iso = existing.iso if device.backing is None else _iso(device.backing)
            return replace(
                existing, iso=iso, starts_connected=starts_connected(device, default=existing.starts_connected)
            )
        case _:  # a controller has no setting to edit
            return existing


def _requested_kib(existing_disk: Disk, device: Any) -> int:
    """Return the capacity in KiB that an edit asks for.

    Clients change capacityInBytes, or capacityInKB as before 5.5, and send the other field unchanged (vSphere API,
    VirtualDisk.capacityInBytes).
    """
    requested_sizes = ((device.capacityInBytes or 0) >> 10, device.capacityInKB or 0)
    return next((kib for kib in requested_sizes if kib not in (0, existing_disk.kib)), existing_disk.kib)


def _find_part(hardware: Hardware, index: int, key: int) -> Part:
    part = hardware.find(key)
    if part is None:
        raise faults.device_fault(vim.fault.DeviceNotFound, index, f"Device {key} is not in this virtual machine.")
    return part


def _refuse_in_use(hardware: Hardware, index: int, part: Part) -> None:
    if isinstance(part, StorageController) and hardware.units(part.key):
        text = f"Devices are attached to controller {part.key}."
        raise faults.device_fault(vim.fault.InvalidDeviceOperation, index, text)
