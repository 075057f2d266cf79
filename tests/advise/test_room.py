"""Room on a GPU where the places of vGPUs are unknown: bounds that hold in every case."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.advise.capacity import Shape, Slots, Spread, free_slots, spread
from gpuops.advise.occupancy import GpuState, Rooms, gpu_states, room_for
from gpuops.model.devices.gpu import GpuHealth, PciAddress, VgpuMode
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.vm_demand import WantsVgpu
from tests.plan.snapshots import FIRST, SECOND, catalog, gpu, host, inventory, on_gpu, vm

WHOLE, HALF, EIGHTH = "grid_a100-7-40c", "grid_a100-4-20c", "grid_a100-1-5c"
TOLD_NOT = "depends on which vGPUs run on it, which vCenter does not tell"


def pair(*vms: str, mode: VgpuMode = VgpuMode.MULTI_INSTANCE) -> Host:
    """Two A100 that list the same VMs."""
    esx = host("esx-1", gpu(FIRST, "a100", 0, mode), gpu(SECOND, "a100", 1, mode))
    return on_gpu(on_gpu(esx, FIRST, *vms), SECOND, *vms)


def with_lost_gpus(esx: Host) -> Host:
    return replace(esx, gpus=tuple(replace(gpu, health=GpuHealth(is_lost=True)) for gpu in esx.gpus))


def running(number: int, *profiles: str) -> Vm:
    return vm(number, f"ml-{number}", "1", *(f"vgpu {profile}" for profile in profiles), power=PowerState.ON)


def states(esx: Host, *vms: Vm) -> tuple[GpuState, ...]:
    return gpu_states(esx, inventory([esx], vms), catalog())


def rooms(esx: Host, profile: str, *vms: Vm) -> list[Slots]:
    return [room_for(state, profile, catalog()) for state in states(esx, *vms)]


def ranges(esx: Host, profile: str, *vms: Vm) -> list[Slots]:
    return [Rooms(catalog()).on(state, (profile,))[profile] for state in states(esx, *vms)]


@pytest.mark.parametrize(
    ("profile", "bounds"),
    [
        (WHOLE, Slots(0, 0, "no GPU instance 7g.40gb fits beside the 1 there")),  # one GPU is full, the other is begun
        (HALF, Slots(0, 1, TOLD_NOT)),
        (EIGHTH, Slots(0, 6, TOLD_NOT)),
    ],
)
def test_all_that_may_be_here_is_more_than_the_gpu_holds(profile: str, bounds: Slots) -> None:
    """Both GPUs list a VM with 7g and 1g, which no GPU holds together: what must be here still bounds the room."""
    esx, big = pair("vm-1"), running(1, WHOLE, EIGHTH)
    assert all(free_slots(s.gpu, s.holders, profile, catalog()).at_most is None for s in states(esx, big))
    assert rooms(esx, profile, big) == ranges(esx, profile, big) == [bounds, bounds]


def test_answers_for_many_gpus_are_those_for_each_alone() -> None:
    """GPUs that look alike share an answer; those that differ in mode or in what is on them do not."""
    many = Rooms(catalog())
    kinds = [
        (pair("vm-1"), running(1, WHOLE, EIGHTH)),
        (pair("vm-1"), running(1, EIGHTH, EIGHTH)),
        (pair(), running(1)),
        (pair(mode=VgpuMode.SAME_SIZE), running(1)),
        (with_lost_gpus(pair()), running(1)),
    ]
    for esx, its in kinds:
        for state in states(esx, its):
            many.on(state, (HALF, EIGHTH))  # ranges are kept apart
            alone = {profile: room_for(state, profile, catalog()) for profile in (HALF, EIGHTH)}
            assert many.on_if_full(state, (HALF, EIGHTH)) == alone
            assert many.on_if_full(state, (HALF, EIGHTH)) is many.on_if_full(state, (HALF, EIGHTH))


def test_what_cannot_fit_however_it_lies_is_refused() -> None:
    esx, big, new = pair("vm-1"), running(1, WHOLE, EIGHTH), vm(7, "ml-07", "1")
    world = inventory([esx], [big, new])
    refused = seat(new, [WantsVgpu(0, WHOLE)], esx, world, catalog())
    assert [rejection.rule for rejection in refused.rejections] == [
        f"no slot for {WHOLE} can be promised: vCenter does not report which vGPUs of ml-1 run on it"
    ] * 2
    doubted = seat(new, [WantsVgpu(0, HALF)], esx, world, catalog())
    assert (doubted.complete, doubted.doubts) == (True, (f"esx-1 {FIRST}: {TOLD_NOT}",))


def test_a_second_vm_on_the_gpu_settles_which_set_there_can_be() -> None:
    """7g beside the certain 1g of another VM cannot be: that GPU has the two 1g, and room for a 4g for certain."""
    esx = on_gpu(pair("vm-1"), FIRST, "vm-1", "vm-2")
    first, second = rooms(esx, HALF, running(1, WHOLE, EIGHTH), running(2, EIGHTH))
    assert (first.at_most, second.at_most) == (1, 1)
    assert rooms(esx, WHOLE, running(1, WHOLE, EIGHTH), running(2, EIGHTH))[0].at_most == 0


def test_a_place_is_promised_on_the_worst_case_and_capacity_is_a_range() -> None:
    """In same-size mode two sizes are on two GPUs, and which is where is not told."""
    esx, wide_vm = pair("vm-1", mode=VgpuMode.SAME_SIZE), running(1, "grid_a100-20c", "grid_a100-10c")
    for profile, most in (("grid_a100-20c", 1), ("grid_a100-10c", 3), ("grid_a100-5c", 0)):
        assert [slots.at_most for slots in rooms(esx, profile, wide_vm)] == [0, 0]
        assert [(slots.at_least, slots.at_most) for slots in ranges(esx, profile, wide_vm)] == [(0, most)] * 2


def test_facts_that_contradict_each_other_stay_unknown() -> None:
    """A VM on one GPU alone with more than it holds: the mode or the catalogue is wrong, and no figure is right."""
    esx = on_gpu(host("esx-1", gpu(FIRST, "a100", 0, VgpuMode.MULTI_INSTANCE)), FIRST, "vm-1")
    (slots,) = rooms(esx, EIGHTH, running(1, HALF, HALF))
    assert slots == Slots(0, None, "the GPU instances of its 2 vGPUs cannot all be on it")


@given(st.lists(st.sampled_from([WHOLE, HALF, "grid_a100-3-20c", "grid_a100-2-10c", EIGHTH]), min_size=2, max_size=4))
def test_the_truth_is_always_within_the_bounds(profiles: list[str]) -> None:
    """Every way to spread the VM's vGPUs over two GPUs, each with one at least, that the GPUs can hold."""
    esx, big = pair("vm-1"), running(1, *profiles)
    seen_states = states(esx, big)
    device = esx.gpus[0]
    for profile in (WHOLE, HALF, EIGHTH):
        bounds = dict(zip((PciAddress.parse(FIRST), PciAddress.parse(SECOND)), ranges(esx, profile, big), strict=True))
        for choice in product((0, 1), repeat=len(profiles)):
            split = [[p for p, at in zip(profiles, choice, strict=True) if at == index] for index in (0, 1)]
            truths = [free_slots(device, tenants, profile, catalog()) for tenants in split]
            if not all(split) or any(truth.contradictory for truth in truths):
                continue
            for state, truth in zip(seen_states, truths, strict=True):
                assert truth.at_most is not None
                slots = bounds[state.gpu.address]
                assert slots.at_least <= truth.at_least
                assert slots.at_most is None or truth.at_most <= slots.at_most


