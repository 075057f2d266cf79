"""The future passthrough devices of a VM: which are added, edited and removed, and which stay pinned to a GPU.

The functions that resolve the options of `attach` in a snapshot return a `Goal`, or every reason why the VM or the host
cannot have it.

A pin is `pciPassthruN.cfg.gpu-pci-id`, which binds a vGPU to a physical GPU. N follows from the device's key
(`passthru_number`), so the pin of a device that stays is right after any change of the others.

A DirectPath entry names its device by PCI address, device id, vendor id and system id. vCenter accepts any values; the
host compares them only at power-on (vSphere API, VirtualPCIPassthroughDeviceBackingInfo and QueryConfigTarget; govmomi
issue 2248 is an example). `entry_mismatch` returns why the host would refuse an entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuops.errors import ProfileUnknown, Refused, UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.vgpu import resolve, without_brand
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import DeviceGroup
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import (
    DirectPathDevice,
    DynamicDevice,
    GpuDevice,
    OtherPassthrough,
    PowerState,
    VgpuDevice,
    Vm,
    is_gpu,
    pin_key,
    pins_of,
)
from gpuops.plan.core.passthru_devices import pci_types, signature, signatures, with_passthru_numbers
from gpuops.plan.core.rejection import READ_VM, Rejection
from gpuops.plan.core.steps import NewDevice, NewDirectPath, NewDynamic, NewVgpu
from gpuops.plan.placement.keep_free import kept_profiles, require_unique_profiles
from gpuops.plan.placement.vm_demand import KeptProfile


@dataclass(frozen=True, slots=True)
class Goal:
    """The devices that a VM keeps, gets and loses. Kept devices stay in their order; new devices come last."""

    kept: tuple[GpuDevice, ...]
    """With their future profiles: an edited device has its new one."""
    add: tuple[NewDevice, ...] = ()
    removed: tuple[GpuDevice, ...] = ()
    edited: tuple[tuple[int, str], ...] = ()
    """(device key, new profile)."""
    device_group: str | None = None
    requested_keys: tuple[int, ...] = ()
    """Keys of the kept devices that the request asks for."""

    @property
    def devices(self) -> tuple[GpuDevice | NewDevice, ...]:
        return (*self.kept, *self.add)

    @property
    def numbered_additions(self) -> tuple[tuple[int, NewDevice], ...]:
        """The new devices with N of `pciPassthruN` that vCenter will give them."""
        numbers = [ordinal for ordinal, _ in with_passthru_numbers(self.devices)]
        return tuple(zip(numbers[len(self.kept) :], self.add, strict=True))

    @property
    def unchanged(self) -> bool:
        return not (self.add or self.removed or self.edited)


def vgpus(vm: Vm, profile: str, count: int | None, old: Sequence[GpuDevice]) -> Goal:
    """Return the goal of `count` vGPUs of a profile in total, in place of the `old` devices.

    vGPUs of a device group count too. Without a count, the VM keeps its vGPUs of the profile and gets one for each old
    device, but at least one in total.
    """
    devices = vm.devices or ()
    same = [d for d in devices if isinstance(d, VgpuDevice) and d.profile == profile and d not in old]
    total = max(1, len(same) + len(old)) if count is None else count
    # A member of a device group cannot leave it by an edit: it is removed, and a new device is added.
    editable = [device for device in old if isinstance(device, VgpuDevice) and device.group is None]
    edited = editable[: max(0, total - len(same))]
    edited_keys = {device.key for device in edited}
    removed = [*(device for device in old if device.key not in edited_keys), *same[total:]]
    removed_keys = {device.key for device in removed}
    return Goal(
        kept=tuple(
            replace(device, profile=profile) if isinstance(device, VgpuDevice) and device.key in edited_keys else device
            for device in devices
            if device.key not in removed_keys
        ),
        add=(NewVgpu(profile),) * max(0, total - len(same) - len(edited)),
        removed=tuple(removed),
        edited=tuple((device.key, profile) for device in edited),
        requested_keys=(*edited_keys, *(device.key for device in same if device.key not in removed_keys)),
    )


def with_devices(vm: Vm, requested: Iterable[NewDevice], old: Sequence[GpuDevice], group: str | None = None) -> Goal:
    """Return the goal of the VM's devices without the `old` ones and with these, unless the VM already has them."""
    remaining = tuple(device for device in vm.devices or () if device not in old)
    # devices that may count as requested ones; members of a device group, present or requested, do not
    unmatched = [device for device in remaining if group_of(device) is None and group is None]
    add, matching_keys = [], []
    for device in requested:
        existing = next((candidate for candidate in unmatched if signature(candidate) == signature(device)), None)
        if existing is None:
            add.append(device)
        else:
            unmatched.remove(existing)
            matching_keys.append(existing.key)
    return Goal(remaining, tuple(add), tuple(old), device_group=group, requested_keys=tuple(matching_keys))


