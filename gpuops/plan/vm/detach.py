"""Plans to remove devices from a VM, and to restore the settings that attach changed when the last one is removed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Annotated, ClassVar

from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, GpuDevice, VgpuDevice, Vm, is_gpu, is_unreadable
from gpuops.plan.core.command_line import Names, Option, VmName, word
from gpuops.plan.core.passthru_devices import gpu_names, is_no_gpu, signature, signatures
from gpuops.plan.core.plan import Plan, Wave, refuse
from gpuops.plan.core.steps import ReconfigureVm, VmChange
from gpuops.plan.devices.goal import (
    Goal,
    broken_groups,
    devices_named,
    goal_without,
    group_goal,
    group_of,
    kept_pins,
    pci_type,
    pin_changes,
    profile_meant,
)
from gpuops.plan.devices.settings import KEY, Baseline, read, restore_settings
from gpuops.plan.placement.host_filters import unreachable
from gpuops.plan.vm.vm_blockers import POWER_HELP, PowerPolicy, power_blockers, power_moves, state_blockers


@dataclass(frozen=True, slots=True)
class Detach:
    """The devices to remove from a VM. Exactly one of `profile`, `device`, dynamic (`dynamic`, `label`, `device_type`),
    `device_group` and `all` names them."""

    run_kind: ClassVar[str] = "detach"

    vm: VmName
    profile: Annotated[str | None, Option("vGPU profile: a100-3-20c.", "NAME", Names.PROFILES)] = None
    device: Annotated[
        tuple[str, ...],
        Option(
            "A whole GPU or other device, DirectPath I/O: 0000:3b:00.0. May be repeated.", "PCI-ADDRESS", Names.DEVICES
        ),
    ] = ()
    dynamic: Annotated[bool, Option("Dynamic DirectPath I/O devices, all or those named below.")] = False
    label: Annotated[str | None, Option("Dynamic devices with this hardware label.", "LABEL", Names.LABELS)] = None
    device_type: Annotated[
        tuple[str, ...], Option("Dynamic devices of this PCI type. May be repeated.", "VENDOR:DEVICE")
    ] = ()
    device_group: Annotated[str | None, Option("All devices of this vendor device group.", "NAME")] = None
    all: Annotated[bool, Option("Every GPU device; other passthrough devices stay.")] = False
    count: Annotated[int | None, Option("How many of these the VM keeps; default none.", "N")] = None
    """The number of devices that remain, as in `attach --count`."""
    power: Annotated[PowerPolicy, Option(POWER_HELP)] = PowerPolicy.REFUSE

    def __post_init__(self) -> None:
        """Convert texts to enum members, and lists to tuples. Raises UsageError."""
        put = partial(object.__setattr__, self)
        put("device", tuple(self.device))
        put("device_type", tuple(self.device_type))
        put("power", word(PowerPolicy, self.power, "power"))

    def vm_details(self, inventory: Inventory) -> Collection[str]:
        """Refs of the VMs whose devices the plan needs: those on hosts without GPUs are not read in bulk."""
        vm = inventory.find_vm(self.vm)
        return (vm.ref,) if vm.devices is None else ()

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        """Refs of the hosts whose QueryConfigTarget the plan needs: only there a device group's name has members."""
        host = inventory.host_of(inventory.find_vm(self.vm))
        return (host.ref,) if self.device_group is not None and host is not None else ()

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """Plan the removal in this snapshot. If the VM has no such device, the plan is empty. Raises UsageError."""
        self._check()
        vm = inventory.find_vm(self.vm)
        blockers = state_blockers(vm)
        current_host = inventory.host_of(vm)
        if current_host is not None and (out_of_reach := unreachable(current_host)) is not None:
            blockers = (*blockers, out_of_reach)
        if vm.devices is None:
            return refuse(*blockers)
        named_devices = self._named_devices(vm, inventory, catalog)
        goal = goal_without(vm, named_devices[self.count or 0 :])  # the first `count` of them stay
        change = _removal(vm, goal)
        # No device is removed. If settings cannot be restored now, that is no reason to refuse the request.
        if goal.unchanged and (change.empty or power_blockers(vm, self.power) or blockers):
            return Plan(because=(self._explain_nothing_to_detach(vm, named_devices),))
        rejections = (*blockers, *power_blockers(vm, self.power), *broken_groups(vm, goal))
        power = power_moves(vm, self.power, vm.host)
        edit = Wave(f"reconfigure {vm.name}", (ReconfigureVm(vm.ref, change),))
        waves = (*power.before, edit, *power.after)
        if rejections:
            return refuse(*rejections, withheld=tuple(step for wave in waves for step in wave.steps))
        return Plan(
            waves=waves,
            warnings=(*_warn_of_kept_settings(vm, goal), *power.warnings),
            because=_describe_removal(goal, change),
            disruptive=bool(power.before),
        )

    def _check(self) -> None:
        dynamic = self.dynamic or self.label is not None or bool(self.device_type)
        given_options = [self.profile is not None, bool(self.device), dynamic, self.device_group is not None, self.all]
        if sum(given_options) != 1:
            raise UsageError(
                "detach needs exactly one of --profile, --device, --dynamic, --device-group and --all",
                hint="use --all to remove every GPU device",
            )
        if self.count is not None and (self.count < 0 or not (self.profile or dynamic)):
            hint = "use --count only with --profile or dynamic devices: the number that remains, 0 or more"
            raise UsageError(f"--count {self.count} is not valid", hint=hint)

    def _named_devices(self, vm: Vm, inventory: Inventory, catalog: Catalog) -> tuple[GpuDevice, ...]:
        """Return the VM's devices that the options name."""
        devices = vm.devices or ()
        if self.all:
            return tuple(device for device in devices if is_gpu(device))
        if self.profile is not None:
            # An unknown name is a typing error, not a device that was already removed.
            profile = profile_meant(self.profile, vm, inventory.host_of(vm), inventory, catalog)
            return tuple(device for device in devices_named(profile, vm) if isinstance(device, VgpuDevice))
        if self.device:
            addresses = {PciAddress.parse(text) for text in self.device}
            return tuple(d for d in devices if isinstance(d, DirectPathDevice) and d.address in addresses)
        if self.device_group is not None:
            return _devices_of_group(vm, self.device_group, inventory)
        types = {pci_type(text) for text in self.device_type}
        return tuple(
            device
            for device in devices
            if isinstance(device, DynamicDevice)
            and self.label in (None, device.label)
            and (not types or set(device.allowed) == types)
        )

    def _explain_nothing_to_detach(self, vm: Vm, named_devices: tuple[GpuDevice, ...]) -> str:
        device_text = self.profile or self.device_group or ", ".join(self.device) or "dynamic device"
        if self.label is not None or self.device_type:
            device_text += f" ({', '.join([*filter(None, [self.label]), *self.device_type])})"
        if named_devices:
            return f"{vm.name} has no more than {self.count} {device_text}; nothing to detach"
        if self.all:
            unreadable = sum(map(is_unreadable, vm.devices or ()))
            unknown = f" that can be read, and {unreadable} that cannot be" if unreadable else ""
            return f"{vm.name} has no GPU device{unknown}; nothing to detach"
        return f"{vm.name} has no {device_text}; nothing to detach (it has: {gpu_names(vm)})"


