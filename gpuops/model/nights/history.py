"""Past nights and changes in a journal: their runs, the VMs taken and returned, GPU-hours, and its audit.

Moments are those that vCenter showed for a suspend or a start where the journal has them, else those at which gpuops
noted the outcome. None means unknown, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Final

from gpuops.model.nights.night_record import Role
from gpuops.model.stored import stored_as
from gpuops.model.vcenter.owner import NotedOwner


@dataclass(frozen=True, slots=True)
class GpuHours:
    """GPUs times hours, between two bounds; `at_most` None = nothing bounds it."""

    at_least: float
    at_most: float | None

    @property
    def exact(self) -> float | None:
        """Return the figure; None = only its bounds are known."""
        return self.at_least if self.at_least == self.at_most else None

    def __add__(self, hours: GpuHours) -> GpuHours:
        at_most = None
        if self.at_most is not None and hours.at_most is not None:
            at_most = self.at_most + hours.at_most
        return GpuHours(self.at_least + hours.at_least, at_most)


NO_HOURS: Final = GpuHours(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class HeldPeriod:
    """A time for which a night held a VM: a desktop suspended or shut down, an ML VM running."""

    begins: datetime | None
    """None = not in the records."""
    ends: datetime | None = None
    """None = it has not ended, as far as the journal knows."""
    by_itself: bool = False
    """Whether it ended without a step of gpuops, at some moment before `ends`, when gpuops noticed it."""

    def hours(self, gpus: float | None) -> GpuHours:
        """Return the GPU-hours of a VM with so many GPUs."""
        if gpus is None or self.begins is None or self.ends is None:
            return GpuHours(0.0, None)
        most = gpus * max((self.ends - self.begins).total_seconds(), 0.0) / 3600
        # if the VM ended by itself, it may have ended at any time since the begin
        return GpuHours(0.0 if self.by_itself else most, most)

    def until(self, now: datetime) -> HeldPeriod:
        """Return the part before this moment; an open period counts until then."""
        return replace(self, ends=now if self.ends is None else min(self.ends, now))

    def since(self, moment: datetime) -> HeldPeriod:
        """Return the part from this moment on."""
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
    """None = it goes on, or its outcome is not known."""


@dataclass(frozen=True, slots=True)
class JobTime:
    """A time for which a job in a container was seen to run in a VM of a night."""

    owner: NotedOwner | None
    """None = the job has no owner, and the VM's owner is not noted."""
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
    """In their order; empty = the night did not take it."""
    closed: bool
    """Whether it was seen as it was before the night."""
    given_up: bool = False
    """Whether a person gave it up."""
    steps: tuple[PastStep, ...] = ()
    """In the order of their intents."""
    owner: NotedOwner | None = None
    """Its owner when the night took it; None = not read, or not noted by an older gpuops."""
    jobs: tuple[JobTime, ...] = ()
    """Those of jobs that ran in it, by their begin, where `owner` is known and the book of jobs was read."""

    def parts(self, period: HeldPeriod) -> Iterator[tuple[PastVm, HeldPeriod]]:
        """Yield the period in parts, each with the VM and the owner of the job that ran then, or the VM's own owner.

        A period without a known begin or end stays in one part: pass the part `until` now.
        """
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
        # what no job covers at the end; an empty period is yielded too
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
        """Return whether the VM is again as it was before the night."""
        return self.taken and not self.given_up and (self.closed or self.held[-1].ends is not None)

    @property
    def hours(self) -> GpuHours:
        return total(period.hours(self.gpus) for period in self.held)


@dataclass(frozen=True, slots=True)
class FreeGpus:
    """GPUs of one host that were free when a night began to use it."""

    gpus: float | None
    """None = unknown."""
    since: datetime


@dataclass(frozen=True, slots=True)
class RunBy:
    """The user who started a run, by the operating system of its machine; None = not noted by an older gpuops."""

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
    """None = it goes on, or was killed and no later run has ended it yet."""
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
    """The state of a night or a change."""

    DONE = "done"
    """A night: all VMs that it took are back. A change: it ended."""
    OPEN = "open"
    """Something is not back, or a run has not ended."""
    GIVEN_UP = "given up"
    """All VMs are back or given up, and a person gave up at least one."""
    NOTHING = "nothing taken"
    PARTLY = "partly done"
    """A change: it ended, and a step of it failed."""
    ABORTED = "aborted"
    """A change: it was ended before it was done."""


class EventKind(StrEnum):
    """The kind of an event in a history."""

    NIGHT = "night"
    CHANGE = "change"


