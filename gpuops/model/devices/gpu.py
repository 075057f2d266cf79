"""Physical GPUs of a host: their PCI addresses, and their health as the nvidia-smi of the host reports it.

The health has only what nvidia-smi itself prints. XIDs are not: ESXi writes them to vmkernel.log, and no query of
nvidia-smi lists them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from gpuops.errors import UsageError
from gpuops.model.stored import stored_as


class RecoveryAction(StrEnum):
    """What the driver asks the admin to do after an uncorrectable error, in the words of nvidia-smi.

    Source: NVIDIA GPU Memory Error Management, "Error Recovery and Response Flags"; `gpu_recovery_action` of
    `nvidia-smi -q -x`, which R580.159.04 prints (seen on an H100).
    """

    NONE = "None"
    RESET = "Reset"
    """End all work on the GPU, reset it, and use it again."""
    REBOOT = "Reboot"
    """The host must be rebooted, since its system may be in an inconsistent state."""
    DRAIN_P2P = "Drain P2P"
    """End work that uses peer-to-peer memory; the GPU then stays usable."""
    DRAIN_AND_RESET = "Drain and Reset"
    """Start nothing new on the GPU, and reset it when its work has ended."""


_NEEDS_RESET: Final = (RecoveryAction.RESET, RecoveryAction.REBOOT, RecoveryAction.DRAIN_AND_RESET)


@stored_as("GpuHealth")
@dataclass(frozen=True, slots=True)
class GpuHealth:
    """What the nvidia-smi of the host reported about the health of one GPU."""

    is_lost: bool = False
    """The GPU has fallen off the bus or is otherwise inaccessible (`GPU is lost`, exit status 15; NVIDIA nvidia-smi
    manual, RETURN VALUE). vCenter does not show it (assumption: lost-gpu-listed)."""
    requires_reset: bool = False
    """nvidia-smi prints `GPU requires reset` in place of values (NVML_ERROR_RESET_REQUIRED: "The GPU requires a reset
    before it can be used again"), or `Yes` as reset_required of gpu_reset_status."""
    has_corrupt_inforom: bool = False
    """`WARNING: infoROM is corrupted at gpu ...`, exit status 14. The answer itself is complete (NVIDIA nvidia-smi
    manual, RETURN VALUE)."""
    error: str = ""
    """Another error that nvidia-smi prints in place of values or of the whole GPU, for example `Unknown Error`."""
    recovery_action: RecoveryAction | None = None
    """None = the driver does not report it: it is older, or the answer could not be read."""
    is_row_remap_pending: bool | None = None
    """A memory row is remapped at the next reset of the GPU. Work goes on, and new work may start (NVIDIA GPU Memory
    Error Management). None = not reported: GPUs before Ampere have no row remapping."""

    @property
    def vgpu_obstacle(self) -> str:
        """Return why the GPU takes no new vGPU, as text that follows "it"; empty if its health allows one.

        This is the only place with that rule: capacity, placement and nights read it from here.
        """
        if self.is_lost:
            return "is lost (nvidia-smi)"
        if self.requires_reset or self.recovery_action in _NEEDS_RESET:
            return "requires a reset (nvidia-smi)"
        return ""

    @property
    def problems(self) -> tuple[str, ...]:
        """Return each problem in a few words, worst first; () = nvidia-smi reported none."""
        return tuple(self._problems())

    def _problems(self) -> Iterator[str]:
        if self.is_lost:
            yield "lost"
        if self.requires_reset:
            yield "requires reset"
        if self.recovery_action not in (None, RecoveryAction.NONE):
            yield f"recovery action: {self.recovery_action}"
        if self.error:
            yield self.error.lower()
        if self.has_corrupt_inforom:
            yield "infoROM corrupted"
        if self.is_row_remap_pending:
            yield "row remap pending"

    def merge(self, report: GpuHealth) -> GpuHealth:
        """Return what both answers of one nvidia-smi reported about the same GPU; the worse report counts."""
        remaps = [flag for flag in (self.is_row_remap_pending, report.is_row_remap_pending) if flag is not None]
        actions = [action for action in (self.recovery_action, report.recovery_action) if action is not None]
        return replace(
            self,
            is_lost=self.is_lost or report.is_lost,
            requires_reset=self.requires_reset or report.requires_reset,
            has_corrupt_inforom=self.has_corrupt_inforom or report.has_corrupt_inforom,
            error=self.error or report.error,
            # an action other than NONE, if one of the answers has it: False sorts before True
            recovery_action=min(actions, key=lambda action: action is RecoveryAction.NONE, default=None),
            is_row_remap_pending=any(remaps) if remaps else None,
        )


NOT_NAMED: Final = GpuHealth(is_lost=True, error="not in the answer of nvidia-smi")
"""The health of a GPU that the answer of nvidia-smi lacks, although the driver must have it."""
HEALTHY: Final = GpuHealth()
"""The health of a GPU about which nvidia-smi reported nothing bad."""


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
