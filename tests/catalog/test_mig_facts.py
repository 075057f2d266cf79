"""MIG and mixed-size mode in the catalogue against what NVIDIA documents: instances, counts and placements."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gpuops.model.devices.catalog import Board, Generation, MixedSizeRule
from gpuops.model.devices.mig import InstancePlacement, InstanceProfile, Variant, fits, overlap
from gpuops.model.devices.vgpu import Verified, VgpuProfile
from tests.catalog.vendor_rules import BOARDS, CATALOG, GEOMETRIES, MIG_BACKED, TIME_SLICED, by_key, power_of_two
from tests.model.mig_sets import maximal_sets


def plain_kinds(family: str) -> list[InstanceProfile]:
    """The kinds a set is made of: without media variants; graphics ones where vGPU knows no other."""
    profiles = GEOMETRIES[family].profiles
    plain = [profile for profile in profiles if profile.variant is Variant.PLAIN]
    return plain or [profile for profile in profiles if profile.variant is Variant.GRAPHICS]


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("family", sorted(GEOMETRIES))
def test_maximal_mig_sets(family: str) -> None:
    geometry = GEOMETRIES[family]
    expected = {
        "a30-24gb": 4,
        "rtx-pro-6000-96gb": 4,
        "rtx-pro-4500-32gb": 2,
        "rtx-6000d-84gb": 2,
    }.get(family, 38)
    assert len(maximal_sets(geometry, plain_kinds(family))) == expected
    if expected == 38:
        single = [kind for kind in plain_kinds(family) if (kind.compute_slices, kind.memory_slices) != (1, 2)]
        assert len(maximal_sets(geometry, single)) == 14


@pytest.mark.parametrize(
    ("family", "balanced"),
    [
        ("a100-40gb", ("1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb")),
        ("h100-80gb", ("1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb")),
        ("a30-24gb", ("1g.6gb", "1g.6gb", "2g.12gb")),
        ("rtx-pro-6000-96gb", ("1g.24gb", "1g.24gb", "2g.48gb")),
    ],
)
def test_the_balanced_sets_of_nvidias_own_tool_are_maximal(family: str, balanced: tuple[str, ...]) -> None:
    assert balanced in maximal_sets(GEOMETRIES[family], plain_kinds(family))


@pytest.mark.parametrize("family", sorted(GEOMETRIES))
def test_each_kind_of_instance_fits_as_often_as_documented(family: str) -> None:
    geometry = GEOMETRIES[family]
    for kind in geometry.profiles:
        assert all(start + kind.memory_slices <= geometry.memory_slices for start in kind.starts), kind.name
        side_by_side: list[InstancePlacement] = []
        for start in kind.starts:
            if fits([*side_by_side, InstancePlacement(kind, start)], geometry):
                side_by_side.append(InstancePlacement(kind, start))
        assert len(side_by_side) == kind.max_count, kind.name


@pytest.mark.parametrize("family", sorted(GEOMETRIES))
def test_placements_that_do_not_overlap_never_exceed_the_compute_slices(family: str) -> None:
    geometry = GEOMETRIES[family]
    places = [InstancePlacement(kind, start) for kind in plain_kinds(family) for start in kind.starts]
    most = 0

    def grow(chosen: list[InstancePlacement], remaining: list[InstancePlacement]) -> None:
        nonlocal most
        most = max(most, sum(place.profile.compute_slices for place in chosen))
        for index, place in enumerate(remaining):
            if not any(overlap(place, chosen_place) for chosen_place in chosen):
                grow([*chosen, place], remaining[index + 1 :])

    grow([], places)
    assert most == geometry.compute_slices


@pytest.mark.parametrize(
    ("family", "name", "number", "starts"),
    [
        ("a100-40gb", "1g.5gb", 19, (0, 1, 2, 3, 4, 5, 6)),
        ("a100-40gb", "1g.5gb+me", 20, (0, 1, 2, 3, 4, 5, 6)),
        ("a100-40gb", "1g.10gb", 15, (0, 2, 4, 6)),
        ("a100-40gb", "2g.10gb", 14, (0, 2, 4)),
        ("h100-80gb", "3g.40gb", 9, (0, 4)),
        ("h100-80gb", "4g.40gb", 5, (0,)),
        ("h100-80gb", "7g.80gb", 0, (0,)),
        ("a30-24gb", "2g.12gb", 5, (0, 2)),
        ("rtx-pro-6000-96gb", "1g.24gb+gfx", 47, (0, 3, 6, 9)),
        ("rtx-pro-6000-96gb", "2g.48gb+gfx", 35, (0, 6)),
        ("rtx-pro-6000-96gb", "1g.24gb-me", 67, (0, 3, 6, 9)),
    ],
)
def test_printed_instance_profiles(family: str, name: str, number: int, starts: tuple[int, ...]) -> None:
    kind = GEOMETRIES[family].profile(name)
    assert kind is not None
    assert (kind.id, kind.starts) == (number, starts)


def test_gpus_with_mig() -> None:
    with_mig = {board.key for board in BOARDS if board.mig}
    assert with_mig >= {"a30", "a100", "a800", "h100", "h800", "h20", "h200", "gh200", "b200x", "b300x", "rtx-pro-6000"}
    assert not with_mig & {"a40", "a10", "a16", "a2", "l4", "l40", "l40s", "rtxa6000", "rtx6000-ada", "t4"}


def test_mig_backed_profiles_stand_on_an_instance_of_their_board() -> None:
    for board, profile in MIG_BACKED:
        assert board.mig is not None
        assert profile.mig_profile is not None
        instance = board.mig.profile(profile.mig_profile)
        assert instance is not None, profile.short_name
        assert instance.usable_for_vgpu, profile.short_name
        assert profile.max_per_gpu_instance is not None
        assert profile.max_per_gpu == instance.max_count * profile.max_per_gpu_instance, profile.short_name
        assert (profile.compute_slices, profile.memory_slices) == (instance.compute_slices, instance.memory_slices)
        assert profile.max_per_gpu_mixed is None


def test_only_blackwell_graphics_boards_share_a_gpu_instance() -> None:
    sharing = {board.key for board, profile in MIG_BACKED if (profile.max_per_gpu_instance or 0) > 1}
    assert sharing == {"rtx-pro-6000", "rtx-pro-4500"}
    profile = CATALOG.profile("nvidia_rtx_pro_6000_blackwell_dc-1-2q")
    assert profile is not None
    assert (profile.max_per_gpu_instance, profile.max_per_gpu) == (12, 48)


def test_mixed_size_counts_follow_the_rule_of_their_board() -> None:
    checked = 0
    for board, profile in TIME_SLICED:
        match board.mixed_size_rule:
            case MixedSizeRule.POWER_OF_TWO:
                assert profile.max_per_gpu_mixed == power_of_two(board, profile), profile.name
            case MixedSizeRule.SAME_AS_EQUAL_SIZE:
                assert profile.max_per_gpu_mixed in (profile.max_per_gpu, None), profile.name
            case MixedSizeRule.PRINTED | None:
                continue
        checked += 1
    assert checked > 500


def test_the_printed_mixed_size_table_of_h20() -> None:
    [board] = by_key("h20")
    assert {profile.short_name: profile.max_per_gpu_mixed for profile in board.profiles if not profile.mig_backed} == {
        "H20-96C": 1,
        "H20-48C": 2,
        "H20-32C": None,
        "H20-24C": 2,
        "H20-16C": 4,
        "H20-12C": 4,
        "H20-8C": None,
        "H20-6C": 8,
        "H20-4C": 8,
    }


def leaf_starts(board: Board, profile: VgpuProfile) -> tuple[int, ...]:
    """Equal leaves; an even leaf is filled from its left edge, an odd one up to its right edge."""
    count = profile.max_per_gpu_mixed
    assert count is not None
    memory_gb, size_gb = board.framebuffer_mib // 1024, profile.framebuffer_mib // 1024
    return tuple(
        leaf * memory_gb // count if leaf % 2 == 0 else (leaf + 1) * memory_gb // count - size_gb
        for leaf in range(count)
    )


def test_mixed_size_starts_follow_the_generator_rule() -> None:
    checked = 0
    for board, profile in TIME_SLICED:
        if not profile.placement_ids_mixed:
            continue
        size_gb = profile.framebuffer_mib // 1024
        if board.mixed_size_rule is MixedSizeRule.POWER_OF_TWO:
            assert profile.placement_ids_mixed == leaf_starts(board, profile), profile.name
        else:
            assert profile.placement_ids_mixed == tuple(range(0, len(profile.placement_ids_mixed) * size_gb, size_gb))
        checked += 1
    assert checked > 500


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("nvidia_l40-4c", (0, 8, 12, 20, 24, 32, 36, 44)),
        ("nvidia_l40-8c", (0, 16, 24, 40)),
        ("nvidia_l40-16c", (0, 32)),
        ("grid_a100d-8c", (0, 12, 20, 32, 40, 52, 60, 72)),
        ("nvidia_rtx_pro_6000_blackwell_dc-32c", (0, 32, 64)),
    ],
)
def test_printed_mixed_size_starts(name: str, starts: tuple[int, ...]) -> None:
    profile = CATALOG.profile(name)
    assert profile is not None
    assert profile.placement_ids_mixed == starts
    assert profile.verified_placement is Verified.DOC


# Start offsets by board memory and profile size, GB, as printed (NVIDIA vGPU types).
PRINTED_STARTS: dict[int, dict[int, tuple[int, ...]]] = {
    94: {
        47: (0, 47),
        23: (0, 24, 47, 71),
        15: (0, 32, 47, 79),
        11: (0, 12, 23, 36, 47, 59, 70, 83),
        6: (0, 17, 23, 41, 47, 64, 70, 88),
        4: (0, 7, 11, 19, 23, 31, 35, 43, 47, 54, 58, 66, 70, 78, 82, 90),
    },
    80: {
        40: (0, 40),
        20: (0, 20, 40, 60),
        16: (0, 24, 40, 64),
        10: tuple(range(0, 80, 10)),
        8: (0, 12, 20, 32, 40, 52, 60, 72),
        5: tuple(range(0, 80, 5)),
        4: (0, 6, 10, 16, 20, 26, 30, 36, 40, 46, 50, 56, 60, 66, 70, 76),
    },
    64: {32: (0, 32), 16: (0, 16, 32, 48), 8: tuple(range(0, 64, 8)), 4: tuple(range(0, 64, 4))},
    40: {20: (0, 20), 10: (0, 10, 20, 30), 8: (0, 12, 20, 32), 5: tuple(range(0, 40, 5))},
    24: {12: (0, 12), 8: (0, 16), 6: (0, 6, 12, 18), 4: (0, 8, 12, 20), 2: (0, 4, 6, 10, 12, 16, 18, 22)},
    20: {10: (0, 10), 5: (0, 5, 10, 15), 4: (0, 6, 10, 16), 2: (0, 3, 5, 8, 10, 13, 15, 18)},
    16: {8: (0, 8), 4: (0, 4, 8, 12), 2: tuple(range(0, 16, 2)), 1: tuple(range(16))},
}


def test_the_printed_table_of_starts_by_memory() -> None:
    checked: set[tuple[int, int]] = set()
    for board, profile in TIME_SLICED:
        if board.mixed_size_rule is not MixedSizeRule.POWER_OF_TWO:
            continue
        memory_gb, size_gb = board.framebuffer_mib // 1024, profile.framebuffer_mib // 1024
        printed = PRINTED_STARTS.get(memory_gb, {}).get(size_gb)
        if printed is not None:
            assert profile.placement_ids_mixed == printed, profile.name
            checked.add((memory_gb, size_gb))
    assert checked == {(memory, size) for memory, sizes in PRINTED_STARTS.items() for size in sizes}


def test_mixed_size_starts_hold_the_documented_count_side_by_side() -> None:
    for board, profile in TIME_SLICED:
        starts, size_gb = profile.placement_ids_mixed, profile.framebuffer_mib / 1024
        if not starts:
            continue
        assert len(starts) == profile.max_per_gpu_mixed, profile.name
        assert all(later - earlier >= size_gb for earlier, later in pairwise(starts)), profile.name
        assert starts[0] >= 0
        assert starts[-1] + size_gb <= board.framebuffer_mib / 1024, profile.name


def test_boards_without_mixed_size_mode_have_no_mixed_size_facts() -> None:
    for board, profile in TIME_SLICED:
        if board.mixed_size_mode is not True:
            assert (profile.max_per_gpu_mixed, profile.placement_ids_mixed) == (None, ()), profile.name
        assert (profile.verified_mixed is None) == (profile.max_per_gpu_mixed is None), profile.name
        assert (profile.verified_placement is None) == (profile.placement_ids_mixed == ()), profile.name


def test_mixed_size_mode_came_with_ampere() -> None:
    for board in BOARDS:
        if board.generation in (Generation.MAXWELL, Generation.PASCAL):
            assert board.mixed_size_mode is False
        elif board.generation in (Generation.VOLTA, Generation.TURING):
            assert board.mixed_size_mode is None
        else:
            assert board.mixed_size_mode is True
