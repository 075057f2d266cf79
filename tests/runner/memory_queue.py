"""A queue in memory, children that only note what would be started, and a runner's loop on both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from gpuops import clock
from gpuops.clock import set_ahead
from gpuops.extras.fleet.runner.children import Children
from gpuops.extras.fleet.runner.due import SitePolicy
from gpuops.extras.fleet.runner.queue_port import HandedOver, JobQueue, Play, QueueAway
from gpuops.extras.fleet.runner.service import Service
from gpuops.model.nights.runners import Half, PolicyTurn, QueueStatus
from tests.runner.test_due import PARIS, policy_of

TURN = PolicyTurn("prod", "nights")


@dataclass
class MemoryQueue:
    """Implement `JobQueue`; unreachable while `away` is set."""

    place: int = 0
    away: bool = False
    offered: list[tuple[PolicyTurn, datetime]] = field(default_factory=list)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    lost: int = 0
    asked: list[PolicyTurn] = field(default_factory=list)
    refuses: tuple[str, ...] = ()
    """Sites whose turns it does not take."""

    def _reach(self) -> None:
        if self.away:
            raise QueueAway("the queue's PostgreSQL does not answer: it is away")

    async def make(self) -> bool:
        return False

    async def offer(self, turn: PolicyTurn, since: datetime) -> bool:
        self._reach()
        if turn.site in self.refuses:
            raise QueueAway("the queue's PostgreSQL refuses: too long")
        self.offered.append((turn, since))
        return True

    async def ask(self, turn: PolicyTurn) -> bool:
        self._reach()
        self.asked.append(turn)
        return True

    async def serve(self, sites: Callable[[], Sequence[str]], play: Play) -> None:
        self._reach()
        while not self.stopped.is_set():
            self._reach()
            if self.offered:
                turn, since = self.offered.pop(0)
                if turn.site in sites():
                    try:
                        await play(turn)
                    except HandedOver:  # as the queue in PostgreSQL does
                        self.offered.append((turn, since))
            await asyncio.sleep(0)

    def stop(self) -> None:
        self.stopped.set()

    async def rescue(self) -> int:
        self._reach()
        return self.lost

    async def status(self) -> QueueStatus:
        self._reach()
        return QueueStatus((), ())

    @property
    def rank(self) -> int:
        return self.place


@dataclass
class CalledChildren(Children):
    """Notes what would be started."""

    called: list[tuple[str, str]] = field(default_factory=list)
    code: int = 0

    lasts: asyncio.Event | None = None
    """Until it is set those of `lasting` run; None = all end at once."""
    lasting: tuple[Half, ...] = tuple(Half)

    async def _run(self, words: tuple[str, ...], site: str, environment: Mapping[str, str]) -> int:
        command = words[1] if words[0] == "rotate" else words[0]
        self.called.append((command, words[-1]))
        if self.lasts is not None and command in self.lasting:
            await self.lasts.wait()
        return self.code


def service_of(queue: JobQueue) -> tuple[Service, CalledChildren, list[str]]:
    messages: list[str] = []
    children = CalledChildren({})
    policies = {"prod": {"nights": SitePolicy(policy_of(PARIS), Path("policy.yaml"))}}
    return Service(queue, policies, children, messages.append, load=lambda _, policy: policy), children, messages


async def looks(service: Service, count: int, minutes: float = 0) -> None:
    """So many looks, each so many minutes after the one before."""
    for _ in range(count):
        await service._look()
        await asyncio.sleep(0)
        set_ahead(clock.wall_clock() - clock.machine_time() + timedelta(minutes=minutes))
