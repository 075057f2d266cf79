"""Parses the timers and cron lines of a machine, and compares their calls with the windows of a policy. Pure.

It reads the forms that `rotate timers` writes, and those that earlier releases wrote: in `OnCalendar=` weekdays and
times of day with an optional zone; in a cron line the five fields, with `*` for the day of the month and the month, or
one of cron's names for them. Any other form is reported as an expression that cannot be compared. A call that is made
only when the machine starts has no hours of its own, and is never the call of a night.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise
from posixpath import normpath
from typing import Final
from zoneinfo import ZoneInfo

from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.nights.runners import Half
from gpuops.model.time_text import format_clock, format_minute
from gpuops.model.window import RETURN_FLOOR, Night, Weekday
from gpuops.plan.rotation.timers import minute_of_week, nights_ahead

_MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)
_DAY_MINUTES: Final = 24 * 60
_WEEK_MINUTES: Final = 7 * _DAY_MINUTES
_WEEKDAYS: Final = tuple(Weekday)
_CALENDAR: Final = re.compile(
    r"((?P<days>[A-Za-z.,]+)\s+)?(\*-\*-\*\s+)?(?P<hours>[\d.,*/]+):(?P<minutes>[\d.,*/]+)(:0?0)?"
    r"(\s+(?P<zone>[A-Za-z][A-Za-z0-9_+/-]*))?"
)
_CRON_LINE: Final = re.compile(r"\s*(?P<when>@\S+|\S+(\s+\S+){4})\s+(?P<words>.*\S)\s*")
_CRON_NAMES: Final = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0"}
_AT_BOOT: Final = "@reboot"
_REPEATING: Final = ("OnUnitActiveSec", "OnUnitInactiveSec")
"""Settings of a timer that call again and again, at hours that depend on when it was started (systemd.timer(5))."""
_RENDER_HINT: Final = "gpuops rotate timers --policy FILE prints calls that fit the windows"


@dataclass(frozen=True, slots=True)
class InstalledCalls:
    """The calls of one half of a rotation in one systemd timer or one line of a cron file."""

    half: Half
    place: str
    """The file."""
    minutes: tuple[int, ...]
    """The minutes of the week at which it is called, ascending; 0 = Monday 00:00 in `zone`. Empty if it is called at no
    fixed hour, for example only when the machine starts."""
    zone: tzinfo
    is_by_timer: bool
    """Whether `--by-timer` makes a call do nothing in hours of the other half."""
    policy_file: str | None = None
    """The argument of `--policy`, without `.` and `..` and doubled slashes; None = the call has no `--policy`."""
    unreadable: str = ""
    """The calendar expression that could not be parsed; `minutes` is then empty. Empty if it was parsed."""


def calls_of_unit(half: Half, place: str, timer: str, service: str, machine_zone: tzinfo) -> Iterator[InstalledCalls]:
    """Yield the calls of a systemd timer; `timer` and `service` are their texts with drop-ins."""
    # A unit may have several commands: the last one is taken for the call.
    command = next(iter(reversed(_read_values(service, "ExecStart"))), "")
    # systemd writes a percent sign as `%%` and a dollar sign as `$$`.
    words = [word.replace("%%", "%").replace("$$", "$") for word in _split_words(command)]
    is_by_timer, policy_file = "--by-timer" in words, _policy_file(words)
    calendars = _read_values(timer, "OnCalendar")
    if not calendars:
        # A timer that only repeats, for example with OnUnitActiveSec=, has no times of the week to compare.
        repeating = ", ".join(f"{key}={setting}" for key in _REPEATING for setting in _read_values(timer, key))
        yield InstalledCalls(half, place, (), machine_zone, is_by_timer, policy_file, unreadable=repeating)
    for calendar in calendars:
        times = read_calendar(calendar)
        minutes, zone = times if times is not None else ((), None)
        yield InstalledCalls(
            half, place, minutes, ZoneInfo(zone) if zone else machine_zone, is_by_timer, policy_file,
            unreadable="" if times is not None else calendar,
        )  # fmt: skip


def calls_of_crontab(place: str, text: str, machine_zone: tzinfo, *, has_cron_tz: bool) -> Iterator[InstalledCalls]:
    """Yield the calls in the text of a cron file; `place` is its path.

    `has_cron_tz`: whether this machine's cron reads `CRON_TZ`. Any other cron treats `CRON_TZ` as an environment
    variable, and the hours of its lines are those of `machine_zone`.
    """
    zone = machine_zone
    for line in text.splitlines():
        setting = re.fullmatch(r"\s*CRON_TZ\s*=\s*[\"']?([^\"'\s]+)[\"']?\s*", line)
        if setting is not None and has_cron_tz:
            zone = _zone_or_none(setting[1]) or machine_zone
        match = _CRON_LINE.fullmatch(line)
        if match is None or line.lstrip().startswith("#"):
            continue
        # In a command of cron, `\%` is a percent sign. A call has the words `rotate night` or `rotate day`.
        words = _split_words(match["words"].replace("\\%", "%"))
        pairs = set(pairwise(words))
        half = next((half for half in Half if ("rotate", str(half)) in pairs), None)
        if half is None:
            continue
        minutes = () if match["when"] == _AT_BOOT else read_cron(match["when"])
        unreadable = match["when"] if minutes is None else ""
        yield InstalledCalls(half, place, minutes or (), zone, "--by-timer" in words, _policy_file(words), unreadable)


def read_calendar(text: str) -> tuple[tuple[int, ...], str | None] | None:
    """Return the minutes of the week and the zone of an `OnCalendar=`; None = unknown form, or no such zone."""
    match = _CALENDAR.fullmatch(text.strip())
    if match is None or (match["zone"] and _zone_or_none(match["zone"]) is None):
        return None
    names = [name.title() for name in _WEEKDAYS]
    days = _parse_list(match["days"] or "*", 0, 6, "..", names)
    hours = _parse_list(match["hours"], 0, 23, "..", step_runs_to_high=True)
    minutes = _parse_list(match["minutes"], 0, 59, "..", step_runs_to_high=True)
    if days is None or hours is None or minutes is None:
        return None
    return _list_minutes(days, hours, minutes), match["zone"]


def read_cron(fields: str) -> tuple[int, ...] | None:
    """Return the minutes of the week of five cron fields or a name such as `@daily`; None = unknown form."""
    five_fields = _CRON_NAMES.get(fields, fields).split()
    if len(five_fields) != 5:
        return None
    minutes_field, hours_field, days, months, weekdays_field = five_fields
    names = ["Sun", *(name.title() for name in _WEEKDAYS)]
    minutes, hours = _parse_list(minutes_field, 0, 59, "-"), _parse_list(hours_field, 0, 23, "-")
    weekdays = _parse_list(weekdays_field.title(), 0, 7, "-", names)
    if (days, months) != ("*", "*") or minutes is None or hours is None or weekdays is None:
        return None
    return _list_minutes({(day - 1) % 7 for day in weekdays}, hours, minutes)


def _list_minutes(days: Iterable[int], hours: Iterable[int], minutes: Iterable[int]) -> tuple[int, ...]:
    hours, minutes = set(hours), set(minutes)
    return tuple(
        sorted(day * _DAY_MINUTES + hour * 60 + minute for day in days for hour in hours for minute in minutes)
    )


def _parse_list(
    field: str, low: int, high: int, range_sign: str, names: Sequence[str] = (), *, step_runs_to_high: bool = False
) -> set[int] | None:
    """Return the numbers in a comma-separated list, or None if the list cannot be parsed.

    Each part is `*`, a number, a name (`names[i]` means i) or a range, with an optional step: `1,5-9/2` is 1, 5, 7, 9.
    `range_sign` separates the ends of a range. `step_runs_to_high`: a single number with a step runs up to `high`, as
    systemd reads it.
    """
    numbers: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, is_range, last = (str(low), range_sign, str(high)) if span == "*" else span.partition(range_sign)
        begins = _parse_number(first, names)
        ends = _parse_number(last, names) if is_range else high if step and step_runs_to_high else begins
        if begins is None or ends is None or not (low <= begins <= ends <= high) or not (step or "1").isdecimal():
            return None
        numbers.update(range(begins, ends + 1, max(1, int(step or 1))))
    return numbers


def _parse_number(text: str, names: Sequence[str]) -> int | None:
    return names.index(text) if text in names else int(text) if text.isdecimal() else None


def _zone_or_none(name: str) -> tzinfo | None:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        return None


def _read_values(unit: str, key: str) -> list[str]:
    """Return the values of a key in the text of a unit. An empty value discards the earlier ones (systemd.unit(5))."""
    settings: list[str] = []
    for text in re.findall(rf"(?m)^{key}[ \t]*=[ \t]*(.*?)[ \t]*$", re.sub(r"\\\n[ \t]*", " ", unit)):
        settings = [*settings, text] if text else []
    return settings


def _split_words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _policy_file(words: Sequence[str]) -> str | None:
    after_equals = next((word.partition("=")[2] for word in words if word.startswith("--policy=")), None)
    path = after_equals or next((argument for word, argument in pairwise(words) if word == "--policy"), None)
    return path and normpath(path)


def misfits(policy: Policy, calls: Sequence[InstalledCalls], now: datetime) -> tuple[str, ...]:
    """Return one line for each kind of mismatch between these calls and the nights of the coming year.

    Empty if they match, if there are no calls, or if the policy has no windows. If some calls cannot be compared, only
    those are reported. `now` is an aware datetime.
    """
    if not calls or not policy.windows:
        return ()
    lines = [f"{call.place}: cannot compare {call.unreadable!r} with the windows" for call in calls if call.unreadable]
    if lines:
        return tuple(f"{line}; {_RENDER_HINT}" for line in lines)
    nights = nights_ahead(policy.windows, now)
    night_calls, day_calls = ([call for call in calls if call.half is half] for half in Half)
    # `rotate day --by-timer` waits until the return is due. Without the option it ends an open night at once.
    unconditional_calls = [call for call in day_calls if not call.is_by_timer]
    nights_without_call: list[Night] = []
    late_returns: list[tuple[Night, datetime]] = []
    """Nights with the first call of `rotate day` after them."""
    early_returns: list[tuple[Night, datetime]] = []
    """Nights with the first call that ends them while their window is open."""
    for night in nights:
        if first_call(night_calls, night.opens, max(night.returns_from, night.opens + _MINUTE)) is None:
            nights_without_call.append(night)
        # If no call is made within a day after the return is due, the end of that day counts.
        a_day_later = night.returns_from + _DAY
        return_call = first_call(day_calls, night.returns_from, a_day_later) or a_day_later
        if return_call > _latest_start(night):
            late_returns.append((night, return_call))
        ending_call = first_call(unconditional_calls, night.opens, night.returns_from)
        if ending_call is not None:
            early_returns.append((night, ending_call))
    places = ", ".join(dict.fromkeys(call.place for call in calls))
    zones = ", ".join(dict.fromkeys(str(call.zone) for call in calls))
    where = f"{places}, in hours of {zones}"
    mismatches = []
    if nights_without_call:
        mismatches.append(
            f"no call of `rotate night` comes in {len(nights_without_call)} of {len(nights)} nights, first in that of "
            f"{_evening(nights_without_call[0])} ({where})"
        )
    if late_returns:
        night, first_return = late_returns[0]
        due = night.returns_from.astimezone(night.zone)
        is_within_a_day = first_return != night.returns_from + _DAY
        call_clock = format_clock(first_return.astimezone(night.zone))
        call_text = f"comes at {call_clock}" if is_within_a_day else "does not come within a day"
        latest = format_clock(_latest_start(night).astimezone(night.zone))
        mismatches.append(
            f"the first call of `rotate day` is late on {len(late_returns)} of {len(nights)} mornings: after the night "
            f"of {_evening(night)} the return must begin by {latest} (due from "
            f"{format_clock(due)}), and the first call {call_text} ({where})"
        )
    if early_returns:
        night, first_return = early_returns[0]
        mismatches.append(
            f"`rotate day` is called in {len(early_returns)} of {len(nights)} nights while the window is open, and "
            f"ends them: first that of {_evening(night)} at {format_clock(first_return.astimezone(night.zone))} "
            f"({where})"
        )
    return tuple(f"{text}; {_RENDER_HINT}" for text in mismatches)


def first_call(calls: Iterable[InstalledCalls], begins: datetime, ends: datetime) -> datetime | None:
    """Return when the first of these calls is made in `begins` <= moment < `ends`, or None."""
    moments = (_first_call_of(timer, begins, ends) for timer in calls)
    return min((moment for moment in moments if moment is not None), default=None)


def _first_call_of(calls: InstalledCalls, begins: datetime, ends: datetime) -> datetime | None:
    """Return the first moment from `begins` on, and before `ends`, at which one of these calls is made, or None."""
    moment = begins
    while moment < ends and calls.minutes:
        local = moment.astimezone(calls.zone)
        minute = minute_of_week(local)
        position = bisect_left(calls.minutes, minute)
        wait = (calls.minutes[position % len(calls.minutes)] - minute) % _WEEK_MINUTES
        if wait == 0:
            return moment
        # If the UTC offset changes before that call, the wait is wrong: go there minute by minute.
        call_moment = moment + wait * _MINUTE
        has_same_offset = local.utcoffset() == call_moment.astimezone(calls.zone).utcoffset()
        moment = call_moment if has_same_offset else moment + _MINUTE
    return None


def _latest_start(night: Night) -> datetime:
    """Return the latest moment at which a call of `rotate day` is not late."""
    return max(night.returns_from, night.back_by - RETURN_FLOOR)


def _evening(night: Night) -> str:
    opens = night.opens.astimezone(night.zone)
    return f"{Weekday.of(opens.date()).title()} {format_minute(opens)} {night.zone}"


def of_policy_file(calls: Iterable[InstalledCalls], file: str | None) -> tuple[InstalledCalls, ...]:
    """Return the calls whose `--policy` is this file, and those without `--policy`. With `file` None return all."""
    return tuple(call for call in calls if file is None or call.policy_file is None or call.policy_file == file)
