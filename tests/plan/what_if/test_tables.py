"""NVIDIA's same-size and mixed-size tables, row by row, on hosts that `what-if` adds: what fits, and what fills them.

The rules stand in tests/catalog/vendor_rules.py, apart from the files of the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pytest

from gpuops.advise.capacity import Slots
from gpuops.errors import UsageError
from gpuops.extras.sizing.what_if.changed_fleet import changed_fleet
from gpuops.extras.sizing.what_if.question import WhatIf
from gpuops.model.devices.catalog import Board, MixedSizeRule
from gpuops.model.devices.vgpu import VgpuProfile
from gpuops.model.fleet_change import AddHosts, GpuServing
from gpuops.model.workloads.workload import Workload
from gpuops.plan.capacity.capacity_request import capacity
from gpuops.plan.core.scope import Scope
from tests.catalog.vendor_rules import FEWER_THAN_FIT, TIME_SLICED, power_of_two
from tests.plan import snapshots
from tests.sample import mostly_long

H20_PRINTED = {"96C": 1, "48C": 2, "24C": 2, "16C": 4, "12C": 4, "6C": 8, "4C": 8}
SAME, MIXED = GpuServing.SAME_SIZE, GpuServing.MIXED_SIZE
WORLD = snapshots.inventory([snapshots.host("esx-09", snapshots.gpu(snapshots.FIRST, "t4"))], [])
ROWS = [(board, profile) for board, profile in TIME_SLICED if profile.attachable]
MIXED_ROWS = [(board, profile) for board, profile in ROWS if board.mixed_size_mode and profile.max_per_gpu_mixed]
FILLED = [
    (board, profile) for board, profile in ROWS if board.key in ("a16", "a40", "a100d", "h20", "h100", "h200", "l40s")
]
FILLED = [(board, profile) for board, profile in FILLED if profile.series.value in "BC"]
QUICK = [(board, profile) for board, profile in FILLED if board.key in ("h20", "l40s") and profile.max_per_gpu <= 12]


def name_of(param: object) -> str:
    return param.short_name if isinstance(param, VgpuProfile) else param.key if isinstance(param, Board) else ""


def same_size(board: Board, profile: VgpuProfile) -> int:
    fits = min(board.framebuffer_mib // profile.framebuffer_mib, 32)
    return FEWER_THAN_FIT.get(profile.short_name, fits)


def mixed_size(board: Board, profile: VgpuProfile) -> int:
    match board.mixed_size_rule:
        case MixedSizeRule.POWER_OF_TWO:
            return power_of_two(board, profile)
        case MixedSizeRule.SAME_AS_EQUAL_SIZE:
            return same_size(board, profile)
        case MixedSizeRule.PRINTED:
            return H20_PRINTED[profile.short_name.partition("-")[2]]
        case None:
            return same_size(board, profile)


@cache
def slots(board: str, mode: GpuServing) -> Mapping[str, Slots]:
    """By profile what fits on the one GPU of a host that is added."""
    changed = changed_fleet([AddHosts(1, board, 1, None, mode)], WORLD, snapshots.catalog(), None, 1)
    room = capacity(changed.inventory, snapshots.catalog(), Scope(host="new-1-1"))
    return {name: fit.slots for name, fit in room.now.fits.items()}


@pytest.mark.quick_cases(120)
@pytest.mark.parametrize(("board", "profile"), ROWS, ids=name_of)
def test_a_row_of_the_same_size_table(board: Board, profile: VgpuProfile) -> None:
    expected = same_size(board, profile)
    assert slots(board.key, SAME)[profile.name] == Slots(expected, expected)


@pytest.mark.quick_cases(72)
@pytest.mark.parametrize(("board", "profile"), MIXED_ROWS, ids=name_of)
def test_a_row_of_the_mixed_size_table(board: Board, profile: VgpuProfile) -> None:
    expected = mixed_size(board, profile)
    assert slots(board.key, MIXED)[profile.name] == Slots(expected, expected)


def test_of_both_tables_all_rows_are_tried() -> None:
    assert (len(ROWS), len(MIXED_ROWS)) == (1009, 628)


def test_a_gpu_that_has_no_mixed_size_mode_is_not_added_in_it() -> None:
    without = [board for board in snapshots.catalog().boards if board.mixed_size_mode is False]
    assert without
    for board in without:
        with pytest.raises(UsageError, match="has no mixed-size mode"):
            slots(board.key, MIXED)


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("mode", [SAME, MIXED])
@pytest.mark.parametrize(("board", "profile"), mostly_long(FILLED, QUICK), ids=name_of)
def test_requests_fill_a_gpu_to_the_count_of_its_row(board: Board, profile: VgpuProfile, mode: GpuServing) -> None:
    if mode is MIXED and profile.max_per_gpu_mixed is None:
        pytest.skip("its mixed-size count is not published")
    expected = same_size(board, profile) if mode is SAME else mixed_size(board, profile)
    requests = tuple(Workload(f"r{number}", 1, 1024, profile=profile.name) for number in range(expected + 2))
    question = WhatIf((AddHosts(1, board.key, 1, None, mode),), requests)
    [answered] = question.answer(WORLD, snapshots.catalog()).then.requests
    assert (answered.placed, len(answered.waiting)) == (expected, 2)