def goal_without(vm: Vm, devices: Iterable[GpuDevice]) -> Goal:
    """Return the goal of the VM's devices without these."""
    removed = tuple(devices)
    return Goal(tuple(device for device in vm.devices or () if device not in removed), removed=removed)


def devices_named(text: str, vm: Vm) -> tuple[GpuDevice, ...]:
    """Return the VM's GPU devices with this profile name or PCI address, or the dynamic ones for `dynamic`."""
    if text.lower() == "dynamic":
        return tuple(device for device in vm.devices or () if isinstance(device, DynamicDevice))
    address = PciAddress.parse_or_none(text)
    profile_name = without_brand("_".join(text.split()))
    matches: list[GpuDevice] = []
    for device in vm.devices or ():
        match device:
            case VgpuDevice(profile=profile) if without_brand(profile) == profile_name or profile == text:
                matches.append(device)
            case DirectPathDevice(address=device_address) if device_address == address:
                matches.append(device)
            case _:
                pass
    return tuple(matches)


def broken_groups(vm: Vm, goal: Goal) -> tuple[Rejection, ...]:
    """Return the device groups that the goal would break up: their members can only be added and removed together
    (vSphere API, deviceGroups)."""
    removed_keys = {device.key for device in goal.removed}
    rejections = []
    for number in sorted({group for device in vm.devices or () if (group := group_of(device)) is not None}):
        members = [device for device in vm.devices or () if group_of(device) == number]
        removed_members = [device for device in members if device.key in removed_keys]
        if 0 < len(removed_members) < len(members):
            member_names = ", ".join(signature(device) for device in members)
            rule = f"device group of {len(members)} ({member_names}) can only be removed as a whole"
            hint = "remove the complete group with gpuops detach --device-group NAME"
            rejections.append(Rejection(vm.name, rule, len(members), len(removed_members), "devices", hint))
    return tuple(rejections)


def other_gpus(goal: Goal) -> tuple[GpuDevice, ...]:
    """Return the GPU devices that stay although the request does not ask for them."""
    return tuple(device for device in goal.kept if is_gpu(device) and device.key not in goal.requested_keys)


def only_requested(goal: Goal) -> Goal:
    """Return the goal without the GPU devices that the request does not ask for."""
    other_devices = other_gpus(goal)
    kept_devices = tuple(device for device in goal.kept if device not in other_devices)
    return replace(goal, kept=kept_devices, removed=(*goal.removed, *other_devices))


def group_of(device: GpuDevice) -> int | None:
    """Return the key of the device group that the device belongs to; None = it belongs to no group."""
    return None if isinstance(device, OtherPassthrough) else device.group


def kept_pins(vm: Vm, goal: Goal) -> dict[int, PciAddress]:
    """Return the pins that still bind a device after the change, by N of `pciPassthruN`.

    These are the pins of all kept devices, and pins that were written in advance for the number of a new device. The
    pin of a removed device goes with it, even if a new device gets its number.
    """
    removed_numbers = {ordinal for ordinal, _ in with_passthru_numbers(goal.removed)}
    pins = pins_of(vm)
    numbers = (ordinal for ordinal, _ in with_passthru_numbers(goal.devices) if ordinal not in removed_numbers)
    return {ordinal: pins[ordinal] for ordinal in numbers if ordinal in pins}


