"""When the return must begin, from what operations took; nothing is taken after that. And which returns are overdue."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.config.policy import parse_policy
from gpuops.model.nights.ml_queue import MlStop
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation_policy import Limits, MorningOrder, Policy
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.rotation.returns.return_time import ENOUGH_MEASURED, Durations, Load, ReturnTime, overdue

DEADLINE = datetime(2026, 11, 24, 6, 0, tzinfo=UTC)
POLICY = Policy(
    "p",
    (),
    ml_stop=MlStop(grace_s=300),
    limits=Limits(in_flight=8, per_host=4, per_datastore=6),
    morning=MorningOrder.LARGEST_FIRST,
)


def desktops(*numbers: int, stores: int = 100) -> list[Vm]:
    """So many desktops on each host in turn, spread over so many datastores."""
    hosts = [f"host-{host}" for host, number in enumerate(numbers, 1) for _ in range(number)]
    return [Vm(f"vm-{n}", f"d-{n}", host=host, datastores=(f"ds-{n % stores}",)) for n, host in enumerate(hosts)]


def minutes(load: Load, policy: Policy = POLICY, *, resume_s: float = 120, stop_s: float = 60) -> float:
    measured = Durations({("ResumeVm", "host-1"): (resume_s,), ("ShutDownGuest", "host-1"): (stop_s,)})
    return ReturnTime(policy, measured, DEADLINE).reserve("host-1", load).total_seconds() / 60


@pytest.mark.parametrize(
    ("case", "load", "reserve"),
    [
        ("the floor", Load.of(desktops(1), ["host-1"]), 45),
        ("10 min grace and 1 min stop, 15 rounds of 2 min x 1.5, 5 min", Load.of(desktops(60), ["host-1"], 600), 61),
        ("4 on the host at once", Load.of(desktops(61), ["host-1"]), 1 + 16 * 3 + 5),
        ("8 in all, though this host has one", Load.of(desktops(1, 60, 60), ["host-1"]), 1 + 16 * 3 + 5),
        ("6 on the datastore", Load.of(desktops(1, 90, stores=1), ["host-1"]), 1 + 16 * 3 + 5),
        (
            "17 ML VMs stop in 5 rounds, for they are on one host",
            Load.of(desktops(60), ["host-2"] * 17, 600),
            5 * 11 + 45 + 5,
        ),
        ("no ML VM", Load.of(desktops(60), []), 45 + 5),
        ("no desktop", Load.of([], ["host-1"] * 20, 600), 5 * 11 + 5),
    ],
)
def test_what_is_kept_for_the_return(case: str, load: Load, reserve: float) -> None:
    assert minutes(load) == reserve, case


def test_a_canary_is_a_round_of_its_own_where_others_wait_for_it() -> None:
    canary = replace(POLICY, morning=MorningOrder.CANARY_FIRST)
    assert minutes(Load.of(desktops(60), []), canary) == minutes(Load.of(desktops(60), [])) + 3
    alone = Load.of(desktops(1, 60, 60), [])
    assert minutes(alone, canary) == minutes(alone)


def test_what_was_never_measured_is_thought_slow() -> None:
    time = ReturnTime(POLICY, Durations(), DEADLINE)
    assert time.reserve("host-1", Load.of(desktops(40), ["host-1"])) == timedelta(seconds=360 + 10 * 270 + 300)


def test_the_time_of_return_is_fixed_in_utc() -> None:
    return_time = ReturnTime(POLICY, Durations(), DEADLINE).of("host-1", Load.of(desktops(1), []))
    assert return_time == datetime(2026, 11, 24, 5, 15, tzinfo=UTC)
    assert return_time.tzinfo is UTC


@pytest.mark.parametrize(
    ("seconds", "p99"),
    [((), 7.0), ((3.0,), 3.0), ((5.0, 1.0), 5.0), (tuple(float(n) for n in range(1, 101)), 99.0)],
)
def test_the_slow_one_of_a_hundred(seconds: tuple[float, ...], p99: float) -> None:
    assert Durations({("ResumeVm", "host-1"): seconds}).p99_s("ResumeVm", "host-1", 7.0) == p99


def test_few_measurements_on_a_host_do_not_speak_for_it() -> None:
    few = {("ResumeVm", "host-1"): (10.0,) * (ENOUGH_MEASURED - 1), ("ResumeVm", "host-2"): (90.0,)}
    assert Durations(few).p99_s("ResumeVm", "host-1", 0) == 90
    assert Durations({**few, ("ResumeVm", "host-1"): (10.0,) * ENOUGH_MEASURED}).p99_s("ResumeVm", "host-1", 0) == 10
    assert Durations(few).p99_s("SuspendVm", "host-1", 42) == 42
    recorded = {("ResumeVm", "a-8q", "host-1"): (1.0,), ("ResumeVm", "a-4q", "host-1"): (2.0,)}
    assert Durations.of(recorded) == Durations({("ResumeVm", "host-1"): (1.0, 2.0)})


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(0, 20), st.integers(0, 5000), st.data())
def test_more_to_return_is_never_a_later_return(
    numbers: list[int], ml: int, resume_s: int, draws: st.DataObject
) -> None:
    load = Load.of(desktops(*numbers), ["host-1"] * ml)
    longer = [number + draws.draw(st.integers(0, 3)) for number in numbers]
    later = Load.of(desktops(*longer), ["host-1"] * (ml + draws.draw(st.integers(0, 3))))
    assert 45 <= minutes(load, resume_s=resume_s) <= minutes(later, resume_s=resume_s)


def test_stops_take_what_they_take_on_the_hosts_of_the_ml_vms() -> None:
    measured = Durations({
        ("ShutDownGuest", "host-1"): (5.0,) * ENOUGH_MEASURED, ("ShutDownGuest", "host-2"): (600.0,) * ENOUGH_MEASURED,
        ("ResumeVm", "host-1"): (1.0,),
    })  # fmt: skip
    load = Load.of(desktops(1), ["host-2"] * 12)
    assert ReturnTime(POLICY, measured, DEADLINE).time_needed("host-1", load) == timedelta(seconds=3 * 600 + 1.5 + 300)


WINDOW_POLICY = parse_policy(
    """
