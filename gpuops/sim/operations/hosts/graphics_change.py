"""Does UpdateGraphicsConfig: sets graphics type and vGPU mode of GPUs, and the host's assignment policy.

The call replaces the whole configuration; a device left out takes the host's default (vSphere API,
HostGraphicsManager). A graphics type takes effect at the next boot; it cannot change while VMs run on the host's GPUs;
the vGPU mode only on an empty GPU that has it, and never in MIG mode (NVIDIA AI Enterprise docs, vSphere API 8.0.3).
The fault kinds are from memory: the API declares none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim

from gpuops.sim.inventory import faults
from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.gpu_admission import VgpuPolicy
from gpuops.sim.state.host_state import SHARED_DIRECT, HostGpu

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import HostEntity

GRAPHICS_TYPES: Final = ("basic", "shared", "direct", SHARED_DIRECT)


def update(host: HostEntity, call: Call, config: Any) -> None:
    """Apply a HostGraphicsConfig. Raises InvalidArgument, ResourceInUse; on a fault nothing has changed."""
    default, policy = config.hostDefaultGraphicsType, config.sharedPassthruAssignmentPolicy
    if default not in ("shared", SHARED_DIRECT):
        raise faults.wrong_argument("config.hostDefaultGraphicsType")
    if policy not in list(VgpuPolicy):
        raise faults.wrong_argument("config.sharedPassthruAssignmentPolicy")
    requested_types = {device.deviceId.lower(): device for device in config.deviceType}
    unknown = [pci_id for pci_id in requested_types if host.state.gpu(pci_id) is None]
    if unknown:
        raise faults.wrong_argument("config.deviceType", f"Host {host.name} has no GPU {unknown[0]}.")
    changes = [
        (gpu, *_requested_setting(host, gpu, requested_types.get(gpu.pci_id), default))
        for gpu in host.state.gpus
        if gpu.listed
    ]
    before = facts(host)
    for gpu, graphics_type, mode in changes:
        gpu.configured_type = graphics_type
        if "vgpu-mode-change" in host.world.deviations and mode is not gpu.mode:  # assumption: vgpu-mode-change
            gpu.next_mode = mode
        else:
            gpu.mode = mode
    host.state.default_graphics_type, host.state.policy = default, VgpuPolicy(policy)
    host.graphics_changed()
    host.world.ledger.record(call, host, before=before, after=facts(host))


def facts(host: HostEntity) -> dict[str, Any]:
    """What the ledger says of a host's GPUs and other devices, and the virtual functions of its network ports."""
    return {
        "default_graphics_type": host.state.default_graphics_type,
        "policy": host.state.policy.value,
        "gpus": {
            gpu.pci_id: {
                "type": gpu.graphics_type,
                "configured_type": gpu.configured_type,
                "mode": gpu.mode.value,
                "passthrough_enabled": gpu.passthrough_enabled,
                "passthrough_active": gpu.passthrough_active,
                "label": gpu.label,
            }
            for gpu in host.state.gpus
        },
        "other_devices": {
            device.pci_id: {
                "passthrough_enabled": device.passthrough_enabled,
                "passthrough_active": device.passthrough_active,
                "label": device.label,
            }
            for device in host.state.others
        },
        "functions": {port.pci_id: [port.functions, port.next_functions] for port in host.state.ports},
    }


def _requested_setting(host: HostEntity, gpu: HostGpu, device: Any, default: str) -> tuple[str, GpuMode]:
    graphics_type = default if device is None else device.graphicsType
    if graphics_type not in GRAPHICS_TYPES:
        raise faults.wrong_argument("config.deviceType.graphicsType")
    mode = gpu.mode if device is None or not device.vgpuMode else _mode(gpu, device.vgpuMode)
    if graphics_type != gpu.configured_type and host.seats():
        raise _in_use(host.name, f"vGPUs run on host {host.name}.")
    if mode is not gpu.mode and any(seat.pci_id == gpu.pci_id for seat in host.seats()):
        raise _in_use(gpu.pci_id, f"vGPUs run on GPU {gpu.pci_id}.")
    return graphics_type, mode


def _mode(gpu: HostGpu, text: str) -> GpuMode:
    if text not in (GpuMode.SAME_SIZE, GpuMode.MIXED_SIZE):
        raise faults.wrong_argument("config.deviceType.vgpuMode")
    impossible = gpu.mode is GpuMode.MULTI_INSTANCE or (text == GpuMode.MIXED_SIZE and not gpu.board.mixed_size)
    if impossible:
        raise faults.wrong_argument("config.deviceType.vgpuMode", f"GPU {gpu.pci_id} cannot be set to {text}.")
    return GpuMode(text)


def _in_use(name: str, text: str) -> Exception:
    fault: Exception = vim.fault.ResourceInUse(msg=text, name=name)
    return fault
