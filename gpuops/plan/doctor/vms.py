"""Findings of VMs with GPU devices."""

from __future__ import annotations

from collections.abc import Iterator

from gpuops.model.host import Host
from gpuops.model.vm import PowerState, VgpuDevice, Vm
from gpuops.plan.core.command_line import called, command
from gpuops.plan.core.device_signature import is_gpu
from gpuops.plan.doctor.finding import Finding, Severity


def of_vm(vm: Vm, host: Host | None) -> Iterator[Finding]:
    """What stands in the way of one VM. A VM without GPU devices has no findings."""
    if vm.devices is None:
        if host is not None and host.gpus and vm.unreadable:
            fix = "ask for the read-only role on it"
            yield Finding(Severity.WARNING, vm.name, "this login cannot read its devices", fix)
        return
    if not any(is_gpu(device) for device in vm.devices) or vm.template:
        return
    yield from _memory(vm)
    if vm.question is not None:
        yield Finding(Severity.WARNING, vm.name, "waits for an answer", "answer it in the vSphere Client")
    if host is not None and host.profiles is not None and host.readable:
        for profile in dict.fromkeys(vm.profiles):
            if host.offers(profile) is None:
                fix = f"{command('place', profile=profile)} names hosts that have it"
                yield Finding(Severity.ERROR, vm.name, f"{host.name} does not offer its {profile}", fix)


def _memory(vm: Vm) -> Iterator[Finding]:
    """A VM with a passthrough device starts only with all its memory reserved (VMware vSphere docs)."""
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
