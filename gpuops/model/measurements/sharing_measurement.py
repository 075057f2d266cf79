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


@stored_as(
    "MeasureWish",
    template="template",
    profile="profile",
    command="command",
    counts="counts",
    schedulers="schedulers",
    overlap="overlap",
    host="host",
    limit_s="limit_s",
    whole="whole",
    sets_schedulers="sets_schedulers",
)
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


@stored_as(
    "MeasuredCount",
    scheduler="scheduler",
    sharers="sharers",
    times_s="times_s",
    apart_s="apart_s",
    error="error",
    device="device",
    gpu_use="gpu_use",
)
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


@stored_as("SchedulerBefore", host="host", gpu="gpu", scheduler="scheduler", options="options")
@dataclass(frozen=True, slots=True)
class SchedulerBefore:
    """What a GPU's scheduler was set to before it was changed to measure under another one."""

    host: str
    """Ref."""
    gpu: PciAddress
    scheduler: VgpuScheduler
    options: str
    """All of the host's module options."""


@stored_as("SharingMeasurement", id="id", wish="wish", made="made", done="done", before="before")
@dataclass(frozen=True, slots=True)
class SharingMeasurement:
    """One that was begun, as the state directory keeps it."""

    id: str
    """Eight hexadecimal digits, drawn for it; the names of its VMs have it."""
    wish: MeasureWish
    made: int = 0
    """So many VMs were to be made, before the first of them was asked for."""
    done: tuple[MeasuredCount, ...] = ()
    before: SchedulerBefore | None = None
    """What is set back at last, and the GPU that is measured until then; None = nobody changes it."""

    @property
    def marker(self) -> str:
        """What the notes of its VMs say: only a VM with that, and with such a name, is removed."""
        return f"Made by gpuops size --measure, measurement {self.id}; it is removed when that ends."

    def name(self, number: int) -> str:
        """Of its VM with that number, from 1 on."""
        return f"{PREFIX}{self.id}-{number:02d}"

    def owns(self, name: str) -> bool:
        """Whether a VM has the name of one that it made. One that somebody cloned of it has its notes, and another
        name."""
        return any(name == self.name(number) for number in range(1, self.made + 1))

    def measured(self, scheduler: SchedulerPolicy, sharers: int) -> MeasuredCount | None:
        """What so many took that shared the GPU; None = that is still to be measured, or has failed."""
        key = (MeasuredDevice.SHARE, scheduler, sharers)
        return next((each for each in self.done if each.times_s and _key(each) == key), None)

    def measured_whole(self, device: MeasuredDevice) -> MeasuredCount | None:
        """What one took with a whole GPU, under whichever scheduler: nobody shares it."""
        return next((each for each in self.done if each.times_s and each.device is device), None)

    def with_count(self, count: MeasuredCount) -> Self:
        """The same, with what a count came to, in place of what it came to before."""
        kept = tuple(each for each in self.done if _key(each) != _key(count))
        return replace(self, done=(*kept, count))


def _key(count: MeasuredCount) -> tuple[MeasuredDevice, SchedulerPolicy, int]:
    return count.device, count.scheduler, count.sharers
