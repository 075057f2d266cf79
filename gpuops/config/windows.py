"""Reads and checks the windows of a policy: the days, times and time zone in which a night may run.

Days are weekdays and dates, ranges of them, and the public holidays of a country. Holidays come from the library
`holidays`, which is imported if a policy names a country.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from msgspec import UNSET, Meta, UnsetType

from gpuops.config.decoding import Section, was_accepted
from gpuops.model.file_keys import Before, Mistaken, Reads, Text
from gpuops.model.time_text import format_clock
from gpuops.model.window import RETURN_FLOOR, Weekday, Window

_CLOCK: Final = "([01][0-9]|2[0-3]):[0-5][0-9]"
_DATE: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME_OF_DAY: Final = re.compile(rf"((?P<on>{_DATE}|[A-Za-z]+) +)?(?P<clock>{_CLOCK}|24:00)")
_HOLIDAYS: Final = re.compile(r"holidays (?P<country>[A-Z]{2})(-(?P<part>[A-Z0-9]{1,4}))?")
_FULL_NAMES: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NAME: Final = "|".join("".join(f"[{letter.upper()}{letter}]" for letter in name) for name in (*Weekday, *_FULL_NAMES))
"""A pattern of a weekday in any case, for JSON Schema, which has no such flag."""
_YEARS: Final = range(2020, 2061)
"""The years whose holidays are computed. Fixed, so that reading a policy does not depend on the current date."""
_LONGEST_RANGE: Final = timedelta(days=366)
_DAYS_HINT: Final = "write 2026-12-24, 2026-12-24..2027-01-01, or `holidays DE-BY` for the public holidays of a country"
_DAY = timedelta(days=1)
_LONGEST_NIGHT = timedelta(days=31)
_MONDAY = date(2027, 1, 4)
"""Any Monday: the nights of the three weeks from it on are compared. Fixed, so that the result is always the same."""


def _weekday(text: str) -> Weekday:
    """Return a weekday by its short or full name, in any case."""
    name = text.strip().lower()
    if name in _FULL_NAMES:
        return list(Weekday)[_FULL_NAMES.index(name)]
    try:
        return Weekday(name)
    except ValueError:
        raise Mistaken(f"{text!r} is not a weekday", "write mon, tue, wed, thu, fri, sat or sun, or mon-fri") from None


def _weekdays(value: Any) -> Any:
    """Return the weekdays of a name, of a range such as `mon-fri`, or of a list of both."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        return value  # the decoding of `Weekdays` reports what is wrong
    ranges = [part.partition("-") for part in value]
    # a single day is a range from it to itself; a day in two ranges is listed once
    weekdays_of_ranges = (_weekday(first).until(_weekday(last if dash else first)) for first, dash, last in ranges)
    return list(dict.fromkeys(day for weekdays in weekdays_of_ranges for day in weekdays))


# not `pattern=`: msgspec 0.22 frees a pattern twice that stands beside a list in a union
_WeekdayText = Annotated[str, Meta(extra_json_schema={"pattern": f"^({_NAME})(-({_NAME}))?$"})]
Weekdays = Annotated[
    tuple[Weekday, ...],
    Meta(min_length=1),
    Before(_weekdays, _WeekdayText | Annotated[tuple[_WeekdayText, ...], Meta(min_length=1)]),
]


def _date(text: str) -> date:
    try:
        if re.fullmatch(_DATE, text) is None:
            raise ValueError
        return date.fromisoformat(text)
    except ValueError:
        raise Mistaken(f"{text!r} is not a date", "write it as 2026-12-24") from None


@lru_cache(maxsize=256)
def _dates_of(text: str) -> tuple[date, ...]:
    """Return the dates of an entry of `also_on` or `not_on`: one date, a range, or the holidays of a country.

    Raises Mistaken.
    """
    if text.startswith("holidays"):
        return _holidays(text)
    first, is_range, last = (part.strip() for part in text.partition(".."))
    begin = _date(first)
    end = _date(last) if is_range else begin
    if end < begin or end - begin > _LONGEST_RANGE:
        raise Mistaken(f"{text!r} is not a range of at most a year", _DAYS_HINT)
    return tuple(begin + timedelta(days=number) for number in range((end - begin).days + 1))


def _holidays(text: str) -> tuple[date, ...]:
    """Return the public holidays for `holidays DE-BY` from 2020 to 2060. Raises Mistaken for an unknown country."""
    match = _HOLIDAYS.fullmatch(text)
    if match is None:
        raise Mistaken(f"{text!r} names no country", _DAYS_HINT)
    from holidays import country_holidays

    try:
        holidays = country_holidays(match["country"], subdiv=match["part"], years=_YEARS)
    except NotImplementedError as unknown:
        raise Mistaken(f"{text!r}: {unknown}", "use a code of ISO 3166: DE, DE-BY, US, US-CA") from None
    return tuple(sorted(holidays))


class _Days(NamedTuple):
    """An entry of `also_on` or `not_on`, as it was written, and its dates."""

    text: str
    dates: tuple[date, ...]


