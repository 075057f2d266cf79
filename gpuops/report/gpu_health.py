"""The health of a GPU in JSON documents."""

from __future__ import annotations

from typing import Annotated, Self

from gpuops.model.devices.gpu_health import GpuHealth, RecoveryAction
from gpuops.report.document import DocumentRecord


class GpuHealthRecord(DocumentRecord, frozen=True):
    """What the nvidia-smi of its host reports about the health of a GPU."""

    takes_vgpus: Annotated[bool, "false = it is lost or requires a reset, and no new vGPU is counted on it"]
    problems: Annotated[list[str], "each problem in a few words, the worst first"]
    lost: bool
    requires_reset: bool
    inforom_corrupted: bool
    error: Annotated[str, "another error that nvidia-smi printed, or empty"]
    recovery_action: Annotated[RecoveryAction | None, "null = the driver does not report it"]
    row_remap_pending: Annotated[bool | None, "null = not reported"]

    @classmethod
    def made_of(cls, health: GpuHealth) -> Self:
        return cls.from_attributes(
            health,
            takes_vgpus=not health.vgpu_obstacle,
            lost=health.is_lost,
            inforom_corrupted=health.has_corrupt_inforom,
            row_remap_pending=health.is_row_remap_pending,
        )
