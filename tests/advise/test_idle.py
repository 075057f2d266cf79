"""Idle, busy or unknown: one verdict with its numbers, and unknown is never idle."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.advise.idle import Idleness, SourceReading, Use, idleness, vgpu_use_at
from gpuops.model.desktops.evidence import SESSION_SOURCES, VGPU_USE_FRESH_S, SessionCount, Source, VgpuUse
from gpuops.model.measurements.measurement import CPU_MHZ, CounterSeries, CounterWindow, Measured
from gpuops.model.nights.rotation_policy import IdleRule
from gpuops.model.vcenter.vm import PowerState, RunningTask, Vm

RULE = IdleRule(500)
QUIET = Vm("vm-1", "desktop-01", power=PowerState.ON, connected=True, cpu_usage_mhz=499, console_connections=0)


def test_a_quiet_desktop_is_idle_and_the_numbers_are_told() -> None:
    verdict = idleness(QUIET, RULE)
    assert verdict == Idleness(Use.IDLE, verdict.reason, None, verdict.readings)
    cpu = next(reading for reading in verdict.readings if reading.source is Source.CPU)
    assert (cpu.value, cpu.unit, cpu.below, cpu.required) == (499, "MHz", 500, True)
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
        ({"unreadable": ("runtime.host",)}, Use.UNKNOWN, "cannot be read completely: runtime.host"),
        ({"connected": False}, Use.UNKNOWN, "is not connected, or its connection state is unknown"),
        ({"connected": None}, Use.UNKNOWN, "is not connected, or its connection state is unknown"),
        ({"power": None}, Use.UNKNOWN, "is not running (its power state cannot be read)"),
        ({"power": PowerState.SUSPENDED}, Use.UNKNOWN, "is not running (suspended)"),
        ({"console_connections": None, "cpu_usage_mhz": 5200}, Use.BUSY, "uses 5200 MHz, idle is below 500"),
        (
            {"connected": False, "cpu_usage_mhz": 5200},
            Use.UNKNOWN,
            "is not connected, or its connection state is unknown",
        ),
    ],
)
def test_each_sign_of_use_and_each_thing_that_is_not_told(change: dict[str, Any], use: Use, reason: str) -> None:
    verdict = idleness(replace(QUIET, **change), RULE)
    assert (verdict.use, verdict.reason, verdict.objection) == (use, reason, reason)


@pytest.mark.parametrize(
    ("use", "verdict", "reason"),
    [
        (VgpuUse(4), Use.IDLE, None),
        (VgpuUse(0, VGPU_USE_FRESH_S), Use.IDLE, None),
        (VgpuUse(5), Use.BUSY, "its vGPU is used 5 %, idle is below 5"),
        (VgpuUse(100, VGPU_USE_FRESH_S), Use.BUSY, "its vGPU is used 100 %, idle is below 5"),
        (VgpuUse(0, 2400), Use.UNKNOWN, "the reading of nvidia-smi for its vGPU is 40 min old"),
        (VgpuUse(100, 2400), Use.UNKNOWN, "the reading of nvidia-smi for its vGPU is 40 min old"),
        (VgpuUse(None, because="it is away"), Use.UNKNOWN, "the use of its vGPU is not known: it is away"),
        (None, Use.UNKNOWN, "the use of its vGPU is not known: its host is not asked"),
    ],
)
def test_what_nvidia_smi_tells_can_veto_and_counts_where_it_is_required(
    use: VgpuUse | None, verdict: Use, reason: str | None
) -> None:
    desktop = replace(QUIET, vgpu_use=use)
    rule = IdleRule(500, required=frozenset({Source.CPU, Source.NVIDIA_SMI}), vgpu_below_percent=5)
    verdict_with_smi = idleness(desktop, rule)
    assert (verdict_with_smi.use, verdict_with_smi.objection) == (verdict, reason)
    assert verdict_with_smi.decided_by is (None if verdict is Use.IDLE else Source.NVIDIA_SMI)
    optional = idleness(desktop, replace(rule, required=None))
    assert optional.use is (Use.BUSY if verdict is Use.BUSY else Use.IDLE), "unknown arises from what is required alone"
    assert idleness(desktop, RULE).use is Use.IDLE, "a pool that does not go by it is not kept by it"
    suspended = idleness(replace(desktop, power=PowerState.SUSPENDED), rule)
    assert [reading.source for reading in suspended.readings] == [Source.STATE]


def test_the_newest_stored_use_counts_with_its_age_and_what_is_missing_stays_missing() -> None:
    begin, five = datetime(2026, 11, 20, tzinfo=UTC), timedelta(minutes=5)
    steps = (None, Measured(3104, 3104, 0.1), None, None, Measured(9984, None, 0.1), None)
    series = CounterSeries(begin, five, steps)
    assert vgpu_use_at(begin + 0.9 * five, series) is None
    assert vgpu_use_at(begin + five, series) == VgpuUse(31)
    assert vgpu_use_at(begin + 1.5 * five, series) == VgpuUse(31, 150)
    assert vgpu_use_at(begin + 3.9 * five, series) == VgpuUse(31, 870)
    assert vgpu_use_at(begin + 9 * five, series) == VgpuUse(100, 1500)


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


ANSWERS: dict[str, SessionCount] = {
    "idle": SessionCount(0, used=False, asked=NOW),
    "busy": SessionCount(2, used=True, asked=NOW),
    "old": SessionCount(0, used=False, asked=NOW, age_s=301),
    "busy, old": SessionCount(1, used=True, asked=NOW, age_s=4000),
    "unknown": SessionCount(None, used=None, asked=NOW, because="it timed out"),
}
CONSOLES = {"idle": 0, "busy": 1, "unknown": None}
USAGES = {"idle": 499, "busy": 500, "unknown": None}
COUNTERS = {"idle": NOTHING, "busy": NOTHING | {CPU_MHZ: window(500)}, "unknown": {}}
SAYS = {"old": Use.UNKNOWN, "busy, old": Use.BUSY}


@pytest.mark.parametrize("command", [*ANSWERS, "not asked"])
@pytest.mark.parametrize("counters", COUNTERS)
@pytest.mark.parametrize("cpu", USAGES)
@pytest.mark.parametrize("console", CONSOLES)
def test_any_source_can_veto_and_only_what_is_required_makes_unknown(
    console: str, cpu: str, counters: str, command: str
) -> None:
    """Every combination of what four sources say, by every choice of what is required."""
    sessions = {} if command == "not asked" else {Source.COMMAND: ANSWERS[command]}
    vm = replace(
        QUIET,
        console_connections=CONSOLES[console],
        cpu_usage_mhz=USAGES[cpu],
        counters=COUNTERS[counters],
        sessions=sessions,
    )
    says = {Source.CONSOLE: Use(console), Source.CPU: Use(cpu), Source.COUNTERS: Use(counters)}
    says[Source.COMMAND] = SAYS.get(command) or Use(command if sessions else "unknown")
    for number in range(1, 5):
        for required in map(frozenset, combinations(says, number)):
            verdict = idleness(vm, replace(QUARTER, required=required))
            if Use.BUSY in says.values():
                expected = Use.BUSY
            else:
                expected = Use.UNKNOWN if Use.UNKNOWN in {says[source] for source in required} else Use.IDLE
            assert verdict.use is expected, (required, verdict)
            assert (verdict.objection is None) == (expected is Use.IDLE)
            assert {reading.source for reading in verdict.readings if reading.required} == required | {Source.STATE}
            if verdict.decided_by is not None:
                assert says[verdict.decided_by] is expected


def test_a_desktop_without_counters_is_judged_by_its_sessions() -> None:
    """As one with a MIG instance, for whose GPU there are no counters."""
    vm = replace(QUIET, cpu_usage_mhz=None, console_connections=None, sessions={Source.COMMAND: ANSWERS["idle"]})
    rule = IdleRule(500, for_s=900, required=frozenset({Source.COMMAND}))
    assert idleness(vm, rule).reason == "no sessions, as the command reports; no question or task"
    assert idleness(replace(vm, question="Is it full?"), rule).use is Use.BUSY
    assert idleness(replace(vm, unreadable=("runtime.host",)), rule).use is Use.UNKNOWN
    assert idleness(replace(vm, power=PowerState.OFF), rule).readings == (
        SourceReading(Source.STATE, Use.UNKNOWN, "is not running (poweredOff)", required=True, age_s=0.0),
    )


@pytest.mark.parametrize("source", SESSION_SOURCES)
def test_a_session_that_anybody_tells_of_keeps_a_desktop(source: Source) -> None:
    verdict = idleness(replace(QUIET, sessions={source: ANSWERS["busy"]}), RULE)
    assert (verdict.use, verdict.decided_by) == (Use.BUSY, source)
    assert idleness(replace(QUIET, sessions={source: ANSWERS["unknown"]}), RULE).use is Use.IDLE
    assert idleness(QUIET, replace(RULE, required=frozenset({source}))).use is Use.UNKNOWN


HOURS: dict[str, tuple[SessionCount, str | None]] = {
    "for long": (SessionCount(1, True, NOW, disconnected_s=14_459), None),
    "for too short": (
        SessionCount(2, True, NOW, disconnected_s=14_399),
        "2 session(s) disconnected for 239 min, idle is from 240 min on, as the broker reports",
    ),
    "not disconnected": (SessionCount(1, True, NOW, oldest_s=90_000), "1 session(s), as the broker reports"),
    "told long ago": (
        SessionCount(1, True, NOW, age_s=301, disconnected_s=90_000),
        "1 session(s) disconnected for 1500 min, idle is from 240 min on, as the broker reports",
    ),
    "not known": (SessionCount(None, None, NOW, because="it timed out"), "its sessions are not known: it timed out"),
}


@pytest.mark.parametrize("case", HOURS)
def test_a_session_that_is_disconnected_for_long_keeps_no_desktop_where_the_policy_says_so(case: str) -> None:
    session, objection = HOURS[case]
    vm = replace(QUIET, sessions={Source.BROKER: session})
    rule = replace(RULE, required=frozenset({Source.BROKER}))
    assert idleness(vm, replace(rule, disconnected_timeout_s=14_400)).objection == objection
    assert idleness(vm, rule).use is (Use.BUSY if session.used else Use.UNKNOWN), "without that any session keeps it"
    assert idleness(vm, replace(RULE, disconnected_timeout_s=14_400)).objection in (objection, None)


def test_what_is_told_of_a_disconnected_session_has_its_number() -> None:
    vm = replace(QUIET, sessions={Source.BROKER: HOURS["for long"][0]})
    verdict = idleness(vm, replace(RULE, disconnected_timeout_s=14_400))
    broker = verdict.readings[-1]
    assert (broker.value, broker.below, broker.disconnected_s, broker.vetoes) == (1, None, 14_459, False)
    assert "1 session(s) disconnected for 240 min, idle is from 240 min on, as the broker reports" in verdict.reason
    sessions = {Source.BROKER: HOURS["for long"][0], Source.COMMAND: ANSWERS["busy"]}
    keeping = idleness(replace(QUIET, sessions=sessions), replace(RULE, disconnected_timeout_s=14_400))
    assert keeping.decided_by is Source.COMMAND, "one that does not say how they are keeps it"


def test_a_quarter_of_an_hour_to_take_and_five_minutes_to_go_on() -> None:
    busy_then = {name: replace(window(0, known_s=310), until=NOW) for name in NOTHING}
    vm = replace(QUIET, counters=busy_then)
    assert idleness(vm, QUARTER).reason == "its cpu.usagemhz.average is known for 310 s, and 15 min are asked for"
    assert idleness(vm, QUARTER.to_go_on).use is Use.IDLE
    assert idleness(vm, QUARTER.to_go_on).idle_for_s == 310
    short = IdleRule(500, for_s=120)
    assert (short.to_go_on, RULE.to_go_on) == (short, RULE), "what asks for less goes on asking for it"
