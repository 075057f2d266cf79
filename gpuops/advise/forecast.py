"""Forecasts how many desktops of a pool are in use in the next hours, from the same hours of earlier weeks.

The history is one number for each quarter of an hour, without names of desktops or people. The forecast of a slot is
the mean of the same slot in up to four earlier weeks, rounded up. If no such week is known, it is the number at that
time on the day before. If neither is known, there is no forecast.

The error is measured on the same history: each known slot is forecast from the slots before it, once by the rule above
and once by the week before alone (seasonal-naive), for comparison. `gpuops observe` keeps 14 days by default. A slot of
the future then has two earlier weeks, a slot of the past only one: the measured error is that of seasonal-naive, and
the forecast is a little better than it. `gpuops help observe` has figures for made-up weeks.

*Tried and left out*: the maximum of the earlier weeks (no better than the week before alone); means smoothed over
neighbouring slots (as good as without); a margin from the errors of that hour alone, or in proportion to the root of
the expected number (a few more desktops in time, and as many more that run unused).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from math import ceil
from typing import Final

SLOT: Final = timedelta(minutes=15)
WEEKS: Final = 4
"""The number of earlier weeks that count at most: offices change."""
_WEEK_DAYS: Final = 7
_COVERED_SLOTS: Final = (9, 10)
"""`Error.short` covers 9 of 10 slots; two integers, because 0.9 * 10 is not exact."""


class Basis(StrEnum):
    """The part of the history from which a slot is forecast."""

    EARLIER_WEEKS = "earlier-weeks"
    DAY_BEFORE = "day-before"


@dataclass(frozen=True, slots=True)
class UseHistory:
    """How many desktops of a pool were in use, slot by slot."""

    begin: datetime
    """When the first slot begins; a whole quarter of an hour by UTC."""
    in_use: tuple[int | None, ...]
    """None = not known: `gpuops observe` did not run, or there are too few samples."""

    def at(self, moment: datetime) -> int | None:
        """Return the number of the slot that this moment is in."""
        index = (moment - self.begin) // SLOT
        return self.in_use[index] if 0 <= index < len(self.in_use) else None

    @property
    def slots(self) -> Iterator[tuple[datetime, int]]:
        """Yield the begin of each known slot and its number of desktops in use."""
        return ((self.begin + at * SLOT, count) for at, count in enumerate(self.in_use) if count is not None)


@dataclass(frozen=True, slots=True)
class Expected:
    """The number of desktops that are expected in use in one slot."""

    begin: datetime
    in_use: int
    basis: Basis
    weeks: int
    """How many earlier weeks `in_use` is the mean of; 0 = it is the number of the day before."""


@dataclass(frozen=True, slots=True)
class Error:
    """How wrong forecasts were, measured on the slots in which desktops were in use or were expected in use."""

    slots: int
    mean: float
    """The mean difference between forecast and use, in desktops, without its sign."""
    short: int
    """In nine slots of ten, at most this many more desktops were in use than expected."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast for a pool, slot by slot, and how good such forecasts were."""

    begin: datetime
    slots: tuple[Expected | None, ...]
    """None = neither an earlier week nor the day before is known for this slot."""
    error: Error | None = None
    """None = no slot of the past could be forecast from the slots before it."""
    naive: Error | None = None
    """The error of forecasts by the week before alone."""

    def most(self, begin: datetime, until: datetime) -> int | None:
        """Return the most desktops that are expected in use at once in this period; None = nothing is known."""
        return max((slot.in_use for slot in self._within(begin, until)), default=None)

    def desktops_to_run(self, begin: datetime, until: datetime) -> int | None:
        """Return how many desktops are to run: the expected number, plus what nine of ten forecasts were short by.

        0 if no use is expected; None = nothing is known.
        """
        most = self.most(begin, until)
        return most + self.error.short if most and self.error is not None else most

    def first_above(self, count: int, begin: datetime, until: datetime) -> Expected | None:
        """Return the first slot of this period for which more than `count` are expected."""
        return next((slot for slot in self._within(begin, until) if slot.in_use > count), None)

    def _within(self, begin: datetime, until: datetime) -> Iterator[Expected]:
        return (slot for slot in self.slots if slot is not None and slot.begin < until and slot.begin + SLOT > begin)


def forecast(history: UseHistory, begin: datetime, until: datetime, zone: tzinfo = UTC) -> Forecast:
    """Return the forecast from the slot of `begin` until `until`, with the errors of such forecasts in the history.

    `zone`: the time zone of the users; a slot is compared with slots at the same local time.

    Example: Mondays at 08:15 had 40, 46 and 44 desktops in use; 44 are expected (43.3, rounded up).
    """
    first_slot = history.begin + (begin - history.begin) // SLOT * SLOT
    # -(a // b) rounds up: the last slot may end after `until`
    count = max(0, -((first_slot - until) // SLOT))
    slots = tuple(_expect_slot(history, first_slot + number * SLOT, zone) for number in range(count))
    ours = ((actual, _expect_slot(history, slot, zone)) for slot, actual in history.slots)
    naive = ((actual, _expect_slot(history, slot, zone, weeks=1)) for slot, actual in history.slots)
    return Forecast(first_slot, slots, _measure_error(ours), _measure_error(naive))


def _expect_slot(history: UseHistory, slot: datetime, zone: tzinfo, weeks: int = WEEKS) -> Expected | None:
    """Return the forecast of one slot from up to `weeks` earlier weeks, else from the day before, else None."""
    by_week = [history.at(_earlier(slot, week * _WEEK_DAYS, zone)) for week in range(1, weeks + 1)]
    counts = [count for count in by_week if count is not None]
    if counts:
        return Expected(slot, ceil(sum(counts) / len(counts)), Basis.EARLIER_WEEKS, len(counts))
    day_before = history.at(_earlier(slot, 1, zone))
    return Expected(slot, day_before, Basis.DAY_BEFORE, 0) if day_before is not None else None


def _earlier(moment: datetime, days: int, zone: tzinfo) -> datetime:
    """Return the moment at which clocks in the zone showed the same time, `days` earlier."""
    return (moment.astimezone(zone) - timedelta(days=days)).astimezone(UTC)


def _measure_error(pairs: Iterable[tuple[int, Expected | None]]) -> Error | None:
    """Return the error of forecasts; a pair is the number in use and its forecast. None = there are no such pairs."""
    differences = [actual - slot.in_use for actual, slot in pairs if slot is not None and (actual or slot.in_use)]
    if not differences:
        return None
    nine, ten = _COVERED_SLOTS
    ninth_decile = sorted(differences)[ceil(len(differences) * nine / ten) - 1]
    return Error(len(differences), sum(map(abs, differences)) / len(differences), max(0, ninth_decile))
