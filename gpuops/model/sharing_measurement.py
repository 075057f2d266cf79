"""How VMs that share a GPU are measured: what is asked for, and what was measured so far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from gpuops.model.scheduler import SchedulerPolicy

PREFIX = "gpuops-measure-"
"""How the names of the VMs begin that a measurement makes."""


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


@dataclass(frozen=True, slots=True)
class SharingMeasurement:
    """One that was begun, as the state directory keeps it."""

    id: str
    """Eight hexadecimal digits, drawn for it; the names of its VMs have it."""
    wish: MeasureWish
    made: int = 0
    """So many VMs were to be made, before the first of them was asked for."""
    done: tuple[MeasuredCount, ...] = ()

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
        """What so many took; None = that is still to be measured, or has failed."""
        found = (each for each in self.done if (each.scheduler, each.sharers) == (scheduler, sharers))
        return next((each for each in found if each.times_s), None)

    def with_count(self, count: MeasuredCount) -> Self:
        """The same, with what a count came to, in place of what it came to before."""
        key = (count.scheduler, count.sharers)
        kept = tuple(each for each in self.done if (each.scheduler, each.sharers) != key)
        return replace(self, done=(*kept, count))
