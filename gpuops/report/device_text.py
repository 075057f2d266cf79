"""GPU devices of VMs in a few words, and the document of a GPU's health."""

from __future__ import annotations

from typing import Annotated, Self, assert_never

from gpuops.model.devices.gpu import GpuHealth, RecoveryAction
from gpuops.model.vcenter.vm import (
    DirectPathDevice,
    DynamicDevice,
    GpuDevice,
    OtherPassthrough,
    VgpuDevice,
)
from gpuops.report.document import DocumentRecord


def describe_device(device: GpuDevice) -> str:
    """Return a GPU device of a VM in a few words: `vGPU grid_a100-3-20c`."""
    match device:
        case VgpuDevice(profile=profile):
            return f"vGPU {profile}"
        case DirectPathDevice(address=address):
            return f"DirectPath {address}"
        case DynamicDevice(allowed=allowed, label=label):
            return describe_dynamic(allowed, label)
        case OtherPassthrough(label=label, unreadable=True):
            return f"unknown device {label}"
        case OtherPassthrough(label=label):
            return f"other device {label}"
        case _:
            assert_never(device)


def describe_dynamic(allowed: tuple[tuple[int, int], ...], label: str | None) -> str:
    ids = ", ".join(f"{vendor:04x}:{device:04x}" for vendor, device in allowed)
    return f"Dynamic DirectPath {ids}" + (f" label {label}" if label else "")


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
