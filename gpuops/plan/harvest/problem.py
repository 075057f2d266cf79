"""What a night's schedule is made from. All times are whole minutes from the moment that the night opens."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Desktop:
    """A desktop, when it may be suspended, and what that takes."""

    name: str
    idle_from: int | None
    """None = not tonight: its GPUs stay with desktops."""
    suspend_minutes: int
    resume_minutes: int
    datastores: tuple[str, ...] = ()
    """Where its memory is written to; each of them is busy meanwhile."""
    cost: int = 1
    """What it weighs where as few as possible are suspended."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A physical GPU; without desktops it is free already.

    A desktop with several vGPUs stands at each of its GPUs.
    """

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
    """Work that runs on whole GPUs of one host and is not interrupted."""

    name: str
    gpus: int
    minutes: int
    """How long it runs. What is given back before that cuts it off: see `least_minutes`."""
    least_minutes: int | None = None
    """A run that the morning cuts off is worth as much as it lasted, if it lasted this long. None = only whole."""
    priority: int = 0
    """A minute of a higher one is worth more than all minutes of the lower ones."""
    deadline: int | None = None
    """By when it must have ended."""
    allowed: frozenset[str] | None = None
    """Names of the GPUs that it may run on; None = any."""

    @property
    def at_least(self) -> int:
        return self.minutes if self.least_minutes is None else min(self.minutes, self.least_minutes)


@dataclass(frozen=True, slots=True)
class Limits:
    """How many suspends and resumes go on at once; None = any number."""

    per_host: int | None = 4
    per_datastore: int | None = 8
    in_total: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """One night."""

    ends: int
    """By then every desktop is back. The night opens at 0."""
    gpus: tuple[Gpu, ...]
    jobs: tuple[Job, ...]
    limits: Limits = Limits()
    slowdown: float = 1.5
    """A resume is planned to take so many times longer than it is expected to."""
    desktop_worth_minutes: int = 0
    """So many GPU-minutes of the lowest priority are given up to spare a desktop, as long as as many jobs run."""

    def resume_minutes(self, desktop: Desktop) -> int:
        """What the plan allows for the desktop's resume."""
        return math.ceil(desktop.resume_minutes * self.slowdown - 1e-9)
