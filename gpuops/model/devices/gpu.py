"""Physical GPUs of a host and their PCI addresses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpuops.errors import UsageError
from gpuops.model.devices.gpu_health import GpuHealth
from gpuops.model.stored import stored_as

NVIDIA_VENDOR_ID: Final = 0x10DE

_SBDF = re.compile(
    r"(?:(?P<segment>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{1,2}):(?P<slot>[0-9a-f]{1,2})\.(?P<function>[0-7])"
)


@stored_as("PciAddress")
@dataclass(frozen=True, slots=True, order=True)
class PciAddress:
    """A PCI address, equal however it was spelled: `0000:3b:00.0`, `3B:00.0` and `00000000:3B:00.0` are one."""

    segment: int
    bus: int
    slot: int
    function: int

    @classmethod
    def parse(cls, text: str) -> PciAddress:
        """Parse a hexadecimal address, [segment:]bus:slot.function. Raises UsageError."""
        match = _SBDF.fullmatch(text.strip().lower())
        if match is None:
            raise UsageError(f"{text!r} is not a PCI address", hint="write it as 0000:3b:00.0")
        return cls(
            int(match["segment"] or "0", 16),
            int(match["bus"], 16),
            int(match["slot"], 16),
            int(match["function"]),
        )

    @classmethod
    def parse_or_none(cls, text: str) -> PciAddress | None:
        """Parse an address; None for a text that is not a PCI address."""
        try:
            return cls.parse(text)
        except UsageError:
            return None

    def __str__(self) -> str:
        return f"{self.segment:04x}:{self.bus:02x}:{self.slot:02x}.{self.function}"


class GraphicsType(StrEnum):
    """How a host uses a GPU (vSphere API, HostGraphicsInfo.graphicsType)."""

    BASIC = "basic"
    SHARED = "shared"
    DIRECT = "direct"
    SHARED_DIRECT = "sharedDirect"


class VgpuMode(StrEnum):
    """What vGPUs a GPU takes now (vSphere API 8.0.3, HostGraphicsInfo.vgpuMode)."""

    NONE = "none"
    SAME_SIZE = "sameSize"
    MIXED_SIZE = "mixedSize"
    MULTI_INSTANCE = "multiInstanceGpu"


class AssignmentPolicy(StrEnum):
    """Which GPU a host gives to the next vGPU in same-size mode (HostGraphicsConfig.sharedPassthruAssignmentPolicy)."""

    PERFORMANCE = "performance"
    CONSOLIDATION = "consolidation"


@stored_as("Passthrough")
@dataclass(frozen=True, slots=True)
class Passthrough:
    """DirectPath I/O state of a device: `enabled` is configured, `active` is in force; differing = reboot pending."""

    capable: bool
    enabled: bool
    active: bool
    label: str | None = None

    @property
    def reboot_pending(self) -> bool:
        return self.enabled != self.active


@stored_as("VgpuPlacement")
@dataclass(frozen=True, slots=True)
class VgpuPlacement:
    """One running vGPU as the host's own nvidia-smi tells it."""

    vm: str
    """Managed object id of its VM."""
    profile: str
    start: int | None = None
    """Where it lies on the GPU: its placement id (GB) in mixed-size mode, the first memory slice of its GPU instance in
    MIG mode; None in same-size mode, or where the host does not tell."""


@stored_as("PhysicalGpu")
@dataclass(frozen=True, slots=True)
class PhysicalGpu:
    """One GPU of a host: a PCI device and the unit of vGPU placement (a board may carry several)."""

    address: PciAddress
    name: str
    vendor_id: int
    device_id: int
    subsystem_id: int | None = None
    memory_mib: int | None = None
    graphics_type: GraphicsType | None = None
    """In force now; None for a GPU that the host's graphics stack does not list (passthrough) or does not tell."""
    vgpu_mode: VgpuMode | None = None
    configured_graphics_type: GraphicsType | None = None
    numa_node: int | None = None
    passthrough: Passthrough | None = None
    vms: tuple[str, ...] | None = None
    """Managed object ids of the VMs on it now (HostGraphicsInfo.vm); None = the host does not tell."""
    vgpus: tuple[VgpuPlacement, ...] | None = None
    """Each vGPU on it now; None = the host was not asked, for vCenter does not tell."""
    health: GpuHealth | None = None
    """As its host's nvidia-smi reports it; None = the host was not asked, or did not answer about this GPU."""
    gpu_instances: tuple[str, ...] | None = None
    """The GPU instances that it has and no others, by name; None = the host creates them as vGPUs start, as ESXi does.
    Only a question about a named layout sets it."""

    @property
    def passed_through(self) -> bool:
        """Return whether VMs get the complete device by DirectPath I/O, now or after a reboot of the host."""
        return self.passthrough is not None and (self.passthrough.active or self.passthrough.enabled)

    @property
    def serves_vgpus(self) -> bool:
        """Return whether vGPUs can start on it now: it is Shared Direct, not passed through, and its health allows
        it."""
        shared = self.graphics_type is GraphicsType.SHARED_DIRECT and not self.is_active_in_passthrough
        return shared and not self.vgpu_obstacle

    @property
    def is_active_in_passthrough(self) -> bool:
        """Return whether DirectPath I/O is in force for it."""
        return self.passthrough is not None and self.passthrough.active

    @property
    def vgpu_obstacle(self) -> str:
        """Return why its health allows no new vGPU; empty if it does, or if the host was not asked."""
        return self.health.vgpu_obstacle if self.health is not None else ""

    @property
    def admission_traits(self) -> tuple[object, ...]:
        """Return a key that is equal for GPUs that accept the same vGPUs if the same vGPUs run on them."""
        return (
            self.vendor_id,
            self.device_id,
            self.subsystem_id,
            self.name,
            self.graphics_type,
            self.configured_graphics_type,
            self.vgpu_mode,
            self.is_active_in_passthrough,
            self.vgpu_obstacle,
            self.gpu_instances,
        )
