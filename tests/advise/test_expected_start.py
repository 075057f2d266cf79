"""Where a vGPU is expected to start: beside what the simulator's own admission does, and what is free then."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.advise.capacity import free_slots
from gpuops.advise.occupancy import GpuState, Tenant, expected_start, with_expected
from gpuops.model.devices.gpu import VgpuMode
from gpuops.sim.state.board import GpuMode, board
from gpuops.sim.state.gpu_admission import GpuLoad, NotAdmitted, VgpuPolicy, WantedVgpu, admit
from tests.plan.snapshots import catalog, gpu

MODES = {VgpuMode.MIXED_SIZE: GpuMode.MIXED_SIZE, VgpuMode.MULTI_INSTANCE: GpuMode.MULTI_INSTANCE}
KINDS = [
    ("a100", VgpuMode.MULTI_INSTANCE),
    ("h100", VgpuMode.MULTI_INSTANCE),
    ("a30", VgpuMode.MULTI_INSTANCE),
    ("rtx-pro-6000", VgpuMode.MULTI_INSTANCE),
    ("l40s", VgpuMode.MIXED_SIZE),
    ("a40", VgpuMode.MIXED_SIZE),
    ("h100", VgpuMode.MIXED_SIZE),
]


def empty(key: str, mode: VgpuMode) -> GpuState:
    """A GPU that was asked what runs on it: nothing."""
    return GpuState(replace(gpu("0000:3b:00.0", key, 0, mode), vgpus=()))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("key", "mode"), KINDS)
@given(draws=st.data())
def test_it_is_where_the_host_lets_it_start(key: str, mode: VgpuMode, draws: st.DataObject) -> None:
    """VMs come and go; each start is the one that admission gives, and room is exact."""
    model = board(key)
    names = [type_.name for type_ in model.types_in(MODES[mode]) if type_.name]
    load, state = GpuLoad("0000:3b:00.0", model, MODES[mode], serves_vgpus=True), empty(key, mode)
    for number in range(draws.draw(st.integers(1, 12), "VMs")):
        goes: bool = draws.draw(st.booleans(), "one goes")
        if load.seats and goes:
            stopped_vm = draws.draw(st.sampled_from([seat.vm for seat in load.seats]), "which")
            load = replace(load, seats=tuple(seat for seat in load.seats if seat.vm != stopped_vm))
            state = state.without(stopped_vm)
        name = draws.draw(st.sampled_from(names), "profile")
        room = free_slots(state.gpu, state.holders, name, catalog(), state.starts)
        assert room.exact, room
        expected = expected_start(state, name, catalog())
        admitted = admit(f"vm-{number}", [WantedVgpu(name)], [load], VgpuPolicy.PERFORMANCE)
        assert isinstance(admitted, NotAdmitted) is not room.possible
        if isinstance(admitted, NotAdmitted):
            assert expected is None
        else:
            assert (expected,) == tuple(seat.start for seat in admitted)
            load = replace(load, seats=(*load.seats, *admitted))
            state = with_expected(state, Tenant(f"vm-{number}", f"vm-{number}", name), catalog())


def test_nothing_is_expected_where_how_the_others_lie_is_not_known() -> None:
    state = empty("a100", VgpuMode.MULTI_INSTANCE)
    assert expected_start(state, "grid_a100-3-20c", catalog()) == 0
    unknown = state.with_tenants(Tenant("vm-1", "a", "grid_a100-1-5c"))
    assert expected_start(unknown, "grid_a100-3-20c", catalog()) is None
    assert expected_start(GpuState(replace(state.gpu, vgpus=None)), "grid_a100-3-20c", catalog()) is None
    assert expected_start(empty("a40", VgpuMode.SAME_SIZE), "nvidia_a40-8q", catalog()) is None


@pytest.mark.parametrize(("start", "remaining"), [(0, 3), (4, 4), (None, None)])
def test_a_start_that_is_known_makes_room_exact(start: int | None, remaining: int | None) -> None:
    """A 3g at slice 0 leaves three single slices, at slice 4 four (NVIDIA Multi-Instance GPU User Guide)."""
    state = empty("a100", VgpuMode.MULTI_INSTANCE)
    room = free_slots(state.gpu, ["grid_a100-3-20c"], "grid_a100-1-5c", catalog(), [start])
    assert (room.at_least, room.at_most) == ((3, 4) if remaining is None else (remaining, remaining))
