"""Findings about VMs with GPU devices: their settings, their NUMA nodes, and whether they can be moved.

Source: VMware vSphere docs, NUMA (a VM larger than a node is split over several, and `numa.nodeAffinity` binds it).
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
from gpuops.plan.placement.host_filters import AFFINITY_KEY


def of_vm(vm: Vm, host: Host | None, catalog: Catalog) -> Iterator[Finding]:
    """Yield the problems of a VM's settings and devices.

    A VM without GPU devices is checked only for stale DirectPath entries and unreadable devices.
    """
    if vm.devices is None:
        if host is not None and host.gpus and vm.unreadable:
            fix = "ask for the read-only role on the VM"
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
        fix = "answer it in the vSphere Client"
        yield Finding(Severity.WARNING, vm.name, "waits for the answer to a question", fix)
    if host is not None and host.profiles is not None and host.readable:
        for profile in dict.fromkeys(vm.profiles):
            if host.offers(profile) is None:
                fix = f"{command('place', profile=profile)} lists hosts that offer it"
                yield Finding(Severity.ERROR, vm.name, f"{host.name} does not offer its profile {profile}", fix)


def _memory(vm: Vm) -> Iterator[Finding]:
    """Yield a finding if a VM that is off has not reserved all its memory, which passthrough needs (vSphere docs)."""
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
    """Yield the reasons why a stopped VM could start on no host with its devices, even an empty one.

    Nothing is yielded if its firmware or its virtual hardware version cannot be read.
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
        fix = command("attach", vm=called(vm), device=str(device.address))
        if host is None or host.device(device.address) is None:
            fix = f"{command('detach', vm=called(vm), device=str(device.address))} removes the entry"
        yield Finding(Severity.ERROR, vm.name, f"does not start: {reason}", fix)


def _unreadable_devices(vm: Vm) -> Iterator[Finding]:
    """Report passthrough devices that vSphere did not write, such as a PCI address in the form of a VMX file."""
    labels = [device.label for device in vm.devices or () if isinstance(device, OtherPassthrough) and device.unreadable]
    if labels:
        reason = f"{', '.join(labels)} cannot be read; it may be a GPU, or keep the VM from starting"
        fix = "check the device in the vSphere Client, and remove it if it is not needed"
        yield Finding(Severity.WARNING, vm.name, reason, fix)


def _loose_pins(vm: Vm) -> Iterator[Finding]:
    """Report pins whose `pciPassthruN` is no vGPU of the VM. Old gpuops versions wrote them next to SR-IOV cards."""
    numbers = {passthru_number(device.key) for device in vm.vgpus}
    loose_pins = sorted(set(pins_of(vm)) - numbers)
    if loose_pins and numbers:
        keys, names = ", ".join(map(pin_key, loose_pins)), ", ".join(f"pciPassthru{n}" for n in sorted(numbers))
        reason = f"{keys} binds none of its vGPUs ({names}): the host may start them on any GPU"
        fix = "remove that key from its settings; if the NUMA node matters, attach again with --numa required"
        yield Finding(Severity.WARNING, vm.name, reason, fix)


def of_place(vm: Vm, host: Host, inventory: Inventory, catalog: Catalog) -> Iterator[Finding]:
    """Yield the problems of a VM with GPU devices on its host: its NUMA nodes and, if it runs, whether it can move."""
    if vm.template or not any(map(is_gpu, vm.devices or ())):
        return
    yield from _split(vm, host)
    yield from _bound_away(vm, host)
    if vm.power is PowerState.ON and inventory.hot_migrate_enabled:
        yield from _stays(MovabilityCase(vm, host, inventory.clusters.get(host.cluster or ""), inventory, catalog, ()))


def _split(vm: Vm, host: Host) -> Iterator[Finding]:
    """Yield a note if the VM is larger than a NUMA node: then a part of it is not on the node of its GPU."""
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
        fix = "make it smaller, or give it GPUs of several nodes (gpuops help place)"
        reason = f"is larger than a NUMA node of {host.name} ({'; '.join(excesses)}): part of it is far from its GPU"
        yield Finding(Severity.NOTE, vm.name, reason, fix)


def _bound_away(vm: Vm, host: Host) -> Iterator[Finding]:
    """Report a VM that is bound to NUMA nodes, and pinned to a GPU of another node."""
    bound = {part.strip() for part in (vm.extra_config or {}).get(AFFINITY_KEY, "").split(",") if part.strip()}
    if not bound:
        return
    for address in sorted(set(pins_of(vm).values())):
        gpu = host.gpu(address)
        if gpu is not None and gpu.numa_node is not None and str(gpu.numa_node) not in bound:
            nodes = ", ".join(sorted(bound))
            reason = f"is bound to NUMA node {nodes}, and pinned to GPU {address}, which is on node {gpu.numa_node}"
            fix = f"remove {AFFINITY_KEY} from its settings, or attach the GPU again (gpuops help attach)"
            yield Finding(Severity.WARNING, vm.name, reason, fix)


def _stays(case: MovabilityCase) -> Iterator[Finding]:
    movability = judge_movability(case)
    if movability.way is not MoveMethod.VMOTION and movability.reasons:
        reason = f"cannot be moved while it runs: {'; '.join(movability.reasons)}"
        fix = "use --running-vms shut-down to reboot its host (gpuops help change)"
        if manager_of(case.vm) is not None:
            fix = "move or stop it with its manager before its host is rebooted"
        yield Finding(Severity.NOTE, case.vm.name, reason, fix)
