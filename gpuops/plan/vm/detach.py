"""Take from a VM exactly the devices that are meant, and restore what attach changed when the last one goes."""

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
from gpuops.plan.core.device_signature import gpu_names, is_no_gpu, signature, signatures
from gpuops.plan.core.plan import Plan, Wave, refuse
from gpuops.plan.core.steps import ReconfigureVm, VmChange
from gpuops.plan.devices.baseline import KEY, Baseline, read, restored
from gpuops.plan.devices.goal import Goal, broken_groups, group_of, kept_pins, named, pin_changes, without
from gpuops.plan.devices.requested import group_goal, pci_type, profile_meant
from gpuops.plan.placement.host_filters import unreachable
from gpuops.plan.vm.power import POWER_HELP, PowerPolicy, power_blockers, power_moves, state_blockers


@dataclass(frozen=True, slots=True)
class Detach:
    """What a VM is to lose. Exactly one of `profile`, `device`, dynamic (`dynamic`, `label`, `device_type`),
    `device_group` and `all` says which devices."""

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
    label: Annotated[str | None, Option("Only the dynamic ones with this label.", "LABEL", Names.LABELS)] = None
    device_type: Annotated[
        tuple[str, ...], Option("Only the dynamic ones of this kind. May be repeated.", "VENDOR:DEVICE")
    ] = ()
    device_group: Annotated[str | None, Option("All devices of this vendor device group.", "NAME")] = None
    all: Annotated[bool, Option("Every GPU device; other passthrough devices stay.")] = False
    count: Annotated[int | None, Option("How many stay; default none.", "N")] = None
    """As `attach --count` says how many there are."""
    power: Annotated[PowerPolicy, Option(POWER_HELP)] = PowerPolicy.REFUSE

    def __post_init__(self) -> None:
        """Text becomes words, lists become tuples. Raises UsageError."""
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
        """The removal planned on this snapshot. What is not there is nothing to do. Raises UsageError."""
        self._check()
        vm = inventory.find_vm(self.vm)
        blockers = state_blockers(vm)
        own = inventory.host_of(vm)
        if own is not None and (out_of_reach := unreachable(own)) is not None:
            blockers = (*blockers, out_of_reach)
        if vm.devices is None:
            return refuse(*blockers)
        meant = self._meant(vm, inventory, catalog)
        goal = without(vm, meant[self.count or 0 :])
        change = _change(vm, goal)
        if goal.unchanged and (change.empty or power_blockers(vm, self.power) or blockers):
            return Plan(because=(self._nothing(vm, meant),))
        against = (*blockers, *power_blockers(vm, self.power), *broken_groups(vm, goal))
        power = power_moves(vm, self.power, vm.host)
        edit = Wave(f"reconfigure {vm.name}", (ReconfigureVm(vm.ref, change),))
        waves = (*power.before, edit, *power.after)
        if against:
            return refuse(*against, withheld=tuple(step for wave in waves for step in wave.steps))
        return Plan(
            waves=waves,
            warnings=(*_left(vm, goal), *power.warnings),
            because=_because(goal, change),
            disruptive=bool(power.before),
        )

    def _check(self) -> None:
        dynamic = self.dynamic or self.label is not None or bool(self.device_type)
        kinds = [self.profile is not None, bool(self.device), dynamic, self.device_group is not None, self.all]
        if sum(kinds) != 1:
            raise UsageError(
                "say exactly one of --profile, --device, --dynamic, --device-group and --all",
                hint="--all takes every GPU device",
            )
        if self.count is not None and (self.count < 0 or not (self.profile or dynamic)):
            raise UsageError(
                f"--count {self.count} means nothing here", hint="it is how many of the named devices stay, 0 or more"
            )

    def _meant(self, vm: Vm, inventory: Inventory, catalog: Catalog) -> tuple[GpuDevice, ...]:
        """The VM's devices that the options name."""
        devices = vm.devices or ()
        if self.all:
            return tuple(device for device in devices if is_gpu(device))
        if self.profile is not None:
            # A name that nobody knows is a typing error, not a device that is gone already.
            profile = profile_meant(self.profile, vm, inventory.host_of(vm), inventory, catalog)
            return tuple(device for device in named(profile, vm) if isinstance(device, VgpuDevice))
        if self.device:
            addresses = {PciAddress.parse(text) for text in self.device}
            return tuple(d for d in devices if isinstance(d, DirectPathDevice) and d.address in addresses)
        if self.device_group is not None:
            return _group(vm, self.device_group, inventory)
        types = {pci_type(text) for text in self.device_type}
        return tuple(
            device
            for device in devices
            if isinstance(device, DynamicDevice)
            and self.label in (None, device.label)
            and (not types or set(device.allowed) == types)
        )

    def _nothing(self, vm: Vm, meant: tuple[GpuDevice, ...]) -> str:
        asked = self.profile or self.device_group or ", ".join(self.device) or "dynamic device"
        if self.label is not None or self.device_type:
            asked += f" ({', '.join([*filter(None, [self.label]), *self.device_type])})"
        if meant:
            return f"{vm.name} has no more than {self.count} {asked}; nothing to detach"
        if self.all:
            unreadable = sum(map(is_unreadable, vm.devices or ()))
            unknown = f" that can be read, and {unreadable} that cannot be" if unreadable else ""
            return f"{vm.name} has no GPU device{unknown}; nothing to detach"
        return f"{vm.name} has no {asked}; nothing to detach (it has: {gpu_names(vm)})"


