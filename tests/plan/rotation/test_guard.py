"""What is asked once more just before a step that takes something, when a night takes nothing more, and whether a VM is
in the state in which its night left it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest

from gpuops.errors import Trouble
from gpuops.execute.site import catalog_of
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation_policy import DirectPath, IdleRule, Policy, Pool
from gpuops.model.nights.selector import Mark, Selector
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, PowerState, RunningTask, VgpuDevice, Vm, VmDrs
from gpuops.model.window import Window
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.steps import (
    CloseGate,
    PowerOnVm,
    RelocateVm,
    ResumeVm,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
)
from gpuops.plan.rotation.nights.desktops import SPACE_MARGIN_MIB, suspend_size_mib
from gpuops.plan.rotation.nights.guard import Guard
from gpuops.plan.rotation.nights.night_refusals import StepCounts, ahead_by, clock_trouble, is_refusal, reason_to_stop
from gpuops.plan.rotation.power_moments import SAME_MOMENT_TOLERANCE, replaced_state_text, was_restarted_since_night
from tests.execute.small_vcenter import World, small_world

CATALOG = catalog_of(small_world().snapshot())
NOW = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)
POOL = Pool("all", Selector(name="desktop-*"), IdleRule(500), parked=True, directpath=DirectPath.SHUT_DOWN_GUEST)
POLICY = Policy("small", (POOL,), windows=(Window(time(20), time(6), UTC),), ml=(QueuedVm("ml-*"),))
DIRECT = DirectPathDevice(13000, PciAddress(0, 0x3B, 0, 0), 0x10DE, 0x2235, "esx-01")

TAKEN: list[Step] = [
    SetAttribute("vm-1", "gpuops.rotation", "x"),
    SuspendVm("vm-1"),
    ShutDownGuest("vm-1"),
    PowerOnVm("vm-1"),
]


def world_of(*steps: Step) -> World:
    """The small world, in which a desktop that is asked to shut down cannot be suspended, and what starts is queued."""
    world = small_world()
    for step in steps:
        if isinstance(step, PowerOnVm):
            world.set(step.vm, name=f"ml-{step.vm}")
        if isinstance(step, ShutDownGuest):
            world.set(step.vm, devices=(DIRECT,))
    return world


@pytest.mark.parametrize("step", TAKEN)
def test_from_the_time_of_return_on_nothing_is_taken(step: Step) -> None:
    guard = Guard(POLICY, StepCounts(4), CATALOG, {"vm-1": NOW})
    other_step = replace(step, vm="vm-2")
    world = world_of(step, other_step).snapshot()
    assert guard.objection(step, world, NOW - timedelta(seconds=1), (), ()) is None
    assert guard.objection(step, world, NOW, (), ()) == "too late: the return to its host has to begin"
    assert guard.objection(other_step, world, NOW, (), ()) is None, "its host may have more time"
    assert guard.objection(ResumeVm("vm-1"), world, NOW, (), ()) is None, "it never speaks against the way back"


@pytest.mark.parametrize("step", TAKEN)
@pytest.mark.parametrize("at", [time(19, 59), time(6, 1), time(12)])
def test_outside_the_window_nothing_is_taken(step: Step, at: time) -> None:
    guard, world = Guard(POLICY, StepCounts(4), CATALOG), world_of(step).snapshot()
    assert guard.objection(step, world, NOW, (), ()) is None
    assert guard.objection(step, world, datetime.combine(NOW, at, UTC), (), ()) == "the window has closed"


@pytest.mark.parametrize("step", [SuspendVm("vm-1"), ShutDownGuest("vm-1")])
def test_a_desktop_is_looked_at_once_more(step: Step) -> None:
    world = world_of(step)
    owned = replace(POOL, owner=Mark("gpuops.owner"), floor=4)
    guard = Guard(replace(POLICY, pools=(owned,)), StepCounts(4), CATALOG)
    assert guard.objection(step, world.snapshot(), NOW, (), ()) == "its owner has not agreed (attribute gpuops.owner)"
    world.set("vm-1", attributes={"gpuops.owner": "cad"})
    assert guard.objection(step, world.snapshot(), NOW, (), ()) is None
    assert guard.objection(step, world.snapshot(), NOW, (), ("vm-2",)) == "floor: 4 of pool all stay running"
    assert guard.pools([step], world.snapshot()) == {"all"}
    assert "vm-5" in guard.counted_vms(["all"], world.snapshot(), ())
    world.set("vm-1", console_connections=1)
    assert guard.objection(step, world.snapshot(), NOW, (), ()) == "1 console connection(s) open"


def test_what_another_run_is_still_suspending_does_not_count_towards_the_floor() -> None:
    world = small_world()
    guard = Guard(replace(POLICY, pools=(replace(POOL, floor=4),)), StepCounts(4), CATALOG)
    assert guard.objection(SuspendVm("vm-1"), world.snapshot(), NOW, (), ()) is None
    world.set("vm-2", question="Is the disk full?")
    refused = guard.objection(SuspendVm("vm-1"), world.snapshot(), NOW, (), ())
    assert refused == "floor: 4 of pool all stay running"


@pytest.mark.parametrize("ahead_s", [-61, 61, 3600])
def test_nothing_is_taken_from_the_look_on_that_finds_the_clocks_apart(ahead_s: int) -> None:
    guard = Guard(POLICY, StepCounts(4), CATALOG)
    for step in TAKEN:
        world = world_of(step).snapshot()
        reason = guard.objection(step, world, NOW, (), (), timedelta(seconds=ahead_s))
        assert reason is not None
        assert reason.startswith("clocks: vCenter's is 1 ")
        assert guard.objection(step, world, NOW, (), (), timedelta(seconds=ahead_s % 7)) is None
    assert guard.objection(ResumeVm("vm-1"), world, NOW, (), (), timedelta(hours=1)) is None, "the way back goes on"


def test_a_pool_is_left_alone_once_three_that_were_taken_run_again() -> None:
    """Some taken by an earlier run of the night, some by this one: all of them are looked at."""
    world = small_world()
    guard = Guard(POLICY, StepCounts(4), CATALOG, taken_before=frozenset({"vm-2", "vm-3"}))
    ended = [Outcome(SuspendVm("vm-4"), Verdict.DONE), Outcome(SuspendVm("vm-5"), Verdict.FAILED)]
    for ref in ("vm-2", "vm-3", "vm-4"):
        world.set(ref, power=PowerState.SUSPENDED)
    assert guard.counted_vms(["all"], world.snapshot(), ended) == {"vm-2", "vm-3", "vm-4"}
    for woken in ("vm-2", "vm-3"):
        world.set(woken, power=PowerState.ON)
        assert guard.objection(SuspendVm("vm-1"), world.snapshot(), NOW, ended, ()) is None
    world.set("vm-4", power=PowerState.ON)
    reason = guard.objection(SuspendVm("vm-1"), world.snapshot(), NOW, ended, ())
    assert reason == "3 desktops of its pool came back by themselves tonight: no more of it are taken"
    assert guard.objection(PowerOnVm("vm-91"), world.snapshot(), NOW, ended, ()) is None, "it takes no desktop"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cpu_usage_mhz": 500}, "uses 500 MHz, idle is below 500"),
        ({"cpu_usage_mhz": None}, "its CPU usage cannot be read"),
        ({"console_connections": 1}, "1 console connection(s) open"),
        ({"console_connections": None}, "its console connections cannot be read"),
        ({"question": "Is the disk full?"}, "waits for an answer: Is the disk full?"),
        ({"tasks": (RunningTask("task-1", "CloneVM_Task", "running"),)}, "a task is running: CloneVM_Task"),
        ({"unreadable": ("runtime.host",)}, "cannot be read completely: runtime.host"),
        ({"connected": False}, "is not connected, or its connection state is unknown"),
        ({"template": True}, "is a template"),
        ({"attributes": {"gpuops.opt-out": "yes"}}, "opted out (attribute gpuops.opt-out)"),
        ({"name": "renamed"}, "is in no pool of the policy any more"),
        ({"name": "desktop-ml"}, "is in the ML queue of the same policy"),
        ({"devices": None}, "its devices cannot be read"),
        ({"devices": ()}, "has no vGPU: suspending it frees none"),
        ({"devices": (DIRECT,)}, "its devices have changed since the plan was made"),
        (
            {"devices": (VgpuDevice(13000, "nvidia_a40-6q"),)},
            "esx-01 does not report that nvidia_a40-6q can be suspended",
        ),
        ({"datastores": ()}, "its datastore is unknown"),
        ({"memory_mib": None}, "the size of its suspend file is unknown"),
    ],
)
def test_whatever_the_plan_required_of_a_desktop_is_required_again(change: dict[str, Any], why: str) -> None:
    world = small_world()
    policy = replace(POLICY, ml=(QueuedVm("desktop-ml"),))
    guard = Guard(policy, StepCounts(4), CATALOG)
    assert guard.objection(SuspendVm("vm-1"), world.snapshot(), NOW, (), ()) is None
    world.set("vm-1", **change)
    assert guard.objection(SuspendVm("vm-1"), world.snapshot(), NOW, (), ()) == why


@pytest.mark.parametrize(
    "step",
    [
        SetAttribute("vm-91", "gpuops.rotation", "2026-11-20 ml"),
        RelocateVm("vm-91", "host-2"),
        SetVmDrs("vm-91", VmDrs.MANUAL),
        PowerOnVm("vm-91", "host-1"),
    ],
)
@pytest.mark.parametrize(
    "queued",
    ["ml-01", "*-01", "ml/ml-01"],
    ids=["its name", "a pattern", "its path"],
)
def test_an_ml_vm_that_no_entry_of_the_queue_means_any_more_is_not_started(step: Step, queued: str) -> None:
    """Renamed or moved between the plan and its first marker; by its id it is meant whatever it is called."""
    world = small_world()
    world.set("vm-91", path="dc/vm/ml/ml-01")
    guard = Guard(replace(POLICY, ml=(QueuedVm(queued),)), StepCounts(4), CATALOG)
    assert guard.objection(step, world.snapshot(), NOW, (), ()) is None
    world.set("vm-91", name="ml-01-old", path="dc/vm/retired/ml-01-old")
    assert guard.objection(step, world.snapshot(), NOW, (), ()) == "no entry of the queue selects it any more"
    by_id = replace(guard, policy=replace(POLICY, ml=(QueuedVm("moid:vm-91"),)))
    assert by_id.objection(step, world.snapshot(), NOW, (), ()) is None
    clears = SetAttribute("vm-91", "gpuops.rotation", "")
    assert guard.objection(clears, world.snapshot(), NOW, (), ()) is None, "it is left as it was found"


def test_a_desktop_whose_name_comes_to_fit_a_pattern_of_the_queue_is_not_started() -> None:
    guard = Guard(replace(POLICY, ml=(QueuedVm("*"),)), StepCounts(4), CATALOG)
    world = small_world()
    assert guard.objection(PowerOnVm("vm-91"), world.snapshot(), NOW, (), ()) is None
    world.set("vm-91", name="desktop-91")
    assert (
        guard.objection(PowerOnVm("vm-91"), world.snapshot(), NOW, (), ())
        == "no entry of the queue selects it any more"
    )


def test_a_host_that_went_into_maintenance_and_a_pool_that_is_not_parked_keep_their_desktops() -> None:
    world = small_world()
    loose = replace(POLICY, pools=(replace(POOL, parked=False),))
    reason = Guard(loose, StepCounts(4), CATALOG).objection(SuspendVm("vm-1"), world.snapshot(), NOW, (), ())
    assert reason == "pool all has `parked: false` in the policy"
    world.hosts["host-1"] = replace(world.hosts["host-1"], in_maintenance=True)
    reason = Guard(POLICY, StepCounts(4), CATALOG).objection(SuspendVm("vm-1"), world.snapshot(), NOW, (), ())
    assert reason == "esx-01 is in maintenance mode, or its mode is unknown"


def test_a_datastore_that_somebody_else_filled_keeps_the_desktop() -> None:
    """What is being suspended meanwhile still needs its room; what is suspended has all but a tenth of it."""
    world, guard = small_world(), Guard(POLICY, StepCounts(4), CATALOG)
    needed_mib = suspend_size_mib(world.vms["vm-1"], CATALOG) or 0

    def objection_with(free_mib: int, *leaving: str, ended: Sequence[Outcome] = ()) -> str | None:
        world.datastores["ds-1"] = replace(world.datastores["ds-1"], free_mib=free_mib)
        return guard.objection(SuspendVm("vm-1"), world.snapshot(), NOW, ended, leaving)

    assert objection_with(needed_mib + SPACE_MARGIN_MIB) is None
    full = f"datastore ssd: its suspend file needs {needed_mib} MiB, {needed_mib + SPACE_MARGIN_MIB - 1} free"
    assert objection_with(needed_mib + SPACE_MARGIN_MIB - 1) == full
    assert objection_with(2 * needed_mib + SPACE_MARGIN_MIB, "vm-2") is None
    assert objection_with(2 * needed_mib + SPACE_MARGIN_MIB - 1, "vm-2") == full
    world.set("vm-2", power=PowerState.SUSPENDED)
    assert (
        objection_with(round(1.1 * needed_mib) + SPACE_MARGIN_MIB, ended=[Outcome(SuspendVm("vm-2"), Verdict.DONE)])
        is None
    )


def test_the_rule_by_which_a_desktop_is_idle_is_that_of_its_pool() -> None:
    world, guard = small_world(), Guard(POLICY, StepCounts(4), CATALOG)
    assert guard.idle_rule(SuspendVm("vm-1"), world.snapshot()) == IdleRule(500)
    assert guard.idle_rule(PowerOnVm("vm-91"), world.snapshot()) is None
    assert guard.idle_rule(SuspendVm("vm-404"), world.snapshot()) is None


def test_the_floor_of_another_open_policy_is_looked_at_once_more() -> None:
    world = small_world()
    other_policy = Policy("other", (replace(POOL, name="desks", floor=4),))
    guard = Guard(POLICY, StepCounts(4), CATALOG, other_policies=(other_policy,))
    assert guard.objection(SuspendVm("vm-1"), world.snapshot(), NOW, (), ()) is None
    refused = guard.objection(SuspendVm("vm-1"), world.snapshot(), NOW, (), ("vm-2",))
    assert refused == "floor: 4 of pool desks of policy other, whose night is open, stay running"
    assert "vm-5" in guard.counted_vms([], world.snapshot(), ())


ASKED = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)


@pytest.fixture
def inventory() -> Inventory:
    """vm-1 to vm-5 and vm-91 are on esx-01, vm-92 is on esx-02."""
    return small_world().snapshot()


def outcomes_of(*refs: str, verdict: Verdict = Verdict.FAILED, trouble: Trouble = Trouble.CAPACITY) -> list[Outcome]:
    return [Outcome(SuspendVm(ref), verdict, "no", trouble=trouble) for ref in refs]


def count_steps(*runs: list[Outcome], planned: int, inventory: Inventory) -> StepCounts:
    """How a night went whose runs ended so."""
    counts = StepCounts().with_plan(planned)
    for outcome in (outcome for run in runs for outcome in run):
        failed = outcome.verdict in (Verdict.FAILED, Verdict.UNKNOWN)
        refused = failed and outcome.trouble is Trouble.DENIED
        counts = counts.with_end(failed=failed, refused=refused, host=inventory.vm(outcome.step.vm).host)
    return counts


@pytest.mark.parametrize("split", range(4))
def test_three_failures_on_one_host_stop_it_in_whatever_runs_they_were(inventory: Inventory, split: int) -> None:
    failures = outcomes_of("vm-1", "vm-2", "vm-3")
    before = count_steps(failures[:split], planned=200, inventory=inventory)
    assert reason_to_stop(before, failures[split:], inventory) == "3 steps failed on esx-01"
    assert reason_to_stop(before, failures[split:][:-1], inventory) is None or split == 3


def test_a_tenth_of_the_whole_nights_plan_stops_it(inventory: Inventory) -> None:
    """A second run plans what is left: a share of that would be less than a share of the night."""
    before = count_steps(
        outcomes_of("vm-1", "vm-92", verdict=Verdict.UNKNOWN), planned=40, inventory=inventory
    ).with_plan(20)
    assert reason_to_stop(before, outcomes_of("vm-92"), inventory) is None, "3 of 40"
    assert reason_to_stop(before, outcomes_of("vm-92", "vm-1"), inventory) == "4 of its steps failed"


def test_few_failures_of_a_short_night_are_no_pattern(inventory: Inventory) -> None:
    before = StepCounts().with_plan(5)
    assert reason_to_stop(before, outcomes_of("vm-1", "vm-92"), inventory) is None
    assert reason_to_stop(before, outcomes_of("vm-1", "vm-92", "vm-92"), inventory) == "3 of its steps failed"


def test_two_refusals_in_a_row_stop_it_over_runs_too(inventory: Inventory) -> None:
    refused = outcomes_of("vm-1", trouble=Trouble.DENIED)
    success = outcomes_of("vm-2", verdict=Verdict.DONE)
    before = count_steps(refused, planned=200, inventory=inventory)
    assert reason_to_stop(before, refused, inventory) == "vCenter refuses one step after the other"
    assert reason_to_stop(before, [*success, *refused], inventory) is None
    assert reason_to_stop(count_steps(refused, success, planned=200, inventory=inventory), refused, inventory) is None


@pytest.mark.parametrize(
    ("told_s", "took_s", "ahead_s"),
    [(0, 0, 0), (30, 90, 0), (90, 90, 0), (100, 90, 10), (-5, 90, -5), (-5, -90, 0), (-100, -90, -10)],
)
def test_a_slow_answer_is_no_difference(told_s: int, took_s: int, ahead_s: int) -> None:
    vcenter_time, answered = ASKED + timedelta(seconds=told_s), ASKED + timedelta(seconds=took_s)
    assert ahead_by(vcenter_time, ASKED, answered) == timedelta(seconds=ahead_s)


def test_a_minute_is_nothing_and_more_is_named() -> None:
    assert clock_trouble(None) is None
    assert clock_trouble(timedelta(seconds=-60)) is None
    assert clock_trouble(timedelta(seconds=-61)) == (
        "vCenter's is 1 min 1 s behind this machine's: the hours of a night are uncertain"
    )


def test_what_a_broker_refuses_is_no_refusal_of_vcenter() -> None:
    refused = [
        Outcome(step, Verdict.FAILED, "no", trouble=Trouble.DENIED)
        for step in (CloseGate("vm-1", "m"), SuspendVm("vm-1"))
    ]
    assert [is_refusal(refusal) for refusal in refused] == [False, True]


STARTED = datetime(2026, 11, 2, 20, tzinfo=UTC)
LATER = STARTED + timedelta(hours=6)


@pytest.mark.parametrize(
    ("role", "power", "then", "now", "anew"),
    [
        (Role.ML, PowerState.ON, STARTED, LATER, True),
        (Role.ML, PowerState.ON, STARTED, STARTED + SAME_MOMENT_TOLERANCE, False),
        (Role.ML, PowerState.ON, STARTED, STARTED - SAME_MOMENT_TOLERANCE * 2, False),
        (Role.ML, PowerState.ON, None, LATER, False),
        (Role.ML, PowerState.ON, STARTED, None, False),
        (Role.ML, PowerState.OFF, STARTED, LATER, False),
        (Role.DESKTOP, PowerState.ON, STARTED, LATER, False),
    ],
)
def test_only_a_later_moment_of_an_ml_vm_that_runs_is_another_start(
    role: Role, power: PowerState, then: datetime | None, now: datetime | None, anew: bool
) -> None:
    original = Original("2026-11-02", role, "vm-1", "uuid-1", "ml-01", "host-1", taken=True, started_at=then)
    assert was_restarted_since_night(original, Vm("vm-1", "ml-01", power=power, started_at=now)) is anew


@pytest.mark.parametrize(("role", "is_another"), [(Role.DESKTOP, True), (Role.SHUT_DOWN, False), (Role.ML, False)])
def test_only_a_desktop_that_its_night_suspended_is_in_another_suspended_state(role: Role, is_another: bool) -> None:
    original = Original("2026-11-02", role, "vm-1", "uuid-1", "desk-01", "host-1", taken=True, suspended_at=LATER)
    vm = Vm("vm-1", "desk-01", power=PowerState.SUSPENDED, suspended_at=STARTED)
    assert bool(replaced_state_text(original, vm)) is is_another
