"""Idle, busy or unknown: one verdict with its numbers, and unknown is never idle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.advise.idle import Idleness, Use, idleness
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
