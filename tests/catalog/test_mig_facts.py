"""MIG in the catalogue against what NVIDIA documents: instances, their sets, and the profiles that they back."""

from __future__ import annotations

import pytest

from gpuops.model.devices.mig import InstancePlacement, InstanceProfile, Variant, fits, overlap
from tests.catalog.vendor_rules import BOARDS, CATALOG, GEOMETRIES, MIG_BACKED
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