def _group(vm: Vm, name: str, inventory: Inventory) -> tuple[GpuDevice, ...]:
    """The devices of the VM's group of that name; its members are known by the host that offers it.

    Without that host's word, the only group of a VM is the one that is meant.
    """
    host = inventory.host_of(vm)
    answer = group_goal(vm, name, (host,) if host else (), ())
    if isinstance(answer, Goal):
        return tuple(device for device in answer.kept if device.key in answer.asked)
    numbers = {group_of(device) for device in vm.devices or ()} - {None}
    return tuple(d for d in vm.devices or () if group_of(d) in numbers) if len(numbers) == 1 else ()


def _change(vm: Vm, goal: Goal) -> VmChange:
    """The removal, and what was before when no GPU is left. Empty when there is nothing to do."""
    removal = VmChange(
        remove=tuple(device.key for device in goal.removed),
        devices_after=None if goal.unchanged else signatures(goal.devices),
        extra_config=pin_changes(vm, kept_pins(vm, goal)),
    )
    if any(map(_needs_settings, goal.kept)):
        return removal  # one that was attached too needs its MMIO space
    # Another passthrough device needs the full reservation as much as the GPU did.
    before = restored(vm, memory_too=not goal.kept)
    return replace(
        before,
        remove=removal.remove,
        devices_after=removal.devices_after,
        extra_config={**removal.extra_config, **before.extra_config},
    )


def _needs_settings(device: GpuDevice) -> bool:
    """Whether the device may need the settings that the attach changed: a whole device does, one that cannot be read
    may."""
    return is_gpu(device) or is_no_gpu(device) or is_unreadable(device)


def _because(goal: Goal, change: VmChange) -> tuple[str, ...]:
    devices = tuple(f"detaches {signature(device)}" for device in goal.removed)
    return (*devices, "restores the settings from before the first attach") if KEY in change.extra_config else devices


def _left(vm: Vm, goal: Goal) -> tuple[str, ...]:
    """What is not as it was before, though the last GPU goes."""
    if any(map(_needs_settings, goal.kept)):
        return ()
    baseline = read(vm)
    if baseline is None:
        return (f"{KEY} of {vm.name} cannot be read: its memory reservation, MMIO and NUMA settings stay as they are",)
    if baseline == Baseline():
        return (f"{vm.name} keeps no values from before: its memory reservation and MMIO settings stay as they are",)
    if goal.kept and baseline.memory_locked is not None:
        names = ", ".join(signature(device) for device in goal.kept)
        return (f"the memory of {vm.name} stays reserved in full: {names} needs it",)
    return ()
