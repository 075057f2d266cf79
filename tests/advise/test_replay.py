"""Nights replayed on small series: what is taken, what stays unknown and why, and when use came back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.advise.idle import Use
from gpuops.advise.managed_vms import never_taken
from gpuops.extras.observe.replay import (
    STEP,
    DesktopNight,
    PoolNight,
    UnknownUse,
    complete_nights,
    desktop_night,
    gaps,
    hours_of,
    not_replayed,
    refusal,
    series_of,
)
from gpuops.model.desktops.evidence import Source
from gpuops.model.measurements.measurement import CPU_MHZ, GPU_USE, VGPU_USE, CounterSeries, Measured, Span
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.rotation_policy import DirectPath, IdleRule, Policy, Pool
from gpuops.model.nights.selector import Mark, Selector
from gpuops.model.vcenter.vm import Vm
from gpuops.model.window import Night, Window

DAY: Final = datetime(2026, 11, 20, tzinfo=UTC)
NIGHT: Final = Night(
    DAY.date(), DAY + timedelta(hours=20), DAY + timedelta(hours=20, minutes=30), DAY + timedelta(hours=21), UTC
)
"""Desktops are taken from 20:00 to 20:30, and are back by 21:00."""
RULE: Final = IdleRule(500, for_s=900)
VM: Final = Vm("vm-1", "desktop-01")
BEGIN: Final = hours_of(NIGHT, RULE).begin
BEFORE: Final = 4
"""Steps before 20:00."""
STEPS: Final = BEFORE + 12 + 2
LOOKED: Final = (Span(BEGIN, BEGIN + STEPS * STEP),)
QUIET: Final = Measured(60, 80, 1.0)
BUSY: Final = Measured(60, 500, 1.0)
"""One sample at the limit is enough."""
HALF: Final = Measured(60, 80, 0.5)
AVERAGE: Final = Measured(60, None, 1.0)
BUSY_ON_AVERAGE: Final = Measured(500, None, 1.0)

Steps = Sequence[Measured | None]


def steps(**changes: Measured | None) -> list[Measured | None]:
    """A quiet night but for these steps: `at_0` is the one that begins at 20:00, `at_m1` the one before."""
    measured: list[Measured | None] = [QUIET] * STEPS
    for name, value in changes.items():
        measured[BEFORE + int(name.removeprefix("at_").replace("m", "-"))] = value
    return measured


def replay_night(
    cpu: Steps, gpu: Steps | None = None, *, rule: IdleRule = RULE, looked: Sequence[Span] = LOOKED
) -> DesktopNight:
    series = {CPU_MHZ: CounterSeries(BEGIN, STEP, tuple(cpu))}
    if gpu is not None:
        series[GPU_USE] = CounterSeries(BEGIN, STEP, tuple(gpu))
    replay = desktop_night(VM, rule, NIGHT, series, looked)
    assert (replay.taken_at is not None) == (replay.use is Use.IDLE)
    return replace(replay, taken_at=None)


def test_a_replay_goes_by_what_nvidia_smi_told() -> None:
    rule = replace(RULE, required=frozenset({Source.CPU, Source.NVIDIA_SMI}), vgpu_below_percent=5)

    def by_smi(smi_steps: Steps, by: IdleRule = rule) -> DesktopNight:
        series = {
            CPU_MHZ: CounterSeries(BEGIN, STEP, tuple(steps())),
            VGPU_USE: CounterSeries(BEGIN, STEP, tuple(smi_steps)),
        }
        return desktop_night(VM, by, NIGHT, series, LOOKED)

    nothing: list[Measured | None] = [None] * STEPS
    quiet, busy = Measured(400, 400, 0.1), Measured(500, 500, 0.1)
    assert series_of(rule) == {CPU_MHZ, VGPU_USE}
    assert not_replayed(rule) == frozenset()
    assert (by_smi(nothing).use, by_smi(nothing).because) == (Use.UNKNOWN, UnknownUse.NVIDIA_SMI_MISSING)
    assert by_smi(nothing, replace(rule, required=None)).use is Use.IDLE
    assert by_smi([busy] * STEPS).use is Use.BUSY
    assert by_smi([busy] * STEPS, replace(rule, required=None)).use is Use.BUSY
    first = by_smi([quiet, *nothing[1:]])
    assert first.taken_at == NIGHT.opens
    later = by_smi([busy, *nothing[1:5], quiet, *nothing[6:]])
    assert later.taken_at == BEGIN + 6 * STEP


def minutes(number: int) -> timedelta:
    return timedelta(minutes=number)


def test_the_hours_that_are_read_begin_before_the_first_look_and_end_after_the_last() -> None:
    assert hours_of(NIGHT, RULE) == Span(NIGHT.opens - 4 * STEP, NIGHT.back_by + 2 * STEP)
    assert len(steps()) * STEP == hours_of(NIGHT, RULE).until - BEGIN


def test_a_quiet_desktop_is_taken_when_the_night_opens_and_harvested_until_it_is_due() -> None:
    assert replay_night(steps()) == DesktopNight(Use.IDLE, harvested=minutes(60))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # use before the opening: it is taken 15 minutes after that has ended
        ({"at_m3": BUSY}, DesktopNight(Use.IDLE, harvested=minutes(55))),
        ({"at_m1": BUSY}, DesktopNight(Use.IDLE, harvested=minutes(45))),
        ({"at_m1": BUSY_ON_AVERAGE}, DesktopNight(Use.IDLE, harvested=minutes(45))),
        ({"at_m3": HALF}, DesktopNight(Use.IDLE, harvested=minutes(55))),
        ({"at_m4": BUSY}, DesktopNight(Use.IDLE, harvested=minutes(60))),
        # use after the suspend
        ({"at_0": BUSY}, DesktopNight(Use.IDLE, false_idle=minutes(5))),
        ({"at_1": BUSY}, DesktopNight(Use.IDLE, harvested=minutes(5), false_idle=minutes(10))),
        ({"at_1": BUSY_ON_AVERAGE}, DesktopNight(Use.IDLE, harvested=minutes(5), false_idle=minutes(10))),
        ({"at_2": BUSY}, DesktopNight(Use.IDLE, harvested=minutes(10), used_later=True)),
        ({"at_11": BUSY}, DesktopNight(Use.IDLE, harvested=minutes(55), used_later=True)),
        ({"at_12": BUSY}, DesktopNight(Use.IDLE, harvested=minutes(60))),
        # what is not known after the suspend is neither harvested nor a false idle
        ({"at_0": None}, DesktopNight(Use.IDLE, harvested=minutes(55), unseen=minutes(5), unwatched=True)),
        ({"at_1": HALF}, DesktopNight(Use.IDLE, harvested=minutes(55), unseen=minutes(5), unwatched=True)),
        ({"at_1": AVERAGE}, DesktopNight(Use.IDLE, harvested=minutes(55), unseen=minutes(5), unwatched=True)),
        ({"at_4": None}, DesktopNight(Use.IDLE, harvested=minutes(55), unseen=minutes(5))),
        ({"at_0": None, "at_1": BUSY}, DesktopNight(Use.IDLE, unseen=minutes(5), false_idle=minutes(10))),
        (
            {"at_0": None, "at_3": BUSY},
            DesktopNight(Use.IDLE, harvested=minutes(10), unseen=minutes(5), unwatched=True, used_later=True),
        ),
    ],
)
def test_use_before_the_suspend_delays_it_and_use_after_it_ends_the_harvest(
    changes: dict[str, Measured | None], expected: DesktopNight
) -> None:
    assert replay_night(steps(**changes)) == expected


def test_use_that_comes_back_after_a_late_suspend_counts_past_the_hour_of_return() -> None:
    """Taken at 20:25 in a night whose desktops are back by 20:30: ten minutes after that is 20:35."""
    short = Night(NIGHT.day, NIGHT.opens, NIGHT.closes, NIGHT.closes, UTC)
    cpu = steps(at_m1=BUSY, at_1=BUSY, at_6=BUSY)
    series = {CPU_MHZ: CounterSeries(BEGIN, STEP, tuple(cpu))}
    night = desktop_night(VM, RULE, short, series, LOOKED)
    taken_at = NIGHT.opens + minutes(25)
    assert night == DesktopNight(Use.IDLE, harvested=minutes(5), false_idle=minutes(10), taken_at=taken_at)


def test_a_desktop_that_is_idle_only_after_the_closing_is_not_taken() -> None:
    until_close = [BUSY] * (BEFORE + 6) + [QUIET] * (STEPS - BEFORE - 6)
    assert replay_night(until_close) == DesktopNight(Use.BUSY)
    assert replay_night([BUSY] * (BEFORE + 2) + [QUIET] * (STEPS - BEFORE - 2)).use is Use.IDLE, "idle at 20:25"


def test_a_desktop_without_samples_at_a_look_is_unknown_whatever_was_before() -> None:
    cpu = steps(**{f"at_{place}": BUSY for place in range(4)}, at_m1=BUSY, at_4=None)
    assert replay_night(cpu) == DesktopNight(Use.UNKNOWN, UnknownUse.NO_SAMPLES)


def test_nothing_is_harvested_after_the_moment_of_return() -> None:
    odd = Night(NIGHT.day, NIGHT.opens, NIGHT.closes, NIGHT.back_by - minutes(2), UTC)
    for at_11, expected in ((QUIET, (minutes(58), minutes(0))), (None, (minutes(55), minutes(3)))):
        series = {CPU_MHZ: CounterSeries(BEGIN, STEP, tuple(steps(at_11=at_11)))}
        replay = desktop_night(VM, RULE, odd, series, LOOKED)
        assert (replay.harvested, replay.unseen) == expected


def test_while_nobody_looked_nothing_is_known() -> None:
    assert replay_night([None] * STEPS, looked=()) == DesktopNight(Use.UNKNOWN, UnknownUse.NOT_OBSERVED)


def test_the_reason_is_what_holds_for_the_most_of_the_night() -> None:
    """Used until 20:10, then off: from 20:15 on it has no samples, four looks of six."""
    cpu = [BUSY] * (BEFORE + 2) + [None] * (STEPS - BEFORE - 2)
    assert replay_night(cpu) == DesktopNight(Use.UNKNOWN, UnknownUse.NO_SAMPLES)


def test_a_counter_of_the_pool_that_is_missing_is_not_zero() -> None:
    rule = IdleRule(500, 900, counters=((GPU_USE, 200),))
    quiet = [Measured(10, 20, 1.0)] * STEPS
    assert replay_night(steps(), quiet, rule=rule) == DesktopNight(Use.IDLE, harvested=minutes(60))
    assert replay_night(steps(), [None] * STEPS, rule=rule) == DesktopNight(Use.UNKNOWN, UnknownUse.COUNTER_MISSING)
    assert replay_night(steps(), [Measured(10, 200, 1.0)] * STEPS, rule=rule) == DesktopNight(Use.BUSY)


def test_a_time_that_is_no_whole_number_of_steps_is_rounded_up() -> None:
    rule = IdleRule(500, for_s=301)
    assert replay_night(steps(at_m2=BUSY), rule=rule).harvested == minutes(55)
    assert replay_night(steps(at_m3=BUSY), rule=rule).harvested == minutes(60)


@given(st.lists(st.sampled_from([QUIET, BUSY, HALF, AVERAGE, BUSY_ON_AVERAGE, None]), min_size=STEPS, max_size=STEPS))
def test_what_is_taken_was_known_to_be_idle_before_and_no_while_counts_twice(cpu: list[Measured | None]) -> None:
    replay = replay_night(cpu)
    runs = [place for place in range(BEFORE, BEFORE + 6) if cpu[place - 3 : place] == [QUIET] * 3]
    assert (replay.use is Use.IDLE) == bool(runs)
    assert not (replay.false_idle and (replay.unwatched or replay.used_later))
    if runs:
        after = cpu[runs[0] : runs[0] + 2]
        busy = [place for place, step in enumerate(after, 1) if step in (BUSY, BUSY_ON_AVERAGE)]
        assert replay.false_idle == (busy[0] * STEP if busy else None)
        assert replay.unwatched == (not busy and after != [QUIET] * 2)
        used = [place for place in range(runs[0], STEPS) if cpu[place] in (BUSY, BUSY_ON_AVERAGE)]
        until = min([BEFORE + 12, *used])
        quiet = sum(cpu[place] == QUIET for place in range(runs[0], until))
        assert (replay.harvested, replay.unseen) == (quiet * STEP, (until - runs[0] - quiet) * STEP)
        assert replay.used_later == (not busy and until < BEFORE + 12)


def test_a_night_counts_its_desktops() -> None:
    idle_night = DesktopNight(Use.IDLE, harvested=minutes(30), unseen=minutes(5), false_idle=minutes(10))
    night = PoolNight(
        NIGHT,
        (
            idle_night,
            DesktopNight(Use.IDLE, false_idle=minutes(5)),
            DesktopNight(Use.IDLE, harvested=minutes(60), unwatched=True, used_later=True),
            DesktopNight(Use.BUSY),
            DesktopNight(Use.UNKNOWN, UnknownUse.SAMPLES_MISSING),
            DesktopNight(Use.UNKNOWN, UnknownUse.NOT_OBSERVED),
            DesktopNight(Use.UNKNOWN, UnknownUse.SAMPLES_MISSING),
        ),
    )
    assert (night.taken, night.busy, night.unwatched, night.used_later) == (3, 1, 1, 1)
    assert list(night.unknown.items()) == [(UnknownUse.NOT_OBSERVED, 1), (UnknownUse.SAMPLES_MISSING, 2)]
    assert (night.harvested, night.unseen) == (minutes(90), minutes(5))
    assert night.false_idle == (minutes(5), minutes(10))


def test_only_nights_that_opened_since_then_and_are_over_are_replayed() -> None:
    policy = Policy("p", (), windows=(Window(time(20), time(4), UTC, time(6)),))
    opens = DAY + timedelta(hours=20)
    since, until = opens, opens + timedelta(days=2, hours=10)
    assert [night.opens for night in complete_nights(policy, since, until)] == [
        opens + timedelta(days=number) for number in range(3)
    ]
    assert len(complete_nights(policy, since + minutes(1), until - minutes(1))) == 1
    assert complete_nights(Policy("p", ()), since, until) == ()


def test_a_pool_without_a_while_or_with_a_counter_that_is_not_kept_cannot_be_replayed() -> None:
    def pool(rule: IdleRule) -> Pool:
        return Pool("office", Selector(name="*"), rule)

    assert refusal(pool(RULE)) is None
    assert (refusal(pool(IdleRule(500))) or [""])[
        0
    ] == "its `idle` rule has no for_s, so it uses only current values, which are not stored"
    lacking = refusal(pool(IdleRule(500, 900, counters=(("disk.read.average", 1),))))
    assert lacking is not None
    assert lacking[0] == "gpuops observe does not store disk.read.average"
    assert "net.usage.average" in lacking[1]


def test_what_a_pool_requires_beside_counters_is_named() -> None:
    assert not_replayed(RULE) == {Source.CONSOLE}
    assert not_replayed(IdleRule(500, 900, required=frozenset({Source.COUNTERS}))) == frozenset()
    every = frozenset({Source.BROKER, Source.COMMAND, Source.CPU})
    assert not_replayed(IdleRule(500, 900, required=every)) == {Source.BROKER, Source.COMMAND}


@pytest.mark.parametrize(
    ("change", "never"),
    [
        ({}, False),
        ({"attributes": {}}, True),
        ({"attributes": {"owner": "office", "gpuops.opt-out": "x"}}, True),
        ({"template": True}, True),
        ({"name": "ml-01"}, True),
        ({"devices": None}, True),
    ],
)
def test_a_desktop_that_no_night_takes_is_left_out(change: dict[str, Any], never: bool) -> None:
    pool = Pool("office", Selector(name="*"), RULE, owner=Mark(attribute="owner", value="office"))
    policy = Policy("p", (pool,), ml=(QueuedVm("ml-01"),))
    vm = Vm(**({"ref": "vm-1", "name": "d-1", "attributes": {"owner": "office"}, "devices": ()} | change))
    assert never_taken(policy, pool, vm) is never


def test_a_desktop_whose_opt_out_cannot_be_read_is_left_out() -> None:
    pool = Pool("office", Selector(name="*"), RULE)
    policy = Policy("p", (pool,), opt_out=Mark(tag="rotation:never"))
    vm = Vm("vm-1", "d-1", devices=())
    are_left_out = [never_taken(policy, pool, replace(vm, tags=tags)) for tags in (None, ("rotation:never",), ())]
    assert are_left_out == [True, True, False]


def test_a_desktop_with_directpath_counts_where_its_pool_shuts_it_down() -> None:
    pool = Pool("office", Selector(name="*"), RULE, directpath=DirectPath.SHUT_DOWN_GUEST)
    assert never_taken(Policy("p", (pool,)), pool, VM) is False


def test_gaps_are_what_was_asked_for_and_not_observed() -> None:
    def span(begin: int, until: int) -> Span:
        return Span(DAY + minutes(begin), DAY + minutes(until))

    assert gaps((span(0, 100),), (span(10, 20), span(50, 100))) == ()
    assert gaps((), (span(10, 20),)) == (span(10, 20),)
    observed = (span(0, 12), span(14, 16), span(30, 50))
    assert gaps(observed, (span(10, 20), span(40, 60))) == (span(12, 14), span(16, 20), span(50, 60))
    assert gaps((), (span(0, 20), span(10, 30))) == (span(0, 20), span(20, 30)), "none is listed twice"
