"""Cron: when the evening's runs of a seed begin, and begin again. Most evenings have one, on time."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from gpuops.execute.half import Half
from tests.nights.worlds import EVENING


def evening_of(seed: int) -> tuple[tuple[Half, datetime], ...]:
    """The halves of a rotation that are begun before the morning: late, twice, or again after an early return."""
    rng = random.Random(f"{seed}:cron")
    kind = rng.randrange(100)
    if kind < 4:
        minutes = rng.choice([rng.randint(530, 640), rng.randint(548, 556)])
        return ((Half.NIGHT, EVENING + timedelta(minutes=minutes)),)
    if kind >= 97:
        # so late that a slow evening is overtaken by the return that must begin
        return ((Half.NIGHT, EVENING + timedelta(minutes=rng.randint(536, 552))),)
    on_time = (Half.NIGHT, EVENING)
    if kind < 14:
        return on_time, (Half.NIGHT, EVENING + timedelta(minutes=rng.choice([20, 90, 240])))
    if kind < 20:
        early = EVENING + timedelta(minutes=rng.choice([20, 90, 240]))
        return on_time, (Half.DAY, early), (Half.NIGHT, early + timedelta(minutes=40))
    return (on_time,)


def returns_early(seed: int) -> bool:
    """Whether there is a return in the middle of this night, and a night run after it."""
    return Half.DAY in {half for half, _ in evening_of(seed)}


def patience_of(seed: int) -> timedelta:
    """How long it takes until somebody, or something, finishes a half that was cut off."""
    return timedelta(seconds=random.Random(f"{seed}:patience").choice([0, 10, 60, 300]))
