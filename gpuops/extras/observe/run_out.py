"""Forecasts when the slots of a vGPU profile run out, from the daily peaks of the past. Pure.

The forecast for a day is the median of that weekday over the last four weeks, plus the growth since then. The growth is
the median difference between same weekdays of the last eight weeks, per day: one day on which every team trains a model
does not change it, and neither does a weekday that is always busy.

How good that is, is measured on the same history: each day that is known is forecast from what was known two weeks
before it, and so it is by the same weekday of then alone (seasonal-naive), which knows of no growth.

Example: the days of the last four weeks had 40, 42, 44 and 46 vGPUs at the most. Those of the next are expected to have
48, and of 60 slots none is left in the seventh week.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import combinations
from statistics import fmean, median
from typing import Final

HORIZON: Final = timedelta(days=180)
"""A profile that lasts longer is not said to run out: no growth is believed for longer."""
TESTED_AHEAD: Final = timedelta(days=14)
"""The error is that of forecasts so far ahead."""
FEWEST_DAYS: Final = 14
"""Of history: with fewer no growth is known."""

_WEEK: Final = timedelta(days=7)
_LEVEL_WEEKS: Final = 4
_GROWTH_WEEKS: Final = 8

Peaks = Mapping[date, int]
"""The most vGPUs of a profile that ran at once on each day; a day that is not there is not known."""


@dataclass(frozen=True, slots=True)
class RunOut:
    """What is expected of one profile."""

    profile: str
    running: int
    """VGPUs of it that run now."""
    fit: int
    """So many more fit at the least, each profile for itself: profiles share the same GPUs."""
    days: int
    """Of history that are known."""
    most_of_week: int | None = None
    """The most of the last seven days that are known; None = of none of them is anything known."""
    growth_per_week: float | None = None
    """None = there is too little history."""
    runs_out: date | None = None
    """The first day on which all slots are expected to be taken; None = none within the horizon, or not known."""
    not_before: date | None = None
    """The same, if use is above what is expected by the error."""
    not_after: date | None = None
    """The same, if it is below; None = it may not run out within the horizon."""
    error: float | None = None
    """VGPUs that forecasts of the past, two weeks ahead, were off by in the mean; None = none could be tested."""
    naive_error: float | None = None
    """The same of seasonal-naive, on the same days."""
    tested_days: int = 0

    @property
    def slots(self) -> int:
        return self.running + self.fit


def run_out(profile: str, peaks: Peaks, running: int, fit: int, today: date) -> RunOut:
    """Return what is expected of a profile of which so many run and so many more fit today."""
    past_peaks = {day: most for day, most in peaks.items() if day <= today}
    of_week = [most for day, most in past_peaks.items() if day > today - _WEEK]
    without_growth = RunOut(profile, running, fit, len(past_peaks), max(of_week, default=None))
    if len(past_peaks) < FEWEST_DAYS:
        return without_growth
    growth = _growth(past_peaks, today)
    tested = _forecast_errors(past_peaks)
    error = fmean(abs(off) for off, _ in tested) if tested else None

    def use_on(day: date) -> float | None:
        return _expect_use(past_peaks, today, day, growth)

    def first_full(margin: float) -> date | None:
        days = (today + timedelta(days=ahead) for ahead in range(1, HORIZON.days + 1))
        return next(
            (day for day in days if (use := use_on(day)) is not None and use + margin >= without_growth.slots), None
        )

    return RunOut(
        profile,
        running,
        fit,
        len(past_peaks),
        without_growth.most_of_week,
        growth * _WEEK.days,
        first_full(0),
        first_full(error) if error is not None else None,
        first_full(-error) if error is not None else None,
        error,
        fmean(abs(off) for _, off in tested) if tested else None,
        len(tested),
    )


def _growth(peaks: Peaks, until: date) -> float:
    """VGPUs a day: the median over pairs of same weekdays of the last eight weeks; 0 where there is no pair."""
    by_weekday: dict[int, list[date]] = {}
    for day in sorted(peaks):
        if until - _GROWTH_WEEKS * _WEEK < day <= until:
            by_weekday.setdefault(day.weekday(), []).append(day)
    slopes = [
        (peaks[later] - peaks[earlier]) / (later - earlier).days
        for days in by_weekday.values()
        for earlier, later in combinations(days, 2)
    ]
    return median(slopes) if slopes else 0.0


def _expect_use(peaks: Peaks, today: date, day: date, growth: float) -> float | None:
    """By the same weekdays of the four weeks up to today, each grown until the day; None = none of them is known."""
    last = today - timedelta(days=(today - day).days % _WEEK.days)  # the newest day up to today of the same weekday
    same = (last - week * _WEEK for week in range(_LEVEL_WEEKS))
    grown = [peaks[earlier_day] + growth * (day - earlier_day).days for earlier_day in same if earlier_day in peaks]
    return median(grown) if grown else None


def _forecast_errors(peaks: Peaks) -> list[tuple[float, float]]:
    """By how much our forecast and seasonal-naive were off, for each day that both could foresee."""
    errors = []
    first = min(peaks)
    for day in sorted(peaks):
        seen_from = day - TESTED_AHEAD
        if (seen_from - first).days + 1 < FEWEST_DAYS or seen_from not in peaks:
            continue
        before = {known_day: most for known_day, most in peaks.items() if known_day <= seen_from}
        ours = _expect_use(before, seen_from, day, _growth(before, seen_from))
        if ours is not None:
            errors.append((peaks[day] - ours, float(peaks[day] - peaks[seen_from])))
    return errors
