"""Which profiles of a GPU model run together, compared with every placement of GPU instances."""

from __future__ import annotations

from collections import Counter

import pytest

from gpuops.advise.gpu_profiles import mig_sets, profiles_of
from gpuops.catalog import load
from gpuops.model.devices.catalog import Board
from gpuops.model.devices.mig import InstanceProfile, fullest_sets
from gpuops.model.devices.vgpu import Series
from tests.model.mig_sets import maximal_sets

BOARDS = load(everything=True).boards
WITH_MIG = [board for board in BOARDS if board.mig is not None]
ONE_OF_EACH_FAMILY = list({board.mig.family: board for board in WITH_MIG if board.mig}.values())


def fullest_by_placement(board: Board, kinds: tuple[InstanceProfile, ...]) -> set[tuple[int, ...]]:
    """By the sets that some placement leaves no room to add to: those that are no part of another one."""
    assert board.mig is not None
    sets = [Counter(names) for names in maximal_sets(board.mig, kinds)]
    largest = [smaller for smaller in sets if not any(smaller < larger for larger in sets)]
    return {tuple(counts[kind.name] for kind in kinds) for counts in largest}


@pytest.mark.parametrize(
    "board",
    [
        pytest.param(board, marks=() if board.key in ("a30", "rtx-pro-6000") else pytest.mark.long)
        for board in ONE_OF_EACH_FAMILY
    ],
    ids=lambda board: board.key,
)
def test_the_fullest_sets_are_those_of_every_placement(board: Board) -> None:
    assert board.mig is not None
    sets = mig_sets(board.mig)
    assert set(sets.fullest) == fullest_by_placement(board, sets.kinds)


def test_kinds_in_another_order_make_the_same_sets() -> None:
    (board,) = (board for board in BOARDS if board.key == "a30")
    assert board.mig is not None
    kinds = mig_sets(board.mig).kinds
    backwards = fullest_sets(kinds[::-1], board.mig)
    assert {counts[::-1] for counts in backwards} == set(mig_sets(board.mig).fullest)


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("board", WITH_MIG, ids=lambda board: board.key)
def test_every_profile_in_mig_mode_runs_in_a_kind_that_is_shown(board: Board) -> None:
    assert board.mig is not None
    sets = mig_sets(board.mig)
    shown_kinds = {kind.name for kind in (*sets.kinds, *(media for _, media in sets.media_twins))}
    assert {profile.mig_profile for profile in board.profiles if profile.mig_backed} <= shown_kinds


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.key)
def test_sizes_beside_each_other_agree_with_the_counts_of_one_size(board: Board) -> None:
    sizes = profiles_of(board).mixed_sizes
    for number, row in enumerate(sizes):
        same_size = row.next_to_one[number]
        assert same_size.at_most in (row.most - 1, None), "next to one of its own size: the rest of them"
        for column, room in zip(sizes, row.next_to_one, strict=True):
            assert room.at_most is None or row.memory_mib + room.at_most * column.memory_mib <= board.framebuffer_mib


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.key)
def test_series_for_people_are_alone_in_their_vm(board: Board) -> None:
    """NVIDIA's host driver: A and B types never, on old boards only types with all memory."""
    for profile in board.profiles:
        most = board.most_in_one_vm(profile)
        if profile.series in (Series.A, Series.B):
            assert most == 1
        else:
            assert most in (1, profile.max_per_vm)
