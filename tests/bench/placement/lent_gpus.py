"""A day of 200 data scientists on 8 GPUs that are lent over the network: whole GPUs beside shares of their memory.

The generator. Each of them comes between 8:00 and 10:30 and leaves between 16:30 and 19:00, evenly. In between they
work in sessions of two hours on average (exponential, 20 minutes to 4 hours), with pauses of three hours on average
(exponential). Within a session they think for an hour on average (exponential), then have a burst of GPU work: five
minutes at the median (log-normal, sigma 1, 45 minutes at the most), and so on: long idle, short bursts. A person has
always the same need of memory, of 2 to 24 GiB. GPUs are of 40 GiB, two on each of four hosts of two clusters; clients
are on twenty other hosts of these. Nothing of a network is modelled: nothing is claimed about speed.

A session, or each burst, asks for a lease, by `plan/pool` as `gpuops pool lend --within 30m` does: what would begin
later is refused, and that session, or burst, is not done. A lease of a session is as long as that, what is not done by
its end is lost; a lease of a burst is four times as long as its work, and is given back when it is done. Bursts at the
same time on one GPU share its time evenly.

    python -m tests.bench.placement.lent_gpus 3       day by day
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from statistics import mean, median
from typing import Final

from gpuops.model.workloads.cluster import Arrangement
from gpuops.model.workloads.lease_book import (
    GpuLease,
    LeaseBook,
    LeaseState,
    LeaseWish,
    LendingPool,
    PoolServer,
    ServerGpu,
)
from gpuops.plan.pool.lending import give_up, lend, settle
from tests.bench.verdict import Figure, Result

PEOPLE: Final = 200
GPUS: Final = 8
GPU_MIB: Final = 40 * 1024
MEMORY_GIB: Final = (2, 4, 4, 6, 8, 8, 10, 12, 16, 24)
DAYS: Final = 3
PATIENCE: Final = timedelta(minutes=30)
STEP: Final = timedelta(seconds=10)
MIDNIGHT: Final = datetime(2026, 11, 2, tzinfo=UTC)
OPEN_HOURS: Final = 11.0
"""From 8:00 to 19:00: GPU-hours that there are, by GPU."""
MARGIN: Final = 4
"""So many times its work is what a burst asks for."""


@dataclass(frozen=True, slots=True)
class Session:
    """One session, in minutes of the day."""

    person: int
    begins: float
    lasts: float
    bursts: tuple[tuple[float, float], ...]
    """Minutes of thought before each, and of GPU work with a GPU alone."""


def day_of(seed: int) -> tuple[list[Session], list[int]]:
    """All sessions by their beginning, and each person's need in MiB."""
    draw = random.Random(seed)
    sessions = []
    for person in range(PEOPLE):
        now, leaves = draw.uniform(480, 630), draw.uniform(990, 1140)
        now += draw.expovariate(1 / 180) * draw.random()
        while now < leaves - 20:
            lasts = min(max(draw.expovariate(1 / 120), 20), 240, leaves - now)
            sessions.append(Session(person, now, lasts, tuple(_bursts(draw, lasts))))
            now += lasts + draw.expovariate(1 / 180)
    needs = [draw.choice(MEMORY_GIB) * 1024 for _ in range(PEOPLE)]
    return sorted(sessions, key=lambda each: each.begins), needs


def _bursts(draw: random.Random, lasts: float) -> Iterator[tuple[float, float]]:
    left = lasts
    while (thought := draw.expovariate(1 / 60)) < left:
        work = min(5 * draw.lognormvariate(0, 1), 45)
        yield thought, work
        left -= thought + work


@dataclass(slots=True)
class Way:
    """How GPUs are lent: whole, or by what is needed; for a session, or for each burst."""

    name: str
    whole: bool
    each_burst: bool
    placement: Arrangement = Arrangement.PACKED


WAYS: Final = (
    Way("a whole GPU for each session", whole=True, each_burst=False),
    Way("a whole GPU for each burst", whole=True, each_burst=True),
    Way("a share for each session", whole=False, each_burst=False),
    Way("a share for each burst", whole=False, each_burst=True),
    Way("a share for each session, spread", whole=False, each_burst=False, placement=Arrangement.SPREAD),
    Way("a share for each burst, spread", whole=False, each_burst=True, placement=Arrangement.SPREAD),
)


