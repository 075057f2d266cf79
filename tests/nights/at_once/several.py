"""Several: nights under two policies, or of two machines, on one vCenter.

In one world of ten the rotation is not that of one pool, one policy and one journal: the policy has two pools; or two
policies share the vCenter, with one journal or each with that of its own machine; or, where there is a lock VM, another
machine plays the same policy. What is played is always a part of the whole policy of the world, by which the checkers
judge, but for the floor: each pool has its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

ONE_IN: Final = 10


class Several(StrEnum):
    """What there are several of."""

    NONE = "one of each"
    POOLS = "two pools in one policy"
    POLICIES = "two policies, one journal"
    APART = "two policies, each on its own machine"
    TWINS = "one policy on two machines"


def several_of(seed: int, *, leased: bool) -> Several:
    """What the world of a seed has several of."""
    rng = random.Random(f"{seed}:several")
    if rng.randrange(ONE_IN):
        return Several.NONE
    kinds = [Several.POOLS, Several.POLICIES, Several.POLICIES, Several.APART]
    return rng.choice([*kinds, Several.TWINS, Several.TWINS] if leased else kinds)


NEARLY: Final = timedelta(seconds=20)


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that runs nights and mornings: when its evening begins, and what its wall clock shows."""

    later: timedelta = timedelta()
    """Between its night and that of the first one, whichever comes first."""
    off: timedelta = timedelta()
    """How far its clock is ahead in the evening."""
    pace: float = 1.0
    """What its clock shows of an hour; 0 = it stands still."""

    @property
    def is_right(self) -> bool:
        """Whether its clock is right, or nearly so, all night."""
        return self.pace == 1.0 and abs(self.off) <= NEARLY

    def clock(self, now: Callable[[], datetime], since: datetime) -> Callable[[], datetime]:
        """Its wall clock, where the right time is `now`."""
        return lambda: since + self.off + (now() - since) * self.pace


LATER_MIN: Final = (0, 0, 1, 10, 45)
"""Minutes between the night of the first policy, or machine, and that of the second."""


def second_machine(seed: int) -> Machine:
    """The other machine of a seed: most have the right time, or nearly; some clocks are wrong, drift or stand still."""
    rng = random.Random(f"{seed}:second machine")
    later = timedelta(minutes=rng.choice(LATER_MIN))
    match rng.randrange(8):
        case 0:
            return Machine(later, off=timedelta(seconds=rng.choice([-3600, -90, 90, 3600])))
        case 1:
            return Machine(later, pace=rng.choice([0.98, 1.02]))
        case 2:
            return Machine(later, pace=0.0)
        case _:
            return Machine(later, off=timedelta(seconds=rng.choice([-20, 0, 0, 20])))


def second_policy_later(seed: int) -> timedelta:
    """How long after the night of the first policy that of the second is begun."""
    return timedelta(minutes=random.Random(f"{seed}:second policy").choice(LATER_MIN))


def begins_first(seed: int) -> bool:
    """Whether the other machine's night comes before that of the first."""
    return random.Random(f"{seed}:begins first").randrange(2) == 0


def returns_first(seed: int) -> bool:
    """Whether the other machine's mornings come before those of the first."""
    return random.Random(f"{seed}:returns first").randrange(2) == 0


def morning_names(seed: int) -> int | None:
    """Which of two policies the return of one journal names; None = neither, as its cron line is advised."""
    return random.Random(f"{seed}:named").choice([None, None, 0, 1])
