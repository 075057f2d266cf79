"""Whether a host that was rebooted is what the change was to make of it, with its GPUs and their driver."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import assert_never

from gpuops.model.devices.device_mode import SERVED_AS
from gpuops.model.devices.gpu import GraphicsType, PciAddress, VgpuMode
from gpuops.model.vcenter.host import Host, has_booted
from gpuops.model.vcenter.host_settings import GraphicsSettings, HostSettings
from gpuops.plan.core.command_line import command, hosts_called
from gpuops.plan.core.steps import (
    ConfigureGraphics,
    ConfigureMig,
    ConfigureModes,
    ConfigureModule,
    ConfigurePassthrough,
    EnterMaintenance,
    HostStep,
    HostTask,
    LeaveMaintenance,
    ModeChange,
    RebootHost,
)


def task_satisfied(step: HostTask, host: Host) -> bool:
    """Whether the host shows what the step would bring about."""
    match step:
        case EnterMaintenance():
            return host.in_maintenance is True
        case LeaveMaintenance():
            return host.in_maintenance is False
        case RebootHost(booted=before):
            return host.connected is True and has_booted(host.booted, before)
        case _:
            assert_never(step)


def driven(host: Host) -> tuple[PciAddress, ...]:
    """The GPUs that the host's driver lists: those it must list again after a reboot."""
    return tuple(gpu.address for gpu in host.gpus if gpu.graphics_type is not None)


def stays_divided(step: HostStep, host: Host) -> tuple[PciAddress, ...]:
    """The GPUs in MIG mode that the step leaves in it, as their boot does (assumption: mig-mode-after-boot)."""
    left = step.devices if isinstance(step, ConfigureMig) else ()
    given = _given(step)
    divided = (gpu.address for gpu in host.gpus if gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE)
    return tuple(address for address in divided if address not in left and address not in given)


def _given(step: HostStep) -> Collection[PciAddress]:
    """The GPUs that the step gives to VMs whole."""
    if isinstance(step, ConfigurePassthrough):
        return {each.address for each in step.devices if each.enabled}
    return {each.address for each in step.devices if each.after.whole} if isinstance(step, ConfigureModes) else ()


def undivided(gpus: Collection[PciAddress], host: Host) -> str | None:
    """Which of the GPUs are not in MIG mode any more; None = all are. It does not survive a boot on every system."""
    modes = {gpu.address: gpu.vgpu_mode for gpu in host.gpus}
    lost = [str(address) for address in gpus if modes.get(address) is not VgpuMode.MULTI_INSTANCE]
    again = command("mig set on", host=hosts_called(host.name))
    return f"MIG mode of {', '.join(lost)} did not survive its boot: {again}" if lost else None


def undriven(step: HostStep, gpus: Collection[PciAddress], host: Host) -> tuple[PciAddress, ...]:
    """Those of the GPUs that the driver does not list (yet), but for those that were given to VMs whole."""
    given = _given(step)
    return tuple(each for each in gpus if each not in driven(host) and each not in given)


def not_in_force(step: HostStep, host: Host) -> str | None:
    """What is not as it was set; None = all is. What cannot be read is not."""
    return next(_lacking(step, host), None)


def _lacking(step: HostStep, host: Host) -> Iterator[str]:
    settings = host.settings or HostSettings()
    match step:
        case ConfigureModule(after=options):
            if settings.loaded_options is None:
                yield "which options its module nvidia was loaded with cannot be read"
            elif settings.loaded_options != options:
                yield f"its module nvidia was loaded with {settings.loaded_options!r}, not with {options!r}"
        case ConfigureGraphics(after=graphics):
            yield from _other_types(graphics, host)
        case ConfigurePassthrough(devices=devices):
            active = {state.address: state.active for state in settings.passthrough or ()}
            unlike = (each for each in devices if active.get(each.address) is not each.enabled)
            yield from (f"DirectPath I/O of {each.address} is not {'on' if each.enabled else 'off'}" for each in unlike)
        case ConfigureModes(devices=changes):
            yield from _other_modes(changes, settings, host)
        case ConfigureMig(devices=addresses, on=on):
            current = {state.address: state.current for state in settings.mig or ()}
            others = (address for address in addresses if current.get(address) is not on)
            yield from (f"MIG mode of {address} is not {'on' if on else 'off'}" for address in others)
        case _:
            assert_never(step)


def _other_modes(changes: Iterable[ModeChange], settings: HostSettings, host: Host) -> Iterator[str]:
    """A mode is in force when the GPU is used so: vCenter tells of a device what is configured."""
    active = {state.address: state.active for state in settings.passthrough or ()}
    for each in changes:
        gpu = host.gpu(each.address)
        if active.get(each.address) is not each.after.whole:
            yield f"DirectPath I/O of {each.address} is not {'on' if each.after.whole else 'off'}"
        elif (size := SERVED_AS.get(each.after)) is not None:
            served = gpu.vgpu_mode if gpu is not None else None
            if served not in (size, VgpuMode.MULTI_INSTANCE):
                yield f"the vGPU mode of {each.address} is {served or 'not told'}, not {size}"


def _other_types(graphics: GraphicsSettings, host: Host) -> Iterator[str]:
    for device in graphics.devices:
        gpu = host.gpu(device.address)
        used = gpu.graphics_type if gpu is not None else None
        if used is None or used != GraphicsType(device.graphics_type):
            yield f"GPU {device.address} is {used or 'not listed'}, not {device.graphics_type}"
