"""The rules of power-on: what starts on a GPU, where, and what is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.sim.state.board import GpuBoard, GpuInstance, GpuMode, VgpuType
from gpuops.sim.state.gpu_admission import (
    GpuLoad,
    NotAdmitted,
    RunningVgpu,
    VgpuPolicy,
    WantedVgpu,
    admit,
    offered_types,
    supported_types,
)


def time_sliced_type(
    name: str, size_gib: int, board_gib: int, starts: tuple[int, ...] = (), series: str = "C"
) -> VgpuType:
    per_vm = 1 if series in "AB" else 16
    return VgpuType(name, size_gib * 1024, series, min(board_gib // size_gib, 32), per_vm, starts)


ONE = GpuInstance("1g.5gb", 1, (0, 1, 2, 3, 4, 5, 6))
ONE_MEDIA = GpuInstance("1g.5gb+me", 1, (0, 1, 2, 3, 4, 5, 6), media=True)
TWO = GpuInstance("2g.10gb", 2, (0, 2, 4))
THREE = GpuInstance("3g.20gb", 4, (0, 4))
FOUR = GpuInstance("4g.20gb", 4, (0,))
SEVEN = GpuInstance("7g.40gb", 8, (0,))

MIG_TYPES = (
    VgpuType("a100-1-5c", 5120, "C", 7, instance=ONE),
    VgpuType("a100-1-5cme", 5120, "C", 1, instance=ONE_MEDIA),
    VgpuType("a100-2-10c", 10240, "C", 3, instance=TWO),
    VgpuType("a100-3-20c", 20480, "C", 2, instance=THREE),
    VgpuType("a100-4-20c", 20480, "C", 1, instance=FOUR),
    VgpuType("a100-7-40c", 40960, "C", 1, instance=SEVEN),
)
A100_SLICED = (
    time_sliced_type("a100-40c", 40, 40, (0,)),
    time_sliced_type("a100-20c", 20, 40, (0, 20)),
    time_sliced_type("a100-8c", 8, 40, (0, 12, 20, 32)),
    time_sliced_type("a100-4c", 4, 40, (0, 6, 10, 16, 20, 26, 30, 36)),
)
AMPERE = GpuBoard("A100", 0x20F1, 0x145F, 40960, MIG_TYPES + A100_SLICED, mixed_size=True)
HOPPER = GpuBoard("H100", 0x2331, 0x1626, 40960, MIG_TYPES + A100_SLICED, mixed_size=True, careful_instances=True)
A40 = GpuBoard(
    "A40",
    0x2235,
    0x145A,
    49152,
    (
        time_sliced_type("a40-48q", 48, 48, series="Q"),
        time_sliced_type("a40-8q", 8, 48, series="Q"),
        time_sliced_type("a40-8c", 8, 48),
        time_sliced_type("a40-4q", 4, 48, series="Q"),
        time_sliced_type("a40-2b", 2, 48, series="B"),
    ),
)


def gpu(pci_id: str, board: GpuBoard = A40, mode: GpuMode = GpuMode.SAME_SIZE, *, serves: bool = True) -> GpuLoad:
    return GpuLoad(pci_id, board, mode, serves)


def fill(
    gpus: tuple[GpuLoad, ...], names: list[str], policy: VgpuPolicy = VgpuPolicy.PERFORMANCE
) -> tuple[list[RunningVgpu], NotAdmitted | None]:
    """Start one VM per name, in order; the seats taken and the refusal that ended it, if one did."""
    seats: list[RunningVgpu] = []
    for number, name in enumerate(names):
        admission = admit(f"vm-{number}", [WantedVgpu(name)], with_seats(gpus, seats), policy)
        if isinstance(admission, NotAdmitted):
            return seats, admission
        seats.extend(admission)
    return seats, None


def with_seats(gpus: tuple[GpuLoad, ...], seats: list[RunningVgpu]) -> tuple[GpuLoad, ...]:
    return tuple(
        GpuLoad(
            gpu.pci_id,
            gpu.board,
            gpu.mode,
            gpu.serves_vgpus,
            tuple(seat for seat in seats if seat.pci_id == gpu.pci_id),
        )
        for gpu in gpus
    )


def test_same_size_takes_the_equal_size_maximum_and_not_one_more() -> None:
    seats, refusal = fill((gpu("3b"),), ["a40-8q"] * 7)
    assert len(seats) == 6
    assert str(refusal) == "3b: 6 of 6 vGPUs run"


def test_first_vgpu_fixes_the_size_until_the_gpu_is_empty() -> None:
    _, refusal = fill((gpu("3b"),), ["a40-8q", "a40-4q"])
    assert str(refusal) == "3b: locked to 8192 MiB vGPUs by vm-0, a40-4q has 4096"


def test_series_of_one_size_share_a_gpu() -> None:
    seats, refusal = fill((gpu("3b"),), ["a40-8q", "a40-8c"])
    assert refusal is None
    assert len(seats) == 2


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(VgpuPolicy.PERFORMANCE, ["3b", "5e", "3b", "5e"]), (VgpuPolicy.CONSOLIDATION, ["3b", "3b", "3b", "3b"])],
)
def test_policy_spreads_or_fills(policy: VgpuPolicy, expected: list[str]) -> None:
    seats, _ = fill((gpu("5e"), gpu("3b")), ["a40-8q"] * 4, policy)
    assert [seat.pci_id for seat in seats] == expected


def test_consolidation_goes_on_to_the_next_gpu_when_the_first_is_full() -> None:
    seats, _ = fill((gpu("3b"), gpu("5e")), ["a40-8q"] * 7, VgpuPolicy.CONSOLIDATION)
    assert [seat.pci_id for seat in seats] == ["3b"] * 6 + ["5e"]


def test_pin_beats_the_policy_and_is_seated_first() -> None:
    admission = admit(
        "vm-0", [WantedVgpu("a40-48q"), WantedVgpu("a40-48q", pin="3b")], (gpu("3b"), gpu("5e")), VgpuPolicy.PERFORMANCE
    )
    assert not isinstance(admission, NotAdmitted)
    assert [seat.pci_id for seat in admission] == ["5e", "3b"]


def test_pin_to_a_gpu_the_host_lacks_is_refused() -> None:
    admission = admit("vm-0", [WantedVgpu("a40-8q", pin="99")], (gpu("3b"),), VgpuPolicy.PERFORMANCE)
    assert str(admission) == "99: pinned to a GPU this host does not have"


def test_gpu_that_is_not_shared_direct_takes_nothing() -> None:
    admission = admit("vm-0", [WantedVgpu("a40-8q")], (gpu("3b", serves=False),), VgpuPolicy.PERFORMANCE)
    assert str(admission) == "3b: does not serve vGPUs (graphics type or passthrough)"


def test_several_vgpus_start_all_or_not_at_all() -> None:
    wishes = [WantedVgpu("a40-48q")] * 3
    assert isinstance(admit("vm-0", wishes, (gpu("3b"), gpu("5e")), VgpuPolicy.PERFORMANCE), NotAdmitted)
    two = admit("vm-0", wishes[:2], (gpu("3b"), gpu("5e")), VgpuPolicy.PERFORMANCE)
    assert not isinstance(two, NotAdmitted)
    assert {seat.pci_id for seat in two} == {"3b", "5e"}


def test_vgpus_of_one_vm_are_of_one_model() -> None:
    gpus = (gpu("3b"), gpu("5e", AMPERE))
    admission = admit("vm-0", [WantedVgpu("a40-8q"), WantedVgpu("a100-8c")], gpus, VgpuPolicy.PERFORMANCE)
    assert str(admission) == "the vGPUs of one VM must be of one GPU model, not A100 and A40"


def test_b_series_is_one_per_vm() -> None:
    admission = admit("vm-0", [WantedVgpu("a40-2b")] * 2, (gpu("3b"),), VgpuPolicy.PERFORMANCE)
    assert str(admission) == "a40-2b: at most 1 in one VM, 2 requested"


@pytest.mark.parametrize(
    ("names", "starts"),
    [
        (["a100-1-5c"] * 7, [0, 1, 2, 3, 4, 5, 6]),
        (["a100-3-20c", "a100-3-20c"], [0, 4]),
        (["a100-4-20c", "a100-2-10c", "a100-1-5c"], [0, 4, 6]),
        (["a100-2-10c", "a100-2-10c", "a100-2-10c", "a100-1-5c"], [0, 2, 4, 6]),
        (["a100-7-40c"], [0]),
    ],
)
def test_mig_takes_the_lowest_start_on_ampere(names: list[str], starts: list[int]) -> None:
    seats, refusal = fill((gpu("3b", AMPERE, GpuMode.MULTI_INSTANCE),), names)
    assert refusal is None
    assert [seat.start for seat in seats] == starts


def test_ampere_loses_the_four_slice_instance_to_a_careless_three() -> None:
    _, refusal = fill((gpu("3b", AMPERE, GpuMode.MULTI_INSTANCE),), ["a100-3-20c", "a100-4-20c"])
    assert str(refusal) == "3b: no GPU instance left for a100-4-20c"


def test_hopper_puts_three_slices_high_and_keeps_the_four_slice_instance() -> None:
    seats, refusal = fill((gpu("3b", HOPPER, GpuMode.MULTI_INSTANCE),), ["a100-3-20c", "a100-4-20c"])
    assert refusal is None
    assert [seat.start for seat in seats] == [4, 0]


def test_one_media_instance_per_gpu() -> None:
    _, refusal = fill((gpu("3b", AMPERE, GpuMode.MULTI_INSTANCE),), ["a100-1-5cme", "a100-1-5c", "a100-1-5cme"])
    assert str(refusal) == "3b: no GPU instance left for a100-1-5cme"


@pytest.mark.parametrize(
    ("mode", "name"),
    [(GpuMode.MULTI_INSTANCE, "a100-20c"), (GpuMode.SAME_SIZE, "a100-3-20c"), (GpuMode.MIXED_SIZE, "a100-3-20c")],
)
def test_mig_and_time_sliced_types_never_share_a_gpu(mode: GpuMode, name: str) -> None:
    admission = admit("vm-0", [WantedVgpu(name)], (gpu("3b", AMPERE, mode),), VgpuPolicy.PERFORMANCE)
    assert str(admission) == f"3b: {name} does not run in mode {mode}"


def test_mixed_size_gives_each_vgpu_a_placement_id_of_its_size() -> None:
    seats, refusal = fill((gpu("3b", AMPERE, GpuMode.MIXED_SIZE),), ["a100-20c", "a100-8c", "a100-4c", "a100-4c"])
    assert refusal is None
    assert sorted((seat.start, seat.type.size_gib) for seat in seats) in (
        [(0, 20), (20, 8), (30, 4), (36, 4)],
        [(0, 4), (6, 4), (12, 8), (20, 20)],
    )


def test_mixed_size_is_refused_when_no_placement_id_is_free() -> None:
    _, refusal = fill((gpu("3b", AMPERE, GpuMode.MIXED_SIZE),), ["a100-4c"] * 8 + ["a100-4c"])
    assert str(refusal) == "3b: no placement id left for a100-4c"


def test_instances_shared_by_several_vgpus_are_filled_before_a_new_one() -> None:
    half = GpuInstance("1g.24gb+gfx", 3, (0, 3, 6, 9))
    board = GpuBoard(
        "DC", 0x2BB5, 0, 98304, (VgpuType("dc-1-12q", 12288, "Q", 8, 1, instance=half, max_per_instance=2),)
    )
    seats, _ = fill((gpu("3b", board, GpuMode.MULTI_INSTANCE),), ["dc-1-12q"] * 8)
    assert [seat.start for seat in seats] == [0, 0, 3, 3, 6, 6, 9, 9]


def test_offer_drops_other_sizes_while_locked_but_not_what_is_full() -> None:
    free = (gpu("3b"),)
    seats, _ = fill(free, ["a40-48q"])
    assert offered_types(with_seats(free, seats)) == ("a40-48q",)
    assert set(offered_types(free)) == {type_.name for type_ in A40.types}
    assert {type_.name for type_ in supported_types(with_seats(free, seats))} == {type_.name for type_ in A40.types}


STARTED = st.lists(st.sampled_from([type_.name for type_ in (*MIG_TYPES, *A100_SLICED)]), min_size=1, max_size=24)


@pytest.mark.long
@given(
    names=STARTED,
    boards=st.sampled_from([AMPERE, HOPPER]),
    mode=st.sampled_from([GpuMode.SAME_SIZE, GpuMode.MIXED_SIZE, GpuMode.MULTI_INSTANCE]),
    policy=st.sampled_from(list(VgpuPolicy)),
)
def test_no_gpu_ever_holds_more_than_it_has(
    names: list[str], boards: GpuBoard, mode: GpuMode, policy: VgpuPolicy
) -> None:
    gpus = (gpu("3b", boards, mode), gpu("5e", boards, mode))
    seats: list[RunningVgpu] = []
    for number, name in enumerate(names):
        admission = admit(f"vm-{number}", [WantedVgpu(name)], with_seats(gpus, seats), policy)
        seats.extend(() if isinstance(admission, NotAdmitted) else admission)
    for loaded_gpu in with_seats(gpus, seats):
        assert sum(seat.type.framebuffer_mib for seat in loaded_gpu.seats) <= loaded_gpu.board.framebuffer_mib
        if mode is GpuMode.SAME_SIZE:
            assert len({seat.type.framebuffer_mib for seat in loaded_gpu.seats}) <= 1
            continue
        spans = sorted((seat.start or 0, (seat.start or 0) + width(seat, mode)) for seat in loaded_gpu.seats)
        assert all(lower[1] <= upper[0] for lower, upper in pairwise(spans))
        assert sum(seat.type.instance == ONE_MEDIA for seat in loaded_gpu.seats) <= 1


def width(seat: RunningVgpu, mode: GpuMode) -> int:
    if mode is GpuMode.MIXED_SIZE:
        return seat.type.size_gib
    assert seat.type.instance is not None
    return seat.type.instance.size


def test_the_smallest_limit_of_what_runs_is_the_limit() -> None:
    """Types of one size may differ in how many run; the GPU takes no more than any of them allows."""
    few, many = VgpuType("few-8a", 8192, "A", 2, 1), VgpuType("many-8c", 8192, "C", 6, 16)
    board = GpuBoard("mixed", 0x2235, 0x145A, 49152, (few, many))
    seats = (RunningVgpu("vm-1", "3b", few), RunningVgpu("vm-2", "3b", many))
    refused = admit(
        "vm-3",
        [WantedVgpu("many-8c")],
        [GpuLoad("3b", board, GpuMode.SAME_SIZE, serves_vgpus=True, seats=seats)],
        VgpuPolicy.PERFORMANCE,
    )
    assert isinstance(refused, NotAdmitted)
    assert str(refused) == "3b: 2 of 2 vGPUs run"
