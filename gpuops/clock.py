"""Tells the time of day and the seconds that pass, and waits, for the whole program; nothing else asks the machine.

Code that needs the time gets `wall_clock` as an argument (`Site.clock`, the journal, the simulator's real time), or
calls it here. `set_ahead` is the only switch: it moves the time of day everywhere at once, for holders of `wall_clock`
too. It is for tests. No option, file or environment variable of the product sets it: with a wrong time, a rotation
would take desktops in the daytime. The child process of a test sets it in the test's own `sitecustomize`
(`tests/surroundings/`), which no installation contains.

`passed_s` is the machine's monotonic clock and cannot be moved: deadlines on the wire must hold even if the time of day
is changed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat

_ahead = timedelta()


def wall_clock() -> datetime:
    """Return the time of day, in UTC."""
    return machine_time() + _ahead


def machine_time() -> datetime:
    """Return the time of the machine's own clock, in UTC: it stamps files and judges certificates.

    `set_ahead` does not change it.
    """
    return datetime.now(tz=UTC)  # noqa: TID251


def passed_s() -> float:
    """Return the seconds since some moment; changes of the time of day do not affect it."""
    return time.monotonic()


def pause(seconds: float) -> None:
    """Wait for this many seconds."""
    time.sleep(seconds)


def rounds(
    rests_s: Sequence[float],
    within_s: float = math.inf,
    *,
    rest: Callable[[float], None] | None = None,
    seconds: Callable[[], float] | None = None,
) -> Iterator[float]:
    """Yield the seconds that remain: at once, after each rest, and at the end 0.0 for a last round.

    The last of `rests_s` repeats. `rest` and `seconds` replace `pause` and `passed_s` where another clock counts.
    """
    rest, seconds = rest or pause, seconds or passed_s
    until_s = seconds() + within_s
    for rest_s in chain(rests_s, repeat(rests_s[-1])):
        left_s = until_s - seconds()
        if left_s <= 0:
            break
        yield left_s
        rest(max(0.0, min(rest_s, until_s - seconds())))
    yield 0.0


def set_ahead(by: timedelta) -> None:
    """Set how far the time of day is ahead of the machine's clock; a negative value puts it behind."""
    global _ahead
    _ahead = by
