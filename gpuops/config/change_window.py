"""The window of a change, as people type it: 'Sat 22:00-04:00 Europe/Berlin'."""

from __future__ import annotations

import re
from datetime import time
from typing import Final
from zoneinfo import ZoneInfo

from gpuops.errors import UsageError
from gpuops.model.window import Weekday, Window

_WINDOW: Final = re.compile(r"(?:(?P<days>[A-Za-z,-]+) )?(?P<opens>\d\d:\d\d) ?- ?(?P<closes>\d\d:\d\d) (?P<zone>\S+)")
_HINT: Final = "write it as 'Sat 22:00-04:00 Europe/Berlin', or 'Mon-Fri 01:00-05:00 UTC'"
_WEEK: Final = tuple(Weekday)


def parse_window(text: str) -> Window:
    """The window; its name is the text. Across midnight when it closes earlier than it opens. Raises UsageError."""
    match = _WINDOW.fullmatch(" ".join(text.split()))
    if match is None:
        raise UsageError(f"--window: {text!r} is no window", hint=_HINT)
    try:
        opens, closes = time.fromisoformat(match["opens"]), time.fromisoformat(match["closes"])
    except ValueError:
        raise UsageError(f"--window: {match['opens']}-{match['closes']} are no times of day", hint=_HINT) from None
    if opens == closes:
        raise UsageError(f"--window: opens and closes at {match['opens']}", hint=_HINT)
    try:
        zone = ZoneInfo(match["zone"])
    except (OSError, ValueError, KeyError):
        raise UsageError(f"--window: {match['zone']!r} is no IANA zone such as Europe/Berlin", hint=_HINT) from None
    return Window(opens, closes, zone, weekdays=_days(match["days"]), name=text)


def _days(text: str | None) -> frozenset[Weekday]:
    """`Sat`, `Sat,Sun` or `Mon-Fri`; none named = every evening."""
    if text is None:
        return frozenset(Weekday)
    found: set[Weekday] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        one = _day(first)
        other = _day(last) if dash else one
        found.add(one)
        while one is not other:
            one = one.next
            found.add(one)
    return frozenset(found)


def _day(text: str) -> Weekday:
    try:
        return Weekday(text.lower())
    except ValueError:
        raise UsageError(f"--window: {text!r} is no day", hint=f"days: {', '.join(_WEEK).title()}") from None
