"""Simulates users at desktops in a made-up week, and their sessions; holds what is declared of desktop pools. Pure.

There are five kinds of offices, by seed. All moments are seconds since the Monday at 00:00. The figures are our own,
measured in no office: they are made so that each kind is hard in another way. A session outlives its user: after a
visit the client stays connected with no user at it, or is disconnected, or the user logs off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import pairwise
from random import Random
from typing import Final

DAYS: Final = 8
"""Seven nights, the last of which ends on the next Monday."""
MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86_400
ENDS_S: Final = DAYS * DAY_S
_WEEKEND: Final = (5, 6)
_BREAK_S: Final = 2 * MINUTE_S
"""The shortest break: no user comes back sooner."""


class Office(StrEnum):
    """What kind of people use the desktops."""

    OFFICE_HOURS = "office-hours"
    """They come at eight and leave at five on working days; some stay late, a tenth logs in again in the evening."""
    NIGHT_OWLS = "night-owls"
    """They work from the afternoon until after midnight with long breaks, and leave renderings running."""
    ZOMBIES = "zombies"
    """Office hours, but hardly anybody logs off; screen savers use the GPU, and counters are missing."""
    SHIFTS = "shifts"
    """Wards: short visits around the clock at desktops that many share."""
    READERS = "readers"
    """The hours of night owls, for people who read long documents: minutes of typing, then up to hours without."""


class VisitEnding(StrEnum):
    """What a user does on leaving."""

    STAYS_CONNECTED = "stays-connected"
    DISCONNECTS = "disconnects"
    LOGS_OFF = "logs-off"


@dataclass(frozen=True, slots=True)
class Visit:
    """The time for which a user is at the desktop, working or reading."""

    begin: int
    until: int
    ending: VisitEnding = VisitEnding.STAYS_CONNECTED


@dataclass(frozen=True, slots=True)
class UserSession:
    """A session in the guest."""

    begin: int
    until: int
    connected: tuple[tuple[int, int], ...]
    """When its client is connected, whether a user is at it or not."""

    def disconnected_at(self, moment: int) -> int | None:
        """When its client was disconnected; None = it is connected at this moment of the session."""
        if any(begin <= moment < until for begin, until in self.connected):
            return None
        return max(until for _, until in self.connected if until <= moment)


@dataclass(frozen=True, slots=True)
class People:
    """A week of one desktop: visits in their order, and what runs while no user is there."""

    office: Office
    visits: tuple[Visit, ...]
    sessions: tuple[UserSession, ...]
    renderings: tuple[tuple[int, int], ...] = ()
    """A job of a user who has left uses CPU and GPU."""

    def present(self, moment: int) -> bool:
        """Whether a user is at the desktop."""
        return any(visit.begin <= moment < visit.until for visit in self.visits)

    def session_at(self, moment: int) -> UserSession | None:
        return next((session for session in self.sessions if session.begin <= moment < session.until), None)

    def next_visit(self, moment: int) -> Visit | None:
        """The first visit that begins then or later."""
        return next((visit for visit in self.visits if visit.begin >= moment), None)


def people(office: Office, seed: int, number: int) -> People:
    """Return the week of a desktop; equal arguments give equal weeks."""
    rng = Random(f"{office}/{seed}/{number}")  # noqa: S311 - reproducible choices, no secrets
    visits = _without_overlaps(_VISITS[office](rng))
    renderings = tuple(_renderings(rng, visits)) if office is Office.NIGHT_OWLS else ()
    return People(office, visits, tuple(_sessions(visits, _TIMEOUT_S[office])), renderings)


_TIMEOUT_S: Final = {
    Office.OFFICE_HOURS: 4 * HOUR_S,
    Office.NIGHT_OWLS: 8 * HOUR_S,
    Office.ZOMBIES: None,
    Office.SHIFTS: 30 * MINUTE_S,
    Office.READERS: 8 * HOUR_S,
}
"""After so long a disconnected session is logged off; None = never."""


def _office_hours(rng: Random, logs_off: float = 0.7, disconnects: float = 0.2) -> Iterator[Visit]:
    """Yield an office worker's visits: mornings and afternoons, rarely overtime, at home or at the weekend.

    `logs_off` and `disconnects` are the probabilities of how a day ends; otherwise the client stays connected.
    """
    for day in range(DAYS):
        midnight = day * DAY_S
        leaving = _ending(rng, logs_off, disconnects)
        if day in _WEEKEND:
            if rng.random() < 0.05:  # works at the weekend
                yield from _work(rng, midnight + _draw_time_s(rng, 13, 3), rng.uniform(1, 3) * HOUR_S, leaving)
            continue
        if rng.random() < 0.08:  # a day off
            continue
        comes, lunch, leaves = _draw_time_s(rng, 8.25, 0.75), _draw_time_s(rng, 12.25, 0.5), _draw_time_s(rng, 17.25, 1)
        if rng.random() < 0.08:  # overtime
            leaves = int(rng.uniform(20, 22.5) * HOUR_S)
        yield from _work(rng, midnight + comes, lunch - comes)
        lunch_ends = lunch + int(rng.uniform(30, 60) * MINUTE_S)
        yield from _work(rng, midnight + lunch_ends, leaves - lunch_ends, leaving)
        if rng.random() < 0.1:  # works at home in the evening
            evening = midnight + int(rng.uniform(19, 22) * HOUR_S)
            yield from _work(rng, evening, _draw_skewed(rng, 40 * MINUTE_S, 0.6), _ending(rng, 0.4, 0.6))


def _night_owls(rng: Random) -> Iterator[Visit]:
    for day in range(DAYS):
        if rng.random() < 0.29:
            continue
        begin = day * DAY_S + _draw_time_s(rng, 14, 2)
        length = max(HOUR_S, int(rng.gauss(9, 1.5) * HOUR_S))
        yield from _work(rng, begin, length, _ending(rng, 0.4, 0.6), every_s=70 * MINUTE_S, break_s=18 * MINUTE_S)
        if rng.random() < 0.2:  # looks at the rendering
            looks_at = day * DAY_S + int(rng.uniform(26, 28) * HOUR_S)
            yield Visit(looks_at, looks_at + int(rng.uniform(5, 15) * MINUTE_S), VisitEnding.DISCONNECTS)


def _zombies(rng: Random) -> Iterator[Visit]:
    return _office_hours(rng, logs_off=0.1, disconnects=0.6)


def _shifts(rng: Random) -> Iterator[Visit]:
    around_the_clock = rng.random() < 0.4
    now = 0
    while now < ENDS_S:
        hour = now % DAY_S / HOUR_S
        by_day = 7 <= hour < 20
        now += _draw_skewed(rng, 25 * MINUTE_S if by_day else 62 * MINUTE_S, 1.0)
        length = _draw_skewed(rng, 7 * MINUTE_S, 0.9)
        if by_day or around_the_clock:
            yield Visit(now, now + length, _ending(rng, 0.4, 0.6))
        now += length


_VISITS: Final = {
    Office.OFFICE_HOURS: _office_hours,
    Office.NIGHT_OWLS: _night_owls,
    Office.ZOMBIES: _zombies,
    Office.SHIFTS: _shifts,
    Office.READERS: _night_owls,
}


def _work(
    rng: Random,
    begin: int,
    length: float,
    leaving: VisitEnding = VisitEnding.STAYS_CONNECTED,
    every_s: int = 90 * MINUTE_S,
    break_s: int = 10 * MINUTE_S,
) -> Iterator[Visit]:
    """Yield the visits from `begin` for `length` seconds, with breaks in which the client stays connected.

    `every_s` is the median time between breaks, `break_s` the median break. The last visit ends with `leaving`.
    """
    visit_begin, end = begin, begin + int(length)
    while visit_begin < end:
        until = visit_begin + _draw_skewed(rng, every_s, 0.5)
        if until + _BREAK_S >= end:
            yield Visit(visit_begin, end, leaving)
            return
        yield Visit(visit_begin, until)
        visit_begin = until + max(_BREAK_S, _draw_skewed(rng, break_s, 0.8))
        if visit_begin >= end:  # the user does not return from this break: a last short visit ends as `leaving` asks
            yield Visit(until, until + _BREAK_S, leaving)


def _renderings(rng: Random, visits: Sequence[Visit]) -> Iterator[tuple[int, int]]:
    for visit in visits:
        if visit.ending is VisitEnding.DISCONNECTS and rng.random() < 0.4:
            yield visit.until, visit.until + int(rng.uniform(1, 5) * HOUR_S)


def _without_overlaps(visits: Iterator[Visit]) -> tuple[Visit, ...]:
    """Return the visits in order, without those that overlap an earlier one or are not within the simulated week."""
    accepted_visits: list[Visit] = []
    for visit in sorted(visits, key=lambda visit: visit.begin):
        if (
            visit.begin >= 0
            and visit.until <= ENDS_S
            and (not accepted_visits or visit.begin >= accepted_visits[-1].until)
        ):
            accepted_visits.append(visit)
    return tuple(accepted_visits)


def _sessions(visits: Sequence[Visit], timeout_s: int | None) -> Iterator[UserSession]:
    """Yield the sessions of one user's visits.

    A session lasts until its user logs off, or until it has been disconnected for `timeout_s` (None = no limit).
    """
    begin: int | None = None
    connected: list[tuple[int, int]] = []
    for visit, following in pairwise((*visits, None)):
        assert visit is not None
        next_begin = following.begin if following is not None else ENDS_S
        begin = visit.begin if begin is None else begin
        connected_until = next_begin if visit.ending is VisitEnding.STAYS_CONNECTED else visit.until
        connected.append((visit.begin, connected_until))
        ended_at = visit.until if visit.ending is VisitEnding.LOGS_OFF else next_begin
        if visit.ending is VisitEnding.DISCONNECTS and timeout_s is not None:
            ended_at = min(next_begin, visit.until + timeout_s)
        if ended_at < next_begin or visit.ending is VisitEnding.LOGS_OFF or following is None:
            yield UserSession(begin, ended_at, tuple(connected))
            begin, connected = None, []


def _ending(rng: Random, logs_off: float, disconnects: float) -> VisitEnding:
    random_value = rng.random()
    if random_value < logs_off:
        return VisitEnding.LOGS_OFF
    return VisitEnding.DISCONNECTS if random_value < logs_off + disconnects else VisitEnding.STAYS_CONNECTED


def _draw_time_s(rng: Random, hour: float, spread: float) -> int:
    """Return a random time of day in seconds, with this mean and standard deviation in hours."""
    return int(rng.gauss(hour, spread) * HOUR_S)


def _draw_skewed(rng: Random, median_s: float, sigma: float) -> int:
    """Return a random duration in seconds: half are shorter than the median, a few are much longer."""
    return max(1, int(median_s * rng.lognormvariate(0, sigma)))


class RecordForm(StrEnum):
    """How the record of a machine names its VM."""

    AS_IN_VCENTER = "as-in-vcenter"
    NO_PATH = "no-path"
    OTHER_CASE = "other-case"
    """The path in capital letters."""
    UNESCAPED = "unescaped"
    """The path with `/` for `%2f`."""
    RENAMED = "renamed"
    """Name and path of earlier: the VM was renamed since."""
    MOVED = "moved"
    """The path of earlier: the VM was moved to another folder since."""
    TWICE = "twice"
    """A second machine, left over from earlier, has the same name and path."""
    NO_VCENTER = "no-vcenter"
    """The record does not tell its vCenter."""
    UNMANAGED = "unmanaged"
    """Only the agent in the guest makes it known, by the name of the guest."""


@dataclass(frozen=True, slots=True)
class DesktopPoolState:
    """A desktop pool, in the words of the Horizon REST API."""

    name: str
    vms: tuple[str, ...]
    """Names of its VMs, where * stands for anything."""
    source: str
    type: str
    power_policy: str
    logins_per_hour: float
    spare_machines: int = 0
    """How many unused machines are kept powered on."""
    records: RecordForm = RecordForm.AS_IN_VCENTER
    """How the records of its machines name their VMs."""
    second_vcenter: bool = False
    """Whether the pod has a second vCenter with the same folders, and a machine there for each of this pool."""

    def has(self, name: str) -> bool:
        """Whether the VM of that name is one of its machines."""
        return any(fnmatchcase(name, pattern) for pattern in self.vms)
