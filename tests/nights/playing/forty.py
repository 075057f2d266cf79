"""Forty nights by cron: the calls that the role `gpuops_schedule` renders, each as the command line makes it, on one
simulated vCenter whose users come in the morning and go in the evening."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch
from zoneinfo import ZoneInfo

import msgspec

from gpuops.api import rotate_day, rotate_night
from gpuops.config.policy import parse_policy
from gpuops.config.vcenter.targets import NotifySettings
from gpuops.errors import GpuopsError
from gpuops.execute.site.site import NoticeWay
from gpuops.execute.site.vcenter_wait import VcenterWait
from gpuops.extras.notify import sending
from gpuops.extras.notify.watch import connecting
from gpuops.model.nights.rotation import Policy
from gpuops.model.notice import NoticeText
from gpuops.plan.core.plan import Report
from gpuops.plan.rotation.timers import call_lines
from gpuops.sim.scenario.build import build_declared
from gpuops.sim.state.vm_state import Power
from tests.nights.playing.place import Killed, NightPlace, NightStore
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
        vcenter = connecting(self._way, f"rotate {half}", reached)
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
