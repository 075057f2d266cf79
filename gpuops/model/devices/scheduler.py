"""The vGPU scheduler of a physical GPU: how running vGPUs share its time, and the option for it by driver branch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpuops.model.stored import stored_as


class SchedulerPolicy(StrEnum):
    """How vGPUs share the GPU's time (NVIDIA vGPU docs, scheduling policies)."""

    BEST_EFFORT = "best-effort"
    """Each vGPU that has work; no time is left unused."""
    EQUAL_SHARE = "equal-share"
    """The same for each running vGPU."""
    FIXED_SHARE = "fixed-share"
    """1 / (maximum count of its type) for each vGPU, however many others run."""


class RoundRobin(StrEnum):
    """Which reading of RmPVMRL a driver branch has."""

    PLAIN = "plain"
    """Before vGPU 15: time slices, in milliseconds."""
    ADAPTIVE = "adaptive"
    """From vGPU 15 on: adaptive round robin, by frequency, which plain time slices switch off."""


FIRST_ADAPTIVE_RELEASE: Final = 525
"""The driver branch of vGPU 15 (NVIDIA vGPU docs, release notes)."""
LAST_PLAIN_RELEASE: Final = 510
"""The driver branch of vGPU 14; between the two there is no branch of vGPU."""


@dataclass(frozen=True, slots=True, order=True)
class DriverBranch:
    """A driver branch by its number: `R550`."""

    number: int

    @property
    def round_robin(self) -> RoundRobin | None:
        """Return how the driver branch reads RmPVMRL; None = no vGPU release has this branch."""
        if self.number >= FIRST_ADAPTIVE_RELEASE:
            return RoundRobin.ADAPTIVE
        return RoundRobin.PLAIN if self.number <= LAST_PLAIN_RELEASE else None

    def __str__(self) -> str:
        return f"R{self.number}"


@stored_as("TimeSlices")
@dataclass(frozen=True, slots=True)
class TimeSlices:
    """Plain time slices; None = the driver's default (2 ms for up to 8 vGPUs of the type, else 1 ms)."""

    time_slice_ms: int | None = None


@stored_as("Frequency")
@dataclass(frozen=True, slots=True)
class Frequency:
    """Adaptive round robin; None = the driver's default (480 Hz for up to 8 vGPUs of the type, else 960 Hz; 33)."""

    frequency_hz: int | None = None
    averaging: int | None = None


@stored_as("VgpuScheduler")
@dataclass(frozen=True, slots=True)
class VgpuScheduler:
    """What a GPU's scheduler is set to. `slices` None = as the driver's branch does it by itself."""

    policy: SchedulerPolicy
    slices: TimeSlices | Frequency | None = None
    weighted: bool = True
    """Whether the weighted scheduler is on, as it is unless somebody switched it off."""

    def __str__(self) -> str:
        words = [str(self.policy)]
        match self.slices:
            case TimeSlices(time_slice_ms=milliseconds):
                words.append("time slices" if milliseconds is None else f"{milliseconds} ms")
            case Frequency(frequency_hz=hertz, averaging=averaging):
                words += [f"{hertz} Hz"] if hertz is not None else []
                words += [f"averaging {averaging}"] if averaging is not None else []
            case None:
                pass
        return ", ".join(words if self.weighted else [*words, "not weighted"])


BEST_EFFORT: Final = VgpuScheduler(SchedulerPolicy.BEST_EFFORT)
