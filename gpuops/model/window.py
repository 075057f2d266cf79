"""When a night may take GPUs and by when every desktop is back, in absolute time also when clocks change.

A policy speaks in local clock times. Where clocks change, a night is never longer than it was meant:

* a time that does not exist, because the clocks go forward over it, is the moment of that change;
* a time that comes twice, because they go back, is the second one for an opening, the first one for an end.

A local day that a zone skipped altogether (Pacific/Apia, 30 December 2011) has no night.

A night may last for days: `closes` and `back_by` are then times of a named weekday, the first after the opening, or of
one date. Example: from Fri 20:00, closes Mon 05:00, back by Mon 07:00 is one night, that of the Friday.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import StrEnum
from functools import lru_cache
from typing import Final

from gpuops.model.time_text import format_clock

_DAY = timedelta(days=1)
RETURN_FLOOR: Final = timedelta(minutes=45)
"""The least time that is kept for bringing desktops back, however fast they came back so far."""


class Weekday(StrEnum):
    """The day of an evening, in the order of `date.weekday`."""

    MON = "mon"
    TUE = "tue"
    WED = "wed"
    THU = "thu"
    FRI = "fri"
    SAT = "sat"
    SUN = "sun"

    @classmethod
    def of(cls, day: date) -> Weekday:
        return _WEEK[day.weekday()]

    @property
    def next(self) -> Weekday:
        return _WEEK[(_WEEK.index(self) + 1) % 7]

    def until(self, last: Weekday) -> Iterator[Weekday]:
        """Yield the days from this one to the last: fri, sat, sun, mon."""
        day = self
        yield day
        while day is not last:
            day = day.next
            yield day


_WEEK = tuple(Weekday)


@dataclass(frozen=True, slots=True)
class Night:
    """One night of a window. All moments are in UTC."""

    day: date
    """The local date of its evening."""
    opens: datetime
    closes: datetime
    """From here on nothing is taken."""
    back_by: datetime
    """By then every desktop is back."""
    zone: tzinfo
    pools: frozenset[str] = frozenset()
    """Names of the pools whose desktops it may take; empty = all."""
    is_named_by_time: bool = False
    """Whether another window opens earlier on the same day."""

    @property
    def id(self) -> str:
        """Return the date of its evening; for a later night of the same day also its time, `2026-11-23T20:00`."""
        local = self.opens.astimezone(self.zone)
        return f"{self.day.isoformat()}T{format_clock(local)}" if self.is_named_by_time else self.day.isoformat()

    @property
    def returns_from(self) -> datetime:
        """Return when its return must begin, however little it has taken. Nothing is taken from then on."""
        return max(self.opens, min(self.closes, self.back_by - RETURN_FLOOR))

    def takes_at(self, now: datetime) -> bool:
        return self.opens <= now < self.closes

    def next(self, clock: time) -> datetime:
        """Return the first moment of the night, or after it, at which clocks in its zone show this time."""
        day = self.opens.astimezone(self.zone).date()
        later = (moment for number in range(3) for moment in moments(day + number * _DAY, clock, self.zone))
        return next(moment for moment in later if moment >= self.opens)


@dataclass(frozen=True, slots=True)
class Window:
    """On which evenings a night opens, and its clock times in `zone`; across midnight when it closes earlier, and for
    24 hours when it closes at the time at which it opens."""

    opens: time
    closes: time
    zone: tzinfo
    back_by: time | None = None
    """Desktops are back by this time, the first one at or after the closing; None = when it closes."""
    weekdays: frozenset[Weekday] = frozenset(Weekday)
    also_on: frozenset[date] = frozenset()
    """Evenings on which it opens on any weekday: holidays without work."""
    not_on: frozenset[date] = frozenset()
    """Evenings on which it does not."""
    name: str = ""
    closes_on: Weekday | date | None = None
    """The day on which it closes; None = the first such time after the opening."""
    back_on: Weekday | date | None = None
    """The day of `back_by`; None = the first such time at or after the closing."""
    pools: frozenset[str] = frozenset()
    """Names of the pools whose desktops its nights may take; empty = all."""
    is_named_by_time: bool = False
    """Whether another window opens earlier on the same day, so that the date does not tell its nights apart."""

    @property
    def is_dated(self) -> bool:
        """Return whether it opens only on dates, and on no weekday."""
        return not self.weekdays

    @property
    def ends_on_days(self) -> bool:
        """Return whether it has the day on which it closes, or on which desktops are back."""
        return self.closes_on is not None or self.back_on is not None

    def opens_on(self, day: date) -> bool:
        """Return whether a night begins on the evening of this local date."""
        return day not in self.not_on and (day in self.also_on or Weekday.of(day) in self.weekdays)

    def night_of(self, day: date) -> Night | None:
        """Return the night of this evening; None if the window does not open on it."""
        return self._hours_of(day) if self.opens_on(day) else None

    @lru_cache(maxsize=1024)  # noqa: B019 - holds values only; it is called before each step of a night
    def _hours_of(self, day: date) -> Night | None:
        """Return the night of this evening as if the window opened on it; None = the zone skipped that day."""
        # If clocks are set back over this time, the window opens the second time that they show it.
        opens = moments(day, self.opens, self.zone)[-1]
        if opens.astimezone(self.zone).date() != day:
            return None
        closing_day = _ending_day(day, self.opens < self.closes, self.closes_on)
        closes = self._end(closing_day, self.closes, opens)
        back_by = closes
        if self.back_by is not None:
            last_day = _ending_day(closing_day, self.closes <= self.back_by, self.back_on)
            back_by = self._end(last_day, self.back_by, closes)
        return Night(day, opens, closes, back_by, self.zone, self.pools, self.is_named_by_time)

    def _end(self, day: date, clock: time, not_before: datetime) -> datetime:
        """Return the first moment at which clocks show this time on this day, but not before `not_before`."""
        later = (moment for moment in moments(day, clock, self.zone) if moment >= not_before)
        return next(later, not_before)

    def night_at(self, now: datetime) -> Night | None:
        """Return the night that this moment is in: opened, and its desktops not due yet."""
        return next((night for night in self.nights_begun(now) if now < night.back_by), None)

    def evening_off(self, now: datetime) -> date | None:
        """Return the evening on which the window does not open, if this moment is within its hours; else None."""
        local = now.astimezone(self.zone).date()
        days = (local - number * _DAY for number in range(self._days))
        # a window that closes on a named day has hours only on its own evenings: only `not_on` can be meant
        nights_off = (
            self._hours_of(day) for day in days if (day in self.not_on if self.ends_on_days else not self.opens_on(day))
        )
        return next((hours.day for hours in nights_off if hours is not None and hours.takes_at(now)), None)

    def nights_begun(self, now: datetime) -> tuple[Night, ...]:
        """Return the nights of the last days that have opened, the latest first."""
        local = now.astimezone(self.zone).date()
        nights = (self.night_of(local - number * _DAY) for number in range(self._days + 1))
        return tuple(night for night in nights if night is not None and night.opens <= now)

    def next_night(self, now: datetime) -> Night | None:
        """Return the first night that opens after this moment, within a year; None if no night does."""
        local = now.astimezone(self.zone).date()
        nights = (self.night_of(local + number * _DAY) for number in range(-1, 367))
        return next((night for night in nights if night is not None and night.opens > now), None)

    @property
    def _days(self) -> int:
        """Return the greatest number of local days from the evening of a night until its desktops are due."""
        days = 2  # the evening and the next day
        for on in (self.closes_on, self.back_on):
            if isinstance(on, Weekday):
                days += 7
            elif on is not None:
                days += max(0, (on - min(self.also_on, default=on)).days)
        return days

    def length_on(self, day: date) -> timedelta:
        """Return the time from the opening on this day until desktops must be back, if clocks do not change."""
        hours = replace(self, zone=UTC)._hours_of(day)
        return hours.back_by - hours.opens if hours is not None else timedelta()

    def __str__(self) -> str:
        back = (
            ""
            if self.back_by is None
            else f", desktops back by {_day_prefix(self.back_on)}{format_clock(self.back_by)}"
        )
        return (
            f"{format_clock(self.opens)} to {_day_prefix(self.closes_on)}{format_clock(self.closes)} {self.zone}{back}"
        )


def _day_prefix(day: Weekday | date | None) -> str:
    """Return `Mon `, or '' without a day."""
    return "" if day is None else f"{str(day).title()} "


def _ending_day(start: date, is_later: bool, on: Weekday | date | None) -> date:
    """Return the day of an end after a start. `is_later`: whether its clock time is later than that of the start."""
    match on:
        case None:
            return start if is_later else start + _DAY
        case Weekday():
            days = (_WEEK.index(on) - start.weekday()) % 7  # 0 = the weekday of the start itself
            return start + (days if days or is_later else 7) * _DAY
        case _:
            return on


def checked_year(moment: datetime) -> datetime:
    """Return the moment. Raises ValueError for a year that is a typing error, before 1970 or after 2999."""
    if not 1970 <= moment.year <= 2999:
        raise ValueError(moment)
    return moment


@lru_cache(maxsize=1024)
def moments(day: date, clock: time, zone: tzinfo) -> tuple[datetime, ...]:
    """Return when clocks in the zone show this time on this day, in UTC: once, twice, or when they jump over it.

    Source: PEP 495: `fold=0` reads a time by the offset before a change, `fold=1` by the one after it.
    """
    local = datetime.combine(day, clock)
    by_old, by_new = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if by_old == by_new:
        return (by_old,)
    return (by_old, by_new) if by_old < by_new else (_moment_of_change(by_new, by_old, zone),)


def _moment_of_change(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    """Return the first second after a change of the clocks that lies between two moments."""
    old_offset = before.astimezone(zone).utcoffset()
    # binary search: at `low` seconds clocks are not changed yet, at `high` they are
    low, high = 0, int((after - before).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if (before + timedelta(seconds=middle)).astimezone(zone).utcoffset() == old_offset:
            low = middle
        else:
            high = middle
    return before + timedelta(seconds=high)