def pin_changes(vm: Vm, wanted_pins: Mapping[int, PciAddress]) -> dict[str, str]:
    """Return the extraConfig changes after which the VM has exactly the wanted pins; "" removes an entry.

    A pin whose number belongs to no device of the VM is left as it is.
    """
    existing_pins = pins_of(vm)
    numbers = {ordinal for ordinal, _ in with_passthru_numbers(vm.devices or ())}
    removed = {pin_key(n): "" for n in existing_pins if n not in wanted_pins and n in numbers}
    return {**removed, **{pin_key(n): str(gpu) for n, gpu in wanted_pins.items() if existing_pins.get(n) != gpu}}


def entry_mismatch(device: DirectPathDevice, host: Host) -> str | None:
    """Return why a VM with this entry does not start on the host; None if it does, or if that is unknown.

    A device that is not switched to passthrough yet is no mismatch: it can be switched on.
    """
    if host.config_target is None:
        return None
    target = next((target for target in host.config_target.passthrough if target.address == device.address), None)
    if target is None:
        return None if host.device(device.address) is not None else f"{host.name} has no device at {device.address}"
    entry_type, target_type = (device.vendor_id, device.device_id), (target.vendor_id, target.device_id)
    if entry_type != target_type:
        named_type, actual_type = pci_types([entry_type]), pci_types([target_type])
        return f"its entry for {device.address} names {named_type}, and the device there is {actual_type}"
    if device.system_id and target.system_id and device.system_id.lower() != target.system_id.lower():
        return f"its entry for {device.address} has the system id of another host than {host.name}"
    return None


def find_stale_entries(vm: Vm, host: Host | None) -> tuple[tuple[DirectPathDevice, str], ...]:
    """Return the DirectPath entries with which the VM does not start on the host, each with the reason.

    Empty for a running VM, since it has its devices.
    """
    if host is None or vm.power is PowerState.ON:
        return ()
    direct_path_devices = (device for device in vm.devices or () if isinstance(device, DirectPathDevice))
    return tuple(
        (device, reason) for device in direct_path_devices if (reason := entry_mismatch(device, host)) is not None
    )


def entries_to_replace(vm: Vm, host: Host | None, addresses: Iterable[PciAddress]) -> tuple[DirectPathDevice, ...]:
    """Return the entries of these addresses with which the VM does not start on the host."""
    requested = set(addresses)
    return tuple(device for device, _ in find_stale_entries(vm, host) if device.address in requested)


GoalOrRejections = Goal | tuple[Rejection, ...]


def profile_meant(text: str, vm: Vm, host: Host | None, inventory: Inventory, catalog: Catalog) -> str:
    """Return the profile named by the text: one that the host offers, that the VM has, that any host offers, or that a
    GPU model of the catalogue has, in this order.

    A host does not offer a profile while all its GPUs are set to another size. That is a refusal with numbers and not
    an unknown name. Raises ProfileUnknown, ProfileAmbiguous.
    """
    host_profiles = [offer.name for offer in (host.profiles if host else None) or ()]
    models = [profile.name for board in catalog.boards for profile in board.profiles]
    for names in (host_profiles, vm.profiles, inventory.offered_profiles, models):
        try:
            return resolve(text, names)
        except ProfileUnknown:
            continue
    # Raises ProfileUnknown with similar names of offered profiles.
    return resolve(text, inventory.offered_profiles)


def offered_profile(text: str, inventory: Inventory, catalog: Catalog) -> str:
    """Return the offered profile of that name. Raises ProfileUnknown, ProfileAmbiguous, and Refused for a profile that
    a GPU model of the catalogue has but no host offers."""
    try:
        return resolve(text, inventory.offered_profiles)
    except ProfileUnknown as unknown:
        try:
            resolve(text, (profile.name for board in catalog.boards for profile in board.profiles))
        except UsageError:
            raise unknown from None
        raise Refused(unknown.message, hint=unknown.hint) from unknown


