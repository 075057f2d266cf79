"""Tells the time of day and the seconds that pass, and waits, for the whole program; nothing else asks the machine.

Whoever needs the time is handed `wall_clock` (`Site.clock`, the journal, the simulator's real time), or asks here.
`set_ahead` is the one switch: it moves the time of day for everybody at once, whoever holds `wall_clock` already too.
It is there for tests. No option, file or environment variable of the product reaches it, for a rotation that could be
told a wrong time by its environment would take desktops in the daytime: a test's child process is told by the test's
own `sitecustomize` (`tests/surroundings/`), which no installation contains.

The seconds that pass are those of the machine and cannot be moved: deadlines on the wire must hold whatever the time
of day is said to be.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat

_ahead = timedelta()


def wall_clock() -> datetime:
    """The time of day, in UTC."""
    return machine_time() + _ahead


def machine_time() -> datetime:
    """What the machine's own clock shows, in UTC: it stamps files and judges certificates, whatever
    `set_ahead` says."""
    return datetime.now(tz=UTC)  # noqa: TID251


def passed_s() -> float:
    """Seconds since some moment, whatever is done to the time of day."""
    return time.monotonic()


def pause(seconds: float) -> None:
    """Returns so many seconds later."""
    time.sleep(seconds)


def rounds(
    rests_s: Sequence[float],
    within_s: float = math.inf,
    *,
    rest: Callable[[float], None] | None = None,
    seconds: Callable[[], float] | None = None,
) -> Iterator[bool]:
    """Yield now and after each rest, until the time is up; True = this is the last round.

    The last of `rests_s` repeats. `rest` and `seconds` replace `pause` and `passed_s` where another clock counts.
    """
    rest, seconds = rest or pause, seconds or passed_s
    until_s = seconds() + within_s
    for rest_s in chain(rests_s, repeat(rests_s[-1])):
        if seconds() >= until_s:
            break
        yield False
        rest(max(0.0, min(rest_s, until_s - seconds())))
    yield True


def set_ahead(by: timedelta) -> None:
    """From now on the time of day is so much ahead of the machine's, or behind it."""
    global _ahead
    _ahead = by
