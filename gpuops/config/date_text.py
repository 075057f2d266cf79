"""Reads dates and windows that people type: '2026-11-23 22:00', or 'Sat 22:00-04:00 Europe/Berlin' for --window.

The command line, the tasks of Ansible and the queue of a rotation policy use it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from gpuops.errors import UsageError
from gpuops.model.window import Weekday, Window, checked_year

_CLOCK: Final = re.compile(r"\d\d:\d\d", re.ASCII)


def parse_moment(option: str, text: str) -> datetime:
    """Return the date and time of the text; it has no time zone if the text has no offset. Raises UsageError."""
    try:
        if len(text) < len("2026-11-23T22:00"):
            raise ValueError  # `fromisoformat` would read a date alone as its midnight
        return checked_year(datetime.fromisoformat(text))
    except ValueError:
        hint = "write it as '2026-11-23 22:00', or with an offset as 2026-11-23T22:00+01:00"
        raise UsageError(f"{option}: {text!r} is not a date with a time", hint=hint) from None


def parse_moment_or_clock(option: str, text: str) -> datetime | time:
    """Return the moment, as `parse_moment` does, or a time of day alone: `22:00`. Raises UsageError."""
    try:
        if _CLOCK.fullmatch(text):
            return time.fromisoformat(text)
    except ValueError:
        pass  # such as 25:00: the error of `parse_moment` is raised
    return parse_moment(option, text)


_AGO: Final = re.compile(r"(\d{1,4})([dw])")


def parse_since(option: str, text: str, now: datetime) -> datetime:
    """Return the moment that is `30d` (days) or `12w` (weeks) before `now`, or midnight (UTC) of a date.

    Raises UsageError.
    """
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            return now - timedelta(days=int(ago[1]) * (7 if ago[2] == "w" else 1))
        return datetime.combine(checked_year(datetime.fromisoformat(text)).date(), time.min, UTC)
    except (ValueError, OverflowError):
        hint = "write it as 30d (days), 12w (weeks) or 2026-11-01"
        raise UsageError(f"{option}: {text!r} is neither a number of days or weeks nor a date", hint=hint) from None


_WINDOW: Final = re.compile(r"(?:(?P<days>[A-Za-z,-]+) )?(?P<opens>\d\d:\d\d) ?- ?(?P<closes>\d\d:\d\d) (?P<zone>\S+)")
_HINT: Final = "write it as 'Sat 22:00-04:00 Europe/Berlin', or 'Mon-Fri 01:00-05:00 UTC'"
_WEEK: Final = tuple(Weekday)


def parse_window(text: str) -> Window:
    """Return the window, named by the text. If it closes earlier than it opens, it ends on the next day.

    Raises UsageError.
    """
    match = _WINDOW.fullmatch(" ".join(text.split()))
    if match is None:
        raise UsageError(f"--window: {text!r} is not a window", hint=_HINT)
    try:
        opens, closes = time.fromisoformat(match["opens"]), time.fromisoformat(match["closes"])
    except ValueError:
        raise UsageError(f"--window: {match['opens']} or {match['closes']} is not a time of day", hint=_HINT) from None
    if opens == closes:
        raise UsageError(f"--window: the window opens and closes at the same time, {match['opens']}", hint=_HINT)
    try:
        zone = ZoneInfo(match["zone"])
    except (OSError, ValueError, KeyError):
        raise UsageError(f"--window: {match['zone']!r} is not an IANA zone such as Europe/Berlin", hint=_HINT) from None
    return Window(opens, closes, zone, weekdays=_days(match["days"]), name=text)


def _days(text: str | None) -> frozenset[Weekday]:
    """Return the days of `Sat`, `Sat,Sun` or `Mon-Fri`; all days for None. Raises UsageError."""
    if text is None:
        return frozenset(Weekday)
    ranges = [part.partition("-") for part in text.split(",")]
    # a single day is a range from it to itself
    return frozenset(day for first, dash, last in ranges for day in _day(first).until(_day(last if dash else first)))


def _day(text: str) -> Weekday:
    try:
        return Weekday(text.lower())
    except ValueError:
        raise UsageError(
            f"--window: {text!r} is not a day of the week", hint=f"days: {', '.join(_WEEK).title()}"
        ) from None
