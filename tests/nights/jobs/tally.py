"""How many nights with jobs were played, what struck in them, and what broke."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from gpuops.extras.jobs.job import JobEvent, JobState
from tests.nights.jobs.checkers import violations
from tests.nights.jobs.story import POINTS, VM_POINTS, play
from tests.nights.measuring.tally import Summed

MET: Final = ("a return saved a job", "a return had no time", "checkpoint fails", "checkpoint too slow", "look absent",
       "VM made", "VM has", "VM removed", "a dependency refused", "a job never started")  # fmt: skip
"""What must have happened in many stories, beside kills."""


@dataclass
class JobTally(Summed):
    """What some stories come to."""

    stories: int = 0
    nights: int = 0
    attempts: int = 0
    states: Counter[JobState] = field(default_factory=Counter)
    events: Counter[JobEvent] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def unmet(self) -> set[str]:
        """Points at which no process was killed, and what should have been met and was not."""
        missed = {kind for kind in MET if not self.met[kind]}
        return {point for point in POINTS | VM_POINTS if not self.kills[point]} | missed

    def lines(self) -> list[str]:
        return [
            f"{self.stories} stories, {self.nights} nights, {self.states.total()} jobs, {self.attempts} attempts",
            f"{self.kills.total()} kills at {len(self.kills)} points",
            *(f"  {state.value:12} {number}" for state, number in sorted(self.states.items())),
            *(f"  {event.value:12} {number} records" for event, number in sorted(self.events.items())),
            *(f"  {kind:24} {number}" for kind, number in sorted(self.met.items())),
            "never met: " + (", ".join(sorted(self.unmet())) or "nowhere that is asked for"),
            *(self.violations or ["no invariant was broken"]),
        ]


def tally(seeds: Iterable[int], jobs: int, nights: int | None = None) -> JobTally:
    """What the stories of these seeds come to, in so many processes; no more are begun once `nights` were played."""
    total = JobTally()
    if jobs == 1:
        for part in map(_of, seeds):
            total.add(part)
            if nights is not None and total.nights >= nights:
                break
        return total
    with ProcessPoolExecutor(jobs) as pool:
        waiting = iter(seeds)
        running = {pool.submit(_of, seed) for _, seed in zip(range(jobs), waiting, strict=False)}
        while running:
            future = next(iter(running))
            running.discard(future)
            total.add(future.result())
            if nights is None or total.nights < nights:
                running |= {pool.submit(_of, seed) for _, seed in zip(range(1), waiting, strict=False)}
    return total


def _of(seed: int) -> JobTally:
    story = play(seed)
    return JobTally(
        1, len(story.mornings), len(story.guests.made),
        Counter(job.state for job in story.jobs),
        Counter(record.event for job in story.jobs for record in job.records),
        story.kills, story.guests.met, [f"{seed}: {violation}" for violation in violations(story)],
    )  # fmt: skip
