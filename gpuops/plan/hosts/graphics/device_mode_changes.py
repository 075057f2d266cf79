"""Translates changes of vGPU sizes and of DirectPath I/O into the device modes of vSphere 9.1.

Before 9.1, and for devices without a reported mode, the calls of 8.x are used; `mode_changes` then returns None.

`warn_of_reservations` warns if a change leaves too little room for a reservation (vSphere 9.0 and later). A change
needs an empty GPU, so no running VM loses its slot, but reserved slots may be missing later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.device_mode import SERVED_AS, DeviceMode
from gpuops.model.devices.gpu import GraphicsType, Passthrough, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import HostSettings, PassthroughState, SharedType
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import (
    ConfigureGraphics,
    ConfigureMig,
    ConfigureModes,
    ConfigureModule,
    ConfigurePassthrough,
    HostStep,
    ModeChange,
)
from gpuops.plan.placement.keep_free import reserved_left, reserved_unknown

MODE_BY_SIZE: Final[Mapping[str, DeviceMode]] = {size.value: mode for mode, size in SERVED_AS.items()}
"""Device modes by `SizeMode`."""


def mode_changes(
    settings: HostSettings, requested_modes: Mapping[PciAddress, DeviceMode]
) -> tuple[ModeChange, ...] | None:
    """Return the mode changes of the devices; None if they must be made with the calls of 8.x."""
    states = {state.address: state for state in settings.passthrough or ()}
    modes = {address: states[address].mode if address in states else None for address in requested_modes}
    if settings.sets_modes is not True or not requested_modes:
        return None
    if any(mode is None for mode in modes.values()):
        return None
    return tuple(ModeChange(gpu, str(modes[gpu]), mode) for gpu, mode in requested_modes.items())


def size_changes(settings: HostSettings, sizes: Mapping[PciAddress, str | None]) -> tuple[ModeChange, ...] | None:
    """Return the mode changes for these vGPU sizes; None as in `mode_changes`, or if a GPU is in DirectPath I/O: a mode
    would take it out."""
    given_whole = {state.address for state in settings.passthrough or () if state.enabled}
    if any(address in given_whole or size not in MODE_BY_SIZE for address, size in sizes.items()):
        return None
    return mode_changes(settings, {address: MODE_BY_SIZE[size] for address, size in sizes.items() if size is not None})


def directpath_mode(state: PassthroughState) -> DeviceMode:
    """Return the DirectPath mode of a device; Enhanced DirectPath only if the device has no other."""
    only_enhanced = DeviceMode.DIRECT_PATH not in state.configurable
    if only_enhanced and DeviceMode.ENHANCED_DIRECT_PATH in state.configurable:
        return DeviceMode.ENHANCED_DIRECT_PATH
    return DeviceMode.DIRECT_PATH


def mode_for_host(state: PassthroughState, settings: HostSettings) -> DeviceMode:
    """Return the mode that gives a device back to the host: for vGPUs, if that is the host's default and possible."""
    default = settings.graphics.default_type if settings.graphics is not None else SharedType.SHARED_DIRECT
    serves = DeviceMode.VGPU_SAME_SIZE in state.configurable and default == SharedType.SHARED_DIRECT
    return DeviceMode.VGPU_SAME_SIZE if serves else DeviceMode.HOST


def refuse_unoffered_modes(host: Host, settings: HostSettings, changes: Iterable[ModeChange]) -> Iterator[Rejection]:
    """Yield a refusal for each device for which vCenter does not offer the requested mode."""
    offered = {state.address: state.configurable for state in settings.passthrough or ()}
    for change in changes:
        if change.after not in offered.get(change.address, ()):
            modes = ", ".join(offered.get(change.address, ())) or "none"
            rule = f"vCenter does not offer mode {change.after} for it; it offers: {modes}"
            yield Rejection(f"{host.name} {change.address}", rule)


def pending_sizes(host: Host, settings: HostSettings, addresses: Iterable[PciAddress]) -> tuple[ModeChange, ...]:
    """Return the configured sizes that are not in effect yet: they wait for maintenance mode or a reboot."""
    states = {state.address: state for state in settings.passthrough or ()}
    gpus = {gpu.address: gpu for gpu in host.gpus}
    sizes = {str(mode): size for mode, size in SERVED_AS.items()}
    due: list[ModeChange] = []
    for address in addresses:
        if address in states and address in gpus:
            mode, current_size = str(states[address].mode), gpus[address].vgpu_mode
            # Other modes give the device to VMs or the host; other sizes, such as MIG, are no device modes.
            if mode in sizes and current_size in sizes.values() and current_size is not sizes[mode]:
                due.append(ModeChange(address, mode, DeviceMode(mode)))
    return tuple(due)


Device = TypeVar("Device", PhysicalGpu, OtherDevice)


def warn_of_reservations(plan: Plan[HostStep], inventory: Inventory, catalog: Catalog) -> Plan[HostStep]:
    """Return the plan with a warning for each reservation that has less room after the plan than it needs."""
    if inventory.reservations is None or not plan.steps:
        return plan
    hosts = [inventory.hosts[step.host] for step in plan.steps]
    after = inventory.with_hosts([host_after(inventory.hosts[step.host], step) for step in plan.steps])
    doubts = (reserved_unknown(host, inventory) for host in hosts)
    shortages = (
        f"{shortage}: VMs with this reservation may find no GPU"
        for shortage in reserved_left(hosts, inventory, after, catalog)
        if shortage.too_few
    )
    return replace(plan, warnings=(*plan.warnings, *dict.fromkeys((*shortages, *(doubt for doubt in doubts if doubt)))))


