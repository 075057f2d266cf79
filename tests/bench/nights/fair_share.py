"""Eight weeks of nights of three teams with the weights 1, 2 and 1: who gets the GPU-hours, with and without teams.

Each evening is another fleet of 12 hosts with two A40 and about a hundred desktops. Jobs arrive by chance, in bursts,
from all three teams alike, and more than the nights can take: of half a GPU, one or two, for 3 to 40 hours, which go on
the next night from where they were. A team with 24 waiting sends no more. The planner is `RotateNight`, the journal is
made here: a VM that starts runs until its work is done or its host's desktops are due.

    python -m tests.bench.nights.fair_share 5      seed by seed, each about a minute
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from gpuops.model.nights.fair_share import FairShare, Team
from gpuops.model.nights.history import HeldPeriod, PastNight, PastVm
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.owner import NotedOwner, OwnerKey
from gpuops.plan.rotation.ml_queue.team_shares import gpus_of
from gpuops.plan.rotation.nights.night import RotateNight
from tests.bench.nights import night as fleet
from tests.bench.verdict import Figure, Result
from tests.plan.snapshots import catalog

NIGHTS: Final = 56
HOSTS: Final = 12
DESKTOPS: Final = 100
SEEDS: Final = 3
MOST_WAITING: Final = 24
WEIGHTS: Final = {"audio": 1.0, "vision": 2.0, "web": 1.0}
WANTED: Final = (("nvidia_a40-48c",),) * 5 + (("nvidia_a40-48c",) * 2,) * 2 + (("nvidia_a40-24c",),) * 3
SHARED: Final = FairShare(
    OwnerKey("attribute", "team"), teams=tuple(Team(name, weight) for name, weight in WEIGHTS.items())
)
APART: Final = 0.01
"""A team's part of all GPU-hours may be so far from its share."""
LOST: Final = 0.03
"""So much of the GPU-hours may be lost to the order."""


@dataclass(slots=True)
class Waiting:
    """A job, and the VM that it is of."""

    number: int
    team: str
    profiles: tuple[str, ...]
    host: int
    relocate: bool
    hours: float
    """Of work that is left."""

    @property
    def name(self) -> str:
        return f"{self.team}-{self.number:04}"


def hours_by_team(seed: int, shared: FairShare | None) -> dict[str, float]:
    """Team -> the GPU-hours that it got in all nights. The same jobs and evenings for the same seed, but for those that
    a team with too many waiting never sent."""
    chance, facts = random.Random(seed), catalog()
    waiting: list[Waiting] = []
    past: list[PastNight] = []
    got = dict.fromkeys(WEIGHTS, 0.0)
    number = 0
    for day in range(NIGHTS):
        evening = fleet.EVENING + timedelta(days=day)
        arrivals = [team for team in WEIGHTS for _ in range(chance.choice([0, 4, 8, 16, 40]))]
        chance.shuffle(arrivals)
        for team in arrivals:
            number += 1
            new = Waiting(number, team, chance.choice(WANTED), chance.randrange(HOSTS), chance.random() < 0.7,
                          chance.choice([3, 6, 12, 24, 40]))  # fmt: skip
            if sum(each.team == team for each in waiting) < MOST_WAITING:
                waiting.append(new)
        seen = _evening(chance.randrange(10**9), evening, waiting)
        policy = replace(fleet.policy(), fair_share=shared,
                         ml=tuple(QueuedVm(each.name, relocate=each.relocate) for each in waiting))  # fmt: skip
        request = RotateNight(policy, past=tuple(past))
        planned = request.night_plan(request.may_take(seen, facts, evening), seen, facts, evening)
        load = planned.bounds.load(planned.decision.starts)
        ran = []
        by_name = {each.name: each for each in waiting}
        for start in planned.decision.starts:
            run, job = planned.bounds.run(start, load), by_name[start.vm.name]
            assert run.ends is not None, "the policy has a window"
            ends = min(run.ends, run.begins + timedelta(hours=job.hours))
            gpus = gpus_of(job.profiles, facts) or 0.0
            hours = (ends - run.begins).total_seconds() / 3600
            job.hours -= hours
            got[job.team] += gpus * hours
            ran.append(PastVm(start.vm.ref, start.vm.instance_uuid, job.name, Role.ML, job.profiles, gpus,
                              (HeldPeriod(run.begins, ends),), closed=True,
                              owner=NotedOwner(str(SHARED.by), job.team)))  # fmt: skip
        past.append(PastNight(f"{evening:%Y-%m-%d}", "vc", evening, "night", (), tuple(ran), ()))
        waiting = [each for each in waiting if each.hours > 0.01]
    return got


def _evening(seed: int, at: datetime, waiting: list[Waiting]) -> Inventory:
    seen = fleet.world(seed, hosts=HOSTS, desktops=DESKTOPS, ml_vms=0)
    for each in waiting:
        vm = fleet.waiting_vm(10_000 + each.number, each.name, each.host, each.profiles, attributes={"team": each.team})
        seen = seen.with_vm(vm)
    return replace(seen, taken_at=at)


def run() -> Result:
    """How near the teams come to their shares, and what that costs, over all seeds."""
    found = [(hours_by_team(seed, SHARED), hours_by_team(seed, None)) for seed in range(SEEDS)]
    shares = {team: weight / sum(WEIGHTS.values()) for team, weight in WEIGHTS.items()}
    with_teams, without = (_sum(each) for each in zip(*found, strict=True))
    total, before = sum(with_teams.values()), sum(without.values())
    apart = max(abs(hours / total - shares[team]) for team, hours in with_teams.items())
    return Result(
        f"fair share: {SEEDS} times {NIGHTS} nights, teams of the weights {', '.join(map(_weight, WEIGHTS.values()))}",
        (
            *(Figure(f"part of {team}, its share is {shares[team]:.0%}", 100 * hours / total, "%")
              for team, hours in with_teams.items()),
            *(Figure(f"part of {team} without teams", 100 * hours / before, "%") for team, hours in without.items()),
            Figure("farthest from a share", 100 * apart, "%", 100 * APART),
            Figure("GPU-hours without teams", before, "h"),
            Figure("GPU-hours lost to the order", 100 * (1 - total / before), "%", 100 * LOST),
        ),
    )  # fmt: skip


def _weight(weight: float) -> str:
    return f"{weight:g}"


def _sum(each: tuple[dict[str, float], ...]) -> dict[str, float]:
    return {team: sum(hours[team] for hours in each) for team in WEIGHTS}


def main() -> None:
    """Each seed for itself."""
    for seed in range(int(sys.argv[1]) if sys.argv[1:] else SEEDS):
        for name, shared in (("teams", SHARED), ("without", None)):
            got = hours_by_team(seed, shared)
            total = sum(got.values())
            parts = ", ".join(f"{team} {hours / total:.2%}" for team, hours in got.items())
            print(f"seed {seed} {name:8} {total:8.0f} GPU-hours: {parts}", flush=True)


if __name__ == "__main__":
    main()
