"""How far a run is, for the terminal that it is watched on: counted in desktops, with what is in flight and when it
ends.

A night counts the desktops that it suspends, a morning those that are back; where all of these have ended, ML VMs are
counted, and where a run has neither, its steps. `gpuops.cli` draws it and knows the clock.

A morning's end is estimated by its pace: with 12 of 40 desktops back in 6 minutes since the first one was sent, the 28
that are left take 14 minutes. ML VMs stop before that, so their time is no part of the pace. A desktop that hangs makes
the estimate later as time passes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from gpuops.model.time_text import format_clock, format_minute, format_stopwatch
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Outcome, Report, Verdict
from gpuops.plan.core.steps import (
    CloseGate,
    OpenGate,
    PowerOffForRemoval,
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    RemoveVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
)
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.returns.day import RotateDay
from gpuops.plan.rotation.returns.restore import RestoreVms
from gpuops.plan.rotation.returns.return_time import night_due
from gpuops.report.changes import vm_name
from gpuops.report.layout import shortened

BASIS: Final = 3
"""So many desktops must have ended before a pace is believed: the first of a host comes back alone."""

SHOWN: Final = 4
"""So many VMs in flight are named; of more than that the number."""

DOING: Final[Mapping[type[Step], str]] = {
    ReconfigureVm: "changing",
    RelocateVm: "moving",
    PowerOnVm: "starting",
    ResumeVm: "resuming",
    SuspendVm: "suspending",
    PowerOffVm: "powering off",
    ShutDownGuest: "shutting down",
    RunInGuest: "running the hook of",
    SetVmDrs: "setting DRS of",
    SetAttribute: "marking",
    CloseGate: "keeping users from",
    OpenGate: "letting users in to",
    PowerOffForRemoval: "powering off",
    RemoveVm: "removing",
}
"""What is being done to a VM while a step of it is in flight."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Steps of some kinds, and how many of them have ended."""

    label: str
    kinds: tuple[type[Step], ...]
    """Empty = all."""
    total: int = 0
    completed_steps: int = 0
    missed_steps: int = 0
    """Not done, and not tried again in this run."""

    @property
    def remaining(self) -> int:
        return self.total - self.completed_steps - self.missed_steps

    def counts(self, step: Step) -> bool:
        return not self.kinds or isinstance(step, self.kinds)

    def with_plan(self, steps: Collection[Step]) -> Tally:
        """With a plan for what is not done yet."""
        return replace(self, total=self.completed_steps + sum(map(self.counts, steps)), missed_steps=0)

    def with_outcome(self, outcome: Outcome) -> Tally:
        if not self.counts(outcome.step):
            return self
        if outcome.verdict in (Verdict.DONE, Verdict.ALREADY):
            return replace(self, completed_steps=self.completed_steps + 1)
        return replace(self, missed_steps=self.missed_steps + 1)


_NIGHT: Final = (Tally("desktops suspended", (SuspendVm, ShutDownGuest)), Tally("ML VMs started", (PowerOnVm,)))
_ML_STOPS: Final = (ShutDownGuest, PowerOffVm, SuspendVm)
_MORNING: Final = (Tally("desktops back", (ResumeVm, PowerOnVm)), Tally("ML VMs stopped", _ML_STOPS))
_STEPS: Final = Tally("steps", ())


