"""Forty nights by cron, over a change of the clocks, three days without the jump host and a night without vCenter.

The expected returns and notices are computed here from the calendar, the rendered lines and the hours of the window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path

import pytest

from tests.nights.playing.forty import BACK_BY, BERLIN, CLOSES, DAY, OPENS, Call, FortyNights, Span, at


@dataclass(frozen=True)
class Stretch:
    """So many days from the noon of the first on; the host dies on the evening of one Friday, and vCenter goes on that
    of another. On the evenings of `quiet` no user goes home."""

    first: date
    days: int
    host_dies: date | None = None
    vcenter_goes: date | None = None
    quiet: tuple[date, ...] = ()

    @property
    def host_away(self) -> Span | None:
        """Of three days by the clock on the wall: over a change of the clocks, an hour more or less."""
        day = self.host_dies
        return Span(at(day, time(20, 1)), at(day + 3 * DAY, time(20, 1))) if day is not None else None

    @property
    def vcenter_away(self) -> Span | None:
        day = self.vcenter_goes
        return Span(at(day, time(23, 30)), at(day + DAY, time(12))) if day is not None else None

    def reaches(self, moment: datetime) -> bool:
        """Whether a call that begins then finds its host and vCenter there."""
        return not any(span is not None and moment in span for span in (self.host_away, self.vcenter_away))

    def back_at(self, evening: date, calls: list[Call]) -> datetime | None:
        """The first call of a return after the window has closed at which host and vCenter are there; None = later."""
        closed = at(evening + DAY, CLOSES)
        return next(
            (call.at for call in calls if call.half == "day" and call.at >= closed and self.reaches(call.at)), None
        )


SPRING = Stretch(date(2027, 3, 1), 40, date(2027, 3, 26), date(2027, 3, 12), (date(2027, 3, 10), date(2027, 3, 17)))
AUTUMN = Stretch(date(2026, 10, 5), 40, date(2026, 10, 23), date(2026, 11, 6), (date(2026, 10, 14), date(2026, 11, 4)))
QUICK = Stretch(date(2027, 3, 24), 3, quiet=(date(2027, 3, 25),))


def evening_of(moment: datetime) -> date | None:
    """The evening in whose window that is; None = in none."""
    evening = moment.date() if moment.time() >= OPENS else moment.date() - DAY
    return evening if (moment.time() >= OPENS or moment.time() < CLOSES) and evening.isoweekday() <= 5 else None


def play_stretch(stretch: Stretch, state: Path) -> FortyNights:
    night = FortyNights(stretch.first, stretch.days, state, stretch.host_away, stretch.vcenter_away, set(stretch.quiet))
    night.play()
    assert night.trouble == []
    assert night.world.bugs == []
    return night


def check(stretch: Stretch, night: FortyNights) -> None:
    check_takings(stretch, night)
    check_returns(stretch, night)
    check_notices(stretch, night)


def check_takings(stretch: Stretch, night: FortyNights) -> None:
    """Nothing is taken outside a window, and none is skipped or entered twice."""
    takings = list(night.takings())
    assert [(moment, name) for moment, name in takings if evening_of(moment) is None] == []
    desktops = Counter((evening_of(moment), name) for moment, name in takings if name.startswith("desktop-"))
    assert {desktop: count for desktop, count in desktops.items() if count > 1} == {}
    possible = {evening_of(call.at) for call in night.calls if call.half == "night" and stretch.reaches(call.at)}
    assert {evening for evening, _ in desktops} == possible - set(stretch.quiet) - set(over_another(stretch, night))


def check_returns(stretch: Stretch, night: FortyNights) -> None:
    """Each night's desktops are away until the first call of a return that can bring them, and back after it."""
    for evening in {evening_of(call.at) for call in night.calls if call.taken}:
        assert evening is not None
        due = stretch.back_at(evening, night.calls)
        if due is None:  # the stretch ends before
            continue
        [call] = [call for call in night.calls if call.at == due]
        assert (call.ended, call.away) == ("0", 0) and call.over is not None, f"{evening}: {call}"
        if stretch.reaches(at(evening + DAY, CLOSES)):
            assert due <= call.over <= at(evening + DAY, BACK_BY), f"{evening}: {call}"
    for call in night.calls:
        if evening_of(call.at) is None and stretch.reaches(call.at):
            assert call.away == 0, f"in working hours: {call}"


