"""Made-up weeks of a pool, and a watch that keeps its desktops ready: how many users wait for one.

The desktops of the pool are handed out to any user (a floating pool). Its people are those of
`gpuops/sim/state/desktop_people.py`, another week of each by another seed; what the store would hold about them comes
through counters of `tests/desktop_load.py` and the counting of `execute/measurements/demand.py`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np

from gpuops.advise.forecast import SLOT, Forecast, UseHistory, forecast
from gpuops.extras.observe.blocks import FINE_S, empty, steps_of_samples
from gpuops.extras.observe.desktop_demand import slot_use
from gpuops.model.measurements.measurement import CPU_MHZ, Samples
from gpuops.sim.state.desktop_people import DAY_S, ENDS_S, Office, UserSession
from tests.desktop_load import desktop_week

FIRST: Final = datetime(2026, 11, 2, tzinfo=UTC)
"""A Monday."""
WEEK: Final = timedelta(days=7)
LIMIT_MHZ: Final = 500
KEPT: Final = timedelta(days=14)
"""How far back `gpuops observe` keeps steps of five minutes by default."""

STOP_S: Final = 120
"""`ml.stop.grace_s`: so long ML VMs take to stop before the first desktop of a batch comes back."""
RESUME_S: Final = 180
IN_FLIGHT: Final = 8
"""`limits.in_flight`: so many desktops come back at once."""
IDLE_S: Final = 900
"""`idle.for_s`: so long a desktop is unused before it is taken."""
_MINUTE_S: Final = 60
_WEEK_S: Final = 7 * DAY_S
_WEEK_SLOTS: Final = WEEK // SLOT


@dataclass(frozen=True, slots=True)
class MadePool:
    """So many weeks of one pool: the history of all of them, and the sessions of the last."""

    history: UseHistory
    sessions: tuple[UserSession, ...]
    """Of the last week; its moments are seconds since that Monday."""
    monday: datetime
    """Of the last week."""
    desktops: int


def made_pool(office: Office, seed: int, desktops: int, weeks: int = 3) -> MadePool:
    counts = np.zeros(weeks * _WEEK_SLOTS, np.int64)
    sessions: list[UserSession] = []
    for week in range(weeks):
        for number in range(desktops):
            desktop = desktop_week(office, seed + week, number)
            values = steps_of_samples(Samples("vm", desktop.sample_ends(0), desktop.values), 0, ENDS_S // FINE_S).series
            cpu = values.get(CPU_MHZ, empty(ENDS_S // FINE_S))[: _WEEK_S // FINE_S]
            used, _, _ = slot_use({CPU_MHZ: cpu}, {CPU_MHZ: LIMIT_MHZ})
            counts[week * _WEEK_SLOTS : (week + 1) * _WEEK_SLOTS] += used
            if week == weeks - 1:
                sessions += [session for session in desktop.people.sessions if session.begin < _WEEK_S]
    return MadePool(UseHistory(FIRST, tuple(counts.tolist())), tuple(sessions), FIRST + (weeks - 1) * WEEK, desktops)


def known_at(history: UseHistory, now: datetime, period: timedelta = KEPT) -> UseHistory:
    """What a store has of it then that keeps so much."""
    first = max(0, (now - period - history.begin) // SLOT)
    return UseHistory(history.begin + first * SLOT, history.in_use[first : (now - history.begin) // SLOT])


@dataclass(frozen=True, slots=True)
class Rule:
    """`ready` of the pool."""

    at_least: int
    ahead: timedelta | None = None
    kept: timedelta = KEPT
    """Of how much history: by eight days it is the week before alone."""

    def up(self, prediction: Forecast | None, now: datetime) -> int:
        if prediction is None or self.ahead is None:
            return 0
        return prediction.desktops_to_run(now, now + self.ahead) or 0


@dataclass(slots=True)
class Played:
    """What became of a week."""

    logons: int = 0
    found_ready: int = 0
    returned: int = 0
    """Desktops that came back and that somebody then used."""
    returned_before: int = 0
    """Those of them that were there before their user."""
    waits_s: list[int] = field(default_factory=list)
    away_s: int = 0
    """Seconds of all desktops in which they are suspended."""


@dataclass(slots=True)
class _Ready:
    since: int
    returned: bool


@dataclass(slots=True)
class _Play:
    """A week, minute by minute, of a watch whose ML queue never ends: whatever may be taken is."""

    pool: MadePool
    rule: Rule
    played: Played = field(default_factory=Played)
    ready: deque[_Ready] = field(default_factory=deque)
    using: set[int] = field(default_factory=set)
    """Sessions by their number, like those that wait."""
    away: int = 0
    coming: deque[int] = field(default_factory=deque)
    """When each desktop of the batch that comes back is there."""
    waiting: deque[int] = field(default_factory=deque)
    told: Forecast | None = None

    def run(self) -> Played:
        begins, ends = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        for number, made_session in enumerate(self.pool.sessions):
            begins[_minute(made_session.begin)].append(number)
            ends[max(_minute(made_session.until), _minute(made_session.begin) + _MINUTE_S)].append(number)
        self.ready.extend(_Ready(0, False) for _ in range(self.pool.desktops))
        for now in range(0, _WEEK_S, _MINUTE_S):
            while self.coming and self.coming[0] <= now:
                self.coming.popleft()
                self._there(_Ready(now, True))
            for session in ends[now]:
                self._ends(session, now)
            for session in begins[now]:
                self._logon(session)
            self._look(now)
            self.played.away_s += self.away * _MINUTE_S
        return self.played

    def _there(self, desktop: _Ready) -> None:
        """A desktop is free: for the one who waits the longest, if anybody does."""
        if not self.waiting:
            self.ready.append(desktop)
            return
        session = self.waiting.popleft()
        self.played.waits_s.append(desktop.since - self.pool.sessions[session].begin)
        self.played.returned += desktop.returned
        self.using.add(session)

    def _ends(self, session: int, now: int) -> None:
        if session in self.using:
            self.using.remove(session)
            self._there(_Ready(now, False))
        else:  # it was waited for until the work was over
            self.waiting.remove(session)
            self.played.waits_s.append(now - self.pool.sessions[session].begin)

    def _logon(self, session: int) -> None:
        self.played.logons += 1
        if not self.ready:
            self.waiting.append(session)
            return
        desktop = self.ready.popleft()
        self.played.found_ready += 1
        self.played.returned += desktop.returned
        self.played.returned_before += desktop.returned
        self.using.add(session)

    def _look(self, now: int) -> None:
        """As `KeptForUsers.missing` counts; a watch looks again when a batch is back."""
        if self.coming:
            return
        moment = self.pool.monday + timedelta(seconds=now)
        if self.rule.ahead is not None and now % 3600 == 0:
            history = known_at(self.pool.history, moment, self.rule.kept)
            self.told = forecast(history, moment, moment + self.rule.ahead + timedelta(hours=1) + SLOT)
        missing = max(
            self.rule.at_least - len(self.ready), self.rule.up(self.told, moment) - len(self.using) - len(self.ready)
        )
        if missing > 0:
            count = min(missing, self.away)
            self.away -= count
            self.coming.extend(now + STOP_S + (at // IN_FLIGHT + 1) * RESUME_S for at in range(count))
            return
        for _ in range(-missing):
            if not self.ready or now - self.ready[0].since < IDLE_S:
                break
            self.ready.popleft()
            self.away += 1


def _minute(moment: int) -> int:
    return -(-moment // _MINUTE_S) * _MINUTE_S


def play_pool(pool: MadePool, rule: Rule) -> Played:
    """The last week of the pool under this rule."""
    return _Play(pool, rule).run()


def mean_error(pool: MadePool, period: timedelta) -> float:
    """Of forecasts made at each midnight of the last week for the day, by so much history: desktops, where some were
    in use or expected to be."""
    off: list[int] = []
    for day in range(7):
        now = pool.monday + timedelta(days=day)
        for slot in forecast(known_at(pool.history, now, period), now, now + timedelta(days=1)).slots:
            actual = pool.history.at(slot.begin) if slot is not None else None
            if slot is not None and actual is not None and (actual or slot.in_use):
                off.append(abs(actual - slot.in_use))
    return sum(off) / len(off)
