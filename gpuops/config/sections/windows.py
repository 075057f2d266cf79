"""The section of a policy that says on which evenings a night may begin, at which times, in which time zone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import Annotated
from zoneinfo import ZoneInfo

from msgspec import UNSET, UnsetType

from gpuops.config.decoding import Section, was_accepted
from gpuops.config.sections.days import Days, TimeOfDay, Weekdays, days_of, read_time
from gpuops.model.file_keys import Mistaken, Reads, Text
from gpuops.model.time_text import format_clock
from gpuops.model.window import RETURN_FLOOR, Weekday, Window

_DAY = timedelta(days=1)
_LONGEST = timedelta(days=31)
_MONDAY = date(2027, 1, 4)
"""Of three weeks in which nights are compared: longer than any that closes on a weekday."""


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise Mistaken(f"{name!r} is not an IANA zone such as Europe/Berlin") from error
    return name


Zone = Annotated[str, Reads(_known_zone, Text)]


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
        self._check_length()

    def _check_days(self) -> None:
        day, _ = read_time(self.opens)
        keys_of_days = [key for key in ("weekdays", "also_on", "not_on") if getattr(self, key) is not UNSET]
        if isinstance(day, Weekday) and "weekdays" in keys_of_days:
            raise Mistaken(f"`opens` says {day}, and `weekdays` too says when it opens", "leave one of them out")
        if isinstance(day, date) and keys_of_days:
            raise Mistaken(f"it opens on {day} alone, and has `{keys_of_days[0]}`", "leave that out, or the date")
        ends = (("closes", self.closes), ("back_by", self.back_by))
        dated = next((key for key, text in ends if text and isinstance(read_time(text)[0], date)), None)
        if dated is not None and not isinstance(day, date):
            raise Mistaken(f"`{dated}` has a date, and `opens` has none", 'write `opens` as "2026-12-23 16:00"')

    def _check_length(self) -> None:
        window = self.window()
        day = next(iter(window.also_on)) if window.is_dated else None
        lengths = [window.length_on(opening_day) for opening_day in ([day] if day else _days_of_weekdays(window))]
        longest, shortest = max(lengths), min(lengths)
        if not window.ends_on_days and longest > _DAY:
            raise Mistaken(
                f"back_by {self.back_by} is not between closes {self.closes} and the next opening at {self.opens}",
                "`back_by` is when desktops are back, at `closes` or after it; `mon 07:00` for a longer night",
            )
        if longest > _LONGEST or (day is not None and not _ends_in_order(window, day)):
            raise Mistaken(
                f"opens {self.opens}, closes {self.closes} and back_by {self.back_by or self.closes} do not follow one "
                f"another within {_LONGEST.days} days",
                "write them in this order",
            )
        if shortest <= RETURN_FLOOR and not was_accepted():
            minutes, floor = (int(length.total_seconds()) // 60 for length in (shortest, RETURN_FLOOR))
            raise Mistaken(
                f"lasts {minutes} min, and {floor} are kept for bringing desktops back: it cannot hold the return",
                "open it earlier, or let `back_by` be later",
            )
        both = sorted(window.also_on & window.not_on)
        by_date = {
            day for text in self.also_on or () if ".." not in text and text[0].isdigit() for day in days_of(text)
        }
        if both and by_date.intersection(both):
            raise Mistaken(f"{min(by_date & set(both))} stands in `also_on` and in `not_on`", "leave it in one of them")

    def window(self) -> Window:
        opens_on, opens = read_time(self.opens)
        closes_on, closes = read_time(self.closes)
        back_on, back_by = read_time(self.back_by) if self.back_by else (None, None)
        weekdays = frozenset([opens_on] if isinstance(opens_on, Weekday) else self.weekdays or Weekday)
        also_on = frozenset(day for text in self.also_on or () for day in days_of(text))
        if opens_on is not None and not isinstance(opens_on, Weekday):
            weekdays, also_on = frozenset(), frozenset([opens_on])
        return Window(
            opens=opens,
            closes=closes,
            zone=ZoneInfo(self.zone),
            back_by=back_by,
            weekdays=weekdays,
            also_on=also_on,
            not_on=frozenset(day for text in self.not_on or () for day in days_of(text)),
            name=self.name,
            closes_on=closes_on,
            back_on=back_on,
            pools=frozenset(self.pools),
        )


def _days_of_weekdays(window: Window) -> list[date]:
    """A day of each weekday on which it may open: those of a week, if it also opens on dates."""
    week = [_MONDAY + number * _DAY for number in range(7)]
    return week if window.also_on else [day for day in week if Weekday.of(day) in window.weekdays]


def _ends_in_order(window: Window, day: date) -> bool:
    """Whether a window of one date closes after it opens, and has its desktops back after that."""
    opens = datetime.combine(day, window.opens)
    closes = datetime.combine(window.closes_on, window.closes) if isinstance(window.closes_on, date) else None
    back = (
        datetime.combine(window.back_on, window.back_by)
        if isinstance(window.back_on, date) and window.back_by is not None
        else None
    )
    return (closes is None or closes > opens) and (back is None or back >= (closes or opens))


def named_apart(windows: Sequence[Window]) -> tuple[Window, ...]:
    """The windows, of which each that opens on a day on which another one opens earlier has nights named by time."""
    return tuple(
        replace(window, is_named_by_time=True)
        if any(
            (other_window.opens, at) < (window.opens, number) and _same_day(window, other_window)
            for at, other_window in enumerate(windows)
            if at != number
        )
        else window
        for number, window in enumerate(windows)
    )


def _same_day(first: Window, second: Window) -> str:
    """Return a weekday or a date on which both open; '' if there is no such day."""
    weekdays = [str(day) for day in Weekday if day in first.weekdays & second.weekdays]
    explicit = sorted(day for day in first.also_on | second.also_on if first.opens_on(day) and second.opens_on(day))
    return next(iter([*weekdays, *map(str, explicit)]), "")


def refuse_overlapping(windows: Sequence[Window]) -> None:
    """Raises the mistake of windows of which one opens before the desktops of another night are back."""
    days = sorted(_days_to_compare(windows))
    candidates = ((night, window) for window in windows for day in days if (night := window.night_of(day)) is not None)
    nights = sorted(candidates, key=lambda pair: pair[0].opens)
    for (earlier, first), (later, second) in pairwise(nights):
        if later.opens >= earlier.back_by:
            continue
        if first is second:
            raise Mistaken(
                f"{_called(first)} opens on {Weekday.of(later.day)} before the desktops of {Weekday.of(earlier.day)} "
                "are back",
                "give it fewer `weekdays`, or let it close earlier",
            )
        if earlier.day == later.day:
            first, second = (window for window in windows if window in (first, second))
            raise Mistaken(
                f"{_called(first)} and {_called(second)} both open on {_same_day(first, second)}, at hours that "
                "overlap",
                "give each evening to one of them: `weekdays`, `also_on`, `not_on`; or let one open when the desktops "
                "of the other are back",
            )
        raise Mistaken(
            f"{_called(second)} opens before the desktops of {_called(first)} are back",
            "open it later, or let the other's `back_by` be earlier: a return brings back the desktops of all pools",
        )


def _days_to_compare(windows: Sequence[Window]) -> set[date]:
    """The days on which nights may differ from those of other weeks: three weeks, a year where windows are in several
    zones, whose clocks change on different days, and the days around each date."""
    several_zones = len({str(window.zone) for window in windows}) > 1
    days = {_MONDAY + number * _DAY for number in range(371 if several_zones else 21)}
    around = 8 if any(window.ends_on_days for window in windows) else 1
    for window in windows:
        dates = [*window.also_on, *([window.closes_on] if isinstance(window.closes_on, date) else [])]
        days.update(day + number * _DAY for day in dates for number in range(-around, around + 1))
    return days


def _called(window: Window) -> str:
    return f"window {window.name!r}" if window.name else f"the window that opens at {format_clock(window.opens)}"
