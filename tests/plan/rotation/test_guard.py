"""What is asked once more just before a step that takes something: times, the policy on this desktop, its floor."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta

import pytest

from gpuops.model.rotation import DirectPath, IdleRule, Policy, Pool
from gpuops.model.selector import Mark, Selector
from gpuops.model.vm import PowerState
from gpuops.model.window import Window
from gpuops.plan.outcome import Outcome, Verdict
from gpuops.plan.rotation.breaker import Setbacks
from gpuops.plan.rotation.guard import Guard
from gpuops.plan.steps import PowerOnVm, ResumeVm, SetAttribute, ShutDownGuest, Step, SuspendVm
from tests.execute.small_vcenter import small_world

NOW = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)
POOL = Pool("all", Selector(name="desktop-*"), IdleRule(500), parked=True, directpath=DirectPath.SHUT_DOWN_GUEST)
POLICY = Policy("small", (POOL,), windows=(Window(time(20), time(6), UTC),))
TAKEN: list[Step] = [
    SetAttribute("vm-1", "gpuops.rotation", "x"),
    SuspendVm("vm-1"),
    ShutDownGuest("vm-1"),
    PowerOnVm("vm-1"),
]


@pytest.mark.parametrize("step", TAKEN)
def test_from_the_time_of_return_on_nothing_is_taken(step: Step) -> None:
    guard = Guard(POLICY, Setbacks(4), {"vm-1": NOW})
    world = small_world().snapshot()
    assert guard.against(step, world, NOW - timedelta(seconds=1), (), ()) is None
    assert guard.against(step, world, NOW, (), ()) == "too late: the return to its host has to begin"
    assert guard.against(replace(step, vm="vm-2"), world, NOW, (), ()) is None, "its host may have more time"
    assert guard.against(ResumeVm("vm-1"), world, NOW, (), ()) is None, "it never speaks against the way back"


@pytest.mark.parametrize("step", [SuspendVm("vm-1"), ShutDownGuest("vm-1")])
def test_a_desktop_is_looked_at_once_more(step: Step) -> None:
    world = small_world()
    owned = replace(POOL, owner=Mark("gpuops.owner"), floor=4)
    guard = Guard(replace(POLICY, pools=(owned,)), Setbacks(4))
    assert guard.against(step, world.snapshot(), NOW, (), ()) == "its owner has not agreed (attribute gpuops.owner)"
    world.set("vm-1", attributes={"gpuops.owner": "cad"})
    assert guard.against(step, world.snapshot(), NOW, (), ()) is None
    assert guard.against(step, world.snapshot(), NOW, (), ("vm-2",)) == "floor: 4 of pool all stay running"
    assert guard.pools([step], world.snapshot()) == {"all"}
    assert "vm-5" in guard.company(["all"], world.snapshot(), ())
    world.set("vm-1", console_connections=1)
    assert guard.against(step, world.snapshot(), NOW, (), ()) == "1 console connection(s) open"


def test_what_another_run_is_still_suspending_does_not_count_towards_the_floor() -> None:
    world = small_world()
    guard = Guard(replace(POLICY, pools=(replace(POOL, floor=4),)), Setbacks(4))
    assert guard.against(SuspendVm("vm-1"), world.snapshot(), NOW, (), ()) is None
    world.set("vm-2", question="Is the disk full?")
    refused = guard.against(SuspendVm("vm-1"), world.snapshot(), NOW, (), ())
    assert refused == "floor: 4 of pool all stay running"


@pytest.mark.parametrize("ahead_s", [-61, 61, 3600])
def test_nothing_is_taken_from_the_look_on_that_finds_the_clocks_apart(ahead_s: int) -> None:
    guard, world = Guard(POLICY, Setbacks(4)), small_world().snapshot()
    for step in TAKEN:
        said = guard.against(step, world, NOW, (), (), timedelta(seconds=ahead_s))
        assert said is not None
        assert said.startswith("clocks: vCenter's is 1 ")
        assert guard.against(step, world, NOW, (), (), timedelta(seconds=ahead_s % 7)) is None
    assert guard.against(ResumeVm("vm-1"), world, NOW, (), (), timedelta(hours=1)) is None, "the way back goes on"


def test_a_pool_is_left_alone_once_three_that_were_taken_run_again() -> None:
    """Some taken by an earlier run of the night, some by this one: all of them are looked at."""
    world = small_world()
    guard = Guard(POLICY, Setbacks(4), taken=frozenset({"vm-2", "vm-3"}))
    ended = [Outcome(SuspendVm("vm-4"), Verdict.DONE), Outcome(SuspendVm("vm-5"), Verdict.FAILED)]
    for away in ("vm-2", "vm-3", "vm-4"):
        world.set(away, power=PowerState.SUSPENDED)
    assert guard.company(["all"], world.snapshot(), ended) == {"vm-2", "vm-3", "vm-4"}
    for woken in ("vm-2", "vm-3"):
        world.set(woken, power=PowerState.ON)
        assert guard.against(SuspendVm("vm-1"), world.snapshot(), NOW, ended, ()) is None
    world.set("vm-4", power=PowerState.ON)
    said = guard.against(SuspendVm("vm-1"), world.snapshot(), NOW, ended, ())
    assert said == "3 desktops of its pool came back by themselves tonight: no more of it are taken"
    assert guard.against(PowerOnVm("vm-91"), world.snapshot(), NOW, ended, ()) is None, "it takes no desktop"
