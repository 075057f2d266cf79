"""Every GPU of the catalogue in the simulated ESXi: it holds as many vGPUs of each type as NVIDIA's tables say."""

from __future__ import annotations

import pytest

from gpuops.catalog import load
from gpuops.errors import PolicyError
from gpuops.sim.state.board import GpuBoard, GpuMode, Sharing, VgpuType, board
from gpuops.sim.state.gpu_admission import GpuLoad, NotAdmitted, RunningVgpu, VgpuPolicy, WantedVgpu, admit

CATALOG = load(everything=True)
KEYS = [board.key for board in CATALOG.boards]


def capacity(model: GpuBoard, type_: VgpuType, mode: GpuMode) -> int:
    """How many VMs with one vGPU of that type start on one empty GPU."""
    seats: tuple[RunningVgpu, ...] = ()
    while True:
        gpu = GpuLoad("0000:3b:00.0", model, mode, True, seats)
        admission = admit(f"vm-{len(seats)}", [WantedVgpu(type_.name)], [gpu], VgpuPolicy.PERFORMANCE)
        if isinstance(admission, NotAdmitted):
            return len(seats)
        seats += admission


@pytest.mark.quick_cases(12)
@pytest.mark.parametrize("key", KEYS)
def test_one_gpu_holds_what_the_tables_say(key: str) -> None:
    model, facts = board(key), CATALOG.board(key)
    assert facts is not None
    expected, counted = {}, {}
    for profile in facts.profiles:
        type_ = model.by_name[profile.name]
        mode = GpuMode.MULTI_INSTANCE if type_.sharing is Sharing.MIG else GpuMode.SAME_SIZE
        expected[profile.name], counted[profile.name] = profile.max_per_gpu, capacity(model, type_, mode)
        if model.mixed_size and type_.starts_gib:
            name = f"{profile.name} mixed"
            expected[name], counted[name] = len(type_.starts_gib), capacity(model, type_, GpuMode.MIXED_SIZE)
    assert counted == expected


def test_only_large_boards_since_ampere_have_mixed_size() -> None:
    assert [board(key).mixed_size for key in ("p40", "a40", "h100")] == [False, True, True]
    assert [board(key).careful_instances for key in ("a100", "h100", "rtx-pro-6000")] == [False, True, True]


def test_unknown_board_is_said() -> None:
    with pytest.raises(PolicyError, match="no GPU 'nope'"):
        board("nope")
