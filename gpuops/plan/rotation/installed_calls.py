"""What the timers and cron lines of a machine call, and where that does not meet the windows of a policy. Pure.

Read are the forms that `rotate timers` writes and those of earlier releases: of `OnCalendar=` weekdays and times of day
with a zone, of a line of cron its five fields with `*` for the days and months. Any other form is named: it cannot be
compared.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Final
from zoneinfo import ZoneInfo

from gpuops.model.nights.rotation import Policy
from gpuops.model.nights.runners import Half
from gpuops.model.window import RETURN_FLOOR, Night, Weekday
from gpuops.plan.rotation.timers import minute_of_week, nights_ahead

_MINUTE: Final = timedelta(minutes=1)
_LATE: Final = timedelta(days=1)
_DAY_MINUTES: Final = 24 * 60
_WEEK_MINUTES: Final = 7 * _DAY_MINUTES
_WEEKDAYS: Final = tuple(Weekday)
_CALENDAR: Final = re.compile(
    r"((?P<days>[A-Za-z.,]+)\s+)?(\*-\*-\*\s+)?(?P<hours>[\d.,*/]+):(?P<minutes>[\d.,*/]+)(:0?0)?"
    r"(\s+(?P<zone>UTC|[A-Z][A-Za-z_+-]*(/[A-Za-z0-9_+-]+)+))?"
)
_CRON_LINE: Final = re.compile(r"(?P<when>(\S+\s+){5})(?P<words>.*\S)\s*")
_CRON_NAMES: Final = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *"}
_NEXT: Final = "gpuops rotate timers --policy FILE prints calls that do"


@dataclass(frozen=True, slots=True)
class InstalledCalls:
    """The calls of one half that one place has."""

    half: Half
    place: str
    """The file."""
    minutes: tuple[int, ...]
    """Of the week, from Monday 00:00 on, in order."""
    zone: tzinfo
    is_by_timer: bool
    """Whether `--by-timer` makes a call do nothing in hours of the other half."""
    policy_file: str | None = None
    """What `--policy` names; None = it names none."""
    unreadable: str = ""
    """The expression that cannot be compared; then there are no `minutes`."""


def calls_of_unit(half: Half, place: str, timer: str, service: str, machine_zone: tzinfo) -> Iterator[InstalledCalls]:
    """The calls of a timer of systemd with its service, both as text with their drop-ins."""
    words = _words(next(iter(reversed(_values(service, "ExecStart"))), ""))
    for calendar in _values(timer, "OnCalendar"):
        found = read_calendar(calendar)
        minutes, zone = found if found is not None else ((), None)
        yield InstalledCalls(
            half, place, minutes, ZoneInfo(zone) if zone else machine_zone, "--by-timer" in words,
            _policy_file(words), "" if found is not None else calendar,
        )  # fmt: skip


def calls_of_crontab(place: str, text: str, machine_zone: tzinfo, *, has_cron_tz: bool) -> Iterator[InstalledCalls]:
    """The calls of a file of cron. `has_cron_tz`: whether this cron reads `CRON_TZ`; another takes it for a variable
    of the environment, and calls in the machine's own hours."""
    zone = machine_zone
    for line in text.splitlines():
        setting = re.fullmatch(r"\s*CRON_TZ\s*=\s*[\"']?([^\"'\s]+)[\"']?\s*", line)
        if setting is not None and has_cron_tz:
            zone = _zone(setting[1]) or machine_zone
        name, _, after = line.strip().partition(" ")
        match = _CRON_LINE.fullmatch(f"{_CRON_NAMES[name]} {after}" if name in _CRON_NAMES else line.strip())
        if match is None or line.lstrip().startswith("#"):
            continue
        words = _words(match["words"].replace("\\%", "%"))
        half = next((half for half in Half if _has(words, "rotate", half)), None)
        if half is None:
            continue
        minutes = read_cron(match["when"])
        unreadable = match["when"].strip() if minutes is None else ""
        yield InstalledCalls(half, place, minutes or (), zone, "--by-timer" in words, _policy_file(words), unreadable)


def read_calendar(text: str) -> tuple[tuple[int, ...], str | None] | None:
    """The minutes of the week and the zone of an `OnCalendar=`; None = another form, or no such zone."""
    match = _CALENDAR.fullmatch(text.strip())
    if match is None or (match["zone"] and _zone(match["zone"]) is None):
        return None
    names = [name.title() for name in _WEEKDAYS]
    days = _numbers(match["days"] or "*", 0, 6, "..", names)
    hours, minutes = _numbers(match["hours"], 0, 23, ".."), _numbers(match["minutes"], 0, 59, "..", steps_on=True)
    if days is None or hours is None or minutes is None:
        return None
    return _of_week(days, hours, minutes), match["zone"]


def read_cron(fields: str) -> tuple[int, ...] | None:
    """The minutes of the week of a line's five fields; None = it names days or months."""
    minutes_field, hours_field, days, months, weekdays_field = fields.split()
    names = ["Sun", *(name.title() for name in _WEEKDAYS)]
    minutes, hours = _numbers(minutes_field, 0, 59, "-"), _numbers(hours_field, 0, 23, "-")
    weekdays = _numbers(weekdays_field.title(), 0, 7, "-", names)
    if (days, months) != ("*", "*") or minutes is None or hours is None or weekdays is None:
        return None
    return _of_week({(day - 1) % 7 for day in weekdays}, hours, minutes)


def _of_week(days: Iterable[int], hours: Iterable[int], minutes: Iterable[int]) -> tuple[int, ...]:
    hours, minutes = set(hours), set(minutes)
    return tuple(
        sorted(day * _DAY_MINUTES + hour * 60 + minute for day in days for hour in hours for minute in minutes)
    )


