"""Places leave what is reserved for others, in every order of power-on that the plan allows and on whichever GPU the
simulated host takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.reservation import ProfileCapacity, Reservations
from gpuops.model.workloads.workload import Workload
from gpuops.plan.placement.vm_demand import PinPolicy
from gpuops.plan.queue.one_workload import Placed, Steering
from gpuops.plan.queue.place import Place, Placements
from gpuops.plan.queue.workload import running
from gpuops.sim.state.gpu_admission import NotAdmitted, VgpuPolicy, WantedVgpu, admit
from tests.plan.small_vcenter import SmallVcenter
from tests.plan.snapshots import FIRST, SECOND, catalog, gpu, host, inventory, vm

MODELS = [("a100", VgpuMode.MULTI_INSTANCE), ("h100", VgpuMode.MULTI_INSTANCE), ("l40s", VgpuMode.MIXED_SIZE)]
QUICK = settings(max_examples=25, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=1500, suppress_health_check=list(HealthCheck))


def slots(world: SmallVcenter, there: Host, profile: str) -> int:
    """How many more vGPUs of the profile the simulated host lets start."""
    count = 0
    for load in world.gpus(there):
        while not isinstance(
            seats := admit("more", [WantedVgpu(profile)], [load], VgpuPolicy.PERFORMANCE), NotAdmitted
        ):
            count += 1
            load = replace(load, seats=(*load.seats, *seats))
    return count


def seen_with(world: SmallVcenter, there: Host, profile: str, reserved: int) -> Inventory:
    """What the planner is shown, as vCenter counts it."""
    told = ProfileCapacity(profile, there.cluster or there.ref, 0, 20, slots(world, there, profile), reserved)
    return replace(world.inventory(inventory([], [])), reservations=Reservations((told,)), origin=None)


def orders(found: Placements) -> Iterator[tuple[Placed, ...]]:
    """Every order of power-on that the plan allows."""
    listed = [each for each in found.placed if each.steering is Steering.LISTED_ORDER]
    for order in permutations(found.placed):
        if [each for each in order if each.steering is Steering.LISTED_ORDER] == listed:
            yield order


def fewest_left(found: Placements, world: SmallVcenter, there: Host, profile: str) -> int:
    """So many of the profile are left in the worst order. Every VM starts."""
    fewest = slots(world, there, profile)
    for order in orders(found):
        again = SmallVcenter(world.hosts, dict(world.vms), dict(world.running))
        for each in order:
            assert again.start(running(each.vm, each.placement, each.workload.numa)) == ""
        fewest = min(fewest, slots(again, there, profile))
    return fewest


def reserved_slots_stay(data: st.DataObject) -> None:
    board, mode = data.draw(st.sampled_from(MODELS))
    there = host("esx-1", gpu(FIRST, board, 0, mode), gpu(SECOND, board, 1, mode))
    names = [offer.name for offer in there.profiles or () if offer.name.endswith("c") and catalog().profile(offer.name)]
    names = [name for name in names if (facts := catalog().profile(name)) and facts.mig_backed is (board != "l40s")]
    world = SmallVcenter({there.ref: there})
    for number, name in enumerate(data.draw(st.lists(st.sampled_from(names), max_size=5), "ran"), 1):
        world.start(vm(number, f"vm-{number}", "1", f"vgpu {name}", memory_mib=1024))
    for ref in data.draw(st.sets(st.sampled_from([*world.running, ""])), "stopped") - {""}:
        del world.running[ref], world.vms[ref]
    few = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True), "asked for")
    wishes = data.draw(st.lists(st.sampled_from(few), min_size=1, max_size=4), "requests")
    profile = data.draw(st.sampled_from(names), "reserved")
    free = slots(world, there, profile)
    assume(free)
    reserved = data.draw(st.integers(1, free), "so many")
    asked = Place(
        tuple(Workload(f"w-{number}", 1, 1024, wish) for number, wish in enumerate(wishes)),
        pin=data.draw(st.sampled_from(list(PinPolicy))),
        optimize=data.draw(st.booleans()),
    )
    found = asked.placements(seen_with(world, there, profile, reserved), catalog())
    # A plan that names what it is not certain of is not held to it.
    assume(not found.doubts and not any(each.placement.doubts for each in found.placed))
    assert fewest_left(found, world, there, profile) >= reserved


@QUICK
@given(st.data())
def test_reserved_slots_are_left_in_every_order(data: st.DataObject) -> None:
    reserved_slots_stay(data)


@pytest.mark.long
@LONG
@given(st.data())
def test_reserved_slots_are_left_in_every_order_in_many_worlds(data: st.DataObject) -> None:
    reserved_slots_stay(data)


@pytest.mark.parametrize("pin", PinPolicy)
def test_vms_that_find_a_gpu_in_any_order_are_pinned_where_another_gpu_has_reserved_slots(pin: PinPolicy) -> None:
    """Both start in any order; but if the small one comes first, the large one is put on the second GPU, whose only
    slot for 7-40c is reserved.
    """
    mig = VgpuMode.MULTI_INSTANCE
    there = host("esx-1", gpu(FIRST, "a100", 0, mig), gpu(SECOND, "a100", 1, mig))
    world = SmallVcenter({there.ref: there})
    assert world.start(vm(1, "vm-1", "1", "vgpu grid_a100-4-20c", memory_mib=1024)) == ""
    requests = tuple(
        Workload(f"w-{number}", 1, 1024, f"grid_a100-{size}") for number, size in enumerate(("2-10c", "1-10c"))
    )
    free = Place(requests, pin=pin).placements(world.inventory(inventory([], [])), catalog())
    assert {each.steering for each in free.placed} == {Steering.ANY_ORDER}, "nothing is reserved: any GPU will do"
    found = Place(requests, pin=pin).placements(seen_with(world, there, "grid_a100-7-40c", 1), catalog())
    assert len(found.placed) == 2
    assert fewest_left(found, world, there, "grid_a100-7-40c") == 1
    steered = {each.steering for each in found.placed}
    assert steered == {Steering.LISTED_ORDER}
    assert all(bool(each.placement.pins) is (pin is PinPolicy.AUTO) for each in found.placed)