def profiles_to_keep(texts: Iterable[str], inventory: Inventory, catalog: Catalog) -> tuple[KeptProfile, ...]:
    """Parse --keep-free, with the profile names of hosts or GPU models. Raises ProfileUnknown, UsageError."""
    no_vm = Vm(ref="", name="")
    resolved = [
        replace(kept_profile, profile=profile_meant(kept_profile.profile, no_vm, None, inventory, catalog))
        for kept_profile in kept_profiles(texts)
    ]
    return require_unique_profiles(resolved)


def device_goal(
    vm: Vm, addresses: Iterable[PciAddress], host: Host | None, old: Sequence[GpuDevice]
) -> GoalOrRejections:
    """Return the devices at these addresses; what their backings carry is filled in when the host is chosen.

    An entry that the VM has for such an address and that its host refuses at power-on is replaced by a new one.
    """
    new_devices = []
    addresses = tuple(dict.fromkeys(addresses))
    own_host = host if host is not None and host.ref == vm.host else None
    for address in addresses:
        gpu = host.device(address) if host else None
        vendor_id, device_id = (gpu.vendor_id, gpu.device_id) if gpu else (0, 0)
        new_devices.append(NewDirectPath(address, gpu.name if gpu else "", "", vendor_id, device_id))
    return with_devices(vm, new_devices, (*old, *entries_to_replace(vm, own_host, addresses)))


def dynamic_goal(
    vm: Vm, types: Sequence[str], label: str | None, count: int | None, hosts: Sequence[Host], old: Sequence[GpuDevice]
) -> GoalOrRejections:
    """Return the goal of `count` devices of these types in total; without types, of all types with the label on these
    hosts.

    Without a count, the VM keeps its devices of these types and gets one for each old device, but at least one in
    total. Without types, an existing device counts if it asks for the same label and may get one of those types, even
    if it also allows other types.
    """
    allowed = tuple(sorted({pci_type(text) for text in types})) or _types_with_label(label, hosts)
    if not allowed:
        rule = f"has no device with hardware label {label}" if label else "has no GPU in passthrough"
        names = sorted(host.name for host in hosts)
        hint = "gpuops inventory --hosts shows the GPUs in DirectPath I/O and their hardware labels"
        return tuple(Rejection(name, rule, hint=hint) for name in names) or (
            Rejection(vm.name, "vCenter does not show its host, so no GPUs can be checked", hint=READ_VM),
        )
    new_device = NewDynamic(allowed, label)
    same: list[DynamicDevice] = []
    for device in vm.devices or ():
        if isinstance(device, DynamicDevice) and not group_of(device):
            may_get_one = device.label == label and not set(device.allowed).isdisjoint(allowed)
            is_same = signature(device) == signature(new_device) if types else may_get_one
            if is_same:
                same.append(device)
    replaced = [device for device in old if device not in same]
    total = max(1, len(same) + len(replaced)) if count is None else count
    removed = (*replaced, *same[total:])
    return Goal(
        kept=tuple(device for device in vm.devices or () if device not in removed),
        add=(new_device,) * max(0, total - len(same)),
        removed=removed,
        requested_keys=tuple(device.key for device in same[:total]),
    )


def group_goal(vm: Vm, name: str, hosts: Iterable[Host], old: Sequence[GpuDevice]) -> GoalOrRejections:
    """Return the goal with all devices of the vendor device group, which are not added if the VM already has them."""
    groups = [group for host in hosts for group in groups_of(host) if group.name == name]
    if not groups:
        return tuple(_no_group(name, host) for host in hosts) or (
            Rejection(vm.name, "vCenter does not show its host, so no GPUs can be checked", hint=READ_VM),
        )
    members, unknown_kinds = group_members(groups[0])
    if unknown_kinds:
        kinds = ", ".join(sorted(unknown_kinds))
        return (Rejection(vm.name, f"device group {name} has members that gpuops cannot add ({kinds})"),)
    existing_members = _same_group(vm, members)
    if existing_members:
        return replace(with_devices(vm, (), old), requested_keys=tuple(device.key for device in existing_members))
    return with_devices(vm, members, old, group=name)


