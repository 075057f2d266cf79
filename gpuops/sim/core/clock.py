"""The time of the simulated vCenter, virtual or real, and the actions that are scheduled in it."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from gpuops.clock import wall_clock

VIRTUAL_START: Final = datetime(2026, 11, 2, 18, 0, tzinfo=UTC)
"""When virtual time begins unless a scenario says otherwise: a Monday evening."""

REQUEST_COST: Final = timedelta(milliseconds=5)
"""Virtual time that a request takes, so that a client which only polls sees tasks end too."""


class ClockMode(StrEnum):
    """Whose seconds a task takes."""

    VIRTUAL = "virtual"
    REAL = "real"


@dataclass(slots=True, eq=False)
class Alarm:
    """One scheduled action; `cancel()` forgets it. `action` is None once it ran or was cancelled."""

    due: datetime
    action: Callable[[], object] | None

    def cancel(self) -> None:
        self.action = None


class Clock:
    """Time as the objects see it. Its owner, the World, holds the lock around every call."""

    def __init__(self, mode: ClockMode = ClockMode.VIRTUAL, *, start: datetime = VIRTUAL_START) -> None:
        self.mode = mode
        self._now = start
        self._offset = timedelta()
        self._running_at: datetime | None = None
        self._alarms: list[tuple[datetime, int, Alarm]] = []
        """A heap: by when they are due, and of those due at once the one that was scheduled first."""
        self._foreground: list[tuple[datetime, int, Alarm]] = []
        self._numbers = itertools.count()

    def now(self) -> datetime:
        """This moment, aware, in UTC; inside a scheduled action, the moment it was due."""
        if self._running_at is not None:
            return self._running_at
        if self.mode is ClockMode.REAL:
            return wall_clock() + self._offset
        return self._now

    def schedule(self, delay_s: float, action: Callable[[], object], *, background: bool = False) -> Alarm:
        """An alarm that runs `action` once, `delay_s` from now.

        A background alarm (a task's retirement, a progress mark) runs when time passes it, but nobody's wait
        jumps to it.
        """
        alarm = Alarm(self.now() + timedelta(seconds=max(0.0, delay_s)), action)
        entry = (alarm.due, next(self._numbers), alarm)
        heapq.heappush(self._alarms, entry)
        if not background:
            heapq.heappush(self._foreground, entry)
        return alarm

    def next_due(self, *, background: bool = False) -> datetime | None:
        """When the next alarm is due: of all alarms, or only of those a wait jumps to. None = nothing is scheduled."""
        alarms = self._alarms if background else self._foreground
        while alarms and alarms[0][2].action is None:
            heapq.heappop(alarms)
        return alarms[0][0] if alarms else None

    def run_due(self) -> None:
        """Run what is due by now, in order of time, including what these actions schedule for the past."""
        self._run_until(self.now())

    def take_request(self) -> None:
        """Let the time of one request pass."""
        if self.mode is ClockMode.VIRTUAL:
            self.advance_to(self._now + REQUEST_COST)
        else:
            self.run_due()

    def advance(self, seconds: float) -> None:
        """Move time forward, running on the way what is due."""
        self.advance_to(self.now() + timedelta(seconds=seconds))

    def advance_to(self, moment: datetime) -> None:
        """Move time forward to `moment`; time never goes back."""
        self._run_until(moment)
        if self.mode is ClockMode.REAL:
            self._offset += max(timedelta(), moment - self.now())
        else:
            self._now = max(self._now, moment)

    def _run_until(self, moment: datetime) -> None:
        if not self._alarms or self._alarms[0][0] > moment:
            return
        if self._running_at is not None:
            return  # an action that advances the clock would run later actions before it has ended
        try:
            while self._alarms and self._alarms[0][0] <= moment:
                alarm = heapq.heappop(self._alarms)[2]
                action, alarm.action = alarm.action, None
                if action is None:
                    continue
                self._running_at = alarm.due
                if self.mode is ClockMode.VIRTUAL:
                    self._now = max(self._now, alarm.due)
                action()
        finally:
            self._running_at = None