def host_after(host: Host, step: HostStep) -> Host:
    """Return the host as it will be when the step has taken effect."""
    if host.settings is not None:
        host = replace(host, settings=_settings_after(host.settings, step))
    if isinstance(step, ConfigureGraphics):
        configured = {device.address: device for device in step.after.devices}
        new_gpus = list(host.gpus)
        for number, gpu in enumerate(new_gpus):
            device = configured.get(gpu.address)
            if device is not None:
                # A mode that this gpuops does not know is taken as no change.
                size = VgpuMode(device.vgpu_mode) if device.vgpu_mode in list(VgpuMode) else gpu.vgpu_mode
                new_gpus[number] = replace(gpu, graphics_type=GraphicsType(device.graphics_type), vgpu_mode=size)
        return replace(host, gpus=tuple(new_gpus))
    if isinstance(step, ConfigureMig):
        size = VgpuMode.MULTI_INSTANCE if step.on else VgpuMode.SAME_SIZE
        changed = {gpu.address: replace(gpu, vgpu_mode=size) for gpu in host.gpus if gpu.address in step.devices}
        return replace(host, gpus=tuple(changed.get(gpu.address, gpu) for gpu in host.gpus))
    if not isinstance(step, ConfigureModes | ConfigurePassthrough):
        return host
    modes = _new_modes(host, step)
    changes = step.labels if isinstance(step, ConfigureModes) else step.devices
    labels = {change.address: change.label for change in changes if change.label is not None}
    others = list(host.others)
    for number, other in enumerate(others):
        mode = modes.get(other.address)
        if mode is not None:
            others[number] = replace(other, passthrough=_passthrough_state(other.passthrough, on=mode.whole))
    return replace(
        host,
        gpus=tuple(_with_label(_gpu_in_mode(gpu, modes.get(gpu.address)), labels) for gpu in host.gpus),
        others=tuple(_with_label(other, labels) for other in others),
    )


def _settings_after(settings: HostSettings, step: HostStep) -> HostSettings:
    """Return the settings that the host will have. Modes of DirectPath devices themselves stay as they are."""
    match step:
        case ConfigureGraphics(after=graphics):
            return replace(settings, graphics=graphics)
        case ConfigureModule(after=options):
            return replace(settings, module_options=options, loaded_options=options)
        case ConfigureMig(devices=addresses, on=mig_on):
            states = (
                replace(state, current=mig_on, pending=mig_on) if state.address in addresses else state
                for state in settings.mig or ()
            )
            return replace(settings, mig=tuple(states))
        case ConfigurePassthrough(devices=changes):
            on = {change.address: change.enabled for change in changes}
            labels = {change.address: change.label for change in changes if change.label is not None}
        case ConfigureModes(devices=modes, labels=changes):
            on = {mode.address: mode.after.whole for mode in modes}
            labels = {change.address: change.label for change in changes if change.label is not None}
    devices = (
        replace(
            state,
            enabled=on.get(state.address, state.enabled),
            active=on.get(state.address, state.active),
            label=labels.get(state.address, state.label) or None,
        )
        for state in settings.passthrough or ()
    )
    return replace(settings, passthrough=tuple(devices))


def _new_modes(host: Host, step: ConfigureModes | ConfigurePassthrough) -> dict[PciAddress, DeviceMode]:
    """Return the new modes by address, without devices that already have the requested mode."""
    if isinstance(step, ConfigureModes):
        return {change.address: change.after for change in step.devices}
    whole = {device.address: device.passed_through for device in host.devices}
    return {
        change.address: DeviceMode.DIRECT_PATH if change.enabled else DeviceMode.VGPU_SAME_SIZE
        for change in step.devices
        if whole.get(change.address) is not change.enabled
    }


def _gpu_in_mode(gpu: PhysicalGpu, mode: DeviceMode | None) -> PhysicalGpu:
    """Return the GPU as it will be in this device mode; None = its mode does not change. MIG mode stays on."""
    if mode is None:
        return gpu
    if mode.whole or mode is DeviceMode.HOST:
        return replace(
            gpu, graphics_type=None, vgpu_mode=None, passthrough=_passthrough_state(gpu.passthrough, on=mode.whole)
        )
    size = VgpuMode.MIXED_SIZE if mode is DeviceMode.VGPU_MIXED_SIZE else VgpuMode.SAME_SIZE
    size = gpu.vgpu_mode if gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE else size
    passthrough = replace(gpu.passthrough, enabled=False, active=False) if gpu.passthrough is not None else None
    return replace(gpu, graphics_type=GraphicsType.SHARED_DIRECT, vgpu_mode=size, passthrough=passthrough)


def _passthrough_state(state: Passthrough | None, *, on: bool) -> Passthrough:
    """Return DirectPath I/O switched on or off, with the label as before."""
    return Passthrough(capable=True, enabled=on, active=on, label=state.label if state is not None else None)


def _with_label(device: Device, labels: Mapping[PciAddress, str]) -> Device:
    """Return the device with its new hardware label; an empty label removes it."""
    if device.address not in labels or device.passthrough is None:
        return device
    return replace(device, passthrough=replace(device.passthrough, label=labels[device.address] or None))
