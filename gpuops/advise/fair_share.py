"""Counts the recent use of each team, and orders the waiting VMs by it. Pure.

Use: GPU-hours of `PastVm` and `HeldPeriod`, as `gpuops history` and `gpuops report` count them. An hour counts half
after one half-life, a quarter after two. A run whose end was not seen counts until gpuops found that it had ended; a
running one counts until now.

Order: the team with the least use per weight is next (Kueue, admission fair sharing; Slurm's Fair Tree sorts by
shares / usage, which is the same), with its first VM. The hours that this VM may use tonight are then added to the
team's use, so that a team without recent use does not take a complete night. Teams with equal use are served in the
order of their VMs.

Example: of two teams with the weights 2 and 1, nothing used, each VM one GPU for ten hours. a1 is first, then b1
(0 < 5), then a2 (5 < 10), then a3 (10 = 10, and it comes before b2): two of `a` for each of `b`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import exp, log
from typing import Final

from gpuops.model.nights.fair_share import WEEK, team_of
from gpuops.model.nights.history import HeldPeriod, PastNight, PastVm

_DIGITS: Final = 9
"""Of GPU-hours for a weight that are compared: sums of the same hours in another order are equal."""


@dataclass(frozen=True, slots=True)
class TeamUse:
    """What the VMs of one team had, in GPU-hours."""

    decayed: float = 0.0
    """By the half-life."""
    week: float = 0.0
    """In the last 7 days, without decay."""
    unknown: int = 0
    """Runs that could not be counted, because the VM's GPUs or the time of its start are not known."""

    def __add__(self, other: TeamUse) -> TeamUse:
        return TeamUse(self.decayed + other.decayed, self.week + other.week, self.unknown + other.unknown)


NO_USE: Final = TeamUse()


def use_by_team(
    nights: Iterable[PastNight], owner_of: Callable[[PastVm], str], now: datetime, half_life: timedelta
) -> dict[str, TeamUse]:
    """Return the past GPU use of each team in these nights until now; a team without any is left out."""
    used: dict[str, TeamUse] = {}
    for night in nights:
        for vm in night.ml:
            for past_vm, period in (part for held_period in vm.held for part in vm.parts(held_period.until(now))):
                team = team_of(owner_of(past_vm))
                used[team] = used.get(team, NO_USE) + use_of_period(period, vm.gpus, now, half_life)
    return used


def use_of_period(period: HeldPeriod, gpus: float | None, now: datetime, half_life: timedelta) -> TeamUse:
    """Return the use of a VM or a job with so many GPUs in this period, which ends now or earlier."""
    hours = period.hours(gpus).at_most
    if hours is None or gpus is None or period.begins is None or period.ends is None:
        return TeamUse(unknown=1)
    week = period.since(now - WEEK).hours(gpus).at_most or 0.0
    # The integral of 2^(-age / half-life) from the end of the run, the younger age, to its begin.
    rate = log(2) / half_life.total_seconds()
    young, old = ((now - moment).total_seconds() for moment in (period.ends, period.begins))
    decayed_s = max(exp(-rate * young) - exp(-rate * old), 0.0) / rate
    return TeamUse(gpus * decayed_s / 3600, week)


@dataclass(frozen=True, slots=True)
class Wish:
    """Something that waits: whose it is, and the GPU-hours that it may use when it is served."""

    team: str
    hours: float


def fair_order(wishes: Sequence[Wish], used: Mapping[str, float], weight: Callable[[str], float]) -> list[int]:
    """Return the positions of the wishes in the order in which they are served; wishes of one team keep their order.

    `used`: the GPU-hours that each team had; a team that is not in it had none.

    A team that waits and does not run does not lose its place: all use decays at one rate, and other teams only add to
    theirs. When the use of two teams has decayed to almost nothing, they are equal, and the order of wishes decides.

    >>> fair_order([Wish("a", 10), Wish("a", 10), Wish("b", 10), Wish("a", 10)], {}, {"a": 2.0, "b": 1.0}.__getitem__)
    [0, 2, 1, 3]
    """
    waiting: dict[str, deque[int]] = {}
    for at, wish in enumerate(wishes):
        waiting.setdefault(wish.team, deque()).append(at)
    had = {team: used.get(team, 0.0) for team in waiting}
    order: list[int] = []
    while waiting:
        team = min(waiting, key=lambda name: (round(had[name] / weight(name), _DIGITS), waiting[name][0]))
        at = waiting[team].popleft()
        order.append(at)
        had[team] += wishes[at].hours
        if not waiting[team]:
            del waiting[team]
    return order
