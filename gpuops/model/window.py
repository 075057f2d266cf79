"""When a night may take GPUs and by when every desktop is back, in absolute time also when clocks change.

A policy speaks in local clock times. Where clocks change, a night is never longer than it was meant:

* a time that does not exist, because the clocks go forward over it, is the moment of that change;
* a time that comes twice, because they go back, is the second one for an opening, the first one for an end.

A local day that a zone skipped altogether (Pacific/Apia, 30 December 2011) has no night.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import StrEnum
from functools import lru_cache
from typing import Final

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

    @property
    def id(self) -> str:
        return self.day.isoformat()

    @property
    def returns_from(self) -> datetime:
        """When its return is due at the latest, however little it has taken. Nothing is taken from then on."""
        return max(self.opens, min(self.closes, self.back_by - RETURN_FLOOR))

    def takes_at(self, now: datetime) -> bool:
        return self.opens <= now < self.closes

    def next(self, clock: time) -> datetime:
        """The first moment of the night, or after it, at which clocks in its zone show this time."""
        day = self.opens.astimezone(self.zone).date()
        later = (moment for number in range(3) for moment in moments(day + number * _DAY, clock, self.zone))
        return next(moment for moment in later if moment >= self.opens)


@dataclass(frozen=True, slots=True)
class Window:
    """On which evenings a night opens, and its clock times in `zone`; across midnight when it closes earlier."""

    opens: time
    closes: time
    zone: tzinfo
    back_by: time | None = None
    """Desktops are back by this time, the first one at or after the closing; None = when it closes."""
    weekdays: frozenset[Weekday] = frozenset(Weekday)
    also_on: frozenset[date] = frozenset()
    """Evenings on which it opens whatever weekday they are: holidays with nobody at work."""
    not_on: frozenset[date] = frozenset()
    """Evenings on which it does not."""
    name: str = ""

    def opens_on(self, day: date) -> bool:
        """Whether there is a night that begins on the evening of this local date."""
        return day not in self.not_on and (day in self.also_on or Weekday.of(day) in self.weekdays)

    def night_of(self, day: date) -> Night | None:
        """The night of this evening; None = there is none."""
        return self._hours_of(day) if self.opens_on(day) else None

    @lru_cache(maxsize=1024)  # noqa: B019 - of values alone; whoever takes something asks before each step
    def _hours_of(self, day: date) -> Night | None:
        """The night of this evening if the window opens on it; None = the zone skipped that day."""
        opens = moments(day, self.opens, self.zone)[-1]
        if opens.astimezone(self.zone).date() != day:
            return None
        closing_day = day if self.opens < self.closes else day + _DAY
        closes = self._end(closing_day, self.closes, opens)
        if self.back_by is None:
            return Night(day, opens, closes, closes, self.zone)
        last_day = closing_day if self.closes <= self.back_by else closing_day + _DAY
        return Night(day, opens, closes, self._end(last_day, self.back_by, closes), self.zone)

    def _end(self, day: date, clock: time, not_before: datetime) -> datetime:
        later = (moment for moment in moments(day, clock, self.zone) if moment >= not_before)
        return next(later, not_before)

    def night_at(self, now: datetime) -> Night | None:
        """The night that this moment is in: opened, and its desktops not due yet."""
        return next((night for night in self.nights_begun(now) if now < night.back_by), None)

    def evening_off(self, now: datetime) -> date | None:
        """The evening on which the window does not open, if this moment is of its hours; None = it is not."""
        local = now.astimezone(self.zone).date()
        off = (self._hours_of(day) for day in (local, local - _DAY) if not self.opens_on(day))
        return next((hours.day for hours in off if hours is not None and hours.takes_at(now)), None)

    def nights_begun(self, now: datetime) -> tuple[Night, ...]:
        """The nights of the last days that have opened, the latest first."""
        local = now.astimezone(self.zone).date()
        nights = (self.night_of(local - number * _DAY) for number in range(3))
        return tuple(night for night in nights if night is not None and night.opens <= now)

    def next_night(self, now: datetime) -> Night | None:
        """The first night that opens after this moment, within a year; None = there is none."""
        local = now.astimezone(self.zone).date()
        nights = (self.night_of(local + number * _DAY) for number in range(-1, 367))
        return next((night for night in nights if night is not None and night.opens > now), None)

    @property
    def length(self) -> timedelta:
        """From the opening to the moment by which desktops are back, on a day without a change of the clocks."""
        taking = _clockwise(self.opens, self.closes)
        return taking if self.back_by is None else taking + _clockwise(self.closes, self.back_by)

    def __str__(self) -> str:
        back = "" if self.back_by is None else f", desktops back by {self.back_by:%H:%M}"
        return f"{self.opens:%H:%M} to {self.closes:%H:%M} {self.zone}{back}"


@lru_cache(maxsize=1024)
def moments(day: date, clock: time, zone: tzinfo) -> tuple[datetime, ...]:
    """When clocks in the zone show this time on this day, in UTC: once, twice in order, or as the clocks jump over it.

    Source: PEP 495: `fold=0` reads a time by the offset before a change, `fold=1` by the one after it.
    """
    local = datetime.combine(day, clock)
    by_old, by_new = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if by_old == by_new:
        return (by_old,)
    return (by_old, by_new) if by_old < by_new else (_change(by_new, by_old, zone),)


def _change(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    """The first second after a change of the clocks that lies between two moments."""
    old = before.astimezone(zone).utcoffset()
    low, high = 0, int((after - before).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if (before + timedelta(seconds=middle)).astimezone(zone).utcoffset() == old:
            low = middle
        else:
            high = middle
    return before + timedelta(seconds=high)


def _clockwise(start: time, end: time) -> timedelta:
    """How long a clock runs from one time to the other; less than a day."""
    return timedelta(minutes=(end.hour * 60 + end.minute) - (start.hour * 60 + start.minute)) % _DAY
