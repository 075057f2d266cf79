"""Health of a physical GPU, as the nvidia-smi of its host reports it.

Only what nvidia-smi itself prints is here. XIDs are not: ESXi writes them to vmkernel.log, and no query of nvidia-smi
lists them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

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
        # `recovery_action`: any action is worse than NONE
        return replace(
            self,
            is_lost=self.is_lost or report.is_lost,
            requires_reset=self.requires_reset or report.requires_reset,
            has_corrupt_inforom=self.has_corrupt_inforom or report.has_corrupt_inforom,
            error=self.error or report.error,
            recovery_action=min(actions, key=lambda action: action is RecoveryAction.NONE, default=None),
            is_row_remap_pending=any(remaps) if remaps else None,
        )


NOT_NAMED: Final = GpuHealth(is_lost=True, error="not in the answer of nvidia-smi")
"""The health of a GPU that the answer of nvidia-smi lacks, although the driver must have it."""
HEALTHY: Final = GpuHealth()
"""The health of a GPU about which nvidia-smi reported nothing bad."""