@dataclass(slots=True)
class Told:
    """What a day came to."""

    wanted_h: float = 0.0
    """GPU-hours of all bursts."""
    served_h: float = 0.0
    asked: int = 0
    refused: int = 0
    waits_min: list[float] = field(default_factory=list)
    """Of requests that were not refused; 0 = lent at once."""
    stretched: list[float] = field(default_factory=list)
    """Of bursts that were done: how many times as long as with a GPU alone they took."""
    most_leases: int = 0
    """At one moment."""


@dataclass(slots=True)
class AtWork:
    """A session on its way."""

    session: Session
    left: list[tuple[float, float]]
    thinks_until: float
    """Minute of the day; infinity = it waits for a lease, or has a burst."""
    ends: float
    lease: str = ""
    """That it waits for or has; empty = none."""
    work: float = 0.0
    """Minutes that its burst still needs; 0 = it has none."""
    began: float = 0.0
    asked: float = 0.0
    all_work: float = 0.0


class Day:
    """One day in one way."""

    def __init__(self, seed: int, way: Way) -> None:
        self.way, self.told = way, Told()
        sessions, self.needs = day_of(seed)
        self.coming = sessions[::-1]
        self.working: list[AtWork] = []
        self.now = 480.0
        self.number = 0
        draw = random.Random(seed)
        self.hosts = [f"esx-{draw.randrange(20)}" for _ in range(PEOPLE)]
        gpus = tuple(ServerGpu(index, GPU_MIB) for index in range(2))
        servers = tuple(PoolServer(f"gpu-{n}", f"uuid-{n}", gpus, f"gpu-host-{n}", f"{n % 2}") for n in range(4))
        self.book = LeaseBook(LendingPool("day", "net", placement=way.placement), servers)
        self.told.wanted_h = sum(work for each in sessions for _, work in each.bursts) / 60

    def play(self) -> Told:
        """Until the last has left."""
        step_min = STEP.total_seconds() / 60
        while self.coming or self.working:
            while self.coming and self.coming[-1].begins <= self.now:
                self._comes(self.coming.pop())
            self._settle()
            for each in list(self.working):
                self._goes_on(each)
            self._work(step_min)
            self.now += step_min
        return self.told

    @property
    def moment(self) -> datetime:
        return MIDNIGHT + timedelta(minutes=self.now)

    def _comes(self, session: Session) -> None:
        at_work = AtWork(session, list(session.bursts)[::-1], self.now, self.now + session.lasts)
        self.working.append(at_work)
        if self.way.each_burst:
            self._thinks(at_work)
        else:
            self._asks(at_work, session.lasts)

    def _thinks(self, each: AtWork) -> None:
        each.thinks_until = self.now + each.left[-1][0] if each.left else each.ends

    def _asks(self, each: AtWork, lasts_min: float) -> bool:
        """Whether it may wait for the lease, or has it."""
        person = each.session.person
        memory_mib = GPU_MIB if self.way.whole else self.needs[person]
        host = self.hosts[person]
        wish = LeaseWish(
            host,
            f"uuid-of-{person}",
            memory_mib,
            timedelta(minutes=lasts_min),
            host=host,
            cluster=f"{int(host.removeprefix('esx-')) % 2}",
        )
        self.number += 1
        made = lend(self.book, wish, f"{self.number}", self.moment, PATIENCE)
        self.book = made.book
        self.told.asked += 1
        if made.lease is None:
            self.told.refused += 1
            if not self.way.each_burst:
                self.working.remove(each)
            return False
        each.lease, each.asked, each.thinks_until = made.lease.id, self.now, float("inf")
        return True

    def _settle(self) -> None:
        """The book by the clock; it is looked at only when a lease ends or may begin."""
        due = [each for each in self.book.leases if self._is_due(each)]
        if due:
            self.book = settle(self.book, self.moment)
        self.book = replace(self.book, leases=tuple(each for each in self.book.leases if each.open))
        lent = sum(each.state is LeaseState.LENT for each in self.book.leases)
        self.told.most_leases = max(self.told.most_leases, lent)

    def _is_due(self, lease: GpuLease) -> bool:
        at = lease.begins_at if lease.state is LeaseState.WAITING else lease.ends_at
        return at is not None and at <= self.moment

    def _goes_on(self, each: AtWork) -> None:
        lease = self.book.lease(each.lease) if each.lease else None
        if lease is not None and lease.state is LeaseState.LENT and each.thinks_until == float("inf") and not each.work:
            self._begins(each)
        elif each.lease and lease is None:
            self._is_over(each)
        elif each.thinks_until <= self.now:
            self._wants_a_burst(each)

    def _begins(self, each: AtWork) -> None:
        """Its lease begins."""
        self.told.waits_min.append(self.now - each.asked)
        if self.way.each_burst:
            self._burst(each)
        else:
            each.ends = self.now + each.session.lasts
            self._thinks(each)

    def _burst(self, each: AtWork) -> None:
        _, each.work = each.left.pop()
        each.all_work, each.began, each.thinks_until = each.work, self.now, float("inf")

    def _wants_a_burst(self, each: AtWork) -> None:
        if not each.left or self.now >= each.ends:
            self._leaves(each)
        elif not self.way.each_burst:
            self._burst(each)
        elif not self._asks(each, max(MARGIN * each.left[-1][1], 1)):
            each.left.pop()
            self._thinks(each)

    def _is_over(self, each: AtWork) -> None:
        """Its lease has come to its end."""
        each.work, each.lease = 0.0, ""
        if self.way.each_burst:
            self._thinks(each)
        else:
            self.working.remove(each)

    def _leaves(self, each: AtWork) -> None:
        if each.lease:
            self.book = give_up(self.book, f"uuid-of-{each.session.person}", self.moment)
        self.working.remove(each)

    def _work(self, step_min: float) -> None:
        """All bursts go on for a step; those on one GPU share its time."""
        by_gpu: dict[tuple[str, int], list[AtWork]] = {}
        for each in self.working:
            lease = self.book.lease(each.lease) if each.work else None
            if lease is not None and lease.shares:
                share = lease.shares[0]
                by_gpu.setdefault((share.server, share.gpu), []).append(each)
        for sharing in by_gpu.values():
            for each in sharing:
                done = min(step_min / len(sharing), each.work)
                each.work -= done
                self.told.served_h += done / 60
                if each.work < 1e-9:
                    self._done(each, self.now + step_min)

    def _done(self, each: AtWork, at: float) -> None:
        each.work = 0.0
        self.told.stretched.append(max((at - each.began) / each.all_work, 1.0))
        if self.way.each_burst:
            self.book = give_up(self.book, f"uuid-of-{each.session.person}", self.moment)
            each.lease = ""
        self._thinks(each)


