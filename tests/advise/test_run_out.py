"""When slots run out: growth is found under weekdays and outliers, and a forecast is never surer than its past."""

from __future__ import annotations

import random
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.extras.observe.run_out import FEWEST_DAYS, HORIZON, run_out

TODAY = date(2026, 11, 1)


def days(count: int, *, growth: float = 0.0, weekend: int = 0, base: int = 40) -> dict[date, int]:
    """The most of each of the last days: a level that grows a week, and less on Saturdays and Sundays."""
    peaks = {}
    for back in range(count):
        day = TODAY - timedelta(days=back)
        most = base - growth * back / 7 - (weekend if day.weekday() >= 5 else 0)
        peaks[day] = max(0, round(most))
    return peaks


def test_the_example_of_the_docstring() -> None:
    peaks = {TODAY - timedelta(days=back): 46 - 2 * (back // 7) for back in range(28)}
    outlook = run_out("a40-8q", peaks, 46, 14, TODAY)
    assert (outlook.slots, outlook.growth_per_week, outlook.most_of_week) == (60, 2.0, 46)
    assert outlook.runs_out == TODAY + timedelta(weeks=6, days=1), "46 and seven times two"


def test_growth_is_found_under_weekends_and_a_day_that_is_out_of_the_ordinary() -> None:
    peaks = days(70, growth=3, weekend=30)
    peaks[TODAY - timedelta(days=9)] = 400
    outlook = run_out("a40-8q", peaks, 30, 40, TODAY)
    assert outlook.growth_per_week == pytest.approx(3, abs=0.5)
    assert outlook.runs_out is not None
    weeks = (outlook.runs_out - TODAY).days / 7
    assert 7 <= weeks <= 12, "40 on workdays grow by three a week to 70 in ten weeks"
    assert outlook.runs_out.weekday() < 5, "on a workday, since weekends have thirty fewer"


def test_what_does_not_grow_does_not_run_out() -> None:
    outlook = run_out("a40-8q", days(60, weekend=10), 40, 1, TODAY)
    assert (outlook.growth_per_week, outlook.runs_out, outlook.not_before) == (0.0, None, None)
    assert outlook.error == 0.0 and outlook.naive_error == 0.0


def test_what_shrinks_does_not_run_out() -> None:
    outlook = run_out("a40-8q", days(60, growth=-2, base=10), 10, 20, TODAY)
    assert outlook.growth_per_week is not None and outlook.growth_per_week < 0
    assert outlook.runs_out is None


def test_what_is_full_already_runs_out_tomorrow() -> None:
    outlook = run_out("a40-8q", days(60), 40, 0, TODAY)
    assert outlook.runs_out == TODAY + timedelta(days=1)


@pytest.mark.parametrize("day_count", [0, 1, FEWEST_DAYS - 1])
def test_too_little_history_is_no_forecast(day_count: int) -> None:
    outlook = run_out("a40-8q", days(day_count, growth=5), 40, 1, TODAY)
    assert (outlook.days, outlook.growth_per_week, outlook.runs_out, outlook.error) == (day_count, None, None, None)


def test_the_error_is_measured_two_weeks_ahead_beside_seasonal_naive() -> None:
    outlook = run_out("a40-8q", days(70, growth=7, base=200), 200, 60, TODAY)
    assert outlook.tested_days == 70 - 14 - FEWEST_DAYS + 1
    assert outlook.error is not None and outlook.naive_error is not None
    assert outlook.error == pytest.approx(0, abs=0.01)
    assert outlook.naive_error == pytest.approx(14, abs=0.01), "two weeks of growth"


def test_an_error_makes_the_day_a_while() -> None:
    chance = random.Random(7)
    peaks = {day: most + chance.randint(-4, 4) for day, most in days(70, growth=3).items()}
    outlook = run_out("a40-8q", peaks, 40, 30, TODAY)
    assert outlook.error is not None and outlook.error > 1
    assert outlook.not_before is not None and outlook.runs_out is not None
    assert outlook.not_before < outlook.runs_out
    assert outlook.not_after is None or outlook.not_after > outlook.runs_out


@given(st.dictionaries(st.integers(0, 120), st.integers(0, 500), max_size=80), st.integers(0, 200), st.integers(0, 200))
def test_whatever_the_past_a_forecast_says_no_day_beyond_what_it_knows(
    past: dict[int, int], running: int, fit: int
) -> None:
    peaks = {TODAY - timedelta(days=back): most for back, most in past.items()}
    outlook = run_out("a40-8q", peaks, running, fit, TODAY)
    assert outlook.days == len(past)
    dates = [day for day in (outlook.not_before, outlook.runs_out, outlook.not_after) if day is not None]
    assert dates == sorted(dates)
    assert all(TODAY < day <= TODAY + HORIZON for day in dates)
    assert (outlook.error is None) == (outlook.tested_days == 0)
    if len(past) < FEWEST_DAYS:
        assert not dates and outlook.growth_per_week is None


def test_days_to_come_are_no_history() -> None:
    peaks = days(30) | {TODAY + timedelta(days=1): 999}
    assert run_out("a40-8q", peaks, 40, 1, TODAY) == run_out("a40-8q", days(30), 40, 1, TODAY)