@dataclass(frozen=True, slots=True)
class StepUnderWay:
    """A step in flight, and when it was first seen so, in seconds since some moment."""

    step: Step
    since_s: float


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far one run is. Each change is a new value."""

    tallies: tuple[Tally, ...]
    """The last one is of all steps."""
    before: Inventory
    began_s: float
    returns: bool = False
    """Whether it brings desktops back."""
    back_by: datetime | None = None
    """When they are due, in the zone of the policy; None = nothing tells."""
    in_flight: tuple[StepUnderWay, ...] = ()
    paced_from_s: float | None = None
    """When the first desktop was in flight."""

    def with_outcome(self, outcome: Outcome) -> RunProgress:
        """A step has ended."""
        in_flight = tuple(under_way for under_way in self.in_flight if under_way.step.vm != outcome.step.vm)
        tallies = tuple(tally.with_outcome(outcome) for tally in self.tallies)
        return replace(self, tallies=tallies, in_flight=in_flight)

    def with_in_flight(self, steps: Sequence[Step], now_s: float) -> RunProgress:
        """These are in flight now, and no others."""
        since_s = {(type(under_way.step), under_way.step.vm): under_way.since_s for under_way in self.in_flight}
        in_flight = tuple(StepUnderWay(step, since_s.get((type(step), step.vm), now_s)) for step in steps)
        paced_from_s = self.paced_from_s
        if paced_from_s is None and any(map(self.tallies[0].counts, steps)):
            paced_from_s = now_s
        return replace(self, in_flight=in_flight, paced_from_s=paced_from_s)

    @property
    def shown_tally(self) -> Tally:
        """What the bar shows: the first that is not at its end, else the first that there was."""
        of_vms = self.tallies[:-1]
        unfinished = (tally for tally in of_vms if tally.remaining)
        return next(unfinished, None) or next((tally for tally in of_vms if tally.total), self.tallies[-1])

    def remaining_s(self, now_s: float) -> float | None:
        """How long the desktops that are left take by the pace so far; None = too few have ended to tell, or none is
        left."""
        desktops = self.tallies[0]
        ended = desktops.completed_steps + desktops.missed_steps
        if not self.returns or self.paced_from_s is None or ended < BASIS or not desktops.remaining:
            return None
        return desktops.remaining * (now_s - self.paced_from_s) / ended


def start_progress(report: Report, now_s: float, now: datetime, earlier: RunProgress | None = None) -> RunProgress:
    """A run that is about to act. `earlier`: the same run with the plan that an outage of vCenter cut short."""
    request, steps = report.request, report.plan.steps
    day = request.day if isinstance(request, RestoreVms) else request
    if earlier is not None:
        tallies = earlier.tallies
    elif isinstance(day, RotateDay):
        tallies = (*_MORNING, _STEPS)
    else:
        tallies = (*_NIGHT, _STEPS) if isinstance(day, RotateNight) else (_STEPS,)
    due = night_due(day.policy, day.originals, now) if isinstance(day, RotateDay) else None
    return RunProgress(
        tuple(tally.with_plan(steps) for tally in tallies),
        report.before,
        earlier.began_s if earlier is not None else now_s,
        returns=isinstance(day, RotateDay),
        back_by=due.back_by.astimezone(due.zone) if due is not None else None,
    )


def progress_lines(progress: RunProgress, now_s: float, now: datetime, width: int) -> tuple[str, ...]:
    """What stands below the bar, none of it wider than `width` where that can be."""
    return (*_not_done(progress), *_end(progress, now_s, now), *_in_flight(progress, now_s, width))


def _not_done(progress: RunProgress) -> Iterator[str]:
    missed = sum(tally.missed_steps for tally in progress.tallies[:-1]) or progress.shown_tally.missed_steps
    if missed:
        yield f"{missed} not done"


def _end(progress: RunProgress, now_s: float, now: datetime) -> Iterator[str]:
    """`ETA 05:41, back_by 07:00 CET`, as far as it is known. `now` has the zone that is shown without `back_by`."""
    due, remaining_s = progress.back_by, progress.remaining_s(now_s)
    local_now = now.astimezone(due.tzinfo) if due is not None else now
    eta = _next_minute(local_now + timedelta(seconds=remaining_s)) if remaining_s is not None else None
    if due is None:
        if eta is not None:
            yield f"ETA {_clock(eta, local_now)} {eta.tzname()}"
        return
    back_by = f"back_by {_clock(due, local_now)} {due.tzname()}"
    if eta is not None:
        ends = f"ETA {_clock(eta, local_now)}"
        yield f"late: {ends} is after {back_by}" if eta > due else f"{ends}, {back_by}"
    elif progress.tallies[0].remaining:
        yield f"late: {back_by} is past" if local_now > due else back_by


def _next_minute(moment: datetime) -> datetime:
    """The end is never shown earlier than it is."""
    whole = moment.replace(second=0, microsecond=0)
    return whole if whole == moment else whole + timedelta(minutes=1)


def _clock(moment: datetime, now: datetime) -> str:
    """`05:41`, with its date where that is another one than today's."""
    return format_clock(moment) if moment.date() == now.date() else format_minute(moment)


def _in_flight(progress: RunProgress, now_s: float, width: int) -> Iterator[str]:
    """The VMs in flight, the one that takes longest first."""
    longest = sorted(progress.in_flight, key=lambda under_way: under_way.since_s)
    for under_way in longest[:SHOWN]:
        doing, duration = DOING[type(under_way.step)], format_stopwatch(now_s - under_way.since_s)
        name = shortened(vm_name(under_way.step.vm, progress.before), width - len(f"  {doing}  {duration}"))
        yield f"  {doing} {name} {duration}"
    if len(longest) > SHOWN:
        yield f"  and {len(longest) - SHOWN} more"