def _numbers(
    field: str, low: int, high: int, to: str, names: Sequence[str] = (), *, steps_on: bool = False
) -> set[int] | None:
    """The numbers of a list of `*`, numbers (or names), ranges, with or without a step; None = it is none.

    `steps_on`: a number with a step goes on to the highest, as for systemd.
    """
    found: set[int] = set()
    for part in field.split(","):
        values, _, step = part.partition("/")
        first, is_range, last = (str(low), to, str(high)) if values == "*" else values.partition(to)
        begins = _number(first, names)
        ends = _number(last, names) if is_range else high if step and steps_on else begins
        if begins is None or ends is None or not (low <= begins <= ends <= high) or not (step or "1").isdigit():
            return None
        found.update(range(begins, ends + 1, max(1, int(step or 1))))
    return found


def _number(text: str, names: Sequence[str]) -> int | None:
    return names.index(text) if text in names else int(text) if text.isdigit() else None


def _zone(name: str) -> tzinfo | None:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        return None


def _values(unit: str, key: str) -> list[str]:
    """The values of a key in the text of a unit; an empty one takes back those before it."""
    found: list[str] = []
    for value in re.findall(rf"(?m)^{key}[ \t]*=[ \t]*(.*?)[ \t]*$", unit):
        found = [*found, value] if value else []
    return found


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _has(words: Sequence[str], *pair: str) -> bool:
    return any(tuple(words[at : at + len(pair)]) == pair for at in range(len(words)))


def _policy_file(words: Sequence[str]) -> str | None:
    return next((after for word, after in pairwise(words) if word == "--policy"), None)


def misfits(policy: Policy, calls: Sequence[InstalledCalls], now: datetime) -> tuple[str, ...]:
    """Where these calls and the windows of the coming year do not meet, one line for each way; empty = they do, or
    nothing calls this policy."""
    if not calls or not policy.windows:
        return ()
    lines = [f"{each.place}: cannot compare {each.unreadable!r} with the windows" for each in calls if each.unreadable]
    if lines:
        return tuple(f"{line}; {_NEXT}" for line in lines)
    nights = nights_ahead(policy.windows, now)
    night_calls, day_calls = ([each for each in calls if each.half is half] for half in Half)
    never = [night for night in nights if first_call(night_calls, night.opens, night.returns_from) is None]
    late = [(night, at) for night in nights if (at := _late_return(day_calls, night)) is not None]
    unguarded = [each for each in day_calls if not each.is_by_timer]
    early = [
        (night, at) for night in nights if (at := first_call(unguarded, night.opens, night.returns_from)) is not None
    ]
    places = ", ".join(dict.fromkeys(each.place for each in calls))
    hours = ", ".join(dict.fromkeys(str(each.zone) for each in calls))
    where = f"{places}, in hours of {hours}"
    found = []
    if never:
        found.append(
            f"no call of `rotate night` comes in {len(never)} of {len(nights)} nights, first in that of "
            f"{_evening(never[0])} ({where})"
        )
    if late:
        night, at = late[0]
        due = night.returns_from.astimezone(night.zone)
        called = f"{at.astimezone(night.zone):%H:%M}" if at != night.returns_from + _LATE else "later than a day after"
        found.append(
            f"the first call of `rotate day` is late on {len(late)} of {len(nights)} mornings: after the night of "
            f"{_evening(night)} the return must begin by {_latest(night).astimezone(night.zone):%H:%M} (due from "
            f"{due:%H:%M}), and the first call is at {called} ({where})"
        )
    if early:
        night, at = early[0]
        found.append(
            f"`rotate day` is called in {len(early)} of {len(nights)} nights while the window is open, and ends them: "
            f"first that of {_evening(night)} at {at.astimezone(night.zone):%H:%M} ({where})"
        )
    return tuple(f"{text}; {_NEXT}" for text in found)


def first_call(calls: Iterable[InstalledCalls], begins: datetime, ends: datetime) -> datetime | None:
    """The first of these calls from one moment on and before the other; None = there is none."""
    found = [at for each in calls if (at := _first_of(each, begins, ends)) is not None]
    return min(found, default=None)


def _first_of(calls: InstalledCalls, begins: datetime, ends: datetime) -> datetime | None:
    moment = begins
    while moment < ends and calls.minutes:
        local = moment.astimezone(calls.zone)
        minute = minute_of_week(local)
        at = bisect_left(calls.minutes, minute)
        wait = (calls.minutes[at % len(calls.minutes)] - minute) % _WEEK_MINUTES
        if wait == 0:
            return moment
        # where clocks change before that call, each minute is looked at
        then = moment + wait * _MINUTE
        same = local.utcoffset() == then.astimezone(calls.zone).utcoffset()
        moment = then if same else moment + _MINUTE
    return None


def _latest(night: Night) -> datetime:
    """When the return of a night must begin."""
    return max(night.returns_from, night.back_by - RETURN_FLOOR)


def _late_return(calls: Sequence[InstalledCalls], night: Night) -> datetime | None:
    """The first call of a return where it is too late, a day after it is due where there is none; None = it is not."""
    at = first_call(calls, night.returns_from, night.returns_from + _LATE) or night.returns_from + _LATE
    return at if at > _latest(night) else None


def _evening(night: Night) -> str:
    return f"{night.opens.astimezone(night.zone):%a %Y-%m-%d %H:%M} {night.zone}"


def of_policy_file(calls: Iterable[InstalledCalls], file: str | None) -> tuple[InstalledCalls, ...]:
    """The calls that name this file for their policy, or name none; `file` None = all."""
    return tuple(each for each in calls if file is None or each.policy_file is None or each.policy_file == file)
