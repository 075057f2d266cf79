"""The time of the simulated vCenter and the actions that are scheduled in it. The object store waits by it.

Besides `advance`, one of three modes moves the time:

* `virtual`, for any client: it goes on with real time, and it also jumps. A client that waits for updates makes it jump
  to the next due moment; a client that polls a task makes it jump by a share of that task's duration
  (`vcenter/tasks.py`). Clients therefore need not wait for a long task. Actions that became due since the last request
  run before the next one, in their order and each at its own moment.
* `real`: the time of day; nothing jumps.
* `stepped`: requests and waits alone move it, so that the same requests always find the same world, on any machine.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from gpuops.clock import passed_s, wall_clock

VIRTUAL_START: Final = datetime(2026, 11, 2, 18, 0, tzinfo=UTC)
"""When virtual and stepped time begin unless a scenario says otherwise: a Monday evening."""

REQUEST_COST: Final = timedelta(milliseconds=5)
"""Stepped time that a request takes, so that a client which only polls sees tasks end too."""


class ClockMode(StrEnum):
    """What moves the time."""

    VIRTUAL = "virtual"
    REAL = "real"
    STEPPED = "stepped"


@dataclass(slots=True, eq=False)
class Timer:
    """One scheduled action; `cancel()` forgets it. `action` becomes None when it has run or was cancelled."""

    due: datetime
    action: Callable[[], object] | None

    def cancel(self) -> None:
        self.action = None


class Clock:
    """Time as the objects see it. Its owner, the World, holds the lock around every call."""

    def __init__(self, mode: ClockMode = ClockMode.STEPPED, *, start: datetime = VIRTUAL_START) -> None:
        self.mode = mode
        self._start = start
        self._began_s = passed_s()
        self._jumped = timedelta()
        """The sum of all moves forward."""
        self._running_at: datetime | None = None
        self._timers: list[tuple[datetime, int, Timer]] = []
        """A heap of (due time, number in order of scheduling, timer)."""
        self._foreground: list[tuple[datetime, int, Timer]] = []
        """The same for the timers that a waiting client's time jumps to: all but the background ones."""
        self._numbers = itertools.count()

    def now(self) -> datetime:
        """This moment, aware, in UTC; inside a scheduled action, the moment it was due."""
        return self._running_at if self._running_at is not None else self._time()

    def schedule(self, delay_s: float, action: Callable[[], object], *, background: bool = False) -> Timer:
        """Return a new timer that runs `action` once, `delay_s` seconds from now.

        Virtual time jumps to the next timer while a client waits, but not to a background timer (a task's retirement, a
        progress mark). That one runs when time passes it.
        """
        timer = Timer(self.now() + timedelta(seconds=max(0.0, delay_s)), action)
        entry = (timer.due, next(self._numbers), timer)
        heapq.heappush(self._timers, entry)
        if not background:
            heapq.heappush(self._foreground, entry)
        return timer

    def next_due(self, *, background: bool = False) -> datetime | None:
        """Return when the next timer is due, of all timers or only of those a wait jumps to; None if there is none."""
        timers = self._timers if background else self._foreground
        while timers and timers[0][2].action is None:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def run_due(self) -> None:
        """Run the actions that are due by now, in order of time, and those that they schedule for the past."""
        self._run_until(self.now())

    def take_request(self) -> None:
        """Let the time of one request pass, and run the actions that are due by then."""
        if self.mode is ClockMode.STEPPED:
            self.advance_to(self.now() + REQUEST_COST)
        else:
            self.run_due()

    def advance(self, seconds: float) -> None:
        """Move time forward and run the actions that become due, each at its own moment."""
        self.advance_to(self.now() + timedelta(seconds=seconds))

    def advance_to(self, moment: datetime) -> None:
        """Move time forward to `moment`; time never goes back."""
        self._run_until(moment)
        self._jump_to(moment)

    def _time(self) -> datetime:
        if self.mode is ClockMode.REAL:
            return wall_clock() + self._jumped
        moment = self._start + self._jumped
        if self.mode is ClockMode.VIRTUAL:
            moment += timedelta(seconds=passed_s() - self._began_s)
        return moment

    def _jump_to(self, moment: datetime) -> None:
        self._jumped += max(timedelta(), moment - self._time())

    def _run_until(self, moment: datetime) -> None:
        """Run the actions that are due by `moment`, each at its own moment; an action may schedule others."""
        if not self._timers or self._timers[0][0] > moment:
            return
        if self._running_at is not None:
            return  # an action that advances the clock would run later actions before it has ended
        try:
            while self._timers and self._timers[0][0] <= moment:
                timer = heapq.heappop(self._timers)[2]
                action, timer.action = timer.action, None
                if action is None:  # the timer was cancelled
                    continue
                self._running_at = timer.due
                if self.mode is not ClockMode.REAL:
                    self._jump_to(timer.due)
                action()
        finally:
            self._running_at = None
