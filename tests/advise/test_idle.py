"""Idle, busy or unknown: one verdict with its numbers, and unknown is never idle."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.advise.idle import Idleness, Use, idleness
from gpuops.model.measurement import CPU_MHZ, CounterWindow
from gpuops.model.rotation import IdleRule
from gpuops.model.vm import PowerState, RunningTask, Vm

RULE = IdleRule(500)
QUIET = Vm("vm-1", "desktop-01", power=PowerState.ON, connected=True, cpu_usage_mhz=499, console_connections=0)


def test_a_quiet_desktop_is_idle_and_the_numbers_are_told() -> None:
    verdict = idleness(QUIET, RULE)
    assert verdict == Idleness(Use.IDLE, verdict.reason, cpu_mhz=499, cpu_below_mhz=500)
    assert verdict.reason == "uses 499 MHz, idle is below 500; no console, question or task"
    assert verdict.objection is None


@pytest.mark.parametrize(
    ("change", "use", "reason"),
    [
        ({"cpu_usage_mhz": 500}, Use.BUSY, "uses 500 MHz, idle is below 500"),
        ({"console_connections": 2}, Use.BUSY, "2 console connection(s) open"),
        ({"question": "Is it full?"}, Use.BUSY, "waits for an answer: Is it full?"),
        ({"tasks": (RunningTask("t", "CloneVM_Task", "queued"),)}, Use.BUSY, "a task is queued: CloneVM_Task"),
        ({"cpu_usage_mhz": None}, Use.UNKNOWN, "its CPU usage cannot be read"),
        ({"console_connections": None}, Use.UNKNOWN, "its console connections cannot be read"),
        ({"unreadable": ("runtime.host",)}, Use.UNKNOWN, "cannot be read whole: runtime.host"),
        ({"connected": False}, Use.UNKNOWN, "is not connected, or does not tell"),
        ({"connected": None}, Use.UNKNOWN, "is not connected, or does not tell"),
        ({"power": None}, Use.UNKNOWN, "is not running (its power state cannot be read)"),
        ({"power": PowerState.SUSPENDED}, Use.UNKNOWN, "is not running (suspended)"),
        ({"console_connections": None, "cpu_usage_mhz": 5200}, Use.BUSY, "uses 5200 MHz, idle is below 500"),
        ({"connected": False, "cpu_usage_mhz": 5200}, Use.UNKNOWN, "is not connected, or does not tell"),
    ],
)
def test_each_sign_of_use_and_each_thing_that_is_not_told(change: dict[str, Any], use: Use, reason: str) -> None:
    verdict = idleness(replace(QUIET, **change), RULE)
    assert (verdict.use, verdict.reason, verdict.objection) == (use, reason, reason)


def test_without_a_rule_a_desktop_may_be_busy_and_is_never_idle() -> None:
    assert idleness(QUIET, None).objection == "is in no pool of a policy: nothing says when it is idle"
    assert idleness(replace(QUIET, cpu_usage_mhz=5200), None).use is Use.UNKNOWN
    assert idleness(replace(QUIET, console_connections=1), None).use is Use.BUSY


NOW = datetime(2026, 11, 2, 20, tzinfo=UTC)
QUARTER = IdleRule(500, for_s=900, counters=(("net.usage.average", 50),))


def window(highest: int, *, known_s: float = 910, old_s: float = 15) -> CounterWindow:
    return CounterWindow(highest, NOW - timedelta(seconds=known_s), NOW - timedelta(seconds=old_s), NOW)


NOTHING = {CPU_MHZ: window(499), "net.usage.average": window(49)}


def test_one_that_was_quiet_for_as_long_as_the_rule_says_is_idle() -> None:
    verdict = idleness(replace(QUIET, counters=NOTHING), QUARTER)
    assert (verdict.use, verdict.reason) == (
        Use.IDLE,
        "uses 499 MHz, idle is below 500 for 15 min; no console, question or task",
    )
    assert idleness(replace(QUIET, counters=NOTHING), RULE).use is Use.IDLE


@pytest.mark.parametrize(
    ("counters", "use", "reason"),
    [
        (None, Use.UNKNOWN, "vCenter has no samples of its cpu.usagemhz.average"),
        ({}, Use.UNKNOWN, "vCenter has no samples of its cpu.usagemhz.average"),
        ({CPU_MHZ: window(500)}, Use.BUSY, "used 500 MHz within the last 15 min, idle is below 500"),
        ({CPU_MHZ: window(500, known_s=40)}, Use.BUSY, "used 500 MHz within the last 15 min, idle is below 500"),
        (
            {"net.usage.average": window(50)},
            Use.BUSY,
            "net.usage.average was 50 within the last 15 min, idle is below 50",
        ),
        ({CPU_MHZ: window(0)}, Use.UNKNOWN, "vCenter has no samples of its net.usage.average"),
        (
            NOTHING | {CPU_MHZ: window(0, known_s=420)},
            Use.UNKNOWN,
            "its cpu.usagemhz.average is known for 7 min, and 15 min are asked for",
        ),
        (
            NOTHING | {CPU_MHZ: window(0, old_s=75)},
            Use.UNKNOWN,
            "the newest sample of its cpu.usagemhz.average is 75 s old",
        ),
    ],
)
def test_earlier_use_and_samples_that_are_missing(
    counters: dict[str, CounterWindow] | None, use: Use, reason: str
) -> None:
    verdict = idleness(replace(QUIET, counters=counters), QUARTER)
    assert (verdict.use, verdict.reason) == (use, reason)


@given(
    st.builds(
        Vm,
        ref=st.just("vm-1"),
        name=st.just("desktop-01"),
        power=st.sampled_from([None, *PowerState]),
        connected=st.sampled_from([None, True, False]),
        cpu_usage_mhz=st.none() | st.integers(0, 1000),
        console_connections=st.none() | st.integers(0, 2),
        question=st.sampled_from([None, "Is it full?"]),
        unreadable=st.sampled_from([(), ("runtime.host",)]),
    ),
    st.none() | st.builds(IdleRule, st.integers(0, 1000)),
)
def test_what_is_called_idle_shows_all_of_it(vm: Vm, rule: IdleRule | None) -> None:
    if idleness(vm, rule).use is Use.IDLE:
        assert rule is not None
        assert (vm.power, vm.connected, vm.console_connections) == (PowerState.ON, True, 0)
        assert vm.cpu_usage_mhz is not None
        assert vm.cpu_usage_mhz < rule.cpu_below_mhz
        assert (vm.question, vm.tasks, vm.unreadable) == (None, (), ())
