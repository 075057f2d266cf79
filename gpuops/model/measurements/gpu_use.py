"""What GPUs and VMs use at a moment, by vCenter's newest performance samples. None = not known, never zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpuops.model.devices.gpu import PciAddress


@dataclass(frozen=True, slots=True)
class MeasuredUse:
    """What one GPU, or the vGPUs of one VM together, use."""

    utilization_percent: float | None = None
    memory_used_mib: int | None = None
    temperature_c: int | None = None
    """Known of GPUs only."""
    power_w: int | None = None
    """Known of GPUs only, as the following ones. From here on they come from the nvidia-smi of the host."""
    power_limit_w: int | None = None
    clock_mhz: int | None = None
    """Of its streaming multiprocessors."""
    ecc_uncorrected: int | None = None
    """Memory errors since the host's last boot that were not corrected."""
    slowed_by_heat: bool | None = None
    slowed_by_power: bool | None = None


UNKNOWN_USE = MeasuredUse()


@dataclass(frozen=True, slots=True)
class CurrentUse:
    """What was asked for, of GPUs by the host (ref) and the address, of VMs by ref; what is not there is unknown."""

    asked: datetime
    """By vCenter's clock."""
    gpus: Mapping[tuple[str, PciAddress], MeasuredUse] = field(default_factory=dict)
    vms: Mapping[str, MeasuredUse] = field(default_factory=dict)

    def gpu(self, host: str, address: PciAddress) -> MeasuredUse:
        return self.gpus.get((host, address), UNKNOWN_USE)

    def vm(self, ref: str) -> MeasuredUse:
        return self.vms.get(ref, UNKNOWN_USE)
