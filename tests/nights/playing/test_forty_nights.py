"""Forty nights by cron, over a change of the clocks, three days without the jump host and a night without vCenter.

The expected returns and notices are computed here from the calendar, the rendered lines and the hours of the window."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch
from zoneinfo import ZoneInfo

import msgspec
import pytest

from gpuops.api import rotate_day, rotate_night
from gpuops.config.policy import parse_policy
from gpuops.config.vcenter.targets import NotifySettings
from gpuops.errors import GpuopsError
from gpuops.execute.site.site import NoticeWay
from gpuops.execute.site.vcenter_wait import VcenterWait
from gpuops.extras.notify import sending
from gpuops.extras.notify.run_watch import connect_watched
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.notice import NoticeText
from gpuops.plan.core.plan import Report
from gpuops.plan.rotation.timers import call_lines
from gpuops.sim.scenario.build import build_declared
from gpuops.sim.state.vm_state import Power
from tests.harness.killing import Killed
from tests.nights.playing.place import NightPlace, NightStore
from tests.nights.world.direct import DirectVcenter
from tests.nights.world.showing import Showing
from tests.nights.world.worlds import Size, arrange_site, policies_read_quickly

BERLIN: Final = ZoneInfo("Europe/Berlin")
OPENS, CLOSES, BACK_BY = time(20, 0), time(5, 0), time(7, 0)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
WORKDAYS: Final = ("mon", "tue", "wed", "thu", "fri")
SIZE: Final = Size(2, 8, 3)
WORKS_MHZ: Final = 4000
DIES_AFTER: Final = 3
"""So many desktops the call in which the host dies has suspended."""
LANDS_S: Final = 900
"""Within that time what vCenter was asked for is done, whether somebody waits for it or not."""
POLICY: Final = {
    "version": 1,
    "name": "night",
    "windows": [{"name": "workdays", "zone": BERLIN.key, "opens": f"{OPENS:%H:%M}", "closes": f"{CLOSES:%H:%M}",
                 "back_by": f"{BACK_BY:%H:%M}", "weekdays": WORKDAYS}],
    "pools": [{"name": "office", "parked": True, "select": {"folder": "vdi", "name": "desktop-*"},
               "idle": {"cpu_below_mhz": 500}, "floor": 0,
               "owner": {"attribute": "gpuops.owner", "value": "office"}}],
    "ml": {"queue": [{"vm": f"ml-{number:02}", "relocate": True} for number in range(1, SIZE.ml + 1)]},
}  # fmt: skip


@dataclass(frozen=True)
class Span:
    """From a moment to another, which is not of it."""

    begins: datetime
    ends: datetime

    def __contains__(self, moment: datetime) -> bool:
        return self.begins <= moment < self.ends


@dataclass
class Call:
    """One call of cron, and what became of it."""

    half: str
    at: datetime
    ended: str = ""
    notices: list[NoticeText] = field(default_factory=list)
    taken: int = 0
    """How many desktops it suspended."""
    away: int = 0
    """How many desktops are suspended after it."""
    over: datetime | None = None
    """When it had ended; None = it was not made."""


def at(day: date, clock: time) -> datetime:
    """That clock time of Berlin."""
    return datetime.combine(day, clock, BERLIN)


def cron_calls(first: date, days: int, policy: Policy) -> list[Call]:
    """What the lines of `gpuops rotate timers --cron` begin from the noon of a day on, by the clock on the wall."""
    moment, calls = at(first, time(12)).astimezone(ZoneInfo("UTC")), list[Call]()
    lines = [
        (half.value, [_numbers(field) for field in line.cron.split()])
        for half, of_half in call_lines(policy, moment, BERLIN).items()
        for line in of_half
    ]
    for _ in range(days * 24 * 60):
        wall = moment.astimezone(BERLIN)
        now = (wall.minute, wall.hour, wall.day, wall.month, wall.isoweekday() % 7)
        calls += [Call(half, wall) for half, line in lines if all(map(_fits, line, now))]
        moment += MINUTE
    return calls


def _numbers(text: str) -> set[int]:
    """The numbers that a field of a cron line means."""
    numbers = set[int]()
    for part in text.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        numbers |= set(range(0, 100, int(step or 1)) if span == "*" else range(int(low), int(high or low) + 1))
    return numbers


def _fits(numbers: set[int], number: int) -> bool:
    return number in numbers


class FortyNights:
    """One world, its users, its jump host and what the calls of cron come to.

    The last night call before `host_away` is killed once it has suspended some desktops, and everybody has gone home
    by then. `quiet`: evenings on which everybody works on.
    """

    def __init__(
        self, first: date, days: int, state: Path, host_away: Span | None, vcenter_away: Span | None, quiet: set[date]
    ) -> None:
        declared = arrange_site(4, SIZE, full=True).declared
        start = at(first, time(12)).astimezone(ZoneInfo("UTC"))
        self.world = build_declared(msgspec.structs.replace(declared, start=start), seed=4)
        self.world.custom_fields.define("gpuops.rotation")
        with policies_read_quickly():
            self.policy = parse_policy(json.dumps(POLICY), "night")
        self.calls = cron_calls(first, days, self.policy)
        self.host_away, self.vcenter_away = host_away, vcenter_away
        self._dies_in = max((call.at for call in self.calls if host_away and call.at < host_away.begins), default=None)
        """The call in which the host dies."""
        self._taken_here, self._dies = 0, False
        self._store = NightStore(lambda point: None, lambda: len(self.world.ledger), lambda: False)
        self._showing = Showing(self.world)
        self._state = state
        self._sent: list[NoticeText] = []
        self.trouble: list[str] = []
        settings = NotifySettings("prod", ("env:URL",))
        self._way = NoticeWay(
            settings, state, {"URL": "json://127.0.0.1/x"}, self.world.clock.now, say=self.trouble.append
        )
        self.desktops: list[Any] = [vm for vm in self.world.by_type("VirtualMachine") if vm.name.startswith("desktop-")]
        for vm in self.desktops:
            vm.state.console_connections = 0
        self._let_users_come(first, days, quiet)

    def play(self) -> None:
        """Every call, one after the other; one that is due while another one is at it would find it there, and does
        nothing."""
        with (
            self.world.lock,
            policies_read_quickly(),
            patch.object(sending, "deliver_all", self._deliver_all),
        ):
            for call in self.calls:
                self._play(call)

    def away(self) -> int:
        return sum(vm.state.power is Power.SUSPENDED for vm in self.desktops)

    def takings(self) -> Iterator[tuple[datetime, str]]:
        """When each desktop was suspended and each ML VM was started, and its name."""
        for change in self.world.ledger:
            desktop = change.name.startswith("desktop-")
            if (change.method, desktop) in (("SuspendVM_Task", True), ("PowerOnVM_Task", False)):
                yield change.at.astimezone(BERLIN), change.name

    def _count_suspends(self) -> int:
        return sum(name.startswith("desktop-") for _, name in self.takings())

    def _play(self, call: Call) -> None:
        if self.host_away is not None and call.at in self.host_away:
            call.ended = "host away"
            return
        if self.world.clock.now() > call.at:
            call.ended = "another is at it"
            return
        self._wait_until(call.at)
        self.world.down_until = None
        if self.vcenter_away is not None and call.at in self.vcenter_away:
            self.world.down_until = self.vcenter_away.ends.astimezone(ZoneInfo("UTC"))
        self._taken_here, self._dies, before = 0, call.at == self._dies_in, self._count_suspends()
        try:
            report = self._process(call.half)
            call.ended = str(report.exit_code)
        except Killed:
            call.ended = "killed"
            self.world.clock.advance(LANDS_S)
        except GpuopsError as error:
            call.ended = f"{type(error).__name__}: {error.message}"
        call.notices, self._sent = self._sent, []
        call.taken, call.away = self._count_suspends() - before, self.away()
        call.over = self.world.clock.now().astimezone(BERLIN)

    def _process(self, half: str) -> Report:
        """As `connect_checked` does, and the command behind it."""
        wait = VcenterWait(self.policy, self.world.clock.now, self.world.clock.advance, lambda line: None)
        connect = partial(DirectVcenter, self.world, self._boundary, None, self._showing)
        reached = partial(wait.reach_vcenter, connect) if half == "day" else connect
        vcenter = connect_watched(self._way, f"rotate {half}", reached)
        place = NightPlace.on_one_machine(self.world, vcenter, self._state, self._store)
        place.notices = self._way
        try:
            if half == "night":
                return rotate_night(self.policy, place, apply=True, unattended=True, by_timer=True)
            return rotate_day(self.policy, place, apply=True, by_timer=True)
        finally:
            vcenter.close()

    def _boundary(self, point: str) -> None:
        self._taken_here += point.startswith("after SuspendVm ")
        if self._dies and self._taken_here == DIES_AFTER:
            raise Killed

    def _deliver_all(self, url: object, notices: Sequence[dict[str, Any]], limit_s: float) -> Iterator[dict[str, str]]:
        for notice in notices:
            self._sent.append(NoticeText(notice["key"], notice["subject"], notice["body"]))
            yield {"key": notice["key"], "trouble": ""}

    def _wait_until(self, moment: datetime) -> None:
        moment = moment.astimezone(ZoneInfo("UTC"))
        if self.world.clock.now() < moment:
            self.world.clock.advance_to(moment)

    def _let_users_come(self, first: date, days: int, quiet: set[date]) -> None:
        """On workdays from eight o'clock until some moment between five and ten in the evening; on quiet ones on and
        on."""
        rng = random.Random(f"{first}:users")
        for number in range(days + 1):
            day = first + number * DAY
            if day.isoweekday() > 5:
                continue
            for vm in self.desktops:
                goes = at(day, time(17)) + rng.randrange(60 if self._is_last(day) else 300) * MINUTE
                self._at(at(day, time(8)), partial(_works, vm, WORKS_MHZ))
                self._at(at(day + DAY, time(7)) if day in quiet else goes, partial(_works, vm, 60))

    def _is_last(self, day: date) -> bool:
        return self._dies_in is not None and self._dies_in.date() == day

    def _at(self, moment: datetime, act: Callable[[], None]) -> None:
        after_s = (moment.astimezone(ZoneInfo("UTC")) - self.world.clock.now()).total_seconds()
        if after_s > 0:
            self.world.clock.schedule(after_s, act, background=True)


def _works(vm: Any, mhz: int) -> None:
    if vm.state.power is Power.ON:
        vm.state.cpu_usage_mhz = mhz
        vm.touch("summary")


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
