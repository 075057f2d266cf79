"""How many nights with pools were played, what struck in them, and what broke."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Final

from tests.nights.pools.checkers import violations
from tests.nights.pools.story import NIGHTS, POINTS, play

MET: Final = frozenset({
    "night SuspendVM_Task gpu", "night ShutdownGuest gpu", "night SuspendVM_Task desktop", "night PowerOnVM_Task lend",
    "night PowerOnVM_Task night", "night waits", "run resumed",
    "server draining take-back", "server dead take-back", "server lends again", "server serving give",
    "server draining give", "server dead", "server off", "server anew", "server program", "client off",
    "lease lent", "lease waiting", "lease expires", "lease returned", "lease broken", "lend asked", "lend refused",
    "notice not answered", "guest silent", "guest not up", "answer lost", "admitted again",
})  # fmt: skip
"""What must have happened in many stories, beside kills."""


@dataclass
class PoolTally:
    """What some stories come to."""

    stories: int = 0
    nights: int = 0
    shares: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def add(self, other: PoolTally) -> None:
        self.stories += other.stories
        self.nights += other.nights
        self.shares += other.shares
        self.kills += other.kills
        self.met += other.met
        self.violations += other.violations

    def unmet(self) -> set[str]:
        """Points at which no process was killed, and what should have been met and was not."""
        return {each for each in POINTS if not self.kills[each]} | {each for each in MET if not self.met[each]}

    def lines(self) -> list[str]:
        return [
            f"{self.stories} stories, {self.nights} nights, {self.shares} shares that clients were let in to",
            f"{self.kills.total()} kills at {len(self.kills)} points",
            *(f"  {what:28} {number}" for what, number in sorted(self.kills.items())),
            *(f"  {what:28} {number}" for what, number in sorted(self.met.items())),
            "never met: " + (", ".join(sorted(self.unmet())) or "nothing that is asked for"),
            *(self.violations or ["no invariant was broken"]),
        ]


def tally(seeds: Iterable[int], jobs: int) -> PoolTally:
    """What the stories of these seeds come to, in so many processes."""
    found = PoolTally()
    if jobs == 1:
        for each in map(_of, seeds):
            found.add(each)
        return found
    with ProcessPoolExecutor(jobs) as workers:
        for each in workers.map(_of, seeds, chunksize=4):
            found.add(each)
    return found


def of_nights(first: int, nights: int, jobs: int) -> PoolTally:
    """What so many nights come to, rounded up to whole stories, from that seed on."""
    return tally(islice(count(first), -(-nights // NIGHTS)), jobs)


def _of(seed: int) -> PoolTally:
    story = play(seed)
    did = (each for each in story.world.ledger if each.operation_id.startswith("gpuops-") and "power" in each.after)
    doings = Counter(f"night {each.method} {each.name.partition('-')[0]}" for each in did)
    met = story.met + story.guests.met + doings
    broken = [f"{seed}: {each}" for each in violations(story)]
    return PoolTally(1, len(story.mornings), len(story.guests.shares), story.kills, met, broken)
