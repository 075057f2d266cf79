"""Runners that share a queue, and the turns of rotations that they play."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Half(StrEnum):
    """The command of `gpuops rotate` that a turn is."""

    NIGHT = "night"
    DAY = "day"


class TurnState(StrEnum):
    """Whether a runner works on a turn."""

    WAITING = "waiting"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class PolicyTurn:
    """A turn of one policy of one vCenter; the runner that takes it decides by the clock which half it is."""

    site: str
    """Name of the target."""
    policy: str
    """Name of the policy."""


@dataclass(frozen=True, slots=True)
class QueuedTurn:
    """A turn as the queue shows it."""

    turn: PolicyTurn
    state: TurnState
    runner: int | None
    """Number of the runner that has it."""
    since: datetime | None
    """When it was offered or taken; None = unknown."""


@dataclass(frozen=True, slots=True)
class RunnerSeen:
    """A runner by its number, and when it last gave a sign of life."""

    number: int
    alive: datetime
    lives: bool = True
    """Whether that is so lately that it keeps its turns."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The runners, and the turns in the queue."""

    runners: tuple[RunnerSeen, ...]
    turns: tuple[QueuedTurn, ...]
