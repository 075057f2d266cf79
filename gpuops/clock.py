"""The only module that reads the clocks of the machine: the time of day and the passing seconds. It also waits.

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
    """Return the time of the machine's own clock, in UTC, for stamps of files and checks of certificates.

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
    pauses_s: Sequence[float],
    timeout_s: float = math.inf,
    *,
    wait: Callable[[float], None] | None = None,
    read_clock_s: Callable[[], float] | None = None,
) -> Iterator[float]:
    """Yield once for each round of a loop that polls: the seconds that remain of the timeout, and 0.0 for a last round.

    The first round begins at once, each other one after the next of `pauses_s`, whose last one repeats. `wait` and
    `read_clock_s` replace `pause` and `passed_s` for another clock.
    """
    wait, read_clock_s = wait or pause, read_clock_s or passed_s
    deadline_s = read_clock_s() + timeout_s
    for pause_s in chain(pauses_s, repeat(pauses_s[-1])):
        remaining_s = deadline_s - read_clock_s()
        if remaining_s <= 0:
            break
        yield remaining_s
        wait(max(0.0, min(pause_s, deadline_s - read_clock_s())))
    yield 0.0


def set_ahead(by: timedelta) -> None:
    """Set how far the time of day is ahead of the machine's clock; a negative value puts it behind."""
    global _ahead
    _ahead = by
