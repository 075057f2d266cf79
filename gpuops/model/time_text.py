"""Moments and durations as text: no other module knows a format of time.

A moment is written in its own zone, except by `format_stamp` and `format_iso_utc`, which convert it to UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta


def format_minute(moment: datetime) -> str:
    """Return `2026-11-20 20:01`."""
    return f"{moment:%Y-%m-%d %H:%M}"


def format_zoned_minute(moment: datetime) -> str:
    """Return `2026-11-20 20:01 CET`."""
    return f"{moment:%Y-%m-%d %H:%M %Z}"


def format_second(moment: datetime) -> str:
    """Return `2026-11-20 20:01:05`."""
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def format_zoned_second(moment: datetime) -> str:
    """Return `2026-11-20 20:01:05 CET`."""
    return f"{moment:%Y-%m-%d %H:%M:%S %Z}"


def format_clock(moment: datetime | time) -> str:
    """Return `20:01`."""
    return f"{moment:%H:%M}"


def format_clock_second(moment: datetime) -> str:
    """Return `20:01:05`."""
    return f"{moment:%H:%M:%S}"


def format_stamp(moment: datetime) -> str:
    """Return `2026-11-20T19:01:05Z`, in UTC: RFC 3339 without a fraction of the second."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def format_minute_id(moment: datetime) -> str:
    """Return `2026-11-20T19:01Z`, in UTC, as part of a name."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%MZ}"


def format_iso_utc(moment: datetime) -> str:
    """Return `2026-11-20T19:01:05.250000+00:00`, in UTC: ISO 8601 with microseconds."""
    return moment.astimezone(UTC).isoformat()


def parse_zoned(text: str) -> datetime:
    """Parse an ISO 8601 text. Raises ValueError, also for a text without an offset from UTC."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(text)
    return moment


def format_duration(seconds: float) -> str:
    """Return `1.2 s`, `3 min 20 s` or `2 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, over_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {over_s:02d} s"
    return format_minutes(timedelta(minutes=minutes))


def format_minutes(length: timedelta) -> str:
    """Return `3 h 30 min` or `45 min`, to the nearest minute."""
    hours, minutes = divmod(round(length / timedelta(minutes=1)), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def format_hours(length: timedelta) -> str:
    """Return `4 h`, `1 h 30 min` or `20 min`, to the nearest minute; parts that are 0 are left out."""
    return format_minutes(length).removesuffix(" 00 min")


def format_limit(seconds: float) -> str:
    """Return `15 min` or `90 s`: in minutes where these are exact, as people write a limit."""
    return f"{seconds / 60:.0f} min" if seconds % 60 == 0 else f"{seconds:.0f} s"


def format_stopwatch(seconds: float) -> str:
    """Return `0:42`, `12:05` or `1:02:05`."""
    minutes, over_s = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{over_s:02d}" if hours else f"{minutes}:{over_s:02d}"
