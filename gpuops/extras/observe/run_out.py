"""Forecasts when the slots of a vGPU profile run out, from the daily peaks of the past. Pure.

The forecast for a day is the median of that weekday over the last four weeks, plus the growth since then. The growth is
the median difference between same weekdays of the last eight weeks, per day: one day on which every team trains a model
does not change it, and neither does a weekday that is always busy.

The error of the forecast is measured on the same history: each known day is forecast from what was known two weeks
before it. For comparison, each day is also forecast as the same weekday of two weeks before, without growth
(seasonal-naive).

Example: on the days of the last four weeks at most 40, 42, 44 and 46 vGPUs ran. The forecast for the next week is 48;
60 slots are all taken in the seventh week.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import combinations
from statistics import fmean, median
from typing import Final

HORIZON: Final = timedelta(days=180)
"""No run-out later than this is reported: growth cannot be predicted for longer."""
TESTED_AHEAD: Final = timedelta(days=14)
"""The error is measured on forecasts that are made this long before their day."""
FEWEST_DAYS: Final = 14
"""The least number of known days for which growth is computed."""

_WEEK: Final = timedelta(days=7)
_LEVEL_WEEKS: Final = 4
_GROWTH_WEEKS: Final = 8

Peaks = Mapping[date, int]
"""The most vGPUs of a profile that ran at once on each day; unknown days are missing."""


@dataclass(frozen=True, slots=True)
class RunOut:
    """The forecast for one profile."""

    profile: str
    running: int
    """Its vGPUs that run now."""
    fit: int
    """How many more certainly fit, if no other profile takes their place: profiles share the same GPUs."""
    days: int
    """The number of days with a known peak."""
    most_of_week: int | None = None
    """The highest peak of the last seven days; None = none of them is known."""
    growth_per_week: float | None = None
    """VGPUs a week; None = there is too little history."""
    runs_out: date | None = None
    """The first day with no free slot by the forecast; None = no such day within the horizon, or unknown."""
    not_before: date | None = None
    """The first day with no free slot if use is above the forecast by `error`."""
    not_after: date | None = None
    """The same if use is below the forecast by `error`; None = the profile may not run out within the horizon."""
    error: float | None = None
    """Mean error in vGPUs of past forecasts, two weeks ahead; None = none could be tested."""
    naive_error: float | None = None
    """The mean error of seasonal-naive on the same days."""
    tested_days: int = 0
    """The number of past days whose forecast was tested."""

    @property
    def slots(self) -> int:
        return self.running + self.fit


def run_out(profile: str, peaks: Peaks, running: int, fit: int, today: date) -> RunOut:
    """Return the forecast for a profile with `running` vGPUs and room for `fit` more today."""
    past_peaks = {day: most for day, most in peaks.items() if day <= today}
    peaks_of_week = [most for day, most in past_peaks.items() if day > today - _WEEK]
    without_growth = RunOut(profile, running, fit, len(past_peaks), max(peaks_of_week, default=None))
    if len(past_peaks) < FEWEST_DAYS:
        return without_growth
    growth = _growth(past_peaks, today)
    past_errors = _forecast_errors(past_peaks)
    error = fmean(abs(ours) for ours, _ in past_errors) if past_errors else None

    def use_on(day: date) -> float | None:
        return _expect_use(past_peaks, today, day, growth)

    def first_full(margin: float) -> date | None:
        """Return the first day on which all slots are taken if use is above the forecast by `margin` vGPUs."""
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
        first_full(error) if error is not None else None,  # the earliest day
        first_full(-error) if error is not None else None,  # the latest day
        error,
        fmean(abs(naive) for _, naive in past_errors) if past_errors else None,
        len(past_errors),
    )


def _growth(peaks: Peaks, until: date) -> float:
    """Return the growth in vGPUs a day: the median over pairs of same weekdays of the last eight weeks, or 0."""
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
    """Return the forecast for a day by the same weekdays of the last four weeks; None = none of them is known."""
    # the newest day up to today of the same weekday
    newest_same_weekday = today - timedelta(days=(today - day).days % _WEEK.days)
    same_weekdays = (newest_same_weekday - week * _WEEK for week in range(_LEVEL_WEEKS))
    with_growth = [peaks[past_day] + growth * (day - past_day).days for past_day in same_weekdays if past_day in peaks]
    return median(with_growth) if with_growth else None


def _forecast_errors(peaks: Peaks) -> list[tuple[float, float]]:
    """Return pairs of errors in vGPUs, of our forecast and of seasonal-naive, for each past day that both can forecast.

    Each day is forecast from the peaks that were known `TESTED_AHEAD` before it.
    """
    errors = []
    first_day = min(peaks)
    for day in sorted(peaks):
        forecast_on = day - TESTED_AHEAD
        if (forecast_on - first_day).days + 1 < FEWEST_DAYS or forecast_on not in peaks:
            continue
        known_peaks = {known_day: most for known_day, most in peaks.items() if known_day <= forecast_on}
        ours = _expect_use(known_peaks, forecast_on, day, _growth(known_peaks, forecast_on))
        if ours is not None:
            naive = peaks[forecast_on]  # two weeks before: the same weekday
            errors.append((peaks[day] - ours, float(peaks[day] - naive)))
    return errors