def _devices_of_group(vm: Vm, name: str, inventory: Inventory) -> tuple[GpuDevice, ...]:
    """Return the devices of the VM's group of that name. The host that offers the group knows its members.

    If the host does not, and the VM has only one group, that one is used.
    """
    host = inventory.host_of(vm)
    # The goal of adding the group: its members that the VM already has are the requested devices among the kept ones.
    goal = group_goal(vm, name, (host,) if host else (), ())
    if isinstance(goal, Goal):
        return tuple(device for device in goal.kept if device.key in goal.requested_keys)
    numbers = {group_of(device) for device in vm.devices or ()} - {None}
    return tuple(d for d in vm.devices or () if group_of(d) in numbers) if len(numbers) == 1 else ()


def _removal(vm: Vm, goal: Goal) -> VmChange:
    """Return the removal, which also restores the old settings if no GPU remains; empty if nothing is to do."""
    removal = VmChange(
        remove=tuple(device.key for device in goal.removed),
        devices_after=None if goal.unchanged else signatures(goal.devices),
        extra_config=pin_changes(vm, kept_pins(vm, goal)),
    )
    if any(map(_needs_settings, goal.kept)):
        return removal  # a remaining device needs the MMIO space and the other settings
    # Another passthrough device needs the full reservation as much as the GPU did.
    restoration = restore_settings(vm, memory_too=not goal.kept)
    return replace(
        restoration,
        remove=removal.remove,
        devices_after=removal.devices_after,
        extra_config={**removal.extra_config, **restoration.extra_config},
    )


def _needs_settings(device: GpuDevice) -> bool:
    """Return whether the device needs, or may need, the settings that attach changed. A device that cannot be read may
    need them."""
    return is_gpu(device) or is_no_gpu(device) or is_unreadable(device)


def _describe_removal(goal: Goal, change: VmChange) -> tuple[str, ...]:
    devices = tuple(f"detaches {signature(device)}" for device in goal.removed)
    return (*devices, "restores the settings from before the first attach") if KEY in change.extra_config else devices


def _warn_of_kept_settings(vm: Vm, goal: Goal) -> tuple[str, ...]:
    """Return a warning of the settings that are not restored although the last GPU is removed."""
    if any(map(_needs_settings, goal.kept)):
        return ()
    baseline = read(vm)
    if baseline is None:
        return (f"{KEY} of {vm.name} cannot be read: its memory reservation, MMIO and NUMA settings stay as they are",)
    if baseline == Baseline():
        rule = f"the settings of {vm.name} before its first attach are not stored"
        return (f"{rule}: its memory reservation and MMIO settings stay as they are",)
    if goal.kept and baseline.memory_locked is not None:
        names = ", ".join(signature(device) for device in goal.kept)
        return (f"the memory of {vm.name} stays reserved in full: {names} needs it",)
    return ()
