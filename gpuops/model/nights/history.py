"""What past nights and changes came to, as a journal tells it: who ran them, what was taken and is back, GPU-hours.

Moments are those that vCenter showed for a suspend or a start where the journal has them, else those at which gpuops
noted the outcome. None is unknown: never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Final

from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.owner import NotedOwner


@dataclass(frozen=True, slots=True)
class GpuHours:
    """GPUs times hours, between two bounds; `at_most` None = nothing bounds it."""

    at_least: float
    at_most: float | None

    @property
    def exact(self) -> float | None:
        """The figure; None = only its bounds are known."""
        return self.at_least if self.at_least == self.at_most else None

    def __add__(self, other: GpuHours) -> GpuHours:
        ends = self.at_most is not None and other.at_most is not None
        return GpuHours(
            self.at_least + other.at_least, (self.at_most or 0.0) + (other.at_most or 0.0) if ends else None
        )


NO_HOURS: Final = GpuHours(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class HeldPeriod:
    """A time for which a night held a VM: a desktop suspended or shut down, an ML VM running."""

    begins: datetime | None
    """None = no record tells."""
    ends: datetime | None = None
    """None = it has not ended, as far as the journal knows."""
    by_itself: bool = False
    """Not by a step of gpuops: it ended at some moment before `ends`, when that was seen."""

    def hours(self, gpus: float | None) -> GpuHours:
        """Of a VM with so many GPUs."""
        if gpus is None or self.begins is None or self.ends is None:
            return GpuHours(0.0, None)
        most = gpus * max((self.ends - self.begins).total_seconds(), 0.0) / 3600
        return GpuHours(0.0 if self.by_itself else most, most)

    def until(self, now: datetime) -> HeldPeriod:
        """The part before this moment; one that has not ended is taken to go on until then."""
        return replace(self, ends=now if self.ends is None else min(self.ends, now))

    def since(self, moment: datetime) -> HeldPeriod:
        """The part from this moment on."""
        return self if self.begins is None else replace(self, begins=max(self.begins, moment))


@dataclass(frozen=True, slots=True)
class PastStep:
    """One step of a night, or of its return, on a VM: from its intent until its outcome was noted."""

    what: str
    """`gate`, `suspend`, `start`, `resume`, `shutdown`."""
    begins: datetime
    ends: datetime | None = None
    """None = no outcome is known yet."""
    done: bool | None = None
    """None = it goes on, or what became of it is not known."""


@dataclass(frozen=True, slots=True)
class JobTime:
    """A time for which a job in a container was seen to run in a VM of a night."""

    owner: NotedOwner | None
    """None = it says none, and the VM's own is not noted."""
    begins: datetime
    ends: datetime | None = None
    """None = it has not ended, as far as is known."""


@dataclass(frozen=True, slots=True)
class PastVm:
    """One VM of a past night."""

    ref: str
    """Managed object id, as it was then."""
    uuid: str | None
    name: str
    role: Role
    profiles: tuple[str, ...]
    gpus: float | None
    """The whole GPUs that its vGPUs amount to; None = it has none, or one that the catalogue does not know."""
    held: tuple[HeldPeriod, ...]
    """In their order; none = the night did not take it."""
    closed: bool
    """Whether it was seen as it was before the night."""
    given_up: bool = False
    """Whether a person gave it up."""
    steps: tuple[PastStep, ...] = ()
    """In the order of their intents."""
    owner: NotedOwner | None = None
    """Whose it was when the night took it; None = nobody asked, or an older gpuops did not note that."""
    jobs: tuple[JobTime, ...] = ()
    """Those of jobs that ran in it, by their begin, where `owner` is known and the book of jobs was read."""

    def parts(self, period: HeldPeriod) -> Iterator[tuple[PastVm, HeldPeriod]]:
        """The period in parts, from its begin to its end: each with the VM as the owner's whose job ran then, or as it
        is where none did. One whose begin or end is not known is whole: ask for that `until` now."""
        if period.begins is None or period.ends is None:
            yield self, period
            return
        at = period.begins
        for job in self.jobs:
            begins, ends = max(job.begins, at), min(job.ends or period.ends, period.ends)
            if begins >= ends:
                continue
            if at < begins:
                yield self, replace(period, begins=at, ends=begins)
            yield replace(self, owner=job.owner), replace(period, begins=begins, ends=ends)
            at = ends
        if at < period.ends or at == period.begins:
            yield self, replace(period, begins=at)

    @property
    def is_ml(self) -> bool:
        return self.role is Role.ML

    @property
    def taken(self) -> bool:
        return bool(self.held)

    @property
    def back(self) -> bool:
        """Whether what the night took is as it was before."""
        return self.taken and not self.given_up and (self.closed or self.held[-1].ends is not None)

    @property
    def hours(self) -> GpuHours:
        return total(each.hours(self.gpus) for each in self.held)


