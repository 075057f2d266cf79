"""What limits a night: whether anything may be taken at this moment, which night is the next, and until when and how
much may be taken in it.

`night.py` plans within these bounds; `rotate skip-next` asks for the next night.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from itertools import chain
from typing import Final

from gpuops.errors import Refused, UsageError
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.night_record import Original
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.vm import Vm
from gpuops.model.window import Night, Weekday
from gpuops.plan.core.plan import Rejection
from gpuops.plan.rotation.ml_queue.ml_vms import Start
from gpuops.plan.rotation.returns.return_time import Durations, Load, ReturnTime
from gpuops.plan.rotation.taken_vms import RETURN_COMMAND

UNMEASURED_SUSPEND_S: Final = 300.0
UNMEASURED_START_S: Final = 120.0
UNMEASURED_MOVE_S: Final = 300.0
"""What is assumed where nothing was measured yet (assumption: suspend-duration)."""
_DAY: Final = timedelta(days=1)
_BACK: Final = f"{RETURN_COMMAND} brings back what a night took"
_NEXT: Final = f"gpuops rotate plan --policy FILE shows that night as it would be; {_BACK}"
_HOURS: Final = "say when it may take desktops (gpuops help windows), or `windows: any` where every hour is meant"
_LONGER: Final = "open it earlier, let `back_by` be later, or give ML VMs less time: `ml.stop.grace_s`, `checkpoint`"


def closed(policy: Policy, now: datetime, durations: Durations) -> Rejection | None:
    """The refusal of a night at this moment, whatever the desktops do; None = there is time, or no window."""
    if not policy.windows:
        return None
    night = policy.night_at(now)
    if night is None or not night.takes_at(now):
        hint = _BACK if night is not None else _NEXT if policy.next_night(now) is not None else _HOURS
        return Rejection(policy.name, _outside(policy, night, now), hint=hint, by_the_hour=True)
    # The least that a night can take is one desktop for one ML VM: where not even that can be returned in time, no
    # desktop needs to be looked at.
    least_load = Load({None: 1}, {}, {None: frozenset()}, {None: 1}, _least_grace_s(policy))
    needed = ReturnTime(policy, durations, night.back_by).reserve(None, least_load)
    back_by = night.back_by.astimezone(night.zone)
    latest = night.back_by - needed
    if latest <= night.opens:  # no moment of this window is early enough: it is the policy that must change
        length = night.back_by - night.opens
        rule = f"the window of {_text(length)} cannot hold the return: one desktop alone needs {_text(needed)}"
        return Rejection(policy.name, rule, hint=_LONGER)
    if now >= latest:
        begins = latest.astimezone(night.zone)
        rule = f"too late: desktops are back by {back_by:%H:%M}, and from {begins:%H:%M} on nothing is taken"
        return Rejection(policy.name, rule, hint=_BACK, by_the_hour=True)
    return None


def hours_unsaid(policy: Policy) -> Rejection | None:
    """The refusal of a night that nobody watches, where its policy does not say when it may take anything; None = it
    does. A clock that calls at the wrong hour would take the desktops of people at work."""
    if policy.windows or policy.any_time:
        return None
    rule = "has no `windows`: a night that cron, systemd or Ansible calls needs them"
    return Rejection(policy.name, rule, hint=_HOURS)


def evening_off(policy: Policy, now: datetime) -> str | None:
    """Why there is no night this evening, though the hour is one of a window's; None = there is one, or it is no such
    hour."""
    if policy.night_at(now) is not None or policy.next_night(now) is None:
        return None  # windows that never open are a mistake
    for window in policy.windows:
        day = window.evening_off(now)
        if day is not None:
            why = "`not_on` names it" if day in window.not_on else "it is none of its `weekdays`"
            named = f" of window {window.name}" if window.name else ""
            return f"no night on the evening of {Weekday.of(day).title()} {day}{named}: {why}"
    return None


def _outside(policy: Policy, night: Night | None, now: datetime) -> str:
    """That the window is closed, and when it opens again."""
    zone = policy.windows[0].zone
    local = f"outside the window: it is {now.astimezone(zone):%Y-%m-%d %H:%M} {zone}"
    if night is not None:
        return f"{local}, and it closed at {night.closes.astimezone(zone):%H:%M}"
    coming = policy.next_night(now)
    if coming is None:
        return f"{local}, and no night opens within a year"
    opens, closes = (moment.astimezone(zone) for moment in (coming.opens, coming.closes))
    until = f"{closes:%H:%M}" if coming.closes - coming.opens <= _DAY else f"{closes:%Y-%m-%d %H:%M}"
    return f"{local}, the next night is from {opens:%Y-%m-%d %H:%M} to {until}"


def _least_grace_s(policy: Policy) -> int:
    """The shortest checkpoint of the queue."""
    return min((queued.checkpoint.grace_s for queued in policy.ml), default=0)


def _text(length: timedelta) -> str:
    hours, minutes = divmod(int(length.total_seconds()) // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


@dataclass(frozen=True, slots=True)
class Skip:
    """What `rotate skip-next` did with one night."""

    policy: str
    night: Night
    skipped: bool
    """False = it is taken after all."""
    changed: bool
    """False = it was so already."""


def next_to_take(policy: Policy, originals: Iterable[Original], now: datetime) -> Night:
    """The night that is open and has not taken anything, or else the first to open.

    Raises UsageError for a policy without windows, Refused where no night opens within a year.
    """
    if not policy.windows:
        raise UsageError(f"{policy.name}: a policy without a window has no next night", hint="give it `windows`")
    tonight = policy.night_at(now)
    begun = {original.night for original in originals if original.taken}
    if tonight is not None and tonight.takes_at(now) and tonight.id not in begun:
        return tonight
    coming = policy.next_night(now)
    if coming is None:
        raise Refused(f"{policy.name}: no night opens within a year")
    return coming


def moment_to_take(policy: Policy, now: datetime) -> datetime:
    """Now, where there are no windows or one takes desktops now; else when the next one opens: a window that has closed
    is a night's until its desktops are due, and takes none any more. Raises as `next_to_take`."""
    night = policy.night_at(now)
    takes = not policy.windows or (night is not None and night.takes_at(now))
    return now if takes else next_to_take(policy, (), now).opens