version: 1
name: small
pools: [{name: all, select: {folder: desktops}, parked: true, idle: {cpu_below_mhz: 500}, owner: none}]
ml: {queue: [{vm: ml-01}]}
window: {opens: "20:00", closes: "06:00", zone: UTC}
""",
    "small",
)
CLOSED = datetime(2026, 11, 3, 6, 0, tzinfo=UTC)
AWAY = Original("2026-11-02", Role.DESKTOP, "vm-1", "u-1", "desk-1", "host-1", taken=True, policy=WINDOW_POLICY)
HALF_AN_HOUR = timedelta(minutes=30)
NEVER, AT_NIGHT = None, datetime(2026, 11, 2, 22, 0, tzinfo=UTC)


def test_a_return_that_is_recorded_by_a_wrong_clock_silences_nothing() -> None:
    now = CLOSED + HALF_AN_HOUR
    assert overdue("uuid", (AWAY,), now + timedelta(minutes=29), now) is None
    assert overdue("uuid", (AWAY,), now + timedelta(days=1), now) is not None


@pytest.mark.parametrize(
    ("original", "last_return", "after"),
    [
        pytest.param(AWAY, NEVER, timedelta(minutes=29), id="a return is due only now"),
        pytest.param(AWAY, CLOSED + timedelta(minutes=5), timedelta(minutes=34), id="one tries"),
        pytest.param(replace(AWAY, returned=True), NEVER, HALF_AN_HOUR, id="it is back"),
        pytest.param(replace(AWAY, returned=True, given_up=True), NEVER, HALF_AN_HOUR, id="a person gave it up"),
        pytest.param(replace(AWAY, taken=False), NEVER, HALF_AN_HOUR, id="it was never taken"),
        pytest.param(replace(AWAY, policy=None), NEVER, HALF_AN_HOUR, id="no policy says when it closes"),
        pytest.param(replace(AWAY, night="2026-11-02T20:31"), NEVER, HALF_AN_HOUR, id="a night without a window"),
    ],
)
def test_what_is_not_overdue(original: Original, last_return: datetime | None, after: timedelta) -> None:
    assert overdue("uuid", (original,), last_return, CLOSED + after) is None


def test_many_are_named_by_three() -> None:
    originals = tuple(replace(AWAY, vm=f"vm-{n}", name=f"desk-{n}") for n in range(5))
    assert "desk-0, desk-1, desk-2 and 2 more not back" in str(overdue("uuid", originals, NEVER, CLOSED + HALF_AN_HOUR))
