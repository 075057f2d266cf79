"""What a change of modes takes from slots that are reserved for others: a warning each (vSphere 9.0 and newer).

A change needs an empty GPU, so nobody loses what he has; but who has reserved slots may not find them later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.device_mode import DeviceMode
from gpuops.model.devices.gpu import GraphicsType, Passthrough, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import GraphicsDevice
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import ConfigureGraphics, ConfigureModes, ConfigurePassthrough, HostStep
from gpuops.plan.placement.reserved_slots import reserved_left, reserved_unknown

Device = TypeVar("Device", PhysicalGpu, OtherDevice)


def with_reserved(plan: Plan[HostStep], inventory: Inventory, catalog: Catalog) -> Plan[HostStep]:
    """The plan with a warning for each reservation that has less room after it than it needs."""
    if inventory.reservations is None or not plan.steps:
        return plan
    hosts = [inventory.hosts[step.host] for step in plan.steps]
    later = [_then(inventory.hosts[step.host], step) for step in plan.steps]
    after = inventory.with_hosts(later)
    doubts = (reserved_unknown(host, inventory) for host in hosts)
    short = (
        f"{left}: VMs for which it is reserved may find no GPU"
        for left in reserved_left(hosts, inventory, after, catalog)
        if left.too_few
    )
    return replace(plan, warnings=(*plan.warnings, *dict.fromkeys((*short, *(each for each in doubts if each)))))


def _then(host: Host, step: HostStep) -> Host:
    """The host as it is once the step is in force, for what vGPUs and VMs with whole devices find there."""
    if isinstance(step, ConfigureGraphics):
        types = {each.address: each for each in step.after.devices}
        gpus = (_in_type(gpu, types[gpu.address]) if gpu.address in types else gpu for gpu in host.gpus)
        return replace(host, gpus=tuple(gpus))
    if not isinstance(step, ConfigureModes | ConfigurePassthrough):
        return host
    modes = _modes(host, step)
    changes = step.labels if isinstance(step, ConfigureModes) else step.devices
    labels = {each.address: each.label for each in changes if each.label is not None}
    return replace(
        host,
        gpus=tuple(_labelled(_in_mode(each, modes.get(each.address)), labels) for each in host.gpus),
        others=tuple(_labelled(_given(each, modes.get(each.address)), labels) for each in host.others),
    )


def _modes(host: Host, step: ConfigureModes | ConfigurePassthrough) -> dict[PciAddress, DeviceMode]:
    """The modes that devices are changed to; those that already are for VMs whole, or are not, as asked, stay."""
    if isinstance(step, ConfigureModes):
        return {change.address: change.after for change in step.devices}
    whole = {device.address: device.passed_through for device in host.devices}
    return {
        change.address: DeviceMode.DIRECT_PATH if change.enabled else DeviceMode.VGPU_SAME_SIZE
        for change in step.devices
        if whole.get(change.address) is not change.enabled
    }


def _in_type(gpu: PhysicalGpu, told: GraphicsDevice) -> PhysicalGpu:
    size = VgpuMode(told.vgpu_mode) if told.vgpu_mode in list(VgpuMode) else gpu.vgpu_mode
    return replace(gpu, graphics_type=GraphicsType(told.graphics_type), vgpu_mode=size)


def _in_mode(gpu: PhysicalGpu, mode: DeviceMode | None) -> PhysicalGpu:
    if mode is None:
        return gpu
    if mode.whole or mode is DeviceMode.HOST:
        return replace(gpu, graphics_type=None, vgpu_mode=None, passthrough=_whole(gpu.passthrough, on=mode.whole))
    size = VgpuMode.MIXED_SIZE if mode is DeviceMode.VGPU_MIXED_SIZE else VgpuMode.SAME_SIZE
    size = gpu.vgpu_mode if gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE else size
    kept = replace(gpu.passthrough, enabled=False, active=False) if gpu.passthrough is not None else None
    return replace(gpu, graphics_type=GraphicsType.SHARED_DIRECT, vgpu_mode=size, passthrough=kept)


def _given(device: OtherDevice, mode: DeviceMode | None) -> OtherDevice:
    return device if mode is None else replace(device, passthrough=_whole(device.passthrough, on=mode.whole))


def _whole(state: Passthrough | None, *, on: bool) -> Passthrough:
    """DirectPath I/O in force or not, with the label that is there."""
    return Passthrough(capable=True, enabled=on, active=on, label=state.label if state is not None else None)


def _labelled(device: Device, labels: Mapping[PciAddress, str]) -> Device:
    if device.address not in labels or device.passthrough is None:
        return device
    return replace(device, passthrough=replace(device.passthrough, label=labels[device.address] or None))
