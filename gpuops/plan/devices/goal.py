"""The future passthrough devices of a VM: which are added, edited and removed, and which stay pinned to a GPU.

A pin is `pciPassthruN.cfg.gpu-pci-id`, which binds a vGPU to a physical GPU. N follows from the device's key
(`passthru_number`), so the pin of a device that stays is right after any change of the others.

A DirectPath entry names its device by PCI address, device id, vendor id and system id. vCenter accepts any values; the
host compares them only at power-on (vSphere API, VirtualPCIPassthroughDeviceBackingInfo and QueryConfigTarget; govmomi
issue 2248 is an example). `entry_mismatch` returns why the host would refuse an entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.vgpu import without_brand
from gpuops.model.vcenter.host import Host
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
from gpuops.plan.core.passthru_devices import pci_types, signature, with_passthru_numbers
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.steps import NewDevice, NewVgpu


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
    asked: tuple[int, ...] = ()
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
    single = [device for device in old if isinstance(device, VgpuDevice) and device.group is None]
    edited = single[: max(0, total - len(same))]
    keys = {device.key for device in edited}
    removed = [*(device for device in old if device.key not in keys), *same[total:]]
    removed_keys = {device.key for device in removed}
    return Goal(
        kept=tuple(
            replace(device, profile=profile) if isinstance(device, VgpuDevice) and device.key in keys else device
            for device in devices
            if device.key not in removed_keys
        ),
        add=(NewVgpu(profile),) * max(0, total - len(same) - len(edited)),
        removed=tuple(removed),
        edited=tuple((device.key, profile) for device in edited),
        asked=(*keys, *(device.key for device in same if device.key not in removed_keys)),
    )


def with_devices(vm: Vm, requested: Iterable[NewDevice], old: Sequence[GpuDevice], group: str | None = None) -> Goal:
    """Return the goal of the VM's devices without the `old` ones and with these, unless the VM already has them."""
    remaining = tuple(device for device in vm.devices or () if device not in old)
    # devices that may count as requested ones; members of a device group, present or requested, do not
    free = [device for device in remaining if group_of(device) is None and group is None]
    add, matching_keys = [], []
    for device in requested:
        existing = next((candidate for candidate in free if signature(candidate) == signature(device)), None)
        if existing is None:
            add.append(device)
        else:
            free.remove(existing)
            matching_keys.append(existing.key)
    return Goal(remaining, tuple(add), tuple(old), device_group=group, asked=tuple(matching_keys))


def without(vm: Vm, devices: Iterable[GpuDevice]) -> Goal:
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
    keys = {device.key for device in goal.removed}
    rejections = []
    for number in sorted({group for device in vm.devices or () if (group := group_of(device)) is not None}):
        members = [device for device in vm.devices or () if group_of(device) == number]
        removed_members = [device for device in members if device.key in keys]
        if 0 < len(removed_members) < len(members):
            member_names = ", ".join(signature(device) for device in members)
            rule = f"device group of {len(members)} ({member_names}) can only be removed as a whole"
            hint = "use gpuops detach --device-group NAME to remove the group"
            rejections.append(Rejection(vm.name, rule, len(members), len(removed_members), "devices", hint))
    return tuple(rejections)


def other_gpus(goal: Goal) -> tuple[GpuDevice, ...]:
    """Return the GPU devices that stay although the request does not ask for them."""
    return tuple(device for device in goal.kept if is_gpu(device) and device.key not in goal.asked)


def only_requested(goal: Goal) -> Goal:
    """Return the goal without the GPU devices that the request does not ask for."""
    other_devices = other_gpus(goal)
    kept_devices = tuple(device for device in goal.kept if device not in other_devices)
    return replace(goal, kept=kept_devices, removed=(*goal.removed, *other_devices))


def group_of(device: GpuDevice) -> int | None:
    """The key of the device group that the device belongs to."""
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
        written, actual = pci_types([entry_type]), pci_types([target_type])
        return f"its entry for {device.address} names {written}, and the device there is {actual}"
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
