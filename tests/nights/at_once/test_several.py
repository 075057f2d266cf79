"""Several pools, policies and machines on one vCenter: the worlds have them, and their nights do something."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from tests.nights.at_once.several import ONE_IN, Several, second_machine, several_of
from tests.nights.judging.checkers import violations
from tests.nights.judging.doings import START, SUSPEND, effects, is_desktop, machine_of
from tests.nights.measuring.tally import tally
from tests.nights.playing.night import play
from tests.nights.playing.played import Played
from tests.nights.world.worlds import is_leased, site_of
from tests.sample import every_nth

SEEDS = range(0, 4000, 2)


def seeds_of(kind: Several) -> list[int]:
    return [seed for seed in SEEDS if several_of(seed, leased=is_leased(seed)) is kind]


@cache
def nights_of(kind: Several, *, quiet: bool) -> tuple[Played, ...]:
    """Some nights of worlds that have room for it, with their own trouble or with none."""
    seeds = (seed for seed in seeds_of(kind) if site_of(seed).size.desktops >= 8)
    return tuple(play(seed, () if quiet else None) for seed, _ in zip(seeds, range(8 if quiet else 3), strict=False))


def test_one_world_in_ten_has_several_of_something() -> None:
    counts = Counter(several_of(seed, leased=is_leased(seed)) for seed in SEEDS)
    assert set(counts) == set(Several)
    some = len(SEEDS) - counts[Several.NONE]
    assert len(SEEDS) / ONE_IN / 2 < some < len(SEEDS) / ONE_IN * 2
    assert min(counts.values()) >= 10


@pytest.mark.parametrize("kind", [Several.POLICIES, Several.APART])
def test_the_two_policies_share_out_the_whole(kind: Several) -> None:
    site = site_of(seeds_of(kind)[0])
    first, second = site.policies
    assert sorted(queued.names for queued in (*first.ml, *second.ml)) == sorted(
        queued.names for queued in site.policy.ml
    )
    for number in range(1, 20):
        name = f"desktop-{number:03}"
        assert site.pool_of(name) is (first if number % 2 == 0 else second).pools[0]


@pytest.mark.long
@pytest.mark.parametrize("kind", [kind for kind in Several if kind is not Several.NONE])
def test_their_nights_break_nothing(kind: Several) -> None:
    assert [
        violation
        for quiet in (False, True)
        for night in nights_of(kind, quiet=quiet)
        for violation in violations(night)
    ] == []


@pytest.mark.long
@pytest.mark.parametrize("kind", [Several.POOLS, Several.POLICIES, Several.APART])
def test_their_nights_take_from_both_pools(kind: Several) -> None:
    from_first_pool = {
        night.site.pool_of(night.names[entry.moid]) is night.site.pools[0]
        for night in nights_of(kind, quiet=True)
        for entry in effects(night, SUSPEND)
    }
    assert from_first_pool == {True, False}


@pytest.mark.long
@pytest.mark.parametrize("kind", [Several.APART, Several.TWINS])
def test_both_machines_take_and_return(kind: Several) -> None:
    effects_by_machine = {
        (machine_of(night, entry), entry.method, is_desktop(night, entry.moid))
        for night in nights_of(kind, quiet=True)
        for entry in effects(night, SUSPEND, START)
    }
    assert {machine for machine, method, desktop in effects_by_machine if method == START and not desktop} >= {0, 1}
    assert {machine for machine, method, desktop in effects_by_machine if method == START and desktop} >= {0, 1}


@pytest.mark.long
def test_a_machine_whose_clock_is_wrong_is_refused_its_night() -> None:
    nights = [night for kind in (Several.APART, Several.TWINS) for night in nights_of(kind, quiet=True)]
    wrong = [night for night in nights if not second_machine(night.seed).is_right]
    reports = [report for night in wrong for report in night.told_elsewhere]
    assert any("of this machine's" in rejection.rule or "behind this machine's" in rejection.rule
               for report in reports for rejection in report.plan.rejections)  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(600)
def test_hundreds_of_them() -> None:
    """Half of them a run."""
    seeds = [seed for kind in Several if kind is not Several.NONE for seed in seeds_of(kind)[10:80]]
    assert tally(every_nth(seeds, 2), jobs=2).violations == []
