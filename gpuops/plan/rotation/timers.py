"""Renders when cron or systemd calls the two halves of a rotation, from the windows of its policy. Pure.
`installed_calls.py` compares installed calls with the windows.

`rotate night` is called in each window until its return is due (`Night.returns_from`), `rotate day` at all other times.
The nights of the coming year, with both clock changes, are converted to clock times in the zone in which a line is
written. A line repeats every week, so it holds the calls of all weeks of the year together. Some calls therefore fall
into the hours of the other half, for example on the weekday of a holiday, or where the machine's clocks change on other
days than the policy's. `--by-timer` makes such a call do nothing.

Example: Mon to Thu from 20:00 to 05:00 in Berlin, desktops back by 07:00.

    night   Mon..Thu 20..23:00/10, Tue..Fri 00..04:00/10
    day     *-*-* 05..19:00/10, Mon,Sat,Sun 00..04:00/10, Fri..Sun 20..23:00/10
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final

from gpuops.errors import UsageError
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.nights.runners import Half
from gpuops.model.window import Night, Weekday, Window

EVERY_MINUTES: Final = 10
"""Minutes between two calls of a half during its hours; runners use the same interval."""
YEAR: Final = timedelta(days=371)
"""How far ahead the nights are computed: a year and a few days, so that every clock change of a year is included."""
_LOOK_BACK: Final = timedelta(days=10)
_DAY: Final = timedelta(days=1)
_WEEK: Final = timedelta(days=7)
_MINUTE: Final = timedelta(minutes=1)
_DAY_MINUTES: Final = 24 * 60
_WEEK_MINUTES: Final = 7 * _DAY_MINUTES
_NAMES: Final = tuple(day.title() for day in Weekday)


@dataclass(frozen=True, slots=True)
class CallLine:
    """Some calls of one half, as one line of systemd or cron: all these minutes in all these hours on these days."""

    weekdays: tuple[int, ...]
    """0 = Monday."""
    hours: tuple[int, ...]
    minutes: tuple[int, ...]
    zone: str | None
    """IANA name; None = the hours are the machine's own."""

    @property
    def systemd(self) -> str:
        """The value of `OnCalendar=` (systemd.time(7))."""
        days = "*-*-*" if len(self.weekdays) == len(_NAMES) else _format_ranges(self.weekdays, _NAMES, "..")
        hours = "*" if len(self.hours) == 24 else _format_ranges(self.hours, [f"{hour:02}" for hour in range(24)], "..")
        minutes = "00/10" if self._is_every_ten else ",".join(f"{minute:02}" for minute in self.minutes)
        return f"{days} {hours}:{minutes}" + (f" {self.zone}" if self.zone else "")

    @property
    def cron(self) -> str:
        """The five time fields of a crontab line (crontab(5)); a `CRON_TZ` line before it sets the zone."""
        numbers = sorted((day + 1) % 7 for day in self.weekdays)  # cron counts from Sunday
        days = "*" if len(numbers) == 7 else _format_ranges(numbers, "0123456", "-")
        hours = "*" if len(self.hours) == 24 else _format_ranges(self.hours, list(map(str, range(24))), "-")
        minutes = "*/10" if self._is_every_ten else ",".join(map(str, self.minutes))
        return f"{minutes} {hours} * * {days}"

    @property
    def _is_every_ten(self) -> bool:
        return self.minutes == tuple(range(0, 60, EVERY_MINUTES))


@dataclass(frozen=True, slots=True)
class Timers:
    """The calls of one policy as systemd and cron take them."""

    policy: str
    systemd: Mapping[Half, tuple[CallLine, ...]]
    cron: Mapping[Half, tuple[CallLine, ...]]
    machine_zone: str
    has_cron_tz: bool
    """Whether the lines of cron are in the zones of the windows, by `CRON_TZ`; otherwise in the machine's own hours."""


def render_timers(policy: Policy, now: datetime, machine_zone: tzinfo, *, has_cron_tz: bool) -> Timers:
    """Return the calls that the windows of the policy need in the year from now on.

    Without `CRON_TZ` the lines of cron cover the hours of summer and of winter. Raises UsageError for a policy without
    windows.
    """
    in_zones = call_lines(policy, now)
    cron = in_zones if has_cron_tz else call_lines(policy, now, machine_zone)
    return Timers(policy.name, in_zones, cron, str(machine_zone), has_cron_tz)


def call_lines(policy: Policy, now: datetime, machine_zone: tzinfo | None = None) -> dict[Half, tuple[CallLine, ...]]:
    """Return the calls that the windows of the policy need in the year from now on.

    The lines are in the zones of the windows. With `machine_zone` they are in that zone, for a cron that does not read
    `CRON_TZ`; they then hold the calls of summer time and of winter time together. Raises UsageError for a policy
    without windows.
    """
    if not policy.windows:
        raise UsageError(
            f"policy {policy.name} has no windows: no timer can tell when its night begins",
            hint="add `windows` to it (gpuops help policy)",
        )
    # Half -> the zone that its lines name, or None -> minutes of the week.
    minutes: dict[Half, defaultdict[str | None, set[int]]] = {half: defaultdict(set) for half in Half}
    for half, begins, ends, window_zone in _spans_of_halves(policy, now):
        zone = machine_zone or window_zone
        minutes[half][None if machine_zone is not None else str(zone)] |= _minutes_between(begins, ends, zone)
    if not minutes[Half.NIGHT]:
        raise UsageError(
            f"policy {policy.name} has no night in the coming year: its timers would never call",
            hint="give it windows with nights to come (gpuops help policy)",
        )
    return {
        half: tuple(line for zone in sorted(in_zones, key=str) for line in group_into_lines(in_zones[zone], zone))
        for half, in_zones in minutes.items()
    }


