"""Resolves the options of `attach` in a snapshot: which devices the VM gets.

Each function returns a `Goal`, or every reason why the VM or the host cannot have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuops.errors import ProfileUnknown, Refused, UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.vgpu import resolve
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import DeviceGroup
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DynamicDevice, GpuDevice, Vm
from gpuops.plan.core.passthru_devices import signature, signatures
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.steps import NewDevice, NewDirectPath, NewDynamic, NewVgpu
from gpuops.plan.devices.goal import Goal, entries_to_replace, group_of, with_devices
from gpuops.plan.placement.keep_free import kept_profiles, once
from gpuops.plan.placement.vm_demand import KeptProfile

Answer = Goal | tuple[Rejection, ...]


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
    return once(resolved)


def device_goal(vm: Vm, addresses: Iterable[PciAddress], host: Host | None, old: Sequence[GpuDevice]) -> Answer:
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
) -> Answer:
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
            Rejection(vm.name, "its host is unknown, so no host can be checked"),
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
        asked=tuple(device.key for device in same[:total]),
    )


def group_goal(vm: Vm, name: str, hosts: Iterable[Host], old: Sequence[GpuDevice]) -> Answer:
    """Return the goal with all devices of the vendor device group, which are not added if the VM already has them."""
    groups = [group for host in hosts for group in groups_of(host) if group.name == name]
    if not groups:
        return tuple(_no_group(name, host) for host in hosts) or (
            Rejection(vm.name, "its host is unknown, so no host can be checked"),
        )
    members, unknown_kinds = group_members(groups[0])
    if unknown_kinds:
        kinds = ", ".join(sorted(unknown_kinds))
        return (Rejection(vm.name, f"device group {name} has members that gpuops cannot add ({kinds})"),)
    existing_members = _same_group(vm, members)
    if existing_members:
        return replace(with_devices(vm, (), old), asked=tuple(device.key for device in existing_members))
    return with_devices(vm, members, old, group=name)


def with_backings(goal: Goal, host: Host) -> Answer:
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
            why = "is not offered by the host" if host.config_target else "was not looked up: read the host again"
            missing.append(Rejection(f"{host.name} {device.address}", f"its system id {why}"))
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
            pci_type_of_member = (member.vendor_id, member.device_id)
            devices.append(NewDynamic((pci_type_of_member,), sequence_id=member.sequence_id))
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