_DaysText = Annotated[
    str, Meta(extra_json_schema={"pattern": rf"^({_DATE}(\.\.{_DATE})?|holidays [A-Z]{{2}}(-[A-Z0-9]{{1,4}})?)$"})
]
Days = Annotated[
    tuple[Annotated[_Days, Reads(lambda text: _Days(text, _dates_of(text)), _DaysText)], ...],
    Meta(max_length=1000),
]


class DayTime(NamedTuple):
    """A clock time: `20:00`, `mon 07:00` or `2026-12-24 16:00`."""

    text: str
    """As it was written."""
    on: Weekday | date | None
    """The day; None = none is given."""
    clock: time

    def __str__(self) -> str:
        return self.text


def _day_time(text: str) -> DayTime:
    """Return the time; 24:00 is returned as 00:00 of the day after. Raises Mistaken."""
    match = _TIME_OF_DAY.fullmatch(text)
    if match is None:
        raise Mistaken(f"{text!r} is not a time of day", 'write it as "20:00", or with its day as "mon 07:00"')
    on = match["on"]
    day = None if on is None else _date(on) if on[0].isdigit() else _weekday(on)
    if match["clock"] != "24:00":
        return DayTime(text, day, time.fromisoformat(match["clock"]))
    if isinstance(day, Weekday):
        return DayTime(text, day.next, time())
    return DayTime(text, None if day is None else day + timedelta(days=1), time())


_TimeText = Annotated[str, Meta(extra_json_schema={"pattern": rf"^(({_DATE}|{_NAME}) +)?({_CLOCK}|24:00)$"})]
TimeOfDay = Annotated[DayTime, Reads(_day_time, _TimeText)]


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise Mistaken(f"{name!r} is not an IANA time zone", "write a zone such as Europe/Berlin") from error


Zone = Annotated[ZoneInfo, Reads(_zone, Text)]


