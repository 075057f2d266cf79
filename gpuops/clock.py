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

import time
from datetime import UTC, datetime, timedelta

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


def set_ahead(by: timedelta) -> None:
    """From now on the time of day is so much ahead of the machine's, or behind it."""
    global _ahead
    _ahead = by
