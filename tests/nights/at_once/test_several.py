"""Several pools, policies, machines and processes on one vCenter: the worlds have them, their nights do something, and
what is only another process's, or somebody's, is not held against the one at work."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from gpuops.errors import LoginRefused
from gpuops.sim.fault_injection.rule import rules_of
from tests.nights.at_once.several import ONE_IN, Several, second_machine, several_of
from tests.nights.faults.event import Event
from tests.nights.judging.checkers import one_session, violations
from tests.nights.judging.doings import START, SUSPEND, effects, is_desktop, machine_of
from tests.nights.measuring.tally import tally
from tests.nights.playing.night import play
from tests.nights.playing.place import Admission
from tests.nights.playing.played import Played
from tests.nights.world.direct import DirectVcenter
from tests.nights.world.session import USER
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


LEASED = 810039
"""Of a world with a lock VM."""


PAUSED = Event("K6", point=13, at_s=400.0)


RESTARTED = Event("N7", rules_of("N7", {"method": "*_Task", "at_s": 78.0}))


@pytest.mark.long
def test_a_vcenter_that_restarts_while_the_machine_is_paused_leaves_its_run_one_session() -> None:
    night = play(LEASED, [RESTARTED, PAUSED])
    assert night.struck["K6"] == night.struck["N7"] == 1
    assert violations(night) == []
    assert night.most_sessions == 1


@pytest.mark.long
def test_a_second_session_is_seen_beside_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    logs_in = DirectVcenter._login

    def twice(vcenter: DirectVcenter) -> None:
        logs_in(vcenter)
        vcenter._world.sessions.open(USER)

    monkeypatch.setattr(DirectVcenter, "_login", twice)
    night = play(LEASED, [PAUSED])
    assert night.struck["K6"] == 1
    assert list(one_session(night)) == ["I19: a run had 2 sessions at once", "I19: a run left 1 sessions behind"]


@pytest.mark.long
def test_a_run_that_cannot_read_vcenter_does_not_ask_for_the_lock() -> None:
    refused = {"method": "*", "target": "ml-01", "skip": 5, "times": 10, "property": "runtime.powerState"}
    night = play(840184, [Event("N2", rules_of("N2", refused)), Event("K5", point=49)])
    assert [(type(process.error), process.lock, process.sent) for process in night.beside] == [
        (LoginRefused, Admission.NOT_ASKED, 0)
    ]
    assert violations(night) == []


@pytest.mark.long
def test_what_somebody_does_meanwhile_was_not_sent_by_the_run_beside() -> None:
    deleted = Event("A12", rules_of("A12", {"method": "RetrievePropertiesEx", "target": "ml-01", "skip": 5}))
    night = play(7000384, [deleted, Event("K5", point=1)])
    assert night.struck["A12"] == 1
    assert [(process.lock, process.sent) for process in night.beside] == [(Admission.REFUSED, 0)]
    assert violations(night) == []
