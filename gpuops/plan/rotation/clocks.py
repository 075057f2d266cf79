"""Rotation, clocks: whether this machine's time can be believed, by the one other clock there is."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from gpuops.plan.plan import Rejection

APART: Final = timedelta(seconds=60)
"""Two clocks that are kept by NTP are never so far apart; a read of a large vCenter takes seconds."""


def clocks_apart(ahead: timedelta | None) -> list[Rejection]:
    """A refusal where vCenter's clock is so far `ahead` of this machine's, or behind it; None = they do not compare.

    Which of the two is wrong nobody can tell from here, and a night by a wrong clock would end after the morning has
    begun. The way back needs no clock.
    """
    if ahead is None or abs(ahead) <= APART:
        return []
    which = "ahead of" if ahead > timedelta() else "behind"
    rule = f"vCenter's is {_text(abs(ahead))} {which} this machine's: the hours of a night cannot be told"
    return [Rejection("clocks", rule, hint="set both by NTP; gpuops rotate day brings back at any time")]


def _text(length: timedelta) -> str:
    minutes, seconds = divmod(int(length.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
