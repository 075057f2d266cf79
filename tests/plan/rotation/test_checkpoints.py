"""Work is kept before an ML VM is stopped, in the time that there is: users come first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time

import pytest

from gpuops.advise.managed_vms import POOL_MARK
from gpuops.catalog import load
from gpuops.model.nights.ml_queue import Checkpoint, GuestCommand, MlStop, QueuedVm
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation_policy import IdleRule, Policy, Pool
from gpuops.model.nights.selector import Selector
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.window import Window
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import PowerOnVm, ResumeVm, RunInGuest, ShutDownGuest, SuspendVm
from gpuops.plan.rotation.returns.day import RotateDay, hooks_of
from tests.execute.small_vcenter import SLOTS, World, small_world

CATALOG = load(profiles=SLOTS)
HOOK = GuestCommand("/opt/keep", "--all")
POLICY = Policy(
    "small",
    (Pool("all", Selector(name="desktop-*"), idle=IdleRule(500), parked=True),),
    ml=(QueuedVm("ml-01", checkpoint=Checkpoint(600, HOOK)), QueuedVm("ml-02", checkpoint=Checkpoint(100))),
    ml_stop=MlStop(grace_s=120, then_off=True),
    windows=(Window(time(20), time(6), UTC),),
)


@pytest.fixture
def world() -> World:
    """The night took a desktop and started ml-01."""
    world = small_world()
    world._set_power("vm-1", PowerState.SUSPENDED)
    world._set_power("vm-2", PowerState.SUSPENDED)
    world._set_power("vm-91", PowerState.ON)
    return world


def plan(world: World, at: datetime, policy: Policy = POLICY, refs: tuple[str, ...] = ("vm-1", "vm-91")) -> Plan:
    roles = {"vm-91": Role.ML, "vm-92": Role.ML}
    originals = tuple(
        Original("2026-11-20", roles.get(ref, Role.DESKTOP), ref, vm.instance_uuid, vm.name, vm.host, vm.profiles, True)
        for ref in refs
        for vm in [world.vms[ref]]
    )
    return RotateDay(policy, originals).plan(world.snapshot(), CATALOG, at)


def morning(hour: int, minute: int) -> datetime:
    return datetime(2026, 11, 21, hour, minute, tzinfo=UTC)


def test_the_hook_runs_before_the_stop_and_the_stop_before_the_desktop(world: World) -> None:
    day = plan(world, morning(5, 0))
    kinds = [type(step) for step in day.steps]
    assert kinds[:3] == [RunInGuest, ShutDownGuest, ResumeVm]
    assert day.steps[:2] == (RunInGuest("vm-91", "/opt/keep", "--all", 600), ShutDownGuest("vm-91", 120, True))
    assert day.warnings == ()


def test_without_a_hook_the_grace_is_the_shutdowns(world: World) -> None:
    world._set_power("vm-92", PowerState.ON)
    day = plan(world, morning(5, 0), refs=("vm-92",))
    assert day.steps[:1] == (ShutDownGuest("vm-92", 220, True),)


def test_a_late_morning_gives_what_is_left(world: World) -> None:
    """Desktops are due at 06:00: a stop (180 s), a resume (180 s half as long again) and five minutes come off."""
    day = plan(world, morning(5, 45))
    [hook] = [step for step in day.steps if isinstance(step, RunInGuest)]
    assert hook.limit_s == 900 - 180 - 270 - 300
    assert day.warnings == ("ml-01: 150 s to keep its work, not 600: it is late",)


@pytest.mark.parametrize("at", [morning(5, 55), morning(8, 0)])
def test_when_no_time_is_left_it_is_stopped_at_once_and_named(world: World, at: datetime) -> None:
    day = plan(world, at)
    assert not any(isinstance(step, RunInGuest) for step in day.steps)
    assert ShutDownGuest("vm-91", 120, True) in day.steps
    assert day.warnings == ("ml-01: 0 s to keep its work, not 600: it is late",)


def test_who_lends_its_gpus_is_stopped_for_desktops_and_named(world: World) -> None:
    world.vms["vm-91"] = replace(world.vms["vm-91"], attributes={POOL_MARK: "lab"})
    day = plan(world, morning(5, 0))
    assert ShutDownGuest("vm-91", 120, True) in day.steps
    [warning] = day.warnings
    assert warning.startswith("ml-01 lends its GPUs over the network (pool lab), and its clients lose it at once: ")
    assert "gpuops pool reclaim --server ml-01" in warning


def test_nobody_waits_so_it_has_all_its_time_however_late(world: World) -> None:
    [hook] = [step for step in plan(world, morning(8, 0), refs=("vm-91",)).steps if isinstance(step, RunInGuest)]
    assert hook.limit_s == 600


def test_without_a_window_there_is_no_deadline(world: World) -> None:
    day = plan(world, morning(8, 0), replace(POLICY, windows=()))
    assert RunInGuest("vm-91", "/opt/keep", "--all", 600) in day.steps


def test_a_guest_that_is_off_has_nothing_to_keep(world: World) -> None:
    world._set_power("vm-91", PowerState.OFF)
    assert not any(isinstance(step, RunInGuest | ShutDownGuest) for step in plan(world, morning(5, 0)).steps)


def test_what_a_morning_will_run_is_known_in_the_evening(world: World) -> None:
    steps = (SuspendVm("vm-1"), PowerOnVm("vm-91", "host-1"), PowerOnVm("vm-92", "host-1"))
    assert [(step.vm, step.program) for step in hooks_of(POLICY, steps, world.snapshot())] == [("vm-91", "/opt/keep")]
