"""MIG geometry, on the A100/H100 class written out here and on properties of any set."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.model.devices.mig import (
    InstancePlacement,
    InstanceProfile,
    MigGeometry,
    Variant,
    arrangements,
    fits,
    free_starts,
    overlap,
)
from gpuops.model.devices.vgpu import Verified
from tests.model.mig_sets import maximal_sets


def kind(
    name: str, compute: int, memory: int, starts: Sequence[int], variant: Variant = Variant.PLAIN
) -> InstanceProfile:
    return InstanceProfile(name, None, compute, memory, tuple(starts), len(starts), variant)


ONE = kind("1g", 1, 1, range(7))
ONE_MEDIA = kind("1g+me", 1, 1, range(7), Variant.MEDIA)
ONE_DOUBLE = kind("1g.double", 1, 2, (0, 2, 4, 6))
TWO = kind("2g", 2, 2, (0, 2, 4))
THREE = kind("3g", 3, 4, (0, 4))
FOUR = kind("4g", 4, 4, (0,))
SEVEN = kind("7g", 7, 8, (0,))
A100 = MigGeometry("a100", 7, 7, 8, (ONE, ONE_MEDIA, ONE_DOUBLE, TWO, THREE, FOUR, SEVEN), Verified.DOC)

placements = st.sampled_from(A100.profiles).flatmap(
    lambda profile: st.sampled_from(profile.starts).map(lambda start: InstancePlacement(profile, start))
)
wishes = st.lists(st.sampled_from(A100.profiles), max_size=9)


def grow(profiles: Sequence[InstanceProfile], pick: int) -> list[InstancePlacement]:
    """A legal set: each wish placed at one of its free starts, or left out when it has none."""
    placements: list[InstancePlacement] = []
    for profile in profiles:
        if free := free_starts(profile, placements, A100):
            placements.append(InstancePlacement(profile, free[pick % len(free)]))
    return placements


def test_where_the_three_slice_instance_starts_decides_what_is_left() -> None:
    assert free_starts(ONE, [InstancePlacement(THREE, 0)], A100) == (4, 5, 6)
    assert free_starts(ONE, [InstancePlacement(THREE, 4)], A100) == (0, 1, 2, 3)


def test_the_media_engines_are_owned_once() -> None:
    placements = [InstancePlacement(ONE_MEDIA, 0)]
    assert free_starts(ONE_MEDIA, placements, A100) == ()
    assert free_starts(ONE, placements, A100) == (1, 2, 3, 4, 5, 6)
    all_media = kind("1g+me.all", 1, 1, range(7), Variant.ALL_MEDIA)
    assert free_starts(all_media, placements, A100) == ()


def test_a_start_that_is_not_offered_does_not_fit() -> None:
    assert fits([InstancePlacement(TWO, 2)], A100)
    assert not fits([InstancePlacement(TWO, 1)], A100)
    assert not fits([InstancePlacement(THREE, 2)], A100)


def test_no_more_instances_than_the_gpu_has_slots() -> None:
    crowded = MigGeometry("small", 2, 7, 8, A100.profiles, Verified.DOC)
    assert fits([InstancePlacement(ONE, 0), InstancePlacement(ONE, 1)], crowded)
    assert not fits([InstancePlacement(ONE, 0), InstancePlacement(ONE, 1), InstancePlacement(ONE, 2)], crowded)


def test_no_more_compute_slices_than_the_gpu_has() -> None:
    assert not fits([InstancePlacement(FOUR, 0), InstancePlacement(kind("4g.odd", 4, 4, (4,)), 4)], A100)


def test_an_instance_is_found_by_name() -> None:
    assert A100.profile("3g") is THREE
    assert A100.profile("5g") is None


@pytest.mark.parametrize(
    ("first", "second", "clash"),
    [
        (InstancePlacement(THREE, 0), InstancePlacement(THREE, 4), False),
        (InstancePlacement(FOUR, 0), InstancePlacement(ONE, 3), True),
        (InstancePlacement(ONE, 3), InstancePlacement(FOUR, 0), True),
        (InstancePlacement(TWO, 2), InstancePlacement(TWO, 2), True),
        (InstancePlacement(SEVEN, 0), InstancePlacement(ONE, 6), True),
        (InstancePlacement(ONE, 1), InstancePlacement(TWO, 2), False),
    ],
)
def test_overlap(first: InstancePlacement, second: InstancePlacement, clash: bool) -> None:
    assert overlap(first, second) is clash


def test_arrangements_are_all_legal_ones_each_once() -> None:
    assert list(arrangements([THREE, THREE], A100)) == [(InstancePlacement(THREE, 0), InstancePlacement(THREE, 4))]
    assert len(list(arrangements([THREE, ONE], A100))) == 3 + 4
    assert len(list(arrangements([ONE, ONE], A100))) == 7 * 6 / 2
    assert list(arrangements([FOUR, FOUR], A100)) == []
    assert list(arrangements([], A100)) == [()]


def test_the_sets_nothing_can_be_added_to() -> None:
    without_media = [profile for profile in A100.profiles if not profile.variant.owns_media]
    sets = maximal_sets(A100, without_media)
    assert len(sets) == 38
    # NVIDIA's mig-parted calls this set "all-balanced"; with 3g at 4 it fills the GPU.
    assert ("1g", "1g", "2g", "3g") in sets
    assert ("7g",) in sets
    assert ("3g", "4g") in sets
    assert ("1g",) * 6 not in sets
    assert len(maximal_sets(A100, [profile for profile in without_media if profile is not ONE_DOUBLE])) == 14


@given(placements, placements)
def test_overlap_is_sharing_a_slice(first: InstancePlacement, second: InstancePlacement) -> None:
    shared = set(range(first.start, first.end)) & set(range(second.start, second.end))
    assert overlap(first, second) == overlap(second, first) == bool(shared)


@given(wishes, st.integers(0, 100))
def test_whatever_grows_from_free_starts_is_legal(profiles: list[InstanceProfile], pick: int) -> None:
    placements = grow(profiles, pick)
    slices = [number for placement in placements for number in range(placement.start, placement.end)]
    assert len(slices) == len(set(slices))
    assert set(slices) <= set(range(A100.memory_slices))
    assert sum(placement.profile.variant is Variant.MEDIA for placement in placements) <= 1
    assert fits(placements, A100)


@given(wishes, st.integers(0, 100), st.sampled_from(A100.profiles))
def test_free_starts_are_the_ones_that_fit_and_no_others(
    profiles: list[InstanceProfile], pick: int, profile: InstanceProfile
) -> None:
    placements = grow(profiles, pick)
    free = free_starts(profile, placements, A100)
    for start in range(A100.memory_slices):
        assert fits([*placements, InstancePlacement(profile, start)], A100) == (start in free)


@given(st.lists(placements, max_size=8))
def test_on_this_class_non_overlapping_placements_never_run_out_of_compute(several: list[InstancePlacement]) -> None:
    alone = all(not overlap(first, second) for index, first in enumerate(several) for second in several[:index])
    if alone:
        assert sum(placement.profile.compute_slices for placement in several) <= A100.compute_slices


@given(wishes)
def test_a_set_has_an_arrangement_if_it_grew(profiles: list[InstanceProfile]) -> None:
    grown = grow(profiles, 0)
    arrangement = next(arrangements([placement.profile for placement in grown], A100), None)
    assert arrangement is not None
    assert fits(arrangement, A100)
