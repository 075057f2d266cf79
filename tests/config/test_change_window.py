"""The window of a change as people type it."""

from __future__ import annotations

from datetime import time

import pytest

from gpuops.config.date_text import parse_window
from gpuops.errors import UsageError
from gpuops.model.window import Weekday


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("Sat 22:00-04:00 Europe/Berlin", {Weekday.SAT}),
        ("sat,SUN 22:00-04:00 UTC", {Weekday.SAT, Weekday.SUN}),
        ("Fri-Mon 22:00 - 04:00 UTC", {Weekday.FRI, Weekday.SAT, Weekday.SUN, Weekday.MON}),
        ("22:00-04:00 UTC", set(Weekday)),
    ],
)
def test_days_times_and_zone(text: str, days: set[Weekday]) -> None:
    window = parse_window(text)
    assert (window.opens, window.closes, set(window.weekdays), window.name) == (time(22), time(4), days, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a window"),
        ("Sat 22:00 Europe/Berlin", "is not a window"),
        ("Sat 22:00-04:00", "is not a window"),
        ("Sat 25:00-04:00 UTC", "are not times of day"),
        ("Sat 22:00-22:00 UTC", "opens and closes at the same time, 22:00"),
        ("Sat 22:00-04:00 Europe/Bonn", "is not an IANA zone"),
        ("Samstag 22:00-04:00 UTC", "'Samstag' is not a day of the week"),
        ("Sat- 22:00-04:00 UTC", "'' is not a day of the week"),
    ],
)
def test_what_is_no_window_is_said(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_window(text)
