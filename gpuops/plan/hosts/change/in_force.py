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
    """Return whether the host shows what the step would bring about."""
    match step:
        case EnterMaintenance():
            return host.in_maintenance is True
        case LeaveMaintenance():
            return host.in_maintenance is False
        case RebootHost(booted=before):
            return host.connected is True and has_booted(host.booted, before)
        case _:
            assert_never(step)


def gpus_of_driver(host: Host) -> tuple[PciAddress, ...]:
    """Return the GPUs that the host's driver lists."""
    return tuple(gpu.address for gpu in host.gpus if gpu.graphics_type is not None)


def gpus_listed_after_boot(host: Host) -> tuple[PciAddress, ...]:
    """Return the GPUs that the driver must list again after a reboot: not those that wait for DirectPath I/O."""
    return tuple(address for address in gpus_of_driver(host) if address not in _waiting_for_vms(host))


def _waiting_for_vms(host: Host) -> Collection[PciAddress]:
    """Return the GPUs that are configured to be given to VMs as whole devices."""
    return {gpu.address for gpu in host.gpus if gpu.passthrough is not None and gpu.passthrough.enabled}


def gpus_staying_in_mig_mode(step: HostStep, host: Host) -> tuple[PciAddress, ...]:
    """Return the GPUs in MIG mode that the step, and what else waits for the reboot, leaves in it.

    A boot keeps that mode (assumption: mig-mode-after-boot).
    """
    switched = step.devices if isinstance(step, ConfigureMig) else ()
    states = (host.settings or HostSettings()).mig or ()
    switched_off = {state.address for state in states if state.pending is False}
    changed_addresses = {*switched, *switched_off, *_waiting_for_vms(host), *_given_whole(step)}
    in_mig_mode = (gpu.address for gpu in host.gpus if gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE)
    return tuple(address for address in in_mig_mode if address not in changed_addresses)


def _given_whole(step: HostStep) -> Collection[PciAddress]:
    """Return the GPUs that the step makes available to VMs as whole devices."""
    if isinstance(step, ConfigurePassthrough):
        return {change.address for change in step.devices if change.enabled}
    return {change.address for change in step.devices if change.after.whole} if isinstance(step, ConfigureModes) else ()


def lost_mig_modes(gpus: Collection[PciAddress], host: Host) -> str | None:
    """Return which of the GPUs are not in MIG mode any more; None = all are. On some systems a boot ends the mode."""
    modes = {gpu.address: gpu.vgpu_mode for gpu in host.gpus}
    lost = [str(address) for address in gpus if modes.get(address) is not VgpuMode.MULTI_INSTANCE]
    set_command = command("host mig on", host=hosts_called(host.name))
    return f"MIG mode of {', '.join(lost)} did not survive its boot: {set_command}" if lost else None


def gpus_not_listed(step: HostStep, gpus: Collection[PciAddress], host: Host) -> tuple[PciAddress, ...]:
    """Return the GPUs that the driver does not list (yet), except those that the step gives to VMs as whole devices."""
    given_whole = _given_whole(step)
    return tuple(address for address in gpus if address not in gpus_of_driver(host) and address not in given_whole)


def not_in_force(step: HostStep, host: Host) -> str | None:
    """Return a setting of the step that the host does not use yet; None = it uses all of them. A setting that cannot be
    read counts as not used."""
    return next(_lacking(step, host), None)


def _lacking(step: HostStep, host: Host) -> Iterator[str]:
    """Yield what the step configures and the host does not use yet."""
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
            for change in devices:
                if active.get(change.address) is not change.enabled:
                    yield f"DirectPath I/O of {change.address} is not {'on' if change.enabled else 'off'}"
        case ConfigureModes(devices=changes):
            yield from _other_modes(changes, settings, host)
        case ConfigureMig(devices=addresses, on=on):
            current = {state.address: state.current for state in settings.mig or ()}
            unlike = (address for address in addresses if current.get(address) is not on)
            yield from (f"MIG mode of {address} is not {'on' if on else 'off'}" for address in unlike)
        case _:
            assert_never(step)


def _other_types(graphics: GraphicsSettings, host: Host) -> Iterator[str]:
    """Yield the GPUs whose graphics type is not the configured one."""
    types = {gpu.address: gpu.graphics_type for gpu in host.gpus}
    for device in graphics.devices:
        used_type = types.get(device.address)
        if used_type is None or used_type != GraphicsType(device.graphics_type):
            yield f"GPU {device.address} is {used_type or 'not listed'}, not {device.graphics_type}"


def _other_modes(changes: Iterable[ModeChange], settings: HostSettings, host: Host) -> Iterator[str]:
    """Yield the modes that are not in force: vCenter reports what is configured of a device, the GPU what is in use."""
    active = {state.address: state.active for state in settings.passthrough or ()}
    for change in changes:
        gpu = host.gpu(change.address)
        if active.get(change.address) is not change.after.whole:
            yield f"DirectPath I/O of {change.address} is not {'on' if change.after.whole else 'off'}"
        elif (size := SERVED_AS.get(change.after)) is not None:
            served = gpu.vgpu_mode if gpu is not None else None
            if served not in (size, VgpuMode.MULTI_INSTANCE):
                yield f"the vGPU mode of {change.address} is {served or 'unknown'}, not {size}"
