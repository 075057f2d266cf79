"""The modes of a device as vSphere 9.1 names them: configured, in force, and those that it can be configured to.

Source: vSphere API 9.1, HostPciPassthruInfoDirectPathDeviceMode. MIG mode is not one of them: here such a GPU serves
vGPUs of one size. Other devices than NVIDIA's GPUs belong to the host, or are passed through to VMs.
"""

from __future__ import annotations

from typing import Final

from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.host_state import SHARED_DIRECT, HostGpu, OtherHostDevice

HOST: Final = "host"
DIRECT_PATH: Final = "directPath"
SIZES: Final = {"vGpuSameSize": GpuMode.SAME_SIZE, "vGpuMixedSize": GpuMode.MIXED_SIZE}


def configured_mode(device: HostGpu | OtherHostDevice) -> str:
    """The mode that is configured, in the words of the vSphere API."""
    if isinstance(device, OtherHostDevice):
        return DIRECT_PATH if device.passthrough_enabled else HOST
    return _mode(device, passed_through=device.passthrough_enabled, graphics_type=device.configured_type)


def current_mode(gpu: HostGpu) -> str:
    """The mode that is in force."""
    return _mode(gpu, passed_through=gpu.passthrough_active, graphics_type=gpu.graphics_type)


def configurable_modes(device: HostGpu | OtherHostDevice) -> list[str]:
    """The modes that it can be configured to."""
    if isinstance(device, OtherHostDevice):
        return [HOST, DIRECT_PATH]
    mixed = device.board.mixed_size and device.mode is not GpuMode.MULTI_INSTANCE
    return [HOST, DIRECT_PATH, *(name for name in SIZES if mixed or name == "vGpuSameSize")]


def _mode(gpu: HostGpu, *, passed_through: bool, graphics_type: str) -> str:
    if passed_through:
        return DIRECT_PATH
    if graphics_type != SHARED_DIRECT:
        return HOST
    return "vGpuMixedSize" if gpu.mode is GpuMode.MIXED_SIZE else "vGpuSameSize"
