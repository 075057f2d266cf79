"""Each VM finds the room it was given, in the order in which a host really frees and fills its GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.catalog import load
from gpuops.model.devices.gpu import AssignmentPolicy
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.vcenter.vm import VgpuDevice
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import PowerOnVm
from gpuops.plan.placement.project import project
from gpuops.plan.placement.seating import Room
from gpuops.plan.rotation.nights.night import RotateNight
from tests.execute.small_vcenter import SLOTS, World, ml, small_world
from tests.plan.rotation.test_night import EVENING, POLICY

PROFILES = {**SLOTS, "nvidia_a40-24c": 2, "nvidia_a40-16c": 3}
CATALOG = load(profiles=PROFILES)


def one_host(*waiting: str, policy: AssignmentPolicy = AssignmentPolicy.PERFORMANCE) -> World:
    """A host with a free GPU and one with two idle desktops; ML VMs of these profiles wait for it."""
    world = small_world()
    for ref in ("vm-3", "vm-4", "vm-5", "vm-91", "vm-92"):
        world.vms.pop(ref)
        world.on_gpu.pop(ref, None)
    del world.hosts["host-2"]
    offered = tuple(replace(world.hosts["host-1"].profiles[0], name=name) for name in PROFILES)  # type: ignore[index]
    world.hosts["host-1"] = replace(world.hosts["host-1"], assignment_policy=policy, profiles=offered)
    for number, profile in enumerate(waiting, 1):
        vm = replace(ml(number, "host-1"), devices=(VgpuDevice(13000, profile),))
        world.vms[vm.ref] = vm
    return world


def night(world: World, count: int) -> Plan:
    queue = tuple(QueuedVm(f"ml-{number:02}") for number in range(1, count + 1))
    return RotateNight(replace(POLICY, ml=queue)).plan(world.snapshot(), CATALOG, EVENING)


def starts(night_plan: Plan) -> list[list[str]]:
    waves = ([step.vm for step in wave.steps if isinstance(step, PowerOnVm)] for wave in night_plan.waves)
    return [wave for wave in waves if wave]


def finds_room(world: World, night_plan: Plan) -> bool:
    """Whether each start has room when its turn comes."""
    now, room = world.snapshot(), Room(CATALOG, certain=True)
    for step in night_plan.steps:
        vm = now.vm(step.vm)
        if isinstance(step, PowerOnVm) and room.refusals(vm, now.hosts["host-1"], now):
            return False
        now = project(step, now, CATALOG)
    return True


@pytest.mark.parametrize("policy", list(AssignmentPolicy))
def test_one_that_needs_a_whole_gpu_starts_before_others_are_spread_over_all(policy: AssignmentPolicy) -> None:
    world = one_host("nvidia_a40-24c", "nvidia_a40-24c", "nvidia_a40-48c", policy=policy)
    night_plan = night(world, 3)
    assert finds_room(world, night_plan)
    assert {step.vm for step in night_plan.steps if isinstance(step, PowerOnVm)} == {"vm-91", "vm-92", "vm-93"}
    assert len(starts(night_plan)) == 1, "all of them in one go"


def test_what_no_order_can_hold_starts_before_the_next_gpu_is_freed() -> None:
    """Two halves would be spread over both GPUs, and a third of a GPU shares with no half."""
    world = one_host("nvidia_a40-24c", "nvidia_a40-24c", "nvidia_a40-16c")
    night_plan = night(world, 3)
    assert finds_room(world, night_plan)
    assert starts(night_plan) == [["vm-91", "vm-92"], ["vm-93"]]
    titles = [wave.title for wave in night_plan.waves]
    assert titles == ["mark what is taken", "start ML VMs", "suspend idle desktops", "start ML VMs"]
    gathered = one_host("nvidia_a40-24c", "nvidia_a40-24c", "nvidia_a40-16c", policy=AssignmentPolicy.CONSOLIDATION)
    assert starts(night(gathered, 3)) == [["vm-91", "vm-92", "vm-93"]], "that host fills one GPU first"


def test_a_plan_that_was_carried_out_leaves_nothing_to_plan() -> None:
    world = one_host("nvidia_a40-24c", "nvidia_a40-16c", "nvidia_a40-24c", "nvidia_a40-48c")
    now, queue = world.snapshot(), tuple(QueuedVm(f"ml-{number:02}") for number in range(1, 5))
    request = RotateNight(replace(POLICY, ml=queue))
    first = request.plan(now, CATALOG, EVENING)
    assert len(starts(first)) > 0
    for step in first.steps:
        now = project(step, now, CATALOG)
    originals = tuple(
        replace(original, taken=True) for original in request.originals_of(first, world.snapshot(), EVENING)
    )
    assert replace(request, originals=originals).plan(now, CATALOG, EVENING).steps == ()