def with_backings(goal: Goal, host: Host) -> GoalOrRejections:
    """Return the goal with the fields of static backings as the host reports them (vSphere API, QueryConfigTarget)."""
    targets = {target.address: target for target in host.config_target.passthrough} if host.config_target else {}
    add: list[NewDevice] = []
    missing = []
    for device in goal.add:
        if not isinstance(device, NewDirectPath):
            add.append(device)
        elif (target := targets.get(device.address)) is not None:
            backing = NewDirectPath(target.address, target.name, target.system_id, target.vendor_id, target.device_id)
            add.append(replace(backing, sequence_id=device.sequence_id))
        else:
            rule = "the host does not offer it for passthrough" if host.config_target else "its system id was not read"
            missing.append(Rejection(f"{host.name} {device.address}", rule, hint="gpuops inventory shows its state"))
    return tuple(missing) or replace(goal, add=tuple(add))


def groups_of(host: Host) -> tuple[DeviceGroup, ...]:
    """Return the vendor device groups that the host offers, as far as they were read."""
    return host.config_target.device_groups if host.config_target else ()


def pci_type(text: str) -> tuple[int, int]:
    """Parse a PCI type into (vendor id, device id). Raises UsageError.

    >>> pci_type("10de:20f1") == (0x10DE, 0x20F1)
    True
    """
    vendor, _, device = text.strip().lower().removeprefix("0x").partition(":")
    try:
        pair = int(vendor, 16), int(device.removeprefix("0x"), 16)
    except ValueError:
        pair = (-1, -1)
    if not all(0 <= number <= 0xFFFF for number in pair):
        raise UsageError(f"{text!r} is not a PCI type", hint="write vendor:device in hexadecimal, as 10de:20f1")
    return pair


def _types_with_label(label: str | None, hosts: Iterable[Host]) -> tuple[tuple[int, int], ...]:
    """Return the PCI types with the label; without a label those of NVIDIA GPUs: `--dynamic` alone means a GPU."""
    types: set[tuple[int, int]] = set()
    for host in hosts:
        for device in host.gpus if label is None else host.devices:
            state = device.passthrough
            if state is not None and state.active and label in (None, state.label):
                types.add((device.vendor_id, device.device_id))
    return tuple(sorted(types))


def _no_group(name: str, host: Host) -> Rejection:
    if host.config_target is None:
        return Rejection(host.name, "its device groups were not read")
    offered_groups = ", ".join(sorted(group.name for group in groups_of(host)))
    offer_text = f"it offers: {offered_groups}" if offered_groups else "it offers no group"
    hint = "--move cold looks at the other hosts too"
    return Rejection(host.name, f"does not offer device group {name} ({offer_text})", hint=hint)


def group_members(group: DeviceGroup) -> tuple[list[NewDevice], list[str]]:
    """Return the devices of the group in its order, and the kinds of members that are not GPUs."""
    devices: list[NewDevice] = []
    unknown_kinds: list[str] = []
    for member in sorted(group.members, key=lambda member: member.sequence_id):
        if member.kind == "nvidiaVgpu" and member.profile is not None:
            devices.append(NewVgpu(member.profile, sequence_id=member.sequence_id))
        elif member.kind == "pciPassthru" and member.vendor_id is not None and member.device_id is not None:
            member_type = (member.vendor_id, member.device_id)
            devices.append(NewDynamic((member_type,), sequence_id=member.sequence_id))
        else:
            unknown_kinds.append(member.kind)
    return devices, unknown_kinds


def _same_group(vm: Vm, members: Iterable[NewDevice]) -> tuple[GpuDevice, ...]:
    """Return the devices of the VM's group that has exactly these members; () if it has no such group."""
    devices_by_group: dict[int, list[GpuDevice]] = {}
    for device in vm.devices or ():
        group = group_of(device)
        if group is not None:
            devices_by_group.setdefault(group, []).append(device)
    requested = signatures(members)
    for _, devices in sorted(devices_by_group.items()):
        if signatures(devices) == requested:
            return tuple(devices)
    return ()
