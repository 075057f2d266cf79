"""Nights on made-up weeks of four kinds of offices: with known sessions no user is disturbed, by counters alone
some are."""

from __future__ import annotations

import pytest

from gpuops.advise.idle import Use
from gpuops.extras.observe.replay import SOON_STEPS, STEP
from gpuops.model.desktops.evidence import Source
from gpuops.model.nights.rotation_policy import IdleRule
from gpuops.sim.state.desktop_people import Office
from tests.made_weeks import SOON_S, JudgedNight, Truth, judge_night, made_desktops, nights

COUNTERS = frozenset({Source.COUNTERS})
BROKER = frozenset({Source.COUNTERS, Source.BROKER})
DESKTOPS = 12


def judge_nights(office: Office, seed: int, rule: IdleRule, count: int = DESKTOPS) -> list[JudgedNight]:
    is_required = Source.BROKER in rule.needed
    nights_judged = [
        judge_night(desktop, rule, night, sessions_known=is_required)
        for desktop in made_desktops(office, seed, count)
        for night in nights()
    ]
    return [judged_night for judged_night in nights_judged if judged_night.replayed.use is Use.IDLE]


def false_idles(nights_judged: list[JudgedNight]) -> list[JudgedNight]:
    return [
        judged_night
        for judged_night in nights_judged
        if judged_night.truth is not None and judged_night.truth.false_idle
    ]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 11))])
@pytest.mark.parametrize("office", list(Office))
def test_where_sessions_are_known_no_idle_is_false_whatever_the_thresholds(office: Office, seed: int) -> None:
    for rule in (IdleRule(500, 900, required=BROKER), IdleRule(100_000, 300, required=BROKER)):
        taken_nights = judge_nights(office, seed, rule)
        assert taken_nights, "it harvests something"
        assert not false_idles(taken_nights)
        assert not any(judged_night.under_session for judged_night in taken_nights)


@pytest.mark.long
@pytest.mark.parametrize("office", [Office.NIGHT_OWLS, Office.SHIFTS])
def test_counters_alone_take_desktops_from_people_and_a_longer_time_from_fewer(office: Office) -> None:
    short, long = (judge_nights(office, 1, IdleRule(500, for_s, required=COUNTERS)) for for_s in (300, 3300))
    share = [len(false_idles(taken_nights)) / len(taken_nights) for taken_nights in (short, long)]
    assert share[0] > 0.03
    assert share[1] < share[0] / 2


@pytest.mark.long
def test_a_replay_sees_only_those_false_idles_that_counters_show() -> None:
    """A user who only reads is not seen; a user who is seen was there, or came."""
    taken_nights = judge_nights(Office.NIGHT_OWLS, 1, IdleRule(500, 900, required=COUNTERS))
    false = false_idles(taken_nights)
    assert {judged_night.replayed.false_idle is None for judged_night in false} == {True, False}
    assert SOON_STEPS * STEP.total_seconds() == SOON_S
    assert {judged_night.truth for judged_night in false} == {Truth.PRESENT, Truth.BACK_SOON}
    assert all(judged_night.free_s == 0 for judged_night in taken_nights if judged_night.truth is Truth.PRESENT)


@pytest.mark.long
@pytest.mark.parametrize("office", list(Office))
def test_a_desktop_is_taken_under_a_session_that_is_disconnected_for_long_and_never_from_whoever_is_at_it(
    office: Office,
) -> None:
    any_keeps, allowed = (
        judge_nights(office, 1, IdleRule(500, 900, required=BROKER, disconnected_timeout_s=timeout_s))
        for timeout_s in (None, 4 * 3600)
    )
    assert len(allowed) >= len(any_keeps)
    assert not [judged_night for judged_night in allowed if judged_night.truth is Truth.PRESENT]
    if office is Office.ZOMBIES:
        assert sum(judged_night.free_s for judged_night in allowed) > 2 * sum(
            judged_night.free_s for judged_night in any_keeps
        )
        assert any(judged_night.under_session for judged_night in allowed)


@pytest.mark.long
def test_desktops_whose_counters_are_missing_are_not_taken_by_counters() -> None:
    rule = IdleRule(500, 900, (("gpu.utilization.average", 100_00),), COUNTERS)
    desktops = [
        made for made in made_desktops(Office.ZOMBIES, 1, 20) if "gpu.utilization.average" not in made.week.values
    ]
    assert desktops
    uses = {judge_night(desktop, rule, night).replayed.use for desktop in desktops for night in nights()}
    assert Use.IDLE not in uses
    assert Use.UNKNOWN in uses
