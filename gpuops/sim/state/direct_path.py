"""The modes of DirectPath devices, and the DirectPath profiles of a vCenter with their reservations.

Sources: vSphere API 9.0, DirectPathProfileManager; vSphere API 9.1, HostPciPassthruInfoDirectPathDeviceMode; vSphere
Supervisor docs: VM classes are reserved for namespaces, in each zone. The Supervisor decides which VMs
take a reserved unit; here a reservation names them. MIG mode is not a device mode: here such a GPU serves vGPUs of one
size. Other devices than NVIDIA's GPUs belong to the host, or are passed through to VMs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.gpu_admission import GpuLoad, NotAdmitted, VgpuPolicy, WantedVgpu, admit
from gpuops.sim.state.host_state import SHARED_DIRECT, HostGpu, OtherHostDevice


@dataclass(frozen=True, slots=True)
class DirectPathConfig:
    """One unit of a DirectPath profile: a vGPU, a device group, or a whole device. The other fields are empty."""

    vgpu: str = ""
    """A vGPU type: `nvidia_a40-8q`."""
    group: str = ""
    """The name of a vendor device group."""
    devices: tuple[tuple[int, int], ...] = ()
    """(vendor id, device id) of Dynamic DirectPath I/O: any of these."""
    label: str | None = None
    """Hardware label of Dynamic DirectPath I/O."""

    def __str__(self) -> str:
        device_ids = " or ".join(f"{vendor:04x}:{device:04x}" for vendor, device in self.devices)
        return self.vgpu or self.group or (f"{device_ids} ({self.label})" if self.label else device_ids)


@dataclass(frozen=True, slots=True)
class DirectPathProfileState:
    """A DirectPath profile: a named configuration."""

    id: str
    name: str
    description: str
    config: DirectPathConfig


@dataclass(frozen=True, slots=True)
class ReservationState:
    """Units of a DirectPath configuration that a cluster reserves for some VMs."""

    config: DirectPathConfig
    units: int
    place: str
    """Moid of the cluster."""
    vms: tuple[str, ...] = ()
    """Names of the VMs that may use it; * stands for anything."""

    def is_for(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.vms)


@dataclass(slots=True)
class DirectPathState:
    """All of a vCenter, by the profiles' ids in the order they came."""

    profiles: dict[str, DirectPathProfileState] = field(default_factory=dict)
    reservations: tuple[ReservationState, ...] = ()


def count_more_vgpus(vgpu: str, gpus: Sequence[GpuLoad]) -> int:
    """Return how many more vGPUs of the type fit on these GPUs of one host; their order does not matter."""
    count = 0
    for gpu in gpus:
        running = tuple((seat.type.name, seat.start) for seat in gpu.seats)
        count += _count_on_gpu(vgpu, _GpuSituation(gpu.board.name, gpu.mode, gpu.serves_vgpus, running, gpu))
    return count


@dataclass(frozen=True, slots=True)
class _GpuSituation:
    """The properties of a GPU that decide how many vGPUs fit, as a cache key; `gpu` is any GPU with these."""

    board: str
    mode: GpuMode
    serves_vgpus: bool
    running: tuple[tuple[str, int | None], ...]
    """(type, start), in the order in which they came."""
    gpu: GpuLoad = field(compare=False)


@lru_cache(maxsize=8192)
def _count_on_gpu(vgpu: str, situation: _GpuSituation) -> int:
    """Return how many more vGPUs of the type the GPU admits, one after another."""
    gpu, number = situation.gpu, 0
    while True:
        admitted = admit("", [WantedVgpu(vgpu)], [gpu], VgpuPolicy.PERFORMANCE)
        if isinstance(admitted, NotAdmitted):
            return number
        gpu, number = replace(gpu, seats=(*gpu.seats, *admitted)), number + 1


HOST: Final = "host"
DIRECT_PATH: Final = "directPath"
SIZES: Final = {"vGpuSameSize": GpuMode.SAME_SIZE, "vGpuMixedSize": GpuMode.MIXED_SIZE}


def configured_mode(device: HostGpu | OtherHostDevice) -> str:
    """The mode that is configured, in the words of the vSphere API."""
    if isinstance(device, OtherHostDevice):
        return DIRECT_PATH if device.passthrough_enabled else HOST
    return _mode(device, passed_through=device.passthrough_enabled, graphics_type=device.configured_type)


def current_mode(gpu: HostGpu) -> str:
    return _mode(gpu, passed_through=gpu.passthrough_active, graphics_type=gpu.graphics_type)


def configurable_modes(device: HostGpu | OtherHostDevice) -> list[str]:
    """The modes that it can be configured to."""
    if isinstance(device, OtherHostDevice):
        return [HOST, DIRECT_PATH]
    has_mixed_size = device.board.mixed_size and device.mode is not GpuMode.MULTI_INSTANCE
    return [HOST, DIRECT_PATH, *(name for name in SIZES if has_mixed_size or name == "vGpuSameSize")]


def _mode(gpu: HostGpu, *, passed_through: bool, graphics_type: str) -> str:
    if passed_through:
        return DIRECT_PATH
    if graphics_type != SHARED_DIRECT:
        return HOST
    return "vGpuMixedSize" if gpu.mode is GpuMode.MIXED_SIZE else "vGpuSameSize"