def check_notices(stretch: Stretch, night: FortyNights) -> None:
    """One for each call that took something and was not killed, one for each return, one for the process that is gone,
    one alarm a day and half while vCenter is away, and one a day of nights that may not begin; nothing else, and
    nothing on quiet days. Days are those of UTC, the zone of the clock here."""
    ended = {call.at for call in night.calls if call.taken and call.ended != "killed"}
    evenings = {evening for call in night.calls if call.taken and (evening := evening_of(call.at)) is not None}
    returns = {due for evening in evenings if (due := stretch.back_at(evening, night.calls)) is not None}
    assert notice_times(night, "night ended") == sorted(ended)
    assert notice_times(night, "return ended") == sorted(returns)
    gone_on, outage = stretch.vcenter_goes, stretch.vcenter_away
    alarms = first_of_each_day([call for call in night.calls if outage is not None and call.at in outage])
    assert sorted({moment.date() for moment in alarms}) == ([gone_on, gone_on + DAY] if gone_on is not None else [])
    alarms += first_of_each_day(blocked_calls(stretch, night))
    assert notice_times(night, "alarm") == sorted(alarms)
    host = stretch.host_away
    back = [next(call.at for call in night.calls if call.at >= host.ends)] if host is not None else []
    assert notice_times(night, "run died") == back
    assert sum(len(call.notices) for call in night.calls) == len(ended) + len(returns) + len(alarms) + len(back)


def over_another(stretch: Stretch, night: FortyNights) -> dict[date | None, datetime]:
    """The evenings that come while an earlier night's desktops are not back, so that no night may begin, and the first
    call of each that finds it so."""
    first_calls: dict[date | None, datetime] = {}
    for call in blocked_calls(stretch, night):
        first_calls.setdefault(evening_of(call.at), call.at)
    return first_calls


def blocked_calls(stretch: Stretch, night: FortyNights) -> list[Call]:
    """The calls of a night while an earlier night's desktops are not back."""
    blocked: list[Call] = []
    for evening in {evening_of(call.at) for call in night.calls if call.taken}:
        assert evening is not None
        due = stretch.back_at(evening, night.calls) or night.calls[-1].at
        between = (call for call in night.calls if at(evening + DAY, CLOSES) <= call.at < due)
        blocked += [call for call in between if call.half == "night" and stretch.reaches(call.at)]
    return blocked


def first_of_each_day(calls: Iterable[Call]) -> list[datetime]:
    """When the first call of each half and day was made."""
    first_calls: dict[tuple[str, date], datetime] = {}
    for call in sorted(calls, key=lambda call: call.at):
        first_calls.setdefault((call.half, call.at.astimezone(UTC).date()), call.at)
    return list(first_calls.values())


def notice_times(night: FortyNights, kind: str) -> list[datetime]:
    """When each notice of that kind was sent, by its call."""
    return [call.at for call in night.calls for notice in call.notices if f"prod: {kind}: " in notice.subject]


@pytest.mark.long
def test_three_nights_before_the_weekend_of_the_change(tmp_path: Path) -> None:
    check(QUICK, play_stretch(QUICK, tmp_path))


@pytest.mark.drawn_cases(4)
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("stretch", [SPRING, AUTUMN], ids=["spring", "autumn"])
def test_forty_nights(stretch: Stretch, tmp_path: Path) -> None:
    night = play_stretch(stretch, tmp_path)
    assert stretch.host_dies is not None
    assert [(call.at.date(), call.away) for call in night.calls if call.ended == "killed"] == [(stretch.host_dies, 3)]
    assert BERLIN.utcoffset(at(stretch.first, OPENS)) != BERLIN.utcoffset(night.calls[-1].at)
    assert list(over_another(stretch, night)) == [stretch.host_dies + 3 * DAY]
    check(stretch, night)