class WindowSection(Section, kw_only=True):
    """One window."""

    name: Text = ""
    opens: TimeOfDay
    closes: TimeOfDay
    zone: Zone
    back_by: TimeOfDay | None = None
    weekdays: Weekdays | UnsetType = UNSET
    also_on: Days | UnsetType = UNSET
    not_on: Days | UnsetType = UNSET
    pools: tuple[Text, ...] = ()

    def __post_init__(self) -> None:
        self._check_days()
        self._check_times()

    def _check_days(self) -> None:
        """Raise Mistaken if days are given twice, or only some of the times have a date."""
        day = self.opens.on
        keys_of_days = [key for key in ("weekdays", "also_on", "not_on") if getattr(self, key) is not UNSET]
        if isinstance(day, Weekday) and "weekdays" in keys_of_days:
            raise Mistaken(f"`opens` has the day {day}, and `weekdays` has days too", "remove one of the two")
        if isinstance(day, date) and keys_of_days:
            raise Mistaken(
                f"the window opens only on {day}, so it cannot have `{keys_of_days[0]}`", "remove this key, or the date"
            )
        ends = (("closes", self.closes), ("back_by", self.back_by))
        dated_key = next((key for key, end in ends if end is not None and isinstance(end.on, date)), None)
        if dated_key is not None and not isinstance(day, date):
            raise Mistaken(f"`{dated_key}` has a date, but `opens` has none", 'write `opens` as "2026-12-23 16:00"')

    def _check_times(self) -> None:
        """Raise Mistaken for times out of order, a window too short for a return, or a date both in and out."""
        window = self.window()
        day = next(iter(window.also_on)) if window.is_dated else None
        lengths = [window.length_on(opening_day) for opening_day in ([day] if day else _days_of_weekdays(window))]
        longest, shortest = max(lengths), min(lengths)
        if not window.ends_on_days and longest > _DAY:
            raise Mistaken(
                f"back_by {self.back_by} is not between closes {self.closes} and the next opening at {self.opens}",
                "set `back_by` to `closes` or later; for a longer night add the day: `mon 07:00`",
            )
        if longest > _LONGEST_NIGHT or (day is not None and not _ends_in_order(window, day)):
            raise Mistaken(
                f"opens {self.opens}, closes {self.closes} and back_by {self.back_by or self.closes} do not follow one "
                f"another within {_LONGEST_NIGHT.days} days",
                "write them in this order",
            )
        # a file that an older gpuops accepted stays valid: its desktops must come back
        if shortest <= RETURN_FLOOR and not was_accepted():
            minutes, floor = (int(length.total_seconds()) // 60 for length in (shortest, RETURN_FLOOR))
            raise Mistaken(
                f"the window lasts {minutes} min, but the return of desktops needs more than {floor} min of it",
                "set `opens` earlier, or `back_by` later",
            )
        # `not_on` may exclude a date of a range in `also_on`, but not a date that `also_on` names itself
        single_dates = {
            days.dates[0] for days in self.also_on or () if ".." not in days.text and days.text[0].isdigit()
        }
        contradictions = single_dates & window.also_on & window.not_on
        if contradictions:
            raise Mistaken(f"{min(contradictions)} is in both `also_on` and `not_on`", "remove it from one of them")

    def window(self) -> Window:
        """Return the window of the model; without days in the file it opens on every day."""
        opens_on = self.opens.on
        weekdays = frozenset([opens_on] if isinstance(opens_on, Weekday) else self.weekdays or Weekday)
        also_on = _all_dates(self.also_on)
        if isinstance(opens_on, date):  # the window opens only on this date
            weekdays, also_on = frozenset(), frozenset([opens_on])
        return Window(
            opens=self.opens.clock,
            closes=self.closes.clock,
            zone=self.zone,
            back_by=self.back_by.clock if self.back_by is not None else None,
            weekdays=weekdays,
            also_on=also_on,
            not_on=_all_dates(self.not_on),
            name=self.name,
            closes_on=self.closes.on,
            back_on=self.back_by.on if self.back_by is not None else None,
            pools=frozenset(self.pools),
        )


def _all_dates(entries: tuple[_Days, ...] | UnsetType) -> frozenset[date]:
    return frozenset(day for days in entries or () for day in days.dates)


def _days_of_weekdays(window: Window) -> list[date]:
    """Return a date for each weekday on which the window opens; for each weekday if it also opens on dates."""
    week = [_MONDAY + number * _DAY for number in range(7)]
    return week if window.also_on else [day for day in week if Weekday.of(day) in window.weekdays]


def _ends_in_order(window: Window, day: date) -> bool:
    """Return whether a window with a date closes after it opens, and `back_by` is not before that."""
    opens = datetime.combine(day, window.opens)
    closes = datetime.combine(window.closes_on, window.closes) if isinstance(window.closes_on, date) else None
    back = (
        datetime.combine(window.back_on, window.back_by)
        if isinstance(window.back_on, date) and window.back_by is not None
        else None
    )
    return (closes is None or closes > opens) and (back is None or back >= (closes or opens))


def named_apart(windows: Sequence[Window]) -> tuple[Window, ...]:
    """Return the windows, marked `is_named_by_time` if another one opens earlier on the same day.

    Both would otherwise have nights with the same name: their date.
    """
    named_windows: list[Window] = []
    for number, window in enumerate(windows):
        is_later = any(
            # of two windows with the same opening, the second one in the file counts as later
            (other.opens, other_number) < (window.opens, number) and _same_day(window, other)
            for other_number, other in enumerate(windows)
        )
        named_windows.append(replace(window, is_named_by_time=True) if is_later else window)
    return tuple(named_windows)


def _same_day(first: Window, second: Window) -> str:
    """Return a weekday or a date on which both open; '' if there is no such day."""
    weekdays = [str(day) for day in Weekday if day in first.weekdays & second.weekdays]
    common_dates = sorted(day for day in first.also_on | second.also_on if first.opens_on(day) and second.opens_on(day))
    return next(iter([*weekdays, *map(str, common_dates)]), "")


def refuse_overlapping(windows: Sequence[Window]) -> None:
    """Raise Mistaken if a window opens before the desktops of an earlier night are back."""
    days = sorted(_days_to_compare(windows))
    nights_with_windows = (
        (night, window) for window in windows for day in days if (night := window.night_of(day)) is not None
    )
    nights = sorted(nights_with_windows, key=lambda pair: pair[0].opens)
    for (earlier, first), (later, second) in pairwise(nights):
        if later.opens >= earlier.back_by:
            continue
        if first is second:
            raise Mistaken(
                f"{_label(first)} opens on {Weekday.of(later.day)} before the desktops of {Weekday.of(earlier.day)} "
                "are back",
                "give the window fewer `weekdays`, or an earlier `closes`",
            )
        if earlier.day == later.day:
            # in the order of the file, for the message
            first, second = (window for window in windows if window in (first, second))
            raise Mistaken(
                f"{_label(first)} and {_label(second)} overlap: both open on {_same_day(first, second)}",
                "give the day to one window with `weekdays`, `also_on` and `not_on`, or let one open after the "
                "desktops of the other are back",
            )
        raise Mistaken(
            f"{_label(second)} opens before the desktops of {_label(first)} are back",
            "set its `opens` later, or `back_by` of the other earlier: a return brings back the desktops of all pools",
        )


def _days_to_compare(windows: Sequence[Window]) -> set[date]:
    """Return the days whose nights are compared: three weeks, and the days around each date.

    Windows in several zones are compared for a year, because their clocks change on different days.
    """
    several_zones = len({str(window.zone) for window in windows}) > 1
    days = {_MONDAY + number * _DAY for number in range(371 if several_zones else 21)}
    # a night that ends on a named weekday may last until the next week
    around = 8 if any(window.ends_on_days for window in windows) else 1
    for window in windows:
        dates = [*window.also_on, *([window.closes_on] if isinstance(window.closes_on, date) else [])]
        days.update(day + number * _DAY for day in dates for number in range(-around, around + 1))
    return days


def _label(window: Window) -> str:
    return f"window {window.name!r}" if window.name else f"the window that opens at {format_clock(window.opens)}"