def _spans_of_halves(policy: Policy, now: datetime) -> Iterator[tuple[Half, datetime, datetime, tzinfo]]:
    """Yield the spans of the coming year in which a half is called: the half, begin, end, and the zone of its window
    (for `rotate day` that of the window before the span).

    On an evening that `not_on` excludes, neither half is called in the hours of the window: lines repeat every week, so
    a return called there would be called in the open window of every other week too.
    """
    for night in nights_ahead(policy.windows, now, _LOOK_BACK):
        yield Half.NIGHT, night.opens, night.returns_from, night.zone
    # `rotate day` is called from the return of each night until the next window opens, or for a week after the last.
    every_evening = [replace(window, not_on=frozenset()) for window in policy.windows]
    ends: datetime | None = None
    zone: tzinfo = policy.windows[0].zone
    for night in nights_ahead(every_evening, now, _LOOK_BACK):
        if ends is not None and ends < night.opens:
            yield Half.DAY, ends, night.opens, zone
        if ends is None or ends < night.returns_from:
            ends, zone = night.returns_from, night.zone
    if ends is not None and ends + _WEEK < now + YEAR:  # the policy has no more nights
        yield Half.DAY, ends, ends + _WEEK, zone


def nights_ahead(windows: Iterable[Window], now: datetime, before: timedelta = _DAY) -> list[Night]:
    """Return the nights of these windows whose evening is between `now - before` and `now + YEAR`, sorted."""
    first = (now - before).date()
    days = [first + number * _DAY for number in range((YEAR + before).days)]
    nights = (window.night_of(day) for window in windows for day in days)
    return sorted((night for night in nights if night is not None), key=lambda night: night.opens)


def _minutes_between(begins: datetime, ends: datetime, zone: tzinfo) -> frozenset[int]:
    """Return the minutes of the week, in the zone's clock time, at which calls are made in this span.

    They are its first minute and every full ten minutes after it: 20:05 to 20:30 gives 20:05, 20:10 and 20:20.
    """
    local = begins.astimezone(zone)
    length = int((ends - begins) / _MINUTE)
    if length >= _WEEK_MINUTES or local.utcoffset() == ends.astimezone(zone).utcoffset():
        return _minutes_of_span(minute_of_week(local), min(length, _WEEK_MINUTES))
    call_minutes, moment = set(), begins  # the UTC offset changes: convert each call on its own
    while moment < ends:
        minute = minute_of_week(moment.astimezone(zone))
        call_minutes.add(minute)
        moment += (EVERY_MINUTES - minute % EVERY_MINUTES) * _MINUTE
    return frozenset(call_minutes)


@lru_cache(maxsize=4096)
def _minutes_of_span(first: int, length: int) -> frozenset[int]:
    """Return the minutes of the week of calls in a span of `length` minutes that begins at minute `first`."""
    tens = range(first + EVERY_MINUTES - first % EVERY_MINUTES, first + length, EVERY_MINUTES)
    return frozenset(minute % _WEEK_MINUTES for minute in (first, *tens))


def minute_of_week(local: datetime) -> int:
    """Return the minutes since Monday 00:00."""
    return local.weekday() * _DAY_MINUTES + local.hour * 60 + local.minute


def group_into_lines(minutes: Collection[int], zone: str | None) -> Iterator[CallLine]:
    """Yield the lines that call at exactly these minutes of the week.

    Hours with the same minutes on the same days share a line.

    >>> monday, tuesday = 0, 24 * 60
    >>> calls = {monday + 20 * 60, monday + 21 * 60, tuesday + 20 * 60, tuesday + 21 * 60}
    >>> [line.systemd for line in group_into_lines(calls, None)]
    ['Mon,Tue 20,21:00']
    """
    # 1. The minutes at which each hour of each day is called.
    minutes_of: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for minute in sorted(minutes):
        day, hour = minute // _DAY_MINUTES, minute % _DAY_MINUTES // 60
        minutes_of[day, hour].append(minute % 60)
    # 2. The days on which an hour is called at the same minutes.
    days_of: defaultdict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
    for (day, hour), called_at in sorted(minutes_of.items()):
        days_of[hour, tuple(called_at)].append(day)
    # 3. The hours that are called at the same minutes on the same days.
    hours_of: defaultdict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = defaultdict(list)
    for (hour, minutes_in_hour), days in sorted(days_of.items()):
        hours_of[tuple(days), minutes_in_hour].append(hour)
    # Sorted by days, then by hours.
    for (weekdays, minutes_in_hour), hours in sorted(hours_of.items(), key=lambda line: (line[0][0], line[1])):
        yield CallLine(weekdays, tuple(hours), minutes_in_hour, zone)


def _format_ranges(numbers: Sequence[int], names: Sequence[str], range_sign: str) -> str:
    """Return the names of these numbers as a list of ranges: `Mon..Thu,Sat`. `names[i]` is the name of i."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    parts = []
    for span in spans:
        if len(span) <= 2:  # two neighbours are no range: `Mon,Tue`
            parts += [names[number] for number in span]
        else:
            parts.append(f"{names[span[0]]}{range_sign}{names[span[-1]]}")
    return ",".join(parts)
