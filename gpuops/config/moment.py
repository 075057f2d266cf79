"""Moment: a point in time as people type it."""

from __future__ import annotations

from datetime import datetime

from gpuops.errors import UsageError


def parse_moment(option: str, text: str) -> datetime:
    """The moment, without an offset if the text has none. Raises UsageError."""
    try:
        if len(text) < len("2026-11-23T22:00"):
            raise ValueError  # a date alone would be its midnight
        return datetime.fromisoformat(text)
    except ValueError:
        hint = "write it as '2026-11-23 22:00', or with an offset as 2026-11-23T22:00+01:00"
        raise UsageError(f"{option}: {text!r} is no date with a time", hint=hint) from None
