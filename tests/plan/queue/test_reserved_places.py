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
from gpuops.model.vcenter.inventory import Inventory, ProfileCapacity, Reservations
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


def slots(world: SmallVcenter, esx: Host, profile: str) -> int:
    """How many more vGPUs of the profile the simulated host lets start."""
    count = 0
    for load in world.gpus(esx):
        while not isinstance(
            seats := admit("more", [WantedVgpu(profile)], [load], VgpuPolicy.PERFORMANCE), NotAdmitted
        ):
            count += 1
            load = replace(load, seats=(*load.seats, *seats))
    return count


def seen_with(world: SmallVcenter, esx: Host, profile: str, reserved: int) -> Inventory:
    """What the planner is shown, as vCenter counts it."""
    slot_capacity = ProfileCapacity(profile, esx.cluster or esx.ref, 0, 20, slots(world, esx, profile), reserved)
    return replace(world.inventory(inventory([], [])), reservations=Reservations((slot_capacity,)), origin=None)


def orders(placements: Placements) -> Iterator[tuple[Placed, ...]]:
    """Every order of power-on that the plan allows."""
    listed = [placed for placed in placements.placed if placed.steering is Steering.LISTED_ORDER]
    for order in permutations(placements.placed):
        if [placed for placed in order if placed.steering is Steering.LISTED_ORDER] == listed:
            yield order


def fewest_left(placements: Placements, world: SmallVcenter, esx: Host, profile: str) -> int:
    """So many of the profile are left in the worst order. Every VM starts."""
    fewest = slots(world, esx, profile)
    for order in orders(placements):
        trial = SmallVcenter(world.hosts, dict(world.vms), dict(world.running))
        for placed in order:
            assert trial.start(running(placed.vm, placed.placement, placed.workload.numa)) == ""
        fewest = min(fewest, slots(trial, esx, profile))
    return fewest


def reserved_slots_stay(draws: st.DataObject) -> None:
    board, mode = draws.draw(st.sampled_from(MODELS))
    esx = host("esx-1", gpu(FIRST, board, 0, mode), gpu(SECOND, board, 1, mode))
    names = [offer.name for offer in esx.profiles or () if offer.name.endswith("c") and catalog().profile(offer.name)]
    names = [name for name in names if (facts := catalog().profile(name)) and facts.mig_backed is (board != "l40s")]
    world = SmallVcenter({esx.ref: esx})
    for number, name in enumerate(draws.draw(st.lists(st.sampled_from(names), max_size=5), "ran"), 1):
        world.start(vm(number, f"vm-{number}", "1", f"vgpu {name}", memory_mib=1024))
    for ref in draws.draw(st.sets(st.sampled_from([*world.running, ""])), "stopped") - {""}:
        del world.running[ref], world.vms[ref]
    few = draws.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True), "asked for")
    wishes = draws.draw(st.lists(st.sampled_from(few), min_size=1, max_size=4), "requests")
    profile = draws.draw(st.sampled_from(names), "reserved")
    free = slots(world, esx, profile)
    assume(free)
    reserved = draws.draw(st.integers(1, free), "so many")
    request = Place(
        tuple(Workload(f"w-{number}", 1, 1024, wish) for number, wish in enumerate(wishes)),
        pin=draws.draw(st.sampled_from(list(PinPolicy))),
        optimize=draws.draw(st.booleans()),
    )
    placements = request.placements(seen_with(world, esx, profile, reserved), catalog())
    # A plan that names what it is not certain of is not held to it.
    assume(not placements.doubts and not any(placed.placement.doubts for placed in placements.placed))
    assert fewest_left(placements, world, esx, profile) >= reserved


@QUICK
@given(st.data())
def test_reserved_slots_are_left_in_every_order(draws: st.DataObject) -> None:
    reserved_slots_stay(draws)


@pytest.mark.long
@LONG
@given(st.data())
def test_reserved_slots_are_left_in_every_order_in_many_worlds(draws: st.DataObject) -> None:
    reserved_slots_stay(draws)


@pytest.mark.parametrize("pin", PinPolicy)
def test_vms_that_find_a_gpu_in_any_order_are_pinned_where_another_gpu_has_reserved_slots(pin: PinPolicy) -> None:
    """Both start in any order; but if the small one comes first, the large one is put on the second GPU, whose only
    slot for 7-40c is reserved.
    """
    mig = VgpuMode.MULTI_INSTANCE
    esx = host("esx-1", gpu(FIRST, "a100", 0, mig), gpu(SECOND, "a100", 1, mig))
    world = SmallVcenter({esx.ref: esx})
    assert world.start(vm(1, "vm-1", "1", "vgpu grid_a100-4-20c", memory_mib=1024)) == ""
    requests = tuple(
        Workload(f"w-{number}", 1, 1024, f"grid_a100-{size}") for number, size in enumerate(("2-10c", "1-10c"))
    )
    free = Place(requests, pin=pin).placements(world.inventory(inventory([], [])), catalog())
    assert {placed.steering for placed in free.placed} == {Steering.ANY_ORDER}, "nothing is reserved: any GPU will do"
    placements = Place(requests, pin=pin).placements(seen_with(world, esx, "grid_a100-7-40c", 1), catalog())
    assert len(placements.placed) == 2
    assert fewest_left(placements, world, esx, "grid_a100-7-40c") == 1
    steered = {placed.steering for placed in placements.placed}
    assert steered == {Steering.LISTED_ORDER}
    assert all(bool(placed.placement.pins) is (pin is PinPolicy.AUTO) for placed in placements.placed)
