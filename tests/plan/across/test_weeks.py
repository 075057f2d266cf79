"""Weeks of nights of three teams over several sites: each gets its share of all GPU-hours, as in one site of that size.

Each evening the choice is made and written down, then each site's own night starts what is its own; what ran is in that
site's journal alone, and counts for the choice of the next evening. All teams always have work: more than the nights
can take, of half a GPU and of one. `python -m tests.plan.across.test_weeks` prints the figures of both.
"""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Final

import pytest

from gpuops.model.nights.fair_share import Team
from gpuops.model.nights.history import HeldPeriod, PastNight, PastVm
from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.owner import NotedOwner
from tests.plan.across.worlds import BY_TEAM, EVENING, HALF, WHOLE, Fleet, Request, SiteWorld

WEIGHTS: Final = {"audio": 1.0, "vision": 2.0, "web": 1.0}
WAITING: Final = 2
"""Requests of each team that wait in the evening, for each host of two GPUs: also a team of half the weights always has
more than its share, which is a GPU a host; a request is three quarters of one on average."""
HOURS: Final = 9.0


def shares(seed: int, hosts: tuple[int, ...], nights: int, limits: dict[str, float] | None = None) -> dict[str, float]:
    """Team -> its part of the GPU-hours of all nights, in sites with so many hosts each. Each night keeps to limits."""
    chance = random.Random(seed)
    teams = tuple(Team(team, weight, gpus=(limits or {}).get(team)) for team, weight in WEIGHTS.items())
    fleet = Fleet([SiteWorld(name, count) for name, count in zip("bfhkms", hosts, strict=False)], [], teams)
    got = dict.fromkeys(WEIGHTS, 0.0)
    number = 0
    for day in range(nights):
        for team in WEIGHTS:
            while sum(each.team == team for each in fleet.requests) < max(5, WAITING * sum(hosts)):
                number += 1
                fleet.requests.append(Request(f"{team}-{number:04}", team, chance.choice([WHOLE, HALF])))
        fleet.now = EVENING + timedelta(days=day)
        started = _one_night(fleet, got)
        for limit in teams:
            gpus = sum(_gpus(each) for each in started if each.team == limit.name)
            assert limit.gpus is None or gpus <= limit.gpus
        fleet.requests = [each for each in fleet.requests if each not in started]
        fleet.assigned.clear()  # the morning is over, and nothing of it is asked for again
    total = sum(got.values())
    return {team: hours / total for team, hours in got.items()}


def _one_night(fleet: Fleet, got: dict[str, float]) -> list[Request]:
    """The requests that ran; each in one site."""
    for _ in range(3):  # as a timer does, every ten minutes
        if not fleet.assign().again:
            break
    by_name = {each.name: each for each in fleet.requests}
    ran = {site.name: fleet.started(site) for site in fleet.sites}
    names = [name for each in ran.values() for name in each]
    assert len(names) == len(set(names))
    for site in fleet.sites:
        period = HeldPeriod(fleet.now, fleet.now + timedelta(hours=HOURS))
        vms = []
        for name in ran[site.name]:
            request = by_name[name]
            got[request.team] += _gpus(request) * HOURS
            owner = NotedOwner(str(BY_TEAM), request.team)
            vms.append(
                PastVm(
                    name, f"{site.name}-{name}", name, Role.ML, (), _gpus(request), (period,), closed=True, owner=owner
                )
            )
        night = PastNight(f"{fleet.now:%Y-%m-%d}", site.name, fleet.now, "night", (), tuple(vms), ())
        site.past = (*site.past, night)
    return [by_name[name] for name in names]


def _gpus(request: Request) -> float:
    return 0.5 if request.profile == HALF else 1.0


def farthest(found: dict[str, float]) -> float:
    """How far the part of a team is from its share at the most."""
    total = sum(WEIGHTS.values())
    return max(abs(found[team] - weight / total) for team, weight in WEIGHTS.items())


@pytest.mark.long
def test_each_team_has_its_share_over_all_sites() -> None:
    assert farthest(shares(1, (1, 1), 14)) < 0.03


@pytest.mark.long
def test_no_team_is_above_what_it_may_have_at_once() -> None:
    found = shares(2, (1, 1), 5, {"vision": 1.5})
    assert found["vision"] == pytest.approx(1.5 / 4, abs=0.01), "what it may not have is no less for the others"


@pytest.mark.long
@pytest.mark.parametrize("hosts", [(1, 1, 1), (2, 1), (1, 1, 1, 1)])
def test_shares_of_eight_weeks_are_as_near_as_in_one_site(hosts: tuple[int, ...]) -> None:
    several, one = farthest(shares(0, hosts, 56)), farthest(shares(0, (sum(hosts),), 56))
    assert several < 0.02 and one < 0.02


def main() -> None:
    """The figures of several sites beside those of one of the same size."""
    for seed in range(3):
        for hosts in ((1, 1, 1), (3,)):
            found = shares(seed, hosts, 56)
            parts = ", ".join(f"{team} {part:.2%}" for team, part in found.items())
            print(f"seed {seed}, sites of {hosts} hosts: {parts}; farthest {farthest(found):.2%}", flush=True)


if __name__ == "__main__":
    main()
