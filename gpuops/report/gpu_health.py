"""The health of a GPU in JSON documents."""

from __future__ import annotations

from gpuops.model.devices.gpu_health import GpuHealth
from gpuops.report.document import Document


def health_document(health: GpuHealth | None) -> Document | None:
    """Return what nvidia-smi reported; None = its host was not asked, or did not answer about this GPU."""
    if health is None:
        return None
    return {
        "takes_vgpus": not health.vgpu_obstacle,
        "problems": list(health.problems),
        "lost": health.is_lost,
        "requires_reset": health.requires_reset,
        "inforom_corrupted": health.has_corrupt_inforom,
        "error": health.error,
        "recovery_action": health.recovery_action,
        "row_remap_pending": health.is_row_remap_pending,
    }
