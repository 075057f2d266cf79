"""What speaks against a graphics type or a vGPU mode on a host, each with its rule and its source."""

from __future__ import annotations

from collections.abc import Iterator

from gpuops.model.catalog import Catalog
from gpuops.model.gpu import PhysicalGpu, VgpuMode
from gpuops.model.host import Host
from gpuops.model.host_settings import GraphicsDevice, HostSettings
from gpuops.model.inventory import Inventory
from gpuops.model.scheduler import SchedulerPolicy, VgpuScheduler
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.versions import version_numbers
from gpuops.plan.hosts.scheduler.rules import MIXED_SIZE_SINCE
from gpuops.plan.hosts.scheduler.state import scheduler_of


def host_blockers(host: Host, settings: HostSettings) -> Iterator[Rejection]:
    """Why nothing can be configured on this host at all."""
    if host.connected is not True:
        yield Rejection(host.name, "is not connected")
    elif settings.graphics is None:
        why = "; ".join(settings.unread) or "the host does not tell"
        yield Rejection(host.name, f"its graphics configuration cannot be read: {why}")


def type_blockers(host: Host, inventory: Inventory) -> Iterator[Rejection]:
    """A graphics type changes only while no VM runs on the host's GPUs (NVIDIA AI Enterprise docs)."""
    rule = "a graphics type changes only while no VM is on the host's GPUs (NVIDIA AI Enterprise docs)"
    listed = [gpu for gpu in host.gpus if gpu.graphics_type is not None]
    if any(gpu.vms is None for gpu in listed):
        yield Rejection(host.name, f"who runs on its GPUs cannot be read, and {rule}")
    running = sorted({name for gpu in listed for name in _holders(gpu, inventory)})
    if running:
        yield Rejection(host.name, f"{rule}; there now: {', '.join(running)}")


def mode_blockers(device: GraphicsDevice, host: Host, inventory: Inventory, catalog: Catalog) -> Iterator[Rejection]:
    """Why this GPU cannot have that vGPU mode (NVIDIA AI Enterprise docs; vSphere API 8.0.3, HostGraphicsConfig)."""
    subject = f"{host.name} {device.address}"
    gpu = host.gpu(device.address)
    if version_numbers(inventory.api_version) < version_numbers(MIXED_SIZE_SINCE):
        yield Rejection(subject, "vGPU modes need vSphere 8.0 Update 3", MIXED_SIZE_SINCE, inventory.api_version)
        return
    if gpu is None or gpu.vgpu_mode is None or gpu.vms is None:
        yield Rejection(subject, "its vGPU mode, or who runs on it, cannot be read")
        return
    if gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE:
        hint = "MIG mode is switched on the host itself: nvidia-smi -i GPU -mig 0"
        yield Rejection(subject, "is in MIG mode, which has no vGPU sizes (NVIDIA AI Enterprise docs)", hint=hint)
    elif running := _holders(gpu, inventory):
        rule = "the vGPU mode of a GPU changes only while it is empty (NVIDIA NVML docs)"
        yield Rejection(subject, f"{rule}; there now: {', '.join(running)}")
    if device.vgpu_mode == VgpuMode.MIXED_SIZE:
        yield from _mixed_size(gpu, subject, host, catalog)


def _mixed_size(gpu: PhysicalGpu, subject: str, host: Host, catalog: Catalog) -> Iterator[Rejection]:
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    if board is not None and board.mixed_size_mode is False:
        yield Rejection(subject, f"{board.name} has no mixed-size mode (NVIDIA AI Enterprise docs)")
    scheduler = next(each for each in scheduler_of(host, catalog).gpus if each.gpu.address == gpu.address)
    found = scheduler.configured
    if isinstance(found, VgpuScheduler) and found.policy is SchedulerPolicy.FIXED_SHARE:
        hint = "gpuops scheduler set --policy equal-share, and a reboot, first"
        yield Rejection(subject, "fixed share is not for mixed-size GPUs (NVIDIA AI Enterprise docs)", hint=hint)


def mode_doubts(device: GraphicsDevice, host: Host, catalog: Catalog) -> Iterator[str]:
    """What could not be checked, a warning each."""
    gpu = host.gpu(device.address)
    if gpu is None or device.vgpu_mode != VgpuMode.MIXED_SIZE:
        return
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    if board is None or board.mixed_size_mode is None:
        name = board.name if board else gpu.name
        yield f"{host.name} {gpu.address}: whether {name} has a mixed-size mode is not known; the host will tell"


def _holders(gpu: PhysicalGpu, inventory: Inventory) -> list[str]:
    return sorted(inventory.vms[ref].name if ref in inventory.vms else ref for ref in gpu.vms or ())
