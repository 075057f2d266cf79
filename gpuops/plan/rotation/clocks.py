"""Rotation, clocks: whether this machine's time can be believed, by the one other clock there is.

It is asked when a night is planned, and at each look of a night under way: a clock may be set at any hour.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from gpuops.plan.core.plan import Rejection

APART: Final = timedelta(seconds=60)
"""Two clocks that are kept by NTP are never so far apart."""


def ahead_by(told: datetime, asked: datetime, answered: datetime) -> timedelta:
    """How far vCenter's clock is ahead of ours at the least (behind: negative).

    It told its time at some moment between question and answer: a slow answer alone is no difference.
    """
    first, last = min(asked, answered), max(asked, answered)
    return told - min(max(told, first), last)


def clocks_apart(ahead: timedelta | None) -> list[Rejection]:
    """A refusal where vCenter's clock is so far `ahead` of this machine's, or behind it; None = they do not compare.

    Which of the two is wrong nobody can tell from here, and a night by a wrong clock would end after the morning has
    begun. The way back needs no clock.
    """
    rule = apart(ahead)
    if rule is None:
        return []
    return [Rejection("clocks", rule, hint="set both by NTP; gpuops rotate day brings back at any time")]


def apart(ahead: timedelta | None) -> str | None:
    """What is wrong with the clocks, in words; None = nothing, or they do not compare."""
    if ahead is None or abs(ahead) <= APART:
        return None
    which = "ahead of" if ahead > timedelta() else "behind"
    return f"vCenter's is {_text(abs(ahead))} {which} this machine's: the hours of a night cannot be told"


def _text(length: timedelta) -> str:
    minutes, seconds = divmod(round(length.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
