"""Moment: a point in time as people type it."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from gpuops.errors import UsageError

_FIRST_YEAR: Final = 1970
_LAST_YEAR: Final = 2999


def parse_moment(option: str, text: str) -> datetime:
    """The moment, without an offset if the text has none. Raises UsageError."""
    try:
        if len(text) < len("2026-11-23T22:00"):
            raise ValueError  # a date alone would be its midnight
        return checked_year(datetime.fromisoformat(text))
    except ValueError:
        hint = "write it as '2026-11-23 22:00', or with an offset as 2026-11-23T22:00+01:00"
        raise UsageError(f"{option}: {text!r} is no date with a time", hint=hint) from None


def checked_year(found: datetime) -> datetime:
    """The same moment. Raises ValueError for a year that is a typing error: no night could reach into the next one."""
    if not _FIRST_YEAR <= found.year <= _LAST_YEAR:
        raise ValueError(found)
    return found
