"""What a change of modes takes from slots that are reserved for others: a warning each (vSphere 9.0 and newer).

A change needs an empty GPU, so nobody loses what he has; but who has reserved slots may not find them later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpuops.model.catalog import Catalog
from gpuops.model.device_mode import DeviceMode
from gpuops.model.gpu import GraphicsType, Passthrough, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import ConfigureGraphics, ConfigureModes, ConfigurePassthrough, HostStep
from gpuops.plan.placement.reserved import reserved_left, reserved_unknown

Gpus = Mapping[PciAddress, PhysicalGpu]


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
    """The host as it is once the step is in force, for what vGPUs find there."""
    changed = dict(_changed({gpu.address: gpu for gpu in host.gpus}, step))
    return replace(host, gpus=tuple(changed.get(gpu.address, gpu) for gpu in host.gpus))


def _changed(gpus: Gpus, step: HostStep) -> Iterator[tuple[PciAddress, PhysicalGpu]]:
    if isinstance(step, ConfigureModes):
        for change in step.devices:
            yield change.address, _in_mode(gpus[change.address], change.after)
    elif isinstance(step, ConfigurePassthrough):
        for device in step.devices:
            mode = DeviceMode.DIRECT_PATH if device.enabled else DeviceMode.VGPU_SAME_SIZE
            there = gpus[device.address].passed_through is device.enabled
            yield device.address, gpus[device.address] if there else _in_mode(gpus[device.address], mode)
    elif isinstance(step, ConfigureGraphics):
        for each in step.after.devices:
            gpu = gpus.get(each.address)
            if gpu is not None:
                size = VgpuMode(each.vgpu_mode) if each.vgpu_mode in list(VgpuMode) else gpu.vgpu_mode
                yield each.address, replace(gpu, graphics_type=GraphicsType(each.graphics_type), vgpu_mode=size)


def _in_mode(gpu: PhysicalGpu, mode: DeviceMode) -> PhysicalGpu:
    if mode.whole or mode is DeviceMode.HOST:
        given = Passthrough(capable=True, enabled=mode.whole, active=mode.whole)
        return replace(gpu, graphics_type=None, vgpu_mode=None, passthrough=given)
    size = VgpuMode.MIXED_SIZE if mode is DeviceMode.VGPU_MIXED_SIZE else VgpuMode.SAME_SIZE
    size = gpu.vgpu_mode if gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE else size
    kept = replace(gpu.passthrough, enabled=False, active=False) if gpu.passthrough is not None else None
    return replace(gpu, graphics_type=GraphicsType.SHARED_DIRECT, vgpu_mode=size, passthrough=kept)
