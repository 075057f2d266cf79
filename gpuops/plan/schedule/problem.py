"""A night as the scheduler sees it: GPUs with their desktops, jobs and limits.

`plan/rotation` makes it. All times are whole minutes from the moment that the night opens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Desktop:
    """A desktop: when it may be suspended, and how long its suspend and resume take."""

    name: str
    idle_from: int | None
    """None = it may not be suspended tonight, and its GPUs take no jobs."""
    suspend_minutes: int
    resume_minutes: int
    datastores: tuple[str, ...] = ()
    """The datastores of its memory; the operation counts in the limit of each."""
    cost: int = 1
    """Its weight when the number of suspended desktops is minimized."""


@dataclass(frozen=True, slots=True)
class NightGpu:
    """A physical GPU with its desktops; without desktops it is free. A desktop with several vGPUs is on several
    GPUs."""

    name: str
    host: str
    desktops: tuple[Desktop, ...]

    @property
    def idle_from(self) -> int | None:
        """When the last of its desktops may be suspended; None = one of them may not."""
        times = [desktop.idle_from for desktop in self.desktops]
        return None if None in times else max((time for time in times if time is not None), default=0)


@dataclass(frozen=True, slots=True)
class Job:
    """An ML job that runs on complete GPUs of one host without interruption."""

    name: str
    gpus: int
    minutes: int
    """How long it runs, unless its GPUs are given back sooner: see `least_minutes`."""
    least_minutes: int | None = None
    """A run that the morning cuts off counts if it lasted this long. None = only a complete run counts."""
    priority: int = 0
    """A minute of a higher one is worth more than all minutes of the lower ones."""
    deadline: int | None = None
    """The minute by which it must have ended."""
    allowed: frozenset[str] | None = None
    """Names of the GPUs that it may run on; None = any."""

    @property
    def at_least(self) -> int:
        """The shortest run that counts."""
        return self.minutes if self.least_minutes is None else min(self.minutes, self.least_minutes)


@dataclass(frozen=True, slots=True)
class OperationLimits:
    """How many suspends and resumes may run at once; None = any number."""

    per_host: int | None = 4
    per_datastore: int | None = 8
    in_total: int | None = None


@dataclass(frozen=True, slots=True)
class NightProblem:
    """One night."""

    ends: int
    """By then every desktop must run again. The night opens at 0."""
    gpus: tuple[NightGpu, ...]
    jobs: tuple[Job, ...]
    limits: OperationLimits = OperationLimits()
    slowdown: float = 1.5
    """Factor by which each resume is planned longer than expected."""
    desktop_worth_minutes: int = 0
    """GPU-minutes of the lowest priority that are given up for each desktop that is not suspended, if no job is
    lost."""

    def resume_minutes(self, desktop: Desktop) -> int:
        """How long the plan allows for the desktop's resume."""
        return math.ceil(desktop.resume_minutes * self.slowdown - 1e-9)
