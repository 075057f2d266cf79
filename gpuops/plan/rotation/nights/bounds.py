"""The limits of a night: whether it may take anything at this moment, which night is the next, until when a night may
take desktops and how many.

`night.py` plans within these bounds; `rotate skip-next` uses the next night.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from math import ceil
from typing import Final

from gpuops.errors import Refused, UsageError
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.night_record import Original
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.time_text import format_clock, format_minute, format_minutes
from gpuops.model.vcenter.vm import Vm
from gpuops.model.window import Night, Weekday
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.rotation.ml_queue.ml_vms import Start
from gpuops.plan.rotation.returns.return_time import Durations, Load, ReturnTime
from gpuops.plan.rotation.taken_vms import RETURN_COMMAND

UNMEASURED_SUSPEND_S: Final = 300.0
UNMEASURED_START_S: Final = 120.0
UNMEASURED_MOVE_S: Final = 300.0
"""Assumed while nothing was measured (assumption: suspend-duration)."""
_MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)
_RETURN_HINT: Final = f"{RETURN_COMMAND} brings back what a night took"
_PREVIEW_HINT: Final = f"gpuops rotate plan --policy FILE previews that night; {_RETURN_HINT}"
_ADD_WINDOWS_HINT: Final = "add `windows` with its hours (gpuops help policy), or `windows: any` to allow every hour"
_MORE_TIME_HINT: Final = (
    "open the window earlier, set a later `back_by`, or shorten `ml.stop.grace_s` or the `checkpoint`"
)


def refuse_closed_window(policy: Policy, now: datetime, durations: Durations) -> Rejection | None:
    """Return the refusal of any night at this moment; None = there is enough time, or the policy has no window."""
    if not policy.windows:
        return None
    night = policy.night_at(now)
    if night is None or not night.takes_at(now):
        if night is not None:  # its window has closed, and its desktops are not back by now
            hint = _RETURN_HINT
        else:
            hint = _PREVIEW_HINT if policy.next_night(now) is not None else _ADD_WINDOWS_HINT
        return Rejection(policy.name, _outside_window(policy, night, now), hint=hint, by_the_hour=True)
    # A night takes at least one desktop for one ML VM. If not even these can be returned in time, no desktop needs to
    # be checked.
    least_grace_s = min((queued.checkpoint.grace_s for queued in policy.ml), default=0)
    # One desktop and one ML VM, both on an unknown host and without a datastore.
    least_load = Load({None: 1}, {}, {None: frozenset()}, {None: 1}, least_grace_s)
    needed = ReturnTime(policy, durations, night.back_by).reserve(None, least_load)
    latest = night.back_by - needed
    if latest <= night.opens:  # no moment of this window is early enough, so the policy must change
        length_text, needed_text = format_minutes(night.back_by - night.opens), format_minutes(needed)
        reason = f"the window of {length_text} cannot hold the return: one desktop alone needs {needed_text}"
        return Rejection(policy.name, reason, hint=_MORE_TIME_HINT)
    if now >= latest:
        due_clock, latest_clock = (format_clock(moment.astimezone(night.zone)) for moment in (night.back_by, latest))
        reason = f"too late: desktops must be back by {due_clock}, so nothing is taken from {latest_clock} on"
        return Rejection(policy.name, reason, hint=_RETURN_HINT, by_the_hour=True)
    return None


def refuse_without_hours(policy: Policy) -> Rejection | None:
    """Return the refusal of an unattended night whose policy does not say when it may take desktops, or None.

    A timer that calls at the wrong hour would take the desktops of people at work.
    """
    if policy.windows or policy.any_time:
        return None
    reason = "has no `windows`: a night that cron, systemd or Ansible calls needs them"
    return Rejection(policy.name, reason, hint=_ADD_WINDOWS_HINT)


def evening_off(policy: Policy, now: datetime) -> str | None:
    """Return why the policy has no night this evening although the hour is inside a window; otherwise None."""
    if policy.night_at(now) is not None or policy.next_night(now) is None:
        return None  # if no window ever opens, the policy is wrong and `refuse_closed_window` refuses the night
    for window in policy.windows:
        day = window.evening_off(now)
        if day is not None:
            cause = "`not_on` names it" if day in window.not_on else "it is not one of its `weekdays`"
            window_text = f" of window {window.name}" if window.name else ""
            return f"no night on the evening of {Weekday.of(day).title()} {day}{window_text}: {cause}"
    return None


def _outside_window(policy: Policy, night: Night | None, now: datetime) -> str:
    """Return that the window is closed, and when it opens again."""
    zone = policy.windows[0].zone
    local = f"outside the window: it is {format_minute(now.astimezone(zone))} {zone}"
    if night is not None:
        return f"{local}, and it closed at {format_clock(night.closes.astimezone(zone))}"
    coming = policy.next_night(now)
    if coming is None:
        return f"{local}, and no night opens within a year"
    opens, closes = (moment.astimezone(zone) for moment in (coming.opens, coming.closes))
    until = format_clock(closes) if coming.closes - coming.opens <= _DAY else format_minute(closes)
    return f"{local}, the next night is from {format_minute(opens)} to {until}"


@dataclass(frozen=True, slots=True)
class Skip:
    """How `rotate skip-next` changed one night."""

    policy: str
    night: Night
    skipped: bool
    """False = the skip was undone."""
    changed: bool
    """False = the night was already in this state."""


def next_night_to_take(policy: Policy, originals: Iterable[Original], now: datetime) -> Night:
    """Return the open night if it has not taken anything, otherwise the next one to open.

    Raises UsageError for a policy without windows, Refused if no night opens within a year.
    """
    if not policy.windows:
        raise UsageError(f"{policy.name}: a policy without a window has no next night", hint="add `windows` to it")
    tonight = policy.night_at(now)
    begun = {original.night for original in originals if original.taken}
    if tonight is not None and tonight.takes_at(now) and tonight.id not in begun:
        return tonight
    coming = policy.next_night(now)
    if coming is None:
        raise Refused(f"{policy.name}: no night opens within a year", hint=_ADD_WINDOWS_HINT)
    return coming


def moment_to_take(policy: Policy, now: datetime) -> datetime:
    """Return `now` if there are no windows or one of them takes desktops now, otherwise when the next one opens.

    A closed window still belongs to its night until the desktops are due, but takes none. Raises the errors of
    `next_night_to_take`.
    """
    night = policy.night_at(now)
    takes = not policy.windows or (night is not None and night.takes_at(now))
    return now if takes else next_night_to_take(policy, (), now).opens


@dataclass(frozen=True, slots=True)
class RunPeriod:
    """When an ML VM is expected to start and to stop."""

    begins: datetime
    ends: datetime | None
    """When the desktops of its host return, or its deadline if that is earlier; None = neither is set."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one night, and the VMs that it has taken so far."""

    policy: Policy
    night: Night | None
    now: datetime
    durations: Durations = field(default_factory=Durations)
    taken_desktops: tuple[Vm, ...] = ()
    """Desktops that this night has already taken."""
    running: tuple[tuple[Vm, QueuedVm], ...] = ()
    """ML VMs that it has already started."""

    def objection(self, starts: Sequence[Start]) -> str:
        """Return the limit that the last of these starts would exceed; empty = all of them are allowed.

        The others were accepted before. They are checked again, since one more VM makes the return begin earlier.
        """
        load = self.load(starts)
        *earlier, new_start = starts
        objection = self._too_many(new_start, load) or self._too_late(new_start, load)
        if objection:
            return objection
        for start in earlier:
            reason = self._too_late(start, load)
            if reason:
                return f"then {start.vm.name} {reason}"
        return ""

    def load(self, starts: Iterable[Start]) -> Load:
        """Return the load of the morning after all of these have started."""
        starts = tuple(starts)
        queued = [queued_vm for _, queued_vm in self.running] + [start.queued for start in starts]
        return Load.of(
            chain(self.taken_desktops, *(start.desktops for start in starts)),
            chain((vm.host for vm, _ in self.running), (start.host.ref for start in starts)),
            max((queued_vm.checkpoint.grace_s for queued_vm in queued), default=0),
        )

    def return_at(self, host: str | None, load: Load) -> datetime | None:
        """Return when the return to the host begins; None = there is no window, and so no deadline."""
        if self.night is None:
            return None
        return ReturnTime(self.policy, self.durations, self.night.back_by).of(host, load)

    def run(self, start: Start, load: Load) -> RunPeriod:
        """Return when the VM would run, given the load of the morning."""
        host = start.host.ref
        # Before the VM runs, its desktops suspend, in rounds of `per_host`, and it may move.
        rounds = ceil(len(start.desktops) / self.policy.limits.per_host)
        seconds = rounds * self.durations.p99_s("SuspendVm", host, UNMEASURED_SUSPEND_S)
        seconds += self.durations.p99_s("PowerOnVm", host, UNMEASURED_START_S)
        if start.moves:
            seconds += self.durations.p99_s("RelocateVm", host, UNMEASURED_MOVE_S)
        possible_ends = [self.return_at(host, load), start.queued.due(self.night)]
        begins = self.now + timedelta(seconds=seconds)
        return RunPeriod(begins, min((end for end in possible_ends if end is not None), default=None))

    def _too_many(self, start: Start, load: Load) -> str:
        """Return the limit of desktops that the start would exceed, or an empty text."""
        limits, host = self.policy.limits, start.host
        all_taken, taken_on_host = sum(load.desktops.values()), load.desktops.get(host.ref, 0)
        if not start.desktops:
            return ""
        if limits.desktops is not None and all_taken > limits.desktops:
            return f"limit: {all_taken} desktops would be taken, and a night may take {limits.desktops}"
        if limits.desktops_per_host is not None and taken_on_host > limits.desktops_per_host:
            most = limits.desktops_per_host
            return (
                f"limit: {taken_on_host} desktops of {host.name} would be taken, and a night may take {most} of a host"
            )
        return ""

    def _too_late(self, start: Start, load: Load) -> str:
        """Return why the VM would have too little time to run; empty = it has enough."""
        run = self.run(start, load)
        if run.ends is None:
            return ""
        due = start.queued.due(self.night)
        until = "its deadline is" if run.ends == due else f"the return to {start.host.name} begins at"
        until = f"{until} {self._clock(run.ends)}"
        if run.begins >= run.ends:
            return f"too late: {until}, and it would start at {self._clock(run.begins)}"
        minimum, run_time = start.queued.minimum_run, run.ends - run.begins
        if run_time < minimum:
            return f"would run for {run_time // _MINUTE} min, {minimum // _MINUTE} min are required: {until}"
        return ""

    def _clock(self, moment: datetime) -> str:
        """Format the moment in the zone of the window, with its date if it is a day away or more."""
        local = moment.astimezone(self.night.zone if self.night is not None else moment.tzinfo)
        return format_clock(local) if abs(moment - self.now) < _DAY else format_minute(local)
