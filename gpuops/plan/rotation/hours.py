"""Rotation, hours: whether anything may be taken at this moment at all; what that depends on is no desktop."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from gpuops.model.rotation import Policy
from gpuops.model.window import Night
from gpuops.plan.core.plan import Rejection
from gpuops.plan.rotation.durations import Durations
from gpuops.plan.rotation.ours import RETURN_COMMAND
from gpuops.plan.rotation.return_time import Load, ReturnTime

_BACK: Final = f"{RETURN_COMMAND} brings back what a night took"
_LONGER: Final = "open it earlier, let `back_by` be later, or give ML VMs less time: `ml.stop.grace_s`, `checkpoint`"


def closed(policy: Policy, now: datetime, durations: Durations) -> Rejection | None:
    """Why nothing is taken now, whatever the desktops do; None = there is time, or no window."""
    if not policy.windows:
        return None
    night = policy.night_at(now)
    if night is None or not night.takes_at(now):
        return Rejection(policy.name, _outside(policy, night, now), hint=_BACK)
    least = Load({None: 1}, {}, {None: frozenset()}, {None: 1}, _least_grace_s(policy))
    needed = ReturnTime(policy, durations, night.back_by).reserve(None, least)
    back_by = night.back_by.astimezone(night.zone)
    latest = night.back_by - needed
    if latest <= night.opens:
        length = night.back_by - night.opens
        rule = f"the window of {_text(length)} cannot hold the return: one desktop alone needs {_text(needed)}"
        return Rejection(policy.name, rule, hint=_LONGER)
    if now >= latest:
        begins = latest.astimezone(night.zone)
        rule = f"too late: desktops are back by {back_by:%H:%M}, and from {begins:%H:%M} on nothing is taken"
        return Rejection(policy.name, rule, hint=_BACK)
    return None


def _outside(policy: Policy, night: Night | None, now: datetime) -> str:
    zone = policy.windows[0].zone
    local = f"outside the window: it is {now.astimezone(zone):%Y-%m-%d %H:%M} {zone}"
    if night is not None:
        return f"{local}, and it closed at {night.closes.astimezone(zone):%H:%M}"
    coming = policy.next_night(now)
    if coming is None:
        return f"{local}, and no night opens within a year"
    opens, closes = (moment.astimezone(zone) for moment in (coming.opens, coming.closes))
    return f"{local}, the next night is from {opens:%Y-%m-%d %H:%M} to {closes:%H:%M}"


def _least_grace_s(policy: Policy) -> int:
    return min((queued.checkpoint.grace_s for queued in policy.ml), default=0)


def _text(length: timedelta) -> str:
    hours, minutes = divmod(int(length.total_seconds()) // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