# A100/H100 class, in memory slices.
ONE, DOUBLE, TWO = Shape(1, tuple(range(7))), Shape(2, (0, 2, 4, 6)), Shape(2, (0, 2, 4))
THREE, FOUR, SEVEN = Shape(4, (0, 4)), Shape(4, (0,)), Shape(8, (0,))
MIG = (ONE, DOUBLE, TWO, THREE, FOUR, SEVEN)


# A 24 GB board in mixed-size mode, in GB.
MIXED = (
    Shape(24, (0,)),
    Shape(12, (0, 12)),
    Shape(8, (0, 16)),
    Shape(6, (0, 6, 12, 18)),
    Shape(4, (0, 8, 12, 20)),
)


def test_what_cannot_be_there_together_leaves_no_answer() -> None:
    assert spread(ONE, (FOUR, FOUR)) is None
    assert spread(ONE, (SEVEN, ONE)) is None


def test_too_many_ways_leave_no_answer() -> None:
    several = tuple(Shape(1, tuple(range(offset, 64, 8))) for offset in range(8))
    assert spread(Shape(8, (0, 8)), several * 3) is None


def by_trying(new_shape: Shape, placed: list[Shape]) -> Spread | None:
    rooms = []
    for starts in product(*(shape.starts for shape in placed)):
        spans = sorted((start, start + shape.size) for start, shape in zip(starts, placed, strict=True))
        if any(later[0] < earlier[1] for earlier, later in pairwise(spans)):
            continue
        rooms.append(
            sum(
                all(begin >= end or begin + new_shape.size <= start for start, end in spans)
                for begin in new_shape.starts
            )
        )
    return Spread(min(rooms), max(rooms)) if rooms else None


@given(
    st.sampled_from([MIG, MIXED]).flatmap(
        lambda shapes: st.tuples(st.sampled_from(shapes), st.lists(st.sampled_from(shapes), max_size=4))
    )
)
def test_it_is_what_trying_every_place_finds(case: tuple[Shape, list[Shape]]) -> None:
    shape, placed = case
    assert spread(shape, tuple(placed)) == by_trying(shape, placed)
