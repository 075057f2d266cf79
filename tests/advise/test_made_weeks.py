"""Nights on made-up weeks of four kinds of offices: nobody is disturbed where sessions are known, and counters alone
disturb somebody."""

from __future__ import annotations

import pytest

from gpuops.advise.idle import Use
from gpuops.extras.observe.replay import SOON_STEPS, STEP
from gpuops.model.desktops.evidence import Source
from gpuops.model.nights.rotation import IdleRule
from gpuops.sim.state.desktop_people import Office
from tests.made_weeks import SOON_S, JudgedNight, Truth, judged, made_desktops, nights

COUNTERS = frozenset({Source.COUNTERS})
BROKER = frozenset({Source.COUNTERS, Source.BROKER})
DESKTOPS = 12


def played(office: Office, seed: int, rule: IdleRule, count: int = DESKTOPS) -> list[JudgedNight]:
    known = Source.BROKER in rule.needed
    found = [
        judged(each, rule, night, sessions_known=known)
        for each in made_desktops(office, seed, count)
        for night in nights()
    ]
    return [each for each in found if each.replayed.use is Use.IDLE]


def false_idles(found: list[JudgedNight]) -> list[JudgedNight]:
    return [each for each in found if each.truth is not None and each.truth.false_idle]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 11))])
@pytest.mark.parametrize("office", list(Office))
def test_where_sessions_are_known_no_idle_is_false_whatever_the_thresholds(office: Office, seed: int) -> None:
    for rule in (IdleRule(500, 900, required=BROKER), IdleRule(100_000, 300, required=BROKER)):
        taken = played(office, seed, rule)
        assert taken, "it harvests something"
        assert not false_idles(taken)
        assert not any(each.under_session for each in taken)


@pytest.mark.long
@pytest.mark.parametrize("office", [Office.NIGHT_OWLS, Office.SHIFTS])
def test_counters_alone_take_desktops_from_people_and_a_longer_time_from_fewer(office: Office) -> None:
    short, long = (played(office, 1, IdleRule(500, for_s, required=COUNTERS)) for for_s in (300, 3300))
    share = [len(false_idles(each)) / len(each) for each in (short, long)]
    assert share[0] > 0.03
    assert share[1] < share[0] / 2


@pytest.mark.long
def test_a_replay_sees_only_those_false_idles_that_counters_show() -> None:
    """Somebody who goes on reading is not seen; whoever is seen was there, or came."""
    taken = played(Office.NIGHT_OWLS, 1, IdleRule(500, 900, required=COUNTERS))
    false = false_idles(taken)
    assert {each.replayed.false_idle is None for each in false} == {True, False}
    assert SOON_STEPS * STEP.total_seconds() == SOON_S
    assert {each.truth for each in false} == {Truth.PRESENT, Truth.BACK_SOON}
    assert all(each.free_s == 0 for each in taken if each.truth is Truth.PRESENT)


@pytest.mark.long
@pytest.mark.parametrize("office", list(Office))
def test_a_desktop_is_taken_under_a_session_that_is_disconnected_for_long_and_never_from_whoever_is_at_it(
    office: Office,
) -> None:
    any_keeps, allowed = (
        played(office, 1, IdleRule(500, 900, required=BROKER, disconnected_timeout_s=timeout_s))
        for timeout_s in (None, 4 * 3600)
    )
    assert len(allowed) >= len(any_keeps)
    assert not [each for each in allowed if each.truth is Truth.PRESENT]
    if office is Office.ZOMBIES:
        assert sum(each.free_s for each in allowed) > 2 * sum(each.free_s for each in any_keeps)
        assert any(each.under_session for each in allowed)


@pytest.mark.long
def test_desktops_whose_counters_are_missing_are_not_taken_by_counters() -> None:
    rule = IdleRule(500, 900, (("gpu.utilization.average", 100_00),), COUNTERS)
    desktops = [
        each for each in made_desktops(Office.ZOMBIES, 1, 20) if "gpu.utilization.average" not in each.week.values
    ]
    assert desktops
    found = {judged(each, rule, night).replayed.use for each in desktops for night in nights()}
    assert Use.IDLE not in found
    assert Use.UNKNOWN in found