def run() -> Iterator[Result]:
    """Each way, over all days."""
    for way in WAYS:
        days = [Day(seed, way).play() for seed in range(DAYS)]
        waits = sorted(wait for day in days for wait in day.waits_min)
        stretched = sorted(each for day in days for each in day.stretched)
        asked, refused = (sum(getattr(day, name) for day in days) for name in ("asked", "refused"))
        wanted, served = (mean(getattr(day, name) for day in days) for name in ("wanted_h", "served_h"))
        yield Result(
            f"{way.name}: {PEOPLE} data scientists, {GPUS} GPUs, {DAYS} days",
            (
                Figure("GPU-hours wanted, a day", wanted, "h"),
                Figure("GPU-hours served, a day", served, "h"),
                Figure("part of what was wanted", 100 * served / wanted, "%"),
                Figure("part of what 8 GPUs have from 8:00 to 19:00", 100 * served / (GPUS * OPEN_HOURS), "%"),
                Figure("leases asked for, a day", asked / DAYS, ""),
                Figure("refused, for they would begin later than in 30 min", 100 * refused / asked, "%"),
                Figure("waiting, mean", mean(waits), "min"),
                Figure("waiting, 95th of 100", waits[int(0.95 * len(waits))], "min"),
                Figure("bursts: times as long as alone, median", median(stretched), ""),
                Figure("bursts: times as long as alone, 95th of 100", stretched[int(0.95 * len(stretched))], ""),
                Figure("most leases at once", max(day.most_leases for day in days), ""),
            ),
        )


def main() -> None:
    """Each day for itself."""
    for seed in range(int(sys.argv[1]) if sys.argv[1:] else DAYS):
        for way in WAYS:
            day = Day(seed, way).play()
            print(
                f"day {seed} {way.name:34} served {day.served_h:5.1f} of {day.wanted_h:5.1f} GPU-hours, refused "
                f"{day.refused} of {day.asked}, waited {mean(day.waits_min):4.1f} min",
                flush=True,
            )


if __name__ == "__main__":
    main()
