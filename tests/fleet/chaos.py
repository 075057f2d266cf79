"""What goes wrong in the nights of a fleet, and when: the story of `make fleet`, and stories drawn by seed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from tests.fleet.world import Size


class Trouble(StrEnum):
    """What is done to the fleet."""

    KILL = "kill -9"
    """A runner and all that it plays, at once."""
    STOP = "stop"
    """The same processes stand still, and go on later."""
    END = "end"
    """A runner is stopped, and hands over."""
    RESTART = "postgresql restarts"
    AWAY = "vcenter is away"


RUNNERS: Final = frozenset({Trouble.KILL, Trouble.STOP, Trouble.END})


@dataclass(frozen=True, slots=True)
class Event:
    """One of them."""

    trouble: Trouble
    at_s: float
    """Seconds after the first desktop was suspended."""
    for_s: float = 0.0
    """So long it stands still, or is away."""
    number: int = 0
    """Of the vCenter; of the runner where none plays anything."""


@dataclass(frozen=True, slots=True)
class Story:
    """One night of one fleet and its morning."""

    name: str
    sizes: tuple[Size, ...]
    runners: int
    night_s: float
    """From the start of the runners to the closing of the window."""
    events: tuple[Event, ...]
    quick: bool
    """Whether runners have a sixth of their patience."""
    limit_s: float
    """So long after the closing every desktop is back."""


def whole(size: Size, vcenters: int, night_s: float) -> Story:
    """One runner killed, one that stands still, PostgreSQL restarted, a vCenter away beyond the closing."""
    at = night_s / 150
    events = (
        Event(Trouble.KILL, 5 * at),
        Event(Trouble.STOP, 8 * at, for_s=60 * at),
        Event(Trouble.RESTART, 50 * at, for_s=3),
        Event(Trouble.AWAY, 75 * at, for_s=night_s - 65 * at, number=vcenters - 1),
    )
    return Story("whole", (size,) * vcenters, 3, night_s, events, quick=False, limit_s=750 + night_s)


def drawn(seed: int) -> Story:
    """One or two vCenters, two runners, one to three troubles at moments of a night or of its morning."""
    dice = Random(seed)
    sizes = tuple(
        Size(hosts := dice.randint(2, 4), dice.randint(6, 14), hosts, memory_gib=1, in_flight=dice.choice((1, 2, 4)))
        for _ in range(dice.randint(1, 2))
    )
    events: list[Event] = []
    kinds = list(Trouble)
    for _ in range(dice.randint(1, 3)):
        trouble = dice.choice(kinds)
        if trouble in (Trouble.KILL, Trouble.END):  # one runner stays
            kinds = [kind for kind in kinds if kind not in (Trouble.KILL, Trouble.END)]
        at_s = dice.uniform(0, 6) if dice.random() < 0.7 else dice.uniform(6, 24)
        for_s = {Trouble.STOP: dice.uniform(0.5, 12), Trouble.RESTART: dice.uniform(0, 5)}.get(
            trouble, dice.uniform(2, 20)
        )
        events.append(Event(trouble, at_s, for_s, dice.randrange(2)))
    events.sort(key=lambda event: event.at_s)
    return Story(f"seed {seed}", sizes, 2, 24.0, tuple(events), quick=True, limit_s=750)