@dataclass(frozen=True, slots=True)
class PastNight:
    """One night, from its first run to its last VM that is back."""

    kind: ClassVar[EventKind] = EventKind.NIGHT

    id: str
    """The id in `rotate status`; for a return from markers alone, whose night is not recorded, the id of its run."""
    vcenter: str
    begins: datetime
    policy: str | None
    """Name of the policy; None = it cannot be read."""
    runs: tuple[PastRun, ...]
    """The nights, and the returns that brought VMs of it back, oldest first."""
    vms: tuple[PastVm, ...]
    incidents: tuple[Incident, ...]
    by_markers: bool = False
    """Whether the journal holds only its return."""
    free: tuple[FreeGpus, ...] | None = None
    """The free GPUs on the hosts that it used; None = not noted by an older gpuops."""
    back_by: datetime | None = None
    """When its desktops had to be back; None = its policy has no windows, or cannot be read."""

    @property
    def desktops(self) -> tuple[PastVm, ...]:
        """Return the desktops that were taken."""
        return tuple(vm for vm in self.vms if vm.taken and not vm.is_ml)

    @property
    def ml(self) -> tuple[PastVm, ...]:
        """Return the ML VMs that ran."""
        return tuple(vm for vm in self.vms if vm.taken and vm.is_ml)

    @property
    def returned(self) -> int:
        return sum(vm.back for vm in self.desktops)

    @property
    def outcome(self) -> PastOutcome:
        taken_vms = [vm for vm in self.vms if vm.taken]
        if any(run.ends is None for run in self.runs) or not all(vm.back or vm.given_up for vm in taken_vms):
            return PastOutcome.OPEN
        if any(vm.given_up for vm in taken_vms):
            return PastOutcome.GIVEN_UP
        return PastOutcome.DONE if taken_vms else PastOutcome.NOTHING

    @property
    def harvested(self) -> GpuHours:
        """Return the GPU-hours of the ML VMs."""
        return total(vm.hours for vm in self.ml)

    @property
    def given(self) -> GpuHours:
        """Return the GPU-hours of the desktops, each from its suspend until it was back."""
        return total(vm.hours for vm in self.desktops)

    @property
    def available(self) -> GpuHours:
        """Return the available GPU-hours on the hosts that it used: those of the desktops, and those of free GPUs there
        until the end of the night."""
        ends = self._last_end()
        if self.free is None or ends is None:
            return self.given + GpuHours(0.0, None)
        return self.given + total(HeldPeriod(free_gpus.since, ends).hours(free_gpus.gpus) for free_gpus in self.free)

    def _last_end(self) -> datetime | None:
        """Return when the last VM was back; None = a VM is not back, or no VM was taken."""
        last_ends = [vm.held[-1].ends for vm in self.vms if vm.taken]
        return None if None in last_ends else max((end for end in last_ends if end is not None), default=None)

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
        if any(incident.what == GAVE_UP for incident in self.incidents):
            return PastOutcome.GIVEN_UP
        return PastOutcome.PARTLY if self.failed else PastOutcome.DONE


GAVE_UP: Final = "given up"


@dataclass(frozen=True, slots=True)
class PastEvents:
    """The events of a journal, newest first."""

    journal: str
    """The file, or the database without its password."""
    nights: tuple[PastNight, ...] = ()
    changes: tuple[PastChange, ...] = ()
    left_off: int = 0
    """So many older ones are not shown for the limit."""

    def only(self, *, since: datetime | None, kind: EventKind | None, limit: int | None) -> PastEvents:
        """Return the events that began since then, of this kind, and at most `limit` in all."""
        all_events: list[PastNight | PastChange] = [*self.nights, *self.changes]
        matching_events = [
            event
            for event in sorted(all_events, key=lambda event: event.begins, reverse=True)
            if (since is None or event.begins >= since) and (kind is None or event.kind is kind)
        ]
        shown_events = matching_events[:limit]
        return PastEvents(
            self.journal,
            tuple(event for event in shown_events if isinstance(event, PastNight)),
            tuple(event for event in shown_events if isinstance(event, PastChange)),
            len(matching_events) - len(shown_events),
        )

    def of_vcenter(self, uuid: str) -> PastEvents:
        """Return the events of one vCenter."""
        return replace(
            self,
            nights=tuple(event for event in self.nights if event.vcenter == uuid),
            changes=tuple(event for event in self.changes if event.vcenter == uuid),
        )

    @property
    def harvested(self) -> GpuHours:
        return total(night.harvested for night in self.nights)

    @property
    def available(self) -> GpuHours:
        return total(night.available for night in self.nights)


def total(hours: Iterable[GpuHours]) -> GpuHours:
    """Return the sum; as unknown as its parts."""
    return sum(hours, NO_HOURS)


def share_of(harvested: GpuHours, available: GpuHours) -> float | None:
    """Return the harvested share of the available hours, 1 = all; None if one is unknown, or nothing was available."""
    if harvested.exact is None or not available.exact:
        return None
    return harvested.exact / available.exact


@dataclass(frozen=True, slots=True)
class AuditedChain:
    """The records of one vCenter. Those before `bad` are as gpuops wrote them, in their order and without a gap."""

    vcenter: str
    good: int
    """So many records fit the ones before them."""
    first: datetime | None
    last: datetime | None
    """When the first and the last good record were written."""
    head: str
    """SEQ:CHECKSUM of the last good record: what to note elsewhere, to find out later whether the end was cut off."""
    bad: str = ""
    """The first record that does not fit, and what is wrong with it; empty = none."""


@dataclass(frozen=True, slots=True)
class Audit:
    """A whole journal."""

    journal: str
    """The file, or the database without its password."""
    chains: tuple[AuditedChain, ...]
    damage: str = ""
    """What is wrong with the database itself, or with a head that was asked for; empty = nothing."""

    @property
    def whole(self) -> bool:
        return not self.damage and not any(chain.bad for chain in self.chains)


class Thing(StrEnum):
    """What was given up."""

    HOST = "host"
    VM = "VM"


@stored_as("GivenUp")
@dataclass(frozen=True, slots=True)
class GivenUp:
    """One host or VM that was given up."""

    thing: Thing
    ref: str
    """Managed object id, as it was then."""
    uuid: str | None
    """Of the host's hardware, or the VM's instance uuid; None = not known."""
    name: str
    of: str
    """The change (`scheduler set`) or the night (`night 2026-11-14`) that waited for it."""
    at: datetime
    """When it was given up, by the clock of the journal."""
    runs: bool = True
    """Of a VM, whether it ran before: then it is back when it runs, else when it does not."""
