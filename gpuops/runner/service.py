"""The loop of `gpuops runner run`: offers what is due, takes over what a dead runner had, plays turns.

While PostgreSQL is away nothing new is taken: no night begins. Turns that run go on; a night stops by itself when it
can no longer write its journal, and a return goes on by what it has read and by vCenter's markers. Returns that become
due meanwhile are begun by the runners themselves, the first of those that were seen last at once and each further one
some minutes later, so that one does it and the others find it done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from gpuops import clock
from gpuops.model.rotation import Policy
from gpuops.model.runners import Half, PolicyTurn
from gpuops.runner.children import Children
from gpuops.runner.due import DueTurn, due, half_of, waits
from gpuops.runner.job_queue import HandedOver, JobQueue, QueueAway

LOOK_S: Final = 3.0
"""How often it is looked for turns that are due and for runners that died."""
AWAY_S: Final = 120.0
"""A database that is away for less has restarted: nobody returns anything on their own account."""
BESIDE: Final = timedelta(minutes=3)
"""By so much each further runner begins a return later while the database is away."""


@dataclass(frozen=True, slots=True)
class SitePolicy:
    """A policy of a vCenter, and its file."""

    policy: Policy
    file: Path


Rotations = Mapping[str, Mapping[str, SitePolicy]]
"""By name of the site and of the policy."""


@dataclass(slots=True)
class Service:
    """One runner. `say` takes a line for its log."""

    queue: JobQueue
    rotations: Rotations
    children: Children
    say: Callable[[str], None]
    offered: dict[PolicyTurn, DueTurn] = field(default_factory=dict)
    """The latest turn of each policy that somebody has offered."""
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    away_since: datetime | None = None
    """Since when the database does not answer; None = it answers."""
    returned: dict[PolicyTurn, datetime] = field(default_factory=dict)
    """When this runner last began a return on its own account."""
    alone: set[asyncio.Task[int]] = field(default_factory=set)
    """Returns that it began so and that have not ended."""

    async def run(self) -> None:
        """Serves until `end`, then hands over what it plays."""
        serving = asyncio.create_task(self._serve())
        try:
            while not self.ending.is_set():
                if serving.done():  # the database went away: what runs goes on, and it is tried again
                    self._note_away(serving)
                    serving = asyncio.create_task(self._serve())
                await self._look()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.ending.wait(), LOOK_S)
        finally:
            self.children.end()
            self.queue.stop()
            with suppress(QueueAway):
                await serving
            await asyncio.gather(*self.alone)

    def end(self) -> None:
        """Takes no more turns, and ends what runs: each turn is handed over."""
        self.ending.set()

    async def play(self, turn: PolicyTurn) -> None:
        """One turn, whichever half it is by now. Raises HandedOver where this runner ends, or the turn had no end."""
        known = self.rotations.get(turn.site, {}).get(turn.policy)
        if known is None:
            self.say(f"{turn.site}: no policy {turn.policy} is configured here: its turn is left out")
            return
        now = clock.wall_clock()
        half = half_of(known.policy, now)
        if self._waits(turn.site, half, now):
            return  # it is due anew every ten minutes
        code = await self.children.rotate(half, turn.site, known.file)
        if code:
            self.say(f"{turn.site}: rotate {half} of {turn.policy} ended with {code}")
        if self.children.ending:
            raise HandedOver

    def _waits(self, site: str, half: Half, now: datetime) -> bool:
        return waits(half, [each.policy for each in self.rotations[site].values()], now)

    async def _serve(self) -> None:
        await self.queue.serve(list(self.rotations), self.play)

    def _note_away(self, serving: asyncio.Task[None]) -> None:
        error = serving.exception()
        if error is not None and not isinstance(error, QueueAway):
            raise error
        self._away(error)

    async def _look(self) -> None:
        try:
            await self._offer()
            rescued = await self.queue.rescue()
            await self.queue.status()
        except QueueAway as away:
            self._away(away)
            await self._return_alone()
            return
        if rescued:
            self.say(f"{rescued} turns of a runner that gives no sign of life are offered again")
        if self.away_since is not None:
            self.say("the queue's PostgreSQL answers again")
            self.away_since = None

    def _away(self, error: BaseException | None) -> None:
        if self.away_since is None:
            self.away_since = clock.wall_clock()
            self.say(f"{error or 'the queue ended'}: nothing new is taken; returns go on")

    async def _offer(self) -> None:
        now = clock.wall_clock()
        for site, policies in self.rotations.items():
            for name, known in policies.items():
                turn, found = PolicyTurn(site, name), due(known.policy, now)
                if self.offered.get(turn) != found and not self._waits(site, found.half, now):
                    await self.queue.offer(turn, found.since)
                    self.offered[turn] = found

    async def _return_alone(self) -> None:
        """Begins the returns that are due, when the runners before this one had their time."""
        now = clock.wall_clock()
        if self.away_since is None or (now - self.away_since).total_seconds() < AWAY_S:
            return
        for site, policies in self.rotations.items():
            for name, known in policies.items():
                turn, found = PolicyTurn(site, name), due(known.policy, now)
                mine = found.since + self.queue.rank * BESIDE
                last = self.returned.get(turn)
                if found.half is Half.NIGHT or self._waits(site, found.half, now):
                    continue
                if now >= mine and (last is None or last < found.since):
                    self.returned[turn] = now
                    if site not in self.children.running:
                        self.say(f"{site}: rotate day of {name}, by vCenter's markers")
                        begun = asyncio.create_task(self.children.rotate(Half.DAY, site, known.file))
                        self.alone.add(begun)
                        begun.add_done_callback(self.alone.discard)