@dataclass(frozen=True, slots=True)
class FreeGpus:
    """GPUs of one host that were free when a night began to use it."""

    gpus: float | None
    """None = that could not be told."""
    since: datetime


@dataclass(frozen=True, slots=True)
class RunBy:
    """Who started a run, as the operating system of its machine says; None = an older gpuops did not note that."""

    user: str | None
    machine: str | None
    pid: int

    def __str__(self) -> str:
        return f"{self.user}@{self.machine}" if self.user is not None and self.machine is not None else "unknown"


@dataclass(frozen=True, slots=True)
class PastRun:
    """One run of gpuops."""

    id: str
    kind: str
    """As it is typed: `rotate night`."""
    by: RunBy
    begins: datetime
    ends: datetime | None
    """None = it goes on, or was killed and nobody has ended it yet."""
    cut_off: bool = False
    """Whether another run had to end it."""


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that went wrong."""

    at: datetime
    about: str
    """Name of the VM or host, or the kind of the run."""
    what: str
    """`suspend failed`, `outcome unknown`, `cut off`, `given up`."""
    reason: str = ""


class PastOutcome(StrEnum):
    """How a night or a change stands."""

    DONE = "done"
    """A night: all that it took is back. A change: it ended."""
    OPEN = "open"
    """Something is not back, or a run has not ended."""
    GIVEN_UP = "given up"
    """Nothing is waited for any more, and a person gave up a part of it."""
    NOTHING = "nothing taken"
    PARTLY = "partly done"
    """A change: it ended, and a step of it failed."""
    ABORTED = "aborted"
    """A change: it was ended before it was done."""


class EventKind(StrEnum):
    """What a history is of."""

    NIGHT = "night"
    CHANGE = "change"


@dataclass(frozen=True, slots=True)
class PastNight:
    """One night, from its first run to its last VM that is back."""

    kind: ClassVar[EventKind] = EventKind.NIGHT

    id: str
    """As `rotate status` names it; of a return from markers alone, whose night no record tells, the id of its run."""
    vcenter: str
    begins: datetime
    policy: str | None
    """Name of the policy; None = it cannot be read."""
    runs: tuple[PastRun, ...]
    """The nights, and the returns that brought VMs of it back, oldest first."""
    vms: tuple[PastVm, ...]
    incidents: tuple[Incident, ...]
    by_markers: bool = False
    """Whether the journal knows of its return alone."""
    free: tuple[FreeGpus, ...] | None = None
    """What was free on the hosts that it used; None = an older gpuops did not note that."""
    back_by: datetime | None = None
    """When its desktops had to be back; None = its policy has no windows, or cannot be read."""

    @property
    def desktops(self) -> tuple[PastVm, ...]:
        """Those that were taken."""
        return tuple(vm for vm in self.vms if vm.taken and not vm.is_ml)

    @property
    def ml(self) -> tuple[PastVm, ...]:
        """Those that ran."""
        return tuple(vm for vm in self.vms if vm.taken and vm.is_ml)

    @property
    def returned(self) -> int:
        return sum(vm.back for vm in self.desktops)

    @property
    def outcome(self) -> PastOutcome:
        taken = [vm for vm in self.vms if vm.taken]
        if any(run.ends is None for run in self.runs) or not all(vm.back or vm.given_up for vm in taken):
            return PastOutcome.OPEN
        if any(vm.given_up for vm in taken):
            return PastOutcome.GIVEN_UP
        return PastOutcome.DONE if taken else PastOutcome.NOTHING

    @property
    def harvested(self) -> GpuHours:
        """What the ML VMs had."""
        return total(vm.hours for vm in self.ml)

    @property
    def given(self) -> GpuHours:
        """What the desktops gave: from when each was suspended until it was back."""
        return total(vm.hours for vm in self.desktops)

    @property
    def available(self) -> GpuHours:
        """What could be had on the hosts that it used: what the desktops gave, and what was free there until the end
        of the night."""
        ends = self._last_end()
        if self.free is None or ends is None:
            return self.given + GpuHours(0.0, None)
        return self.given + total(HeldPeriod(each.since, ends).hours(each.gpus) for each in self.free)

    def _last_end(self) -> datetime | None:
        """When the last VM was as before; None = one is not, or none was taken."""
        held = [vm.held[-1].ends for vm in self.vms if vm.taken]
        return None if None in held else max((each for each in held if each is not None), default=None)

    @property
    def share(self) -> float | None:
        return share_of(self.harvested, self.available)


@dataclass(frozen=True, slots=True)
class PastChange:
    """One change of VMs or hosts."""

    kind: ClassVar[EventKind] = EventKind.CHANGE

    id: str
    vcenter: str
    verb: str
    """The command: `attach`, `scheduler set`."""
    run: PastRun
    subjects: tuple[str, ...]
    """Names of the hosts and VMs that steps were intended for."""
    incidents: tuple[Incident, ...]
    failed: bool = False
    """Whether the last step on one of them did."""

    @property
    def begins(self) -> datetime:
        return self.run.begins

    @property
    def outcome(self) -> PastOutcome:
        if self.run.ends is None:
            return PastOutcome.OPEN
        if self.run.cut_off:
            return PastOutcome.ABORTED
        if any(each.what == GAVE_UP for each in self.incidents):
            return PastOutcome.GIVEN_UP
        return PastOutcome.PARTLY if self.failed else PastOutcome.DONE


GAVE_UP: Final = "given up"


@dataclass(frozen=True, slots=True)
class PastEvents:
    """What was asked of a journal, newest first."""

    journal: str
    """The file, or the database without its password."""
    nights: tuple[PastNight, ...] = ()
    changes: tuple[PastChange, ...] = ()
    left_off: int = 0
    """So many older ones are not shown for the limit."""

    def only(self, *, since: datetime | None, kind: EventKind | None, limit: int | None) -> PastEvents:
        """Those that began since then, of this kind, and no more than the limit in all."""
        both: list[PastNight | PastChange] = [*self.nights, *self.changes]
        wanted = [
            each
            for each in sorted(both, key=lambda each: each.begins, reverse=True)
            if (since is None or each.begins >= since) and (kind is None or each.kind is kind)
        ]
        kept = wanted[:limit]
        return PastEvents(
            self.journal,
            tuple(each for each in kept if isinstance(each, PastNight)),
            tuple(each for each in kept if isinstance(each, PastChange)),
            len(wanted) - len(kept),
        )

    def of_vcenter(self, uuid: str) -> PastEvents:
        """Those of one vCenter."""
        return replace(
            self,
            nights=tuple(each for each in self.nights if each.vcenter == uuid),
            changes=tuple(each for each in self.changes if each.vcenter == uuid),
        )

    @property
    def harvested(self) -> GpuHours:
        return total(night.harvested for night in self.nights)

    @property
    def available(self) -> GpuHours:
        return total(night.available for night in self.nights)


def total(hours: Iterable[GpuHours]) -> GpuHours:
    """The sum; as unknown as its parts."""
    return sum(hours, NO_HOURS)


def share_of(harvested: GpuHours, available: GpuHours) -> float | None:
    """The part of what could be had, 1 = all of it; None where either is not known, or nothing could be had."""
    if harvested.exact is None or not available.exact:
        return None
    return harvested.exact / available.exact
