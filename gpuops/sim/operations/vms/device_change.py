"""deviceChange of a ConfigSpec: passthrough devices (alone or as a vendor device group) and SR-IOV network cards.

Documented: new devices carry negative keys, unique in one spec; the members of a device group come and go together
(vSphere API, VirtualMachineConfigSpec and VirtualDeviceGroups). Recorded: the server gives keys from 13000 upwards on
controller 100, and a gap to the next device (`pci_slot`). From memory: a profile that no host of the cluster supports
is DeviceBackingNotSupported at once; a PCI address is only checked when the VM powers on.

An SR-IOV card names its network in the ordinary backing, and in sriovBacking the port whose virtual function it takes;
that id may begin with `Automatic` (vSphere API, VirtualSriovEthernetCard; the word from memory). The function is chosen
when the VM is powered on. Recorded: the server gives keys from 13031 downwards, whatever a client asks for
(`pci_slot`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim

from gpuops.sim.inventory import faults
from gpuops.sim.operations.host_admission import AUTOMATIC
from gpuops.sim.operations.vms.hardware_change import (
    apply_hardware_changes,
    assigned_mac,
    changes_hardware,
    network_of,
    require_version,
    starts_connected,
)
from gpuops.sim.render.pci import nic_addresses, offered_groups
from gpuops.sim.state.hardware import NetworkCard
from gpuops.sim.state.vm_state import (
    FIRST_PCI_KEY,
    SRIOV,
    Backing,
    DvxBacking,
    DynamicBacking,
    PciDevice,
    SriovBacking,
    StaticBacking,
    VgpuBacking,
    VmState,
)

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import VmEntity


Passthrough = vim.vm.device.VirtualPCIPassthrough
MAX_VGPUS: Final = 16
"""vGPUs in one VM since vSphere 8.0 U2 (from memory)."""
FIRST_DYNAMIC_VERSION: Final = 17
FIRST_GROUP_VERSION: Final = 20


def apply_device_changes(vm: VmEntity, state: VmState, changes: Sequence[Any], groups: Any) -> None:
    """Apply a spec's deviceChange and device groups to `state`, a copy of the VM's state.

    Raises the fault of the first change that is refused; `state` is then partly changed and must be thrown away.
    """
    numbered = list(enumerate(changes))
    apply_hardware_changes(vm, state, [change for change in numbered if changes_hardware(change[1].device)])
    passthrough_changes = [change for change in numbered if not changes_hardware(change[1].device)]
    added_keys = [change.device.key for _, change in passthrough_changes if change.operation == "add"]
    for index, change in passthrough_changes:
        _apply_one_change(vm, state, index, change, added_keys)
    new_groups = _new_groups(groups)
    if new_groups or state.groups:
        _join_groups(vm, state, new_groups)
    _refuse_too_many(state)


def _apply_one_change(vm: VmEntity, state: VmState, index: int, change: Any, added_keys: list[int]) -> None:
    """Add, edit or remove one passthrough device or SR-IOV card; `index` is its place in deviceChange."""
    device = change.device
    is_card = isinstance(device, vim.vm.device.VirtualSriovEthernetCard)
    if not is_card and not isinstance(device, Passthrough):
        raise faults.not_supported(f"The simulated vCenter cannot add, edit or remove a {type(device).__name__}.")
    match change.operation:
        case "add" if is_card:
            state.devices = (*state.devices, new_card(vm, state, index, device))
        case "add":
            if added_keys.count(device.key) > 1:
                text = "Cannot add multiple devices using the same device key."
                raise faults.device_fault(vim.fault.InvalidDeviceSpec, index, text)
            _add(vm, state, index, device)
        case "edit":
            existing = _find_device(state, index, device.key, is_card=is_card)
            state.devices = state.with_device(
                (edited_card if is_card else _edit_device)(vm, state, index, existing, device)
            )
        case "remove":
            state.devices = state.without_device(_find_device(state, index, device.key, is_card=is_card).key)
        case _:
            raise faults.device_fault(vim.fault.InvalidDeviceOperation, index, "The operation is not supported.")


def _add(vm: VmEntity, state: VmState, index: int, device: Any) -> None:
    """Add a passthrough device on the next free PCI slot.

    Raises InvalidDeviceSpec for a static device whose PCI address the VM already has.
    """
    backing = _new_backing(vm, state, index, device.backing)
    existing_pci_ids = [
        static_device.backing.pci_id
        for static_device in state.devices
        if isinstance(static_device.backing, StaticBacking)
    ]
    if isinstance(backing, StaticBacking) and backing.pci_id in existing_pci_ids:
        text = f"Device {backing.pci_id} is already configured in this virtual machine."
        raise faults.device_fault(vim.fault.InvalidDeviceSpec, index, text)
    skips_usual_keys = "vgpu-device-keys" in vm.world.deviations and isinstance(backing, VgpuBacking)
    # assumption: vgpu-device-keys
    key, unit = state.free_pci_slot(without=range(FIRST_PCI_KEY, FIRST_PCI_KEY + 64) if skips_usual_keys else ())
    group = device.deviceGroupInfo and (device.deviceGroupInfo.groupInstanceKey, device.deviceGroupInfo.sequenceId)
    state.devices = (*state.devices, PciDevice(key, unit, backing, _numa_node(device.numaNode), group or None))


def _edit_device(vm: VmEntity, state: VmState, index: int, existing: PciDevice, device: Any) -> PciDevice:
    backing = existing.backing if device.backing is None else _new_backing(vm, state, index, device.backing)
    if existing.group is not None and backing != existing.backing:
        text = "A member of a device group cannot be changed alone."
        raise faults.device_fault(vim.fault.InvalidDeviceSpec, index, text)
    node = existing.numa_node if device.numaNode is None else _numa_node(device.numaNode)
    return replace(existing, backing=backing, numa_node=node)


def _numa_node(number: int | None) -> int | None:
    """Return the virtual NUMA node; a negative number clears it (vSphere API, VirtualDevice.numaNode)."""
    return None if number is None or number < 0 else number


def _find_device(state: VmState, index: int, key: int, *, is_card: bool) -> PciDevice:
    for device in state.devices:
        if device.key == key and isinstance(device.backing, SriovBacking) is is_card:
            return device
    raise faults.device_fault(vim.fault.DeviceNotFound, index, f"Device {key} is not in this virtual machine.")


def _new_backing(vm: VmEntity, state: VmState, index: int, backing: Any) -> Backing:
    """Return the state of a backing. Raises InvalidDeviceBacking for one that names no device."""
    match backing:
        case Passthrough.VmiopBackingInfo():
            return _vgpu_backing(vm, index, backing)
        case Passthrough.DynamicBackingInfo():
            require_version(state, index, FIRST_DYNAMIC_VERSION, "Dynamic DirectPath I/O")
            # the API sends the ids as signed 16-bit numbers
            allowed = tuple((device.vendorId & 0xFFFF, device.deviceId & 0xFFFF) for device in backing.allowedDevice)
            return _require_named_device(index, DynamicBacking(allowed, backing.customLabel or None), bool(allowed))
        case Passthrough.DvxBackingInfo():
            parameters = tuple((option.key, str(option.value)) for option in backing.configParams)
            return _require_named_device(
                index, DvxBacking(backing.deviceClass or "", parameters), bool(backing.deviceClass)
            )
        case Passthrough.DeviceBackingInfo():
            static = StaticBacking(
                backing.id.lower(), backing.deviceId, backing.systemId, backing.vendorId, backing.deviceName
            )
            return _require_named_device(index, static, bool(backing.id))
        case _:
            text = f"A passthrough device needs a backing, not {type(backing).__name__}."
            raise faults.device_fault(vim.fault.InvalidDeviceBacking, index, text)


def _require_named_device(index: int, backing: Backing, names_device: bool) -> Backing:
    if not names_device:
        raise faults.device_fault(vim.fault.InvalidDeviceBacking, index, "The backing names no device.")
    return backing


def _vgpu_backing(vm: VmEntity, index: int, backing: Any) -> VgpuBacking:
    hosts = vm.host().compute_resource().hosts()
    if not any(backing.vgpu in gpu.board.by_name for host in hosts for gpu in host.state.gpus):
        text = f"No host of the cluster supports vGPU profile {backing.vgpu!r}."
        raise vim.fault.DeviceBackingNotSupported(msg=text, device=f"PCI device {index}", backing=backing.vgpu)
    return VgpuBacking(backing.vgpu)


def _new_groups(groups: Any) -> dict[int, str]:
    if groups is None:
        return {}
    return {group.groupInstanceKey: group.deviceGroupName for group in groups.deviceGroup}


def _join_groups(vm: VmEntity, state: VmState, declared_groups: dict[int, str]) -> None:
    """Give new groups their keys, and drop the groups that have no member left.

    Raises InvalidArgument for a group that lacks a member of the host's group of that name, and for a member whose
    group is not declared. `declared_groups` maps the group keys of the spec to names.
    """
    members = Counter(device.group[0] for device in state.devices if device.group is not None)
    groups = dict(state.groups)
    keys: dict[int, int] = {}
    for key_of_spec, name in declared_groups.items():
        if key_of_spec not in groups:
            keys[key_of_spec] = max(groups, default=0) + 1
            groups[keys[key_of_spec]] = name
    state.devices = tuple(_with_group_key(device, keys) for device in state.devices)
    for key, name in list(groups.items()):
        # the members of a new group were counted under the key that the spec uses, before they got the real one
        count = members[key] or next((members[key_of_spec] for key_of_spec, real in keys.items() if real == key), 0)
        if count == 0:
            del groups[key]
        elif not _is_complete(vm, state, key, name):
            raise faults.wrong_argument("deviceGroups", f"Device group {name} must be added or removed as a whole.")
    undeclared_keys = [key for key in members if key not in groups and key not in keys]
    if undeclared_keys or (groups and state.hardware_version < FIRST_GROUP_VERSION):
        raise faults.wrong_argument(
            "deviceGroups", "deviceGroups must declare every group, and device groups need hardware version 20."
        )
    state.groups = tuple(sorted(groups.items()))


def _with_group_key(device: PciDevice, keys: dict[int, int]) -> PciDevice:
    if device.group is None or device.group[0] not in keys:
        return device
    return replace(device, group=(keys[device.group[0]], device.group[1]))


def _is_complete(vm: VmEntity, state: VmState, key: int, name: str) -> bool:
    hosts = vm.host().compute_resource().hosts()
    profiles = next(
        (offer.profiles for host in hosts for offer in offered_groups(host.state) if offer.name == name), None
    )
    present = {
        device.group[1]: device.backing.type_name
        for device in state.devices
        if device.group and device.group[0] == key and isinstance(device.backing, VgpuBacking)
    }
    return profiles is not None and present == dict(enumerate(profiles))


def _refuse_too_many(state: VmState) -> None:
    # Passthrough devices per VM: 16 up to vmx-19, 32 with vmx-20, 64 with vmx-21 (VMware configuration maximums).
    limit = 16 if state.hardware_version < 20 else 32 if state.hardware_version == 20 else 64
    if len(state.devices) > limit or len(state.vgpus) > MAX_VGPUS:
        raise vim.fault.TooManyDevices(msg=f"More than {limit} passthrough devices, or {MAX_VGPUS} vGPUs, in one VM.")


def new_card(vm: VmEntity, state: VmState, index: int, device: Any) -> PciDevice:
    """Return the new device for a VirtualSriovEthernetCard."""
    key, unit = state.free_pci_slot(sriov=True)
    network = network_of(vm, state.network_cards, index, device.backing, None)
    mac = (device.macAddress if device.addressType != "generated" else None) or assigned_mac(vm)
    card = NetworkCard(key, SRIOV, mac=mac, starts_connected=starts_connected(device, default=True), **network)
    return PciDevice(key, unit, SriovBacking(_requested_port(vm, index, device), card))


def edited_card(vm: VmEntity, state: VmState, index: int, existing: PciDevice, device: Any) -> PciDevice:
    """Return the existing device as a VirtualSriovEthernetCard edits it."""
    backing = existing.backing
    assert isinstance(backing, SriovBacking), "_find_device returns only such devices for a card"
    port = _requested_port(vm, index, device) if device.sriovBacking else backing.physical_function
    network = network_of(vm, state.network_cards, index, device.backing, backing.card) if device.backing else {}
    starts = starts_connected(device, default=backing.card.starts_connected)
    mac = device.macAddress or backing.card.mac
    return replace(
        existing, backing=SriovBacking(port, replace(backing.card, mac=mac, starts_connected=starts, **network))
    )


def _requested_port(vm: VmEntity, index: int, device: Any) -> str:
    """Return the requested port's PCI address, or an id that begins with `automatic`: vCenter then chooses the port."""
    requested_function = device.sriovBacking and device.sriovBacking.physicalFunctionBacking
    id_ = (requested_function.id if requested_function else "") or AUTOMATIC
    hosts = vm.host().compute_resource().hosts()
    if not id_.lower().startswith(AUTOMATIC) and not any(id_.lower() in nic_addresses(host.state) for host in hosts):
        text = f"No host of the cluster has a network card at {id_}."
        raise faults.device_fault(vim.fault.InvalidDeviceBacking, index, text)
    return id_.lower()
