"""Findings of VMs with GPU devices: their settings, and where they lie: over NUMA nodes, or unable to move.

Source: VMware vSphere docs, NUMA (a VM wider than a node is split over several, and `numa.nodeAffinity` binds it).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuops.advise.managed_vms import manager_of
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import (
    OtherPassthrough,
    PowerState,
    VgpuDevice,
    Vm,
    is_gpu,
    is_unreadable,
    passthru_number,
    pin_key,
    pins_of,
)
from gpuops.plan.core.command_line import called, command
from gpuops.plan.devices.goal import find_stale_entries, group_of
from gpuops.plan.devices.rules import Case, start_obstacles
from gpuops.plan.doctor.finding import Finding, Severity
from gpuops.plan.moving.movability import MovabilityCase, MoveMethod, judge_movability
from gpuops.plan.placement.numa_nodes import AFFINITY_KEY


def of_vm(vm: Vm, host: Host | None, catalog: Catalog) -> Iterator[Finding]:
    """Yield what stands in the way of one VM.

    Without GPU devices: DirectPath entries and devices that cannot be read.
    """
    if vm.devices is None:
        if host is not None and host.gpus and vm.unreadable:
            fix = "ask for the read-only role on it"
            yield Finding(Severity.WARNING, vm.name, "this login cannot read its devices", fix)
        return
    if vm.template:
        return
    yield from _stale_entries(vm, host)
    yield from _unreadable_devices(vm)
    if not any(is_gpu(device) or is_unreadable(device) for device in vm.devices):
        return
    yield from _memory(vm)
    yield from _start_obstacles(vm, host, catalog)
    yield from _loose_pins(vm)
    if vm.question is not None:
        yield Finding(Severity.WARNING, vm.name, "waits for an answer", "answer it in the vSphere Client")
    if host is not None and host.profiles is not None and host.readable:
        for profile in dict.fromkeys(vm.profiles):
            if host.offers(profile) is None:
                fix = f"{command('place', profile=profile)} names hosts that have it"
                yield Finding(Severity.ERROR, vm.name, f"{host.name} does not offer its {profile}", fix)


def _memory(vm: Vm) -> Iterator[Finding]:
    """Yield a finding if its memory is not reserved: a passthrough device needs all of it (VMware vSphere docs)."""
    reserved = vm.memory_locked is True or (
        vm.memory_mib is not None and (vm.memory_reservation_mib or 0) >= vm.memory_mib
    )
    if reserved or vm.power is not PowerState.OFF:
        return
    if vm.memory_locked is None and vm.memory_reservation_mib is None:
        yield Finding(Severity.WARNING, vm.name, "its memory reservation cannot be read", "ask for the read-only role")
        return
    profile = next((device.profile for device in vm.devices or () if isinstance(device, VgpuDevice)), None)
    fix = command("attach", vm=called(vm), profile=profile) if profile else "reserve all its memory"
    yield Finding(Severity.ERROR, vm.name, "not all its memory is reserved: it does not start", fix)


def _start_obstacles(vm: Vm, host: Host | None, catalog: Catalog) -> Iterator[Finding]:
    """Yield why a VM that does not run cannot start with its devices, whatever is free.

    What cannot be read is no finding.
    """
    if vm.may_run or vm.firmware is None or vm.hardware_version is None:
        return
    devices = vm.devices or ()
    case = Case(vm, devices, any(group_of(device) is not None for device in devices), host, catalog)
    for obstacle in start_obstacles(case):
        fix = obstacle.hint or f"{command('detach', vm=called(vm))} --all"
        yield Finding(Severity.ERROR, vm.name, f"does not start: {obstacle.reason}", fix)


def _stale_entries(vm: Vm, host: Host | None) -> Iterator[Finding]:
    """DirectPath entries with which the VM does not start on its host."""
    for device, reason in find_stale_entries(vm, host):
        there_now = host is not None and host.device(device.address) is not None
        fix = command("attach", vm=called(vm), device=str(device.address))
        if not there_now:
            fix = f"{command('detach', vm=called(vm), device=str(device.address))} removes the entry"
        yield Finding(Severity.ERROR, vm.name, f"does not start: {reason}", fix)


def _unreadable_devices(vm: Vm) -> Iterator[Finding]:
    """Passthrough devices whose backing is not as vSphere writes it: a PCI address in the form of VMX files, say."""
    labels = [device.label for device in vm.devices or () if isinstance(device, OtherPassthrough) and device.unreadable]
    if labels:
        reason = f"{', '.join(labels)} cannot be read: it may be a GPU, and may keep the VM from starting"
        fix = "look at it in the vSphere Client, and remove it if nothing needs it"
        yield Finding(Severity.WARNING, vm.name, reason, fix)


def _loose_pins(vm: Vm) -> Iterator[Finding]:
    """Yield a pin whose `pciPassthruN` is no vGPU of the VM.

    Earlier versions wrote such pins for VMs with SR-IOV cards.
    """
    numbers = {passthru_number(device.key) for device in vm.vgpus}
    loose_pins = sorted(set(pins_of(vm)) - numbers)
    if loose_pins and numbers:
        keys, names = map(", ".join, (map(pin_key, loose_pins), (f"pciPassthru{number}" for number in sorted(numbers))))
        reason = f"{keys} binds no vGPU of it (it has {names}): its host may start them on any GPU"
        fix = "remove that key from its settings; attach with --numa required pins it where the node matters"
        yield Finding(Severity.WARNING, vm.name, reason, fix)


def of_place(vm: Vm, host: Host, inventory: Inventory, catalog: Catalog) -> Iterator[Finding]:
    """Yield what stands in the way of a VM with GPU devices where it is.

    A VM that is not running is not anywhere yet.
    """
    if vm.template or not any(map(is_gpu, vm.devices or ())):
        return
    yield from _split(vm, host)
    yield from _bound_away(vm, host)
    if vm.power is PowerState.ON and inventory.hot_migrate_enabled:
        yield from _stays(MovabilityCase(vm, host, inventory.clusters.get(host.cluster or ""), inventory, catalog, ()))


def _split(vm: Vm, host: Host) -> Iterator[Finding]:
    """Yield a note if the VM is wider than a NUMA node: part of it is then far from its GPU."""
    if not host.numa_nodes or vm.memory_mib is None or vm.vcpus is None:
        return
    memory_mib = max(node.memory_mib for node in host.numa_nodes)
    cpus = max(node.logical_cpus for node in host.numa_nodes)
    excesses = []
    if vm.memory_mib > memory_mib:
        excesses.append(f"{vm.memory_mib} MiB of memory, a node has {memory_mib}")
    if vm.vcpus > cpus:
        excesses.append(f"{vm.vcpus} vCPUs, a node has {cpus}")
    if excesses:
        fix = "make it smaller, or give it GPUs of several nodes: gpuops help place"
        reason = f"is wider than a NUMA node of {host.name} ({'; '.join(excesses)}): part of it is far from its GPU"
        yield Finding(Severity.NOTE, vm.name, reason, fix)


def _bound_away(vm: Vm, host: Host) -> Iterator[Finding]:
    """Bound to nodes by its settings, and by its settings to a GPU that is beside another one."""
    bound = {part.strip() for part in (vm.extra_config or {}).get(AFFINITY_KEY, "").split(",") if part.strip()}
    if not bound:
        return
    for address in sorted(set(pins_of(vm).values())):
        gpu = host.gpu(address)
        if gpu is not None and gpu.numa_node is not None and str(gpu.numa_node) not in bound:
            reason = (
                f"is bound to NUMA node {', '.join(sorted(bound))}, and to GPU {address} beside node {gpu.numa_node}"
            )
            fix = f"take {AFFINITY_KEY} out of its settings, or attach it anew: gpuops help attach"
            yield Finding(Severity.WARNING, vm.name, reason, fix)


def _stays(case: MovabilityCase) -> Iterator[Finding]:
    movability = judge_movability(case)
    if movability.way is not MoveMethod.VMOTION and movability.reasons:
        reason = f"cannot be moved while it runs: {'; '.join(movability.reasons)}"
        fix = "its host can be rebooted with --running-vms shut-down: gpuops help change"
        if manager_of(case.vm) is not None:
            fix = "its manager moves or stops it before its host can be rebooted"
        yield Finding(Severity.NOTE, case.vm.name, reason, fix)