@dataclass(frozen=True, slots=True)
class RunPeriod:
    """From when to when an ML VM is expected to run."""

    begins: datetime
    ends: datetime | None
    """When its host's desktops return, or its deadline if that is earlier; None = nobody has said."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one night, and what it has taken so far."""

    policy: Policy
    night: Night | None
    now: datetime
    durations: Durations = field(default_factory=Durations)
    away: tuple[Vm, ...] = ()
    """Desktops that this night has taken already."""
    running: tuple[tuple[Vm, QueuedVm], ...] = ()
    """ML VMs that it has started already."""

    def objection(self, starts: Sequence[Start]) -> str:
        """Which limit the last of these starts would exceed; empty = all of them may be.

        The others were accepted before it. They are asked again, since one more VM makes the return begin earlier.
        """
        load = self.load(starts)
        *others, last = starts
        return self._too_many(last, load) or self._too_late(last, load) or self._too_late_for(others, load)

    def load(self, starts: Iterable[Start]) -> Load:
        """What the morning has to return when all of these have started."""
        starts = tuple(starts)
        queued = [entry for _, entry in self.running] + [start.queued for start in starts]
        return Load.of(
            chain(self.away, *(start.desktops for start in starts)),
            chain((vm.host for vm, _ in self.running), (start.host.ref for start in starts)),
            max((entry.checkpoint.grace_s for entry in queued), default=0),
        )

    def return_at(self, host: str | None, load: Load) -> datetime | None:
        """From when on nothing is taken on the host; None = there is no window, and so no deadline."""
        if self.night is None:
            return None
        return ReturnTime(self.policy, self.durations, self.night.back_by).of(host, load)

    def run(self, start: Start, load: Load) -> RunPeriod:
        """When the VM would run, if this is what the morning has to return."""
        begins = self.now + self._time_to_start(start)
        ends = [self.return_at(start.host.ref, load), start.queued.due(self.night)]
        return RunPeriod(begins, min((end for end in ends if end is not None), default=None))

    def _time_to_start(self, start: Start) -> timedelta:
        """How long it takes until the VM runs: its desktops suspend, it moves, it starts."""
        host = start.host.ref
        rounds = -(-len(start.desktops) // self.policy.limits.per_host)
        seconds = rounds * self.durations.p99_s("SuspendVm", host, UNMEASURED_SUSPEND_S)
        seconds += self.durations.p99_s("PowerOnVm", host, UNMEASURED_START_S)
        if start.moves:
            seconds += self.durations.p99_s("RelocateVm", host, UNMEASURED_MOVE_S)
        return timedelta(seconds=seconds)

    def _too_many(self, start: Start, load: Load) -> str:
        """Which limit of desktops the start would exceed; empty = none."""
        limits, host = self.policy.limits, start.host
        taken, here = sum(load.desktops.values()), load.desktops.get(host.ref, 0)
        if not start.desktops:
            return ""
        if limits.desktops is not None and taken > limits.desktops:
            return f"limit: {taken} desktops would be taken, {limits.desktops} at most in a night"
        if limits.desktops_per_host is not None and here > limits.desktops_per_host:
            return f"limit: {here} desktops of {host.name} would be taken, {limits.desktops_per_host} at most of a host"
        return ""

    def _too_late(self, start: Start, load: Load) -> str:
        """Why the VM would have too little time to run; empty = it has enough."""
        run = self.run(start, load)
        if run.ends is None:
            return ""
        due = start.queued.due(self.night)
        until = f"its deadline is {self._clock(run.ends)}" if run.ends == due else self._return(start, run.ends)
        if run.begins >= run.ends:
            return f"too late: {until}, and it would start at {self._clock(run.begins)}"
        least, left = start.queued.minimum_run, run.ends - run.begins
        if left < least:
            return f"would run for {_minutes(left)} min, {_minutes(least)} are the least: {until}"
        return ""

    def _return(self, start: Start, moment: datetime) -> str:
        """When the return to the host begins, for a message."""
        return f"the return to {start.host.name} begins at {self._clock(moment)}"

    def _too_late_for(self, others: Iterable[Start], load: Load) -> str:
        """Which of the starts before this one would then have too little time; empty = none."""
        reasons = ((other, self._too_late(other, load)) for other in others)
        return next((f"then {other.vm.name} {reason}" for other, reason in reasons if reason), "")

    def _clock(self, moment: datetime) -> str:
        """The moment in the zone of the window, with its date where it is a day away or more."""
        zone: tzinfo | None = self.night.zone if self.night is not None else None
        local = moment.astimezone(zone or moment.tzinfo)
        return f"{local:%H:%M}" if abs(moment - self.now) < _DAY else f"{local:%Y-%m-%d %H:%M}"


def _minutes(length: timedelta) -> int:
    return int(length.total_seconds()) // 60
