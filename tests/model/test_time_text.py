"""Durations carry their units; a moment has an offset."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpuops.model.time_text import (
    format_duration,
    format_hours,
    format_limit,
    format_minutes,
    format_stopwatch,
    parse_zoned,
)  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (60, "1 min 00 s"), (3599.6, "1 h 00 min"), (7500, "2 h 05 min")],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "expected"), [(-1, "0:00"), (59.9, "0:59"), (725, "12:05"), (3600, "1:00:00"), (90_000, "25:00:00")]
)
def test_format_stopwatch(seconds: float, expected: str) -> None:
    assert format_stopwatch(seconds) == expected


@pytest.mark.parametrize(
    ("minutes", "text", "short"),
    [(20, "20 min", "20 min"), (90, "1 h 30 min", "1 h 30 min"), (2880, "48 h 00 min", "48 h")],
)
def test_format_minutes_and_hours(minutes: int, text: str, short: str) -> None:
    length = timedelta(minutes=minutes)
    assert (format_minutes(length), format_hours(length)) == (text, short)


def test_a_limit_is_in_minutes_where_these_are_exact() -> None:
    assert [format_limit(seconds) for seconds in (900, 90)] == ["15 min", "90 s"]


def test_a_moment_without_an_offset_is_refused() -> None:
    with pytest.raises(ValueError, match="2026-11-03T05:00"):
        parse_zoned("2026-11-03T05:00")
