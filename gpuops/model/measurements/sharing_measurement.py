"""How VMs that share a GPU are measured: what is asked for, and what was measured so far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.scheduler import SchedulerPolicy, VgpuScheduler
from gpuops.model.stored import stored_as

PREFIX = "gpuops-measure-"
"""How the names of the VMs begin that a measurement makes."""


class MeasuredDevice(StrEnum):
    """What each VM of a count has."""

    SHARE = "share"
    """A vGPU of the profile that is measured."""
    WHOLE_VGPU = "whole-vgpu"
    """The vGPU that is a whole GPU."""
    DIRECT_PATH = "direct-path"
    """A GPU of the same model by DirectPath I/O."""


@stored_as("MeasureWish")
@dataclass(frozen=True, slots=True)
class MeasureWish:
    """VMs of a template that run a command on one GPU, so many at a time."""

    template: str
    profile: str
    command: str
    counts: tuple[int, ...]
    """Sorted; 1 is among them, by which the others are divided."""
    schedulers: tuple[SchedulerPolicy, ...] = ()
    """Empty = the one that is in force."""
    overlap: float = 1.0
    """The share of its work that each has beside the next; 1 = all begin together."""
    host: str | None = None
    """None = that of the template."""
    limit_s: int = 3600
    """What a command may take."""
    whole: bool = False
    """One VM with a whole GPU is measured beside them, by a vGPU and by DirectPath I/O."""
    sets_schedulers: bool = False
    """Those that are not in force are set in between, and at last the one that was."""


@stored_as("MeasuredCount")
@dataclass(frozen=True, slots=True)
class MeasuredCount:
    """What so many VMs on the GPU took."""

    scheduler: SchedulerPolicy
    sharers: int
    times_s: tuple[float, ...] = ()
    """Of each VM, in the order in which they began; empty = it failed."""
    apart_s: float = 0.0
    """Between the first start and the last one, where all were to begin together."""
    error: str = ""
    device: MeasuredDevice = MeasuredDevice.SHARE
    gpu_use: float | None = None
    """How much the GPU was used meanwhile, 0 to 1, by the counters of its host; None = they have no whole sample."""


@stored_as("SchedulerBefore")
@dataclass(frozen=True, slots=True)
class SchedulerBefore:
    """What a GPU's scheduler was set to before it was changed to measure under another one."""

    host: str
    """Ref."""
    gpu: PciAddress
    scheduler: VgpuScheduler
    options: str
    """All of the host's module options."""


@stored_as("SharingMeasurement")
@dataclass(frozen=True, slots=True)
class SharingMeasurement:
    """A measurement that was begun, as the state directory keeps it."""

    id: str
    """Eight hexadecimal digits, drawn for it; the names of its VMs have it."""
    wish: MeasureWish
    made: int = 0
    """The number of VMs to make, noted before the first request."""
    done: tuple[MeasuredCount, ...] = ()
    before: SchedulerBefore | None = None
    """The scheduler to restore at the end, and the measured GPU; None = the scheduler is not changed."""

    @property
    def marker(self) -> str:
        """Return the text in the notes of its VMs: only a VM with this text, and with such a name, is removed."""
        return f"Made by gpuops measure, measurement {self.id}; it is removed when that ends."

    def name(self, number: int) -> str:
        """Return the name of its VM with that number, from 1 on."""
        return f"{PREFIX}{self.id}-{number:02d}"

    def owns(self, name: str) -> bool:
        """Return whether a VM has the name of one that it made. A clone of such a VM has its notes, not its name."""
        return any(name == self.name(number) for number in range(1, self.made + 1))

    def measured_count(self, scheduler: SchedulerPolicy, sharers: int) -> MeasuredCount | None:
        """Return the count of so many VMs that share the GPU; None = still to be measured, or failed."""
        key = (MeasuredDevice.SHARE, scheduler, sharers)
        return next((count for count in self.done if count.times_s and _key(count) == key), None)

    def measured_whole(self, device: MeasuredDevice) -> MeasuredCount | None:
        """Return the count of one VM with a complete GPU, under any scheduler, since the GPU is not shared."""
        return next((count for count in self.done if count.times_s and count.device is device), None)

    def with_count(self, count: MeasuredCount) -> Self:
        """Return the same measurement with this count in place of an earlier one of the same key."""
        other_counts = tuple(other_count for other_count in self.done if _key(other_count) != _key(count))
        return replace(self, done=(*other_counts, count))


def _key(count: MeasuredCount) -> tuple[MeasuredDevice, SchedulerPolicy, int]:
    return count.device, count.scheduler, count.sharers
