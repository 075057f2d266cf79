"""Nights replayed on made-up weeks of desktops, compared with the simulated presence of users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Final

from gpuops.advise.desktop_sessions import match_machines, read_sessions
from gpuops.extras.observe.blocks import FINE_S, MISSING, WHOLE, Block, steps_of_samples
from gpuops.extras.observe.replay import STEP, DesktopNight, Sessions, complete_nights, desktop_night, hours_of
from gpuops.model.desktops.broker import DesktopMachine, DesktopSession, SessionState
from gpuops.model.desktops.evidence import Source
from gpuops.model.measurements.measurement import CounterSeries, Measured, Samples, Span
from gpuops.model.nights.rotation_policy import MOST_S, IdleRule, Policy, Pool
from gpuops.model.nights.selector import Selector
from gpuops.model.vcenter.vm import Vm
from gpuops.model.window import Night, Window
from gpuops.sim.state.desktop_people import DAYS, ENDS_S, Office, UserSession
from tests.desktop_load import SHOWN, DesktopWeek, desktop_week

MONDAY: Final = datetime(2026, 11, 16, tzinfo=UTC)
SUNDAY: Final = MONDAY + timedelta(days=DAYS)
WINDOW: Final = Window(time(20), time(4), UTC, time(6))
"""Desktops are taken from 20:00 to 04:00, and are back by 06:00."""
SOON_S: Final = 600
OBSERVED: Final = (Span(MONDAY, SUNDAY),)
VCENTER: Final = "made-up-vcenter"
_STEPS: Final = ENDS_S // FINE_S


class Truth(StrEnum):
    """What the suspend of a desktop meant for people."""

    NOBODY = "nobody"
    """No user was there, or came within ten minutes."""
    PRESENT = "present"
    """Somebody was at it: a false idle."""
    BACK_SOON = "back-soon"
    """The user of its session came back within ten minutes: a false idle."""
    LOGON_SOON = "logon-soon"
    """It had no session, and somebody logged in within ten minutes: no look could have known."""

    @property
    def false_idle(self) -> bool:
        return self in (Truth.PRESENT, Truth.BACK_SOON)


@dataclass(frozen=True)
class MadeDesktop:
    """A desktop of a made-up week."""

    vm: Vm
    week: DesktopWeek

    @cached_property
    def block(self) -> Block:
        """Steps of five minutes, as `observe` makes them of samples."""
        begin = int(MONDAY.timestamp())
        samples = Samples(self.vm.ref, self.week.sample_ends(begin), self.week.values)
        return steps_of_samples(samples, begin, _STEPS)

    def series(self, night: Night) -> dict[str, CounterSeries]:
        """What a store would hold for the night, and for the longest time before it that a rule may ask for."""
        hours = hours_of(night, IdleRule(1, MOST_S))
        first, last = (hours.begin - MONDAY) // STEP, -(-(hours.until - MONDAY) // STEP)
        by_counter = {}
        for name in SHOWN:
            values = self.block.series[name][first:last].tolist() if name in self.block.series else []
            steps = [_measured_step(*step) for step in values] or [None] * (last - first)
            by_counter[name] = CounterSeries(MONDAY + first * STEP, STEP, tuple(steps))
        return by_counter

    def sessions(self, moment: datetime) -> Sessions:
        """What a broker that knows all sessions tells then."""
        machine = DesktopMachine("m-1", self.vm.name, "pool")
        session = self.week.people.session_at(_second(moment))
        broker_sessions = [] if session is None else [_broker_session(session, _second(moment), machine)]
        counted = read_sessions(match_machines([self.vm], "", [machine], ()), broker_sessions, moment).of(self.vm.ref)
        assert counted is not None, "the VM is the only machine"
        return {Source.BROKER: counted}

    def truth(self, taken_at: datetime) -> Truth:
        who, at = self.week.people, _second(taken_at)
        if who.present(at):
            return Truth.PRESENT
        visit = who.next_visit(at)
        if visit is None or visit.begin > at + SOON_S:
            return Truth.NOBODY
        session = who.session_at(at)
        return Truth.BACK_SOON if session is not None and session.until > visit.begin else Truth.LOGON_SOON


@dataclass(frozen=True, slots=True)
class JudgedNight:
    """A desktop in a night: what the replay says of it, and what is true; None = it was not taken."""

    replayed: DesktopNight
    truth: Truth | None
    under_session: bool = False
    """Whether it had a session when it was taken, with anybody at it or not."""
    free_s: float = 0.0
    """From then on until somebody comes, or it is due."""


def made_vm(number: int) -> Vm:
    name = f"vdi-{number:03}"
    return Vm(f"vm-{number}", name, path=f"/dc/vm/vdi/{name}", devices=())


def made_desktops(office: Office, seed: int, count: int) -> Iterator[MadeDesktop]:
    return (MadeDesktop(made_vm(number), desktop_week(office, seed, number)) for number in range(count))


def policy_of(rule: IdleRule) -> Policy:
    pool = Pool("office", Selector(folder="vdi"), rule, parked=True)
    return Policy("made-up", (pool,), windows=(WINDOW,))


def nights() -> tuple[Night, ...]:
    return complete_nights(policy_of(IdleRule(1)), MONDAY, SUNDAY)


def judge_night(desktop: MadeDesktop, rule: IdleRule, night: Night, *, sessions_known: bool = False) -> JudgedNight:
    """This night of this desktop, by counters, and by its sessions where they are known."""
    sessions_at: Callable[[datetime], Sessions] | None = desktop.sessions if sessions_known else None
    replay = desktop_night(desktop.vm, rule, night, desktop.series(night), OBSERVED, sessions_at)
    if replay.taken_at is None:
        return JudgedNight(replay, None)
    who, at, due = desktop.week.people, _second(replay.taken_at), _second(night.back_by)
    truth, visit = desktop.truth(replay.taken_at), who.next_visit(at)
    until = at if truth is Truth.PRESENT else min(due, visit.begin) if visit is not None else due
    return JudgedNight(replay, truth, who.session_at(at) is not None, until - at)


def _measured_step(average: int, highest: int, covered: int) -> Measured | None:
    return Measured(average, highest if highest != MISSING else None, covered / WHOLE) if covered else None


def _broker_session(session: UserSession, at: int, machine: DesktopMachine) -> DesktopSession:
    disconnected_at = session.disconnected_at(at)
    return DesktopSession(
        "s-1",
        machine.id,
        SessionState.CONNECTED if disconnected_at is None else SessionState.DISCONNECTED,
        MONDAY + timedelta(seconds=session.begin),
        None if disconnected_at is None else MONDAY + timedelta(seconds=disconnected_at),
    )


def _second(moment: datetime) -> int:
    return int((moment - MONDAY).total_seconds())
