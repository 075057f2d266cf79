"""The whole queue at once: more VMs start, fewer desktops are suspended, and the exact rules still decide."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time

import pytest

from gpuops.catalog import load
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.rotation import IdleRule, Policy, Pool
from gpuops.model.nights.selector import Selector
from gpuops.model.vcenter.vm import PowerState, VgpuDevice
from gpuops.model.window import Window
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import PowerOnVm, RelocateVm, SuspendVm
from gpuops.plan.rotation.nights.night import RotateNight
from tests.execute.small_vcenter import SLOTS, World, desktop, ml, small_world
from tests.plan.rotation import drawn_fleet as fleet
from tests.plan.snapshots import catalog

CATALOG = load(profiles=SLOTS)
EVENING = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)
POOL = Pool("all", Selector(name="desktop-*"), IdleRule(500), parked=True)


def night(world: World, *queue: QueuedVm, pools: tuple[Pool, ...] = (POOL,)) -> Plan:
    policy = Policy("small", pools, ml=queue, windows=(Window(time(20), time(6), UTC),), digest="d")
    return RotateNight(policy).plan(world.snapshot(), CATALOG, EVENING)


def started_hosts(night_plan: Plan) -> dict[str, str | None]:
    return {step.vm: step.host for step in night_plan.steps if isinstance(step, PowerOnVm)}


def refs_suspended(night_plan: Plan) -> set[str]:
    return {step.vm for step in night_plan.steps if isinstance(step, SuspendVm)}


def with_ml(world: World, number: int, host: str, *profiles: str) -> World:
    devices = tuple(VgpuDevice(13000 + at, profile) for at, profile in enumerate(profiles or ("nvidia_a40-48c",)))
    world.vms[f"vm-9{number}"] = replace(ml(number, host), devices=devices)
    return world


def one_gpu_left(world: World, *, used: int = 1) -> World:
    """The second host with so many of its two GPUs in use by desktops that stay."""
    for number in range(6, 6 + used):
        world.vms[f"vm-{number}"] = replace(desktop(number, "nvidia_a40-48q", "host-2"), cpu_usage_mhz=4000)
        world._set_power(f"vm-{number}", PowerState.ON)
    return world


def test_a_vm_that_may_move_leaves_the_place_to_one_that_may_not() -> None:
    """Served one by one, ml-01 would take the empty GPU of esx-02, and ml-02, which is bound to it, none."""
    world = one_gpu_left(small_world())
    night_plan = night(world, QueuedVm("ml-01", relocate=True), QueuedVm("ml-02"))
    assert started_hosts(night_plan) == {"vm-91": "host-1", "vm-92": "host-2"}
    assert refs_suspended(night_plan) == {"vm-1", "vm-2"}


def test_a_wide_vm_gets_both_gpus_of_a_host_where_narrow_ones_can_go_elsewhere() -> None:
    world = with_ml(small_world(), 3, "host-1", "nvidia_a40-48c", "nvidia_a40-48c")
    night_plan = night(world, QueuedVm("ml-01", relocate=True), QueuedVm("ml-03"))
    assert started_hosts(night_plan) == {"vm-91": "host-2", "vm-93": "host-1"}
    assert refs_suspended(night_plan) == {f"vm-{number}" for number in range(1, 6)}


def test_the_higher_priority_starts_though_fewer_do() -> None:
    world = with_ml(with_ml(small_world(), 3, "host-1", "nvidia_a40-48c", "nvidia_a40-48c"), 4, "host-1")
    night_plan = night(world, QueuedVm("ml-01"), QueuedVm("ml-04"), QueuedVm("ml-03", priority=1))
    assert started_hosts(night_plan) == {"vm-93": "host-1"}


def test_halves_of_a_gpu_share_one() -> None:
    world = with_ml(with_ml(small_world(), 3, "host-1", "nvidia_a40-24q"), 4, "host-1", "nvidia_a40-24q")
    night_plan = night(world, QueuedVm("ml-03"), QueuedVm("ml-04"))
    assert started_hosts(night_plan) == {"vm-93": "host-1", "vm-94": "host-1"}
    assert refs_suspended(night_plan) == {"vm-1", "vm-2"}


def test_a_half_that_has_room_beside_a_desktop_in_use_takes_nobodys_gpu() -> None:
    world = with_ml(small_world(), 3, "host-1", "nvidia_a40-24q")
    world._set_power("vm-2", PowerState.OFF)
    world.set("vm-1", cpu_usage_mhz=4000)
    night_plan = night(world, QueuedVm("ml-03"))
    assert started_hosts(night_plan) == {"vm-93": "host-1"}
    assert refs_suspended(night_plan) == set()


def test_a_pool_of_higher_priority_is_spared_however_many_of_the_lower_one_give_way() -> None:
    world = small_world()
    few = Pool("few", Selector(name="desktop-0[12]"), IdleRule(500), parked=True, priority=1)
    night_plan = night(world, QueuedVm("ml-01"), pools=(few, POOL))
    assert refs_suspended(night_plan) == {"vm-3", "vm-4", "vm-5"}


def test_a_host_without_memory_for_what_is_proposed_refuses_it_and_the_vm_goes_elsewhere() -> None:
    """The scheduler knows no memory: it would take the empty GPU, at no desktop's cost."""
    world = one_gpu_left(small_world())
    world.hosts["host-2"] = replace(world.hosts["host-2"], memory_mib=24 * 1024)
    night_plan = night(world, QueuedVm("ml-01", relocate=True))
    assert started_hosts(night_plan) == {"vm-91": "host-1"}
    assert refs_suspended(night_plan) == {"vm-1", "vm-2"}


def test_nobody_is_moved_for_nothing() -> None:
    world = one_gpu_left(small_world())
    night_plan = night(world, QueuedVm("ml-01", relocate=True), QueuedVm("ml-02", relocate=True))
    assert started_hosts(night_plan) == {"vm-91": "host-1", "vm-92": "host-2"}
    full = one_gpu_left(small_world(), used=2)
    night_plan = night(full, QueuedVm("ml-01", relocate=True), QueuedVm("ml-02", relocate=True))
    assert [step.vm for step in night_plan.steps if isinstance(step, RelocateVm)] == ["vm-92"]


@pytest.mark.long
def test_a_fleet_is_used_better_than_one_vm_after_the_other_would() -> None:
    night_plan = RotateNight(fleet.policy()).plan(fleet.world(), catalog(), fleet.EVENING)
    assert len(started_hosts(night_plan)) == 56, "50 one after the other"
    assert len(refs_suspended(night_plan)) == 160, "the fewest that any choice of 63 GPUs has"
