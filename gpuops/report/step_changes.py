"""Describes steps, the settings that they change, and GPU devices, in the words that text, JSON and Ansible's diff use.

Also the record of a GPU's health in JSON documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import (
    PowerState,
    Vm,
    VmDrs,
)
from gpuops.plan.core.plan import Plan, Wave
from gpuops.plan.core.steps import (
    CloneVm,
    CloseGate,
    CreateVm,
    NewDevice,
    NewDirectPath,
    NewDynamic,
    NewVgpu,
    OpenGate,
    PowerOffForRemoval,
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    RemoveVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
    VmChange,
)
from gpuops.plan.placement.project import project
from gpuops.report.device_text import describe_device, describe_dynamic
from gpuops.report.text import size


@dataclass(frozen=True, slots=True)
class Change:
    """A setting or device before and after; None = it does not exist at that moment."""

    what: str
    before: str | None
    after: str | None


def waves_with_snapshots(plan: Plan, before: Inventory) -> Iterator[tuple[Wave, Inventory]]:
    """Yield each wave with the snapshot that it starts from, in which the changes of earlier waves are already made."""
    world = before
    for number, wave in enumerate(plan.waves, 1):
        yield wave, world
        later_vms = {step.vm for later_wave in plan.waves[number:] for step in later_wave.steps}
        for step in wave.steps:
            # only changes of VMs that a later wave changes again show in its `before`; a new VM is not in the snapshot
            if step.vm in later_vms and step.vm in world.vms:
                world = project(step, world)


def vm_name(ref: str, inventory: Inventory) -> str:
    """Return the name of a VM, or its id if the snapshot lacks it."""
    vm = inventory.vms.get(ref)
    return vm.name if vm else ref


def host_name(ref: str | None, inventory: Inventory) -> str | None:
    host = inventory.hosts.get(ref) if ref else None
    return host.name if host else ref


_VERBS: Final[Mapping[type[Step], str]] = {
    SuspendVm: "suspend",
    PowerOffVm: "power off",
    PowerOffForRemoval: "power off",
    RemoveVm: "remove",
    ShutDownGuest: "shut down the guest of",
}


def title(step: Step, inventory: Inventory) -> str:
    """Return what the step does in a few words: `suspend desk-001`."""
    vm = vm_name(step.vm, inventory)
    match step:
        case ReconfigureVm():
            return f"reconfigure {vm}"
        case RelocateVm(host=host):
            return f"move {vm} from {_host_of(step.vm, inventory)} to {host_name(host, inventory)}"
        case PowerOnVm(host=host) | ResumeVm(host=host):
            verb = "resume" if isinstance(step, ResumeVm) or step.resumes else "power on"
            return f"{verb} {vm}" + (f" on {host_name(host, inventory)}" if host else "")
        case SuspendVm() | PowerOffVm() | PowerOffForRemoval() | RemoveVm() | ShutDownGuest():
            return f"{_VERBS[type(step)]} {vm}"
        case CloneVm(name=name) | CreateVm(name=name):
            return f"create {name}" + (f" from {vm_name(step.source, inventory)}" if isinstance(step, CloneVm) else "")
        case RunInGuest(program=program, limit_s=limit_s, ssh=ssh):
            return f"run {program} in {vm}" + (f" as {ssh}" if ssh is not None else "") + f", {limit_s} s at most"
        case SetVmDrs(drs=drs):
            return f"leave {vm} to DRS as its cluster says" if drs is VmDrs.CLUSTER else f"set DRS of {vm} to {drs}"
        case SetAttribute(name=name, value=value):
            return f"set attribute {name} of {vm} to {value!r}" if value else f"clear attribute {name} of {vm}"
        case CloseGate() | OpenGate():
            return f"have the broker give {vm} to {'no user' if isinstance(step, CloseGate) else 'users again'}"
        case _:
            assert_never(step)


def _host_of(ref: str, inventory: Inventory) -> str:
    vm = inventory.vms.get(ref)
    return (host_name(vm.host, inventory) if vm else None) or "unknown"


def changes(step: Step, inventory: Inventory) -> tuple[Change, ...]:
    """Return the settings of the VM that the step changes, each before (in this snapshot) and after.

    Empty for a step whose effect is not a setting: a clone, a removal, a program in the guest.
    """
    vm = inventory.vms.get(step.vm)
    match step:
        case ReconfigureVm(change=change):
            return _reconfiguration(change, vm)
        case RelocateVm(host=host):
            return (Change("host", host_name(vm.host, inventory) if vm else None, host_name(host, inventory)),)
        case PowerOnVm() | ResumeVm():
            return (Change("power", _power(vm), PowerState.ON),)
        case SuspendVm():
            return (Change("power", _power(vm), PowerState.SUSPENDED),)
        case PowerOffVm() | PowerOffForRemoval() | ShutDownGuest():
            return (Change("power", _power(vm), PowerState.OFF),)
        case RunInGuest() | CloneVm() | CreateVm() | RemoveVm():
            return ()
        case SetVmDrs(drs=drs):
            return (Change("DRS", inventory.drs_of(vm) if vm else None, drs),)
        case SetAttribute(name=name, value=value):
            before = vm.attributes.get(name) if vm else None
            return (Change(f"attribute {name}", before or None, value or None),)
        case CloseGate() | OpenGate():
            return (Change("gate at the broker", _gate(vm), "closed" if isinstance(step, CloseGate) else "open"),)
        case _:
            assert_never(step)


def _gate(vm: Vm | None) -> str | None:
    closed = vm.gate.closed if vm is not None and vm.gate is not None else None
    return None if closed is None else "closed" if closed else "open"


def _reconfiguration(change: VmChange, vm: Vm | None) -> tuple[Change, ...]:
    """Return the changes of devices, memory, CPU and advanced settings."""
    devices = {device.key: device for device in (vm.devices if vm else None) or ()}
    removed = [describe_device(devices[key]) if key in devices else f"device {key}" for key in change.remove]
    edited = [
        Change("device", describe_device(devices[key]) if key in devices else f"device {key}", f"vGPU {profile}")
        for key, profile in change.replace_profile
    ]
    group = f" (group {change.device_group})" if change.device_group else ""
    return (
        *(Change("device", text, None) for text in removed),
        *edited,
        *(Change("device", None, _describe_new_device(device) + group) for device in change.add),
        *_memory_and_cpu(change, vm),
        *_extra_config(change, vm),
    )


def _describe_new_device(device: NewDevice) -> str:
    match device:
        case NewVgpu(profile=profile, numa_node=node):
            return f"vGPU {profile}" + ("" if node is None else f", guest NUMA node {node}")
        case NewDirectPath(address=address, name=name):
            return f"DirectPath {address} {name}".rstrip()
        case NewDynamic(allowed=allowed, label=label):
            return describe_dynamic(allowed, label)
        case _:
            assert_never(device)


def _memory_and_cpu(change: VmChange, vm: Vm | None) -> Iterator[Change]:
    if change.memory_reservation_mib is not None:
        before = size(vm.memory_reservation_mib if vm else None)
        yield Change("memory reservation", before, size(change.memory_reservation_mib))
    if change.memory_locked is not None:
        before = _yes_or_no(vm.memory_locked if vm else None)
        yield Change("all memory reserved", before, _yes_or_no(change.memory_locked))
    if change.cpu_hot_add is not None:
        before = _yes_or_no(vm.cpu_hot_add if vm else None)
        yield Change("CPU hot-add", before, _yes_or_no(change.cpu_hot_add))
    if change.cores_per_numa_node is not None:
        before = _cores(vm.cores_per_numa_node if vm else None)
        yield Change("cores per NUMA node", before, _cores(change.cores_per_numa_node))


def _extra_config(change: VmChange, vm: Vm | None) -> tuple[Change, ...]:
    """Return each key that differs. An empty value removes the key (vSphere API, OptionValue)."""
    settings = vm.extra_config if vm else None
    pairs = (
        (key, (settings.get(key) or None) if settings is not None else "unknown", setting or None)
        for key, setting in sorted(change.extra_config.items())
    )
    return tuple(Change(key, before, after) for key, before, after in pairs if before != after)


def _power(vm: Vm | None) -> str | None:
    return str(vm.power) if vm and vm.power else None


def _yes_or_no(is_set: bool | None) -> str:
    return "unknown" if is_set is None else ("yes" if is_set else "no")


def _cores(cores: int | None) -> str:
    return "unknown" if cores is None else "automatic" if cores == 0 else str(cores)
