"""What a policy says of the queue, of limits and of times decides who starts, and each VM left out hears why."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest

from gpuops.catalog import load
from gpuops.model.devices.gpu import Passthrough, PciAddress
from gpuops.model.nights.ml_queue import Checkpoint, QueuedVm
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation_policy import DirectPath, IdleRule, Limits, Policy, Pool
from gpuops.model.nights.selector import Mark, Selector
from gpuops.model.vcenter.vm import DirectPathDevice, PowerState
from gpuops.model.window import Weekday, Window
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import PowerOnVm, ShutDownGuest, SuspendVm
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.returns.day import RotateDay, is_returned
from gpuops.plan.rotation.returns.return_time import Durations
from tests.execute.small_vcenter import SLOTS, World, desktop, ml, small_world

CATALOG = load(profiles=SLOTS)
EVENING = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)
POOL = Pool("all", Selector(name="desktop-*"), IdleRule(500), parked=True)
WINDOW = Window(time(20), time(6), UTC)
POLICY = Policy("small", (POOL,), ml=(QueuedVm("ml-01"), QueuedVm("ml-02")), windows=(WINDOW,), digest="d")
SLOW = Durations({("ResumeVm", "host-1"): (3600.0,)})


def night(world: World, policy: Policy = POLICY, now: datetime = EVENING, durations: Durations | None = None) -> Plan:
    return RotateNight(policy, durations=durations or Durations()).plan(world.snapshot(), CATALOG, now)


def at(clock: str) -> datetime:
    hour, minute = map(int, clock.split(":"))
    return EVENING.replace(day=20 if hour >= 20 else 21, hour=hour, minute=minute)


def reasons(night_plan: Plan) -> dict[str, str]:
    return {choice.subject: choice.reason for choice in night_plan.choices}


def queue(*queued_vms: QueuedVm, **changes: Any) -> Policy:
    return replace(POLICY, ml=queued_vms, **changes)


def started_refs(night_plan: Plan) -> list[str]:
    return [step.vm for step in night_plan.steps if isinstance(step, PowerOnVm)]


def refs_suspended(night_plan: Plan) -> set[str]:
    return {step.vm for step in night_plan.steps if isinstance(step, SuspendVm)}


def test_the_higher_priority_is_served_first() -> None:
    world = small_world()
    world.vms["vm-93"] = ml(3, "host-1")
    busy = {"vm-3": 900, "vm-4": 900, "vm-5": 900}
    for ref, mhz in busy.items():
        world.set(ref, cpu_usage_mhz=mhz)
    first = night(world, queue(QueuedVm("ml-01"), QueuedVm("ml-03")))
    assert reasons(first)["ml-03"].startswith("does not fit: ")
    assert started_refs(night(world, queue(QueuedVm("ml-01"), QueuedVm("ml-03", priority=1)))) == ["vm-93"]


def test_a_pattern_means_vms_with_a_gpu_that_are_in_no_pool() -> None:
    world = small_world()
    world.vms["vm-93"] = replace(ml(3, "host-1"), devices=())
    world.vms["vm-94"] = replace(ml(4, "host-2"), name="desktop-ml", power=PowerState.OFF)
    night_plan = night(world, queue(QueuedVm("*-0[1-9]"), QueuedVm("desktop-m*"), QueuedVm("none-*")))
    assert started_refs(night_plan) == ["vm-91", "vm-92"]
    assert reasons(night_plan)["desktop-m*"] == "no VM with a GPU device is called 'desktop-m*'"
    assert "ML queue: no VM with a GPU device is called 'none-*'" in night_plan.warnings


def test_a_vm_that_is_named_is_not_in_a_pattern_too() -> None:
    night_plan = night(small_world(), queue(QueuedVm("ml-*", count=1), QueuedVm("ml-01", priority=-5)))
    assert started_refs(night_plan) == ["vm-92", "vm-91"]
    assert [choice.subject for choice in night_plan.choices].count("ml-01") == 1


def test_only_so_many_of_an_entry_run() -> None:
    world = small_world()
    night_plan = night(world, queue(QueuedVm("ml-*", count=1)))
    assert started_refs(night_plan) == ["vm-91"]
    assert reasons(night_plan)["ml-02"] == "count: 1 of ml-* run, which is the limit"
    world._set_power("vm-92", PowerState.ON)
    night_plan = night(world, queue(QueuedVm(vms=("ml-01", "ml-02"), count=1)))
    assert started_refs(night_plan) == [], "one that runs already counts"
    assert reasons(night_plan) | {
        "ml-01": "count: 1 of ml-01, ml-02 run, which is the limit",
        "ml-02": "runs already",
    } == reasons(night_plan)


def test_one_that_cannot_start_does_not_use_up_the_count() -> None:
    world = small_world()
    world.set("vm-91", connected=False)
    assert started_refs(night(world, queue(QueuedVm("ml-*", count=1)))) == ["vm-92"]


def test_a_vm_that_does_not_carry_what_the_policy_says_is_not_started() -> None:
    night_plan = night(small_world(), queue(QueuedVm("ml-01", profile="*-24c"), QueuedVm("ml-02", profile="*-48c")))
    assert reasons(night_plan)["ml-01"] == "carries nvidia_a40-48c, the policy requires *-24c"
    assert started_refs(night_plan) == ["vm-92"]


@pytest.mark.parametrize(
    ("clock", "changes", "durations", "reason"),
    [
        # unmeasured: two desktops suspend in 5 min, the VM starts in 2; the return of 2 takes the floor of 45 min
        ("04:00", {"minimum_run": timedelta(minutes=68)}, None, ""),
        (
            "04:00",
            {"minimum_run": timedelta(minutes=69)},
            None,
            "would run for 68 min, 69 min are required: the return to esx-01 begins at 05:15",
        ),
        ("05:07", {}, None, ""),
        ("05:08", {}, None, "too late: the return to esx-01 begins at 05:15, and it would start at 05:15"),
        ("21:00", {"deadline": time(22)}, None, ""),
        (
            "21:00",
            {"deadline": time(22), "minimum_run": timedelta(hours=1)},
            None,
            "would run for 53 min, 60 min are required: its deadline is 22:00",
        ),
        (
            "21:00",
            {"deadline": at("20:30") - timedelta(days=7)},
            None,
            "too late: its deadline is 2026-11-13 20:30, and it would start at 21:07",
        ),
        ("21:00", {"deadline": at("20:30")}, None, "too late: its deadline is 20:30, and it would start at 21:07"),
        # one hour for a resume: a canary and a round of the other, times 1.5; the ML VM stops in 6 min
        ("02:40", {}, SLOW, ""),
        ("02:45", {}, SLOW, "too late: the return to esx-01 begins at 02:49, and it would start at 02:52"),
        ("21:00", {"checkpoint": Checkpoint(7200)}, SLOW, ""),
        (
            "01:00",
            {"checkpoint": Checkpoint(7200)},
            SLOW,
            "too late: the return to esx-01 begins at 00:49, and it would start at 01:07",
        ),
    ],
)
def test_a_start_that_would_leave_too_little_is_not_made(
    clock: str, changes: dict[str, Any], durations: Durations | None, reason: str
) -> None:
    night_plan = night(small_world(), queue(QueuedVm("ml-01", **changes)), at(clock), durations)
    assert reasons(night_plan)["ml-01"] == (reason or "starts on esx-01: 2 desktop(s) make room")
    assert night_plan.feasible
    assert bool(refs_suspended(night_plan)) is not bool(reason)


def test_a_later_start_takes_no_time_from_an_earlier_one() -> None:
    world = small_world()
    world.vms["vm-93"] = ml(3, "host-1")
    first = QueuedVm("ml-01", minimum_run=timedelta(hours=4))
    assert started_refs(night(world, queue(first), at("22:30"), SLOW)) == ["vm-91"]
    night_plan = night(world, queue(first, QueuedVm("ml-03")), at("22:30"), SLOW)
    assert started_refs(night_plan) == ["vm-91"]
    assert reasons(night_plan)["ml-03"] == (
        "then ml-01 would run for 162 min, 240 min are required: the return to esx-01 begins at 01:19"
    )


def test_every_step_of_the_plan_is_to_begin_before_the_time_of_return() -> None:
    night_plan = night(small_world(), durations=SLOW)
    assert {ref: f"{moment:%H:%M}" for ref, moment in night_plan.not_after.items()} == {
        "vm-1": "02:49",
        "vm-2": "02:49",
        "vm-91": "02:49",
        "vm-92": "05:15",
    }
    assert night(small_world(), replace(POLICY, windows=())).not_after == {}


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(desktops=1), "limit: 2 desktops would be taken, and a night may take 1"),
        (Limits(desktops_per_host=1), "limit: 2 desktops of esx-01 would be taken, and a night may take 1 of a host"),
    ],
)
def test_a_limit_on_what_is_taken(limits: Limits, reason: str) -> None:
    night_plan = night(small_world(), replace(POLICY, limits=limits))
    assert refs_suspended(night_plan) == set()
    assert reasons(night_plan)["ml-01"] == reason
    assert started_refs(night_plan) == ["vm-92"], "it costs no desktop"
    moving = night(small_world(), queue(QueuedVm("ml-01", relocate=True), limits=limits))
    assert started_refs(moving) == ["vm-91"]


def test_what_this_night_took_before_counts_too() -> None:
    world = small_world()
    world.vms["vm-93"] = ml(3, "host-1")
    limited = queue(QueuedVm("ml-01"), QueuedVm("ml-03"), limits=Limits(desktops=2))
    first = night(world, limited)
    for step in first.steps:
        assert world.apply("op", step) is None
    night_plan = night(world, limited)
    assert night_plan.steps == ()
    assert reasons(night_plan)["ml-03"] == "limit: 5 desktops would be taken, and a night may take 2"


def test_desktops_of_the_pool_with_the_lower_priority_give_way_first() -> None:
    large = Pool("large", Selector(profile="*-24q"), IdleRule(500), parked=True, priority=5)
    small = Pool("small", Selector(profile="*-12q"), IdleRule(500), parked=True, priority=1)
    assert refs_suspended(night(small_world(), replace(POLICY, pools=(large, small)))) == {"vm-3", "vm-4", "vm-5"}
    small = replace(small, priority=9)
    assert refs_suspended(night(small_world(), replace(POLICY, pools=(large, small)))) == {"vm-1", "vm-2"}


def test_no_owner_has_agreed_refuses_the_night() -> None:
    owned = replace(POOL, owner=Mark("gpuops.owner", "cad"))
    night_plan = night(small_world(), replace(POLICY, pools=(owned,)))
    assert [str(refusal) for refusal in night_plan.rejections] == [
        "pool all: none of its desktops carries attribute gpuops.owner = cad"
    ]
    assert night_plan.rejections[0].hint.startswith("set it on the desktops whose owners agree (gpuops help marks)")
    other_pool = Pool("other", Selector(name="desktop-05"), IdleRule(500), parked=True)
    night_plan = night(small_world(), replace(POLICY, pools=(other_pool, owned)))
    assert night_plan.feasible
    assert "pool all: none of its desktops carries attribute gpuops.owner = cad" in night_plan.warnings


@pytest.mark.parametrize(
    ("clock", "window", "durations", "reason"),
    [
        ("05:20", WINDOW, None, "too late: desktops must be back by 06:00, so nothing is taken from 05:15 on"),
        (
            "05:59",
            replace(WINDOW, back_by=time(6, 40)),
            None,
            "too late: desktops must be back by 06:40, so nothing is taken from 05:55 on",
        ),
        (
            "06:10",
            replace(WINDOW, back_by=time(8)),
            None,
            "outside the window: it is 2026-11-21 06:10 UTC, and it closed at 06:00",
        ),
        (
            "21:00",
            Window(time(20), time(21, 20), UTC),
            SLOW,
            "the window of 1 h 20 min cannot hold the return: one desktop alone needs 1 h 41 min",
        ),
        (
            "21:00",
            replace(WINDOW, weekdays=frozenset()),
            None,
            "outside the window: it is 2026-11-20 21:00 UTC, and no night opens within a year",
        ),
    ],
)
def test_an_hour_at_which_nothing_is_taken(
    clock: str, window: Window, durations: Durations | None, reason: str
) -> None:
    night_plan = night(small_world(), replace(POLICY, windows=(window,)), at(clock), durations)
    [refusal] = night_plan.rejections
    assert str(refusal) == f"small: {reason}"
    assert ("rotate day brings back" in refusal.hint) is (reason.startswith("too late") or "closed at" in reason)
    assert ("help policy" in refusal.hint) is ("within a year" in reason)
    assert ("a later `back_by`" in refusal.hint) is ("cannot hold" in reason), "another command helps no short window"


def directpath_world() -> World:
    """Desktop 6 has the first GPU of host 2 whole; ml-02 wants that same one."""
    world = small_world()
    host = world.hosts["host-2"]
    passthrough = Passthrough(capable=True, enabled=True, active=True)
    world.hosts["host-2"] = replace(host, gpus=(replace(host.gpus[0], passthrough=passthrough), host.gpus[1]))
    device = DirectPathDevice(13000, PciAddress(0, 0x3B, 0, 0), 0x10DE, 0x2235, "sys")
    passthrough_desktop = replace(desktop(6, "nvidia_a40-48q", "host-2"), devices=(device,), tools_running=True)
    world.vms["vm-6"] = passthrough_desktop
    world.set("vm-92", devices=(device,))
    return world


SHUT = replace(POOL, directpath=DirectPath.SHUT_DOWN_GUEST)


def test_a_desktop_with_a_directpath_device_stays_unless_the_policy_says_otherwise() -> None:
    night_plan = night(directpath_world(), queue(QueuedVm("ml-02")))
    assert reasons(night_plan)["desktop-06"] == "has a DirectPath device: such a VM cannot be suspended"
    assert reasons(night_plan)["ml-02"].startswith("does not fit: ")
    night_plan = night(directpath_world(), queue(QueuedVm("ml-02"), pools=(SHUT,)))
    assert [wave.title for wave in night_plan.waves] == [
        "mark what is taken",
        "shut down idle desktops",
        "start ML VMs",
    ]
    assert night_plan.waves[1].steps == (ShutDownGuest("vm-6", 300, then_off=False),)
    assert started_refs(night_plan) == ["vm-92"]
    saved = RotateNight(POLICY).originals_of(night_plan, directpath_world().snapshot(), EVENING)
    assert {original.name: original.role for original in saved} == {"desktop-06": Role.SHUT_DOWN, "ml-02": Role.ML}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"tools_running": None},
            "its guest cannot be asked to shut down: VMware Tools are not running, or their state is unknown",
        ),
        ({"console_connections": 1}, "1 console connection(s) open"),
        ({"host": None}, "its host is not connected, or not known"),
    ],
)
def test_a_directpath_desktop_that_cannot_be_shut_down_stays(changes: dict[str, object], reason: str) -> None:
    world = directpath_world()
    world.set("vm-6", **changes)
    assert reasons(night(world, queue(QueuedVm("ml-02"), pools=(SHUT,))))["desktop-06"] == reason


@pytest.mark.parametrize(
    ("power", "was_taken", "marked", "steps"),
    [
        (PowerState.OFF, True, True, (PowerOnVm("vm-6", "host-2"),)),
        (PowerState.OFF, True, False, (PowerOnVm("vm-6", "host-2"),)),
        (PowerState.OFF, False, True, (PowerOnVm("vm-6", "host-2"),)),
        (PowerState.OFF, False, False, ()),
        (PowerState.ON, True, True, ()),
        (PowerState.SUSPENDED, True, True, ()),
    ],
)
def test_the_morning_powers_on_what_the_night_shut_down(
    power: PowerState, was_taken: bool, marked: bool, steps: tuple[PowerOnVm, ...]
) -> None:
    """Off by its own guest, late, after the step was given up: the marker still says whose it is."""
    world = directpath_world()
    vm = world.vms["vm-6"]
    marker = {"gpuops.rotation": "2026-11-20 desktop-off"} if marked else {}
    world.set("vm-6", power=power, attributes=marker)
    original = Original(
        "2026-11-20", Role.SHUT_DOWN, "vm-6", vm.instance_uuid, vm.name, vm.host, vm.profiles, was_taken
    )
    day = RotateDay(replace(POLICY, pools=(SHUT,)), (original,)).plan(world.snapshot(), CATALOG, EVENING)
    assert tuple(step for step in day.steps if isinstance(step, PowerOnVm)) == steps
    assert is_returned(original, world.snapshot()) is (power is PowerState.ON or not (was_taken or marked))


@pytest.mark.parametrize("any_time", [False, True])
def test_a_night_that_nobody_watches_needs_hours_or_the_word_that_any_is_meant(any_time: bool) -> None:
    policy = replace(POLICY, windows=(), any_time=any_time)
    watched = night(small_world(), policy)
    night_plan = RotateNight(policy, unattended=True).plan(small_world().snapshot(), CATALOG, EVENING)
    assert watched.steps
    if any_time:
        assert night_plan == watched
    else:
        assert [rejection.subject for rejection in night_plan.rejections] == ["small"]
        assert "has no `windows`" in night_plan.rejections[0].rule
        assert "`windows: any`" in night_plan.rejections[0].hint
    assert RotateNight(POLICY, unattended=True).plan(small_world().snapshot(), CATALOG, EVENING) == night(small_world())


FRIDAY = date(2026, 11, 20)
WORKDAYS = replace(WINDOW, name="work", not_on=frozenset({FRIDAY}))


@pytest.mark.parametrize(
    ("clock", "window", "reason"),
    [
        ("21:00", WORKDAYS, "no night on the evening of Fri 2026-11-20 of window work: `not_on` names it"),
        ("05:59", WORKDAYS, "no night on the evening of Fri 2026-11-20 of window work: `not_on` names it"),
        ("06:00", WORKDAYS, None),
        ("12:00", WORKDAYS, None),
        (
            "21:00",
            replace(WINDOW, weekdays=frozenset({Weekday.MON})),
            "no night on the evening of Fri 2026-11-20: it is not one of its `weekdays`",
        ),
        ("21:00", replace(WINDOW, weekdays=frozenset()), None),
    ],
)
def test_an_evening_that_the_policy_leaves_out_is_no_mistake_of_the_clock_that_calls(
    clock: str, window: Window, reason: str | None
) -> None:
    """At another hour, and to somebody at the terminal, a night is refused as ever."""
    policy, snapshot = replace(POLICY, windows=(window,)), small_world().snapshot()
    called = RotateNight(policy, unattended=True).plan(snapshot, CATALOG, at(clock))
    assert (called.feasible, called.steps, called.because) == (reason is not None, (), (reason,) if reason else ())
    typed = RotateNight(policy).plan(snapshot, CATALOG, at(clock))
    assert typed.rejections[0].rule.startswith("outside the window: ")


def test_on_such_an_evening_an_earlier_night_that_is_not_over_is_told_of_all_the_same() -> None:
    world = small_world()
    world.set("vm-1", power=PowerState.SUSPENDED, attributes={"gpuops.rotation": "2026-11-19 desktop"})
    policy = replace(POLICY, windows=(WORKDAYS,))
    night_plan = RotateNight(policy, unattended=True).plan(world.snapshot(), CATALOG, EVENING)
    assert [rejection.rule for rejection in night_plan.rejections] == ["is not over: desktop-01 not back yet"]
