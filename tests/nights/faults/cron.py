"""Cron: when the evening's runs of a seed begin, and begin again, and which policy the morning names. Most evenings
have one run, on time, and the file of the morning is mostly that of the evening."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from gpuops.execute.runs import RunKind
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.nights.selector import Mark, Selector
from tests.nights.world.worlds import EVENING

MORNING: Final = EVENING + timedelta(hours=9)
DEADLINE: Final = EVENING + timedelta(hours=11)
CRON: Final = timedelta(minutes=10)


def evening_of(seed: int) -> tuple[tuple[RunKind, datetime], ...]:
    """The halves of a rotation that are begun before the morning: late, twice, or again after an early return."""
    rng = random.Random(f"{seed}:cron")
    kind = rng.randrange(100)
    if kind < 4:
        minutes = rng.choice([rng.randint(530, 640), rng.randint(548, 556)])
        return ((RunKind.NIGHT, EVENING + timedelta(minutes=minutes)),)
    if kind >= 97:
        # so late that a slow evening is overtaken by the return that must begin
        return ((RunKind.NIGHT, EVENING + timedelta(minutes=rng.randint(536, 552))),)
    on_time = (RunKind.NIGHT, EVENING)
    if kind < 14:
        return on_time, (RunKind.NIGHT, EVENING + timedelta(minutes=rng.choice([20, 90, 240])))
    if kind < 20:
        early = EVENING + timedelta(minutes=rng.choice([20, 90, 240]))
        return on_time, (RunKind.DAY, early), (RunKind.NIGHT, early + timedelta(minutes=40))
    return (on_time,)


def returns_early(seed: int) -> bool:
    """Whether there is a return in the middle of this night, and a night run after it."""
    return RunKind.DAY in {half for half, _ in evening_of(seed)}


def patience_of(seed: int) -> timedelta:
    """How long it takes until somebody, or something, finishes a half that was cut off."""
    return timedelta(seconds=random.Random(f"{seed}:patience").choice([0, 10, 60, 300]))


def policies_in_the_morning(seed: int, policy: Policy) -> tuple[Policy, ...]:
    """The files that the mornings name, one after the other, and again: in one night of twenty somebody makes several
    edits at once, and perhaps others between two returns."""
    rng = random.Random(f"{seed}:edits")
    if rng.randrange(20):
        return (policy_in_the_morning(seed, policy),)
    return tuple(_edit_policy(policy, rng) for _ in range(rng.choice([1, 1, 2, 3])))


def _edit_policy(policy: Policy, rng: random.Random) -> Policy:
    """Two edits or more at once."""
    pool = policy.pools[0]
    narrowed = replace(pool.select, name=rng.choice(["desktop-*[13579]", "desktop-00[1-3]", "old-*"]))
    edits: dict[str, object] = {
        "ml": tuple(rng.sample(policy.ml, len(policy.ml) // 2)),
        "marker": "gpuops.night",
        "pools": (replace(pool, select=narrowed, floor=rng.choice([0, 100])), *policy.pools[1:]),
        "limits": replace(policy.limits, in_flight=1, per_host=1),
        "ml_stop": replace(policy.ml_stop, grace_s=30),
    }
    edit_names = rng.sample(sorted(edits), rng.randint(2, len(edits)))
    return replace(policy, **{name: edits[name] for name in edit_names})  # type: ignore[arg-type]


def policy_in_the_morning(seed: int, policy: Policy) -> Policy:
    """The file that the morning names: in one night of twenty somebody has edited it since the evening.

    A queue without the VMs that were served is an everyday edit; pools may be narrowed, or renamed, or be others.
    """
    rng = random.Random(f"{seed}:edited")
    if rng.randrange(20):
        return policy
    pool = policy.pools[0]
    match rng.randrange(4):
        case 0:
            return replace(policy, ml=policy.ml[len(policy.ml) // 2 :])
        case 1:
            return replace(policy, pools=(replace(pool, select=replace(pool.select, name="desktop-*[13579]")),))
        case 2:
            return replace(policy, pools=(replace(pool, name="cad", select=Selector(folder="cad")),), ml=())
        case _:
            return replace(policy, pools=(replace(pool, parked=False, floor=100, owner=Mark("gpuops.owner", "cad")),))
