"""Fillings of one GPU: just what the exact rules admit one by one, in every mode."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.advise.occupancy import GpuState, Tenant
from gpuops.model.devices.gpu import VgpuMode
from gpuops.plan.queue.batch.model import VgpuLayouts, hardest_first
from tests.plan.snapshots import FIRST, catalog, gpu, whole

MIG = ("grid_a100-1-5c", "grid_a100-2-10c", "grid_a100-3-20c", "grid_a100-4-20c")


def state(board: str, mode: VgpuMode, *profiles: str) -> GpuState:
    state_of_gpu = GpuState(replace(gpu(FIRST, board, 0, mode), vms=("vm-1",) if profiles else ()))
    return state_of_gpu.with_tenants(*(Tenant("vm-1", "a", profile) for profile in profiles))


def layout_lines(gpu_state: GpuState, *profiles: str, certain: bool = True) -> list[str]:
    """In words: `3-20c x1 1-5c x3`."""
    order = hardest_first(profiles, catalog())
    layouts = VgpuLayouts(order, catalog(), certain).of(gpu_state)
    return sorted(" ".join(f"{name.partition('-')[2]} x{count}" for name, count in layout) for layout in layouts)


def test_same_size_takes_one_size() -> None:
    empty = state("a40", VgpuMode.SAME_SIZE)
    assert layout_lines(empty, "nvidia_a40-8q", "nvidia_a40-24q") == ["24q x2", "8q x6"]
    locked = state("a40", VgpuMode.SAME_SIZE, "nvidia_a40-8q")
    assert layout_lines(locked, "nvidia_a40-8q", "nvidia_a40-24q") == ["8q x5"]


def test_a_lucky_placement_of_instances_is_no_certain_one() -> None:
    """3g may lie where it leaves three slices or where it leaves four: vCenter does not tell."""
    empty = state("a100", VgpuMode.MULTI_INSTANCE)
    assert "3-20c x1 1-5c x3" in layout_lines(empty, *MIG)
    assert "3-20c x1 1-5c x4" not in layout_lines(empty, *MIG)
    assert "3-20c x1 1-5c x4" in layout_lines(empty, *MIG, certain=False)
    assert "4-20c x1 3-20c x1" in layout_lines(empty, *MIG)


def test_mixed_sizes() -> None:
    empty = state("l40s", VgpuMode.MIXED_SIZE)
    assert layout_lines(empty, "nvidia_l40s-24c", "nvidia_l40s-16q") == ["16q x2", "24c x1 16q x1", "24c x2"]


@pytest.mark.long
def test_of_ten_sizes_some_fillings_do_and_the_bound_is_above_all() -> None:
    empty = state("l40s", VgpuMode.MIXED_SIZE)
    names = [f"nvidia_l40s-{size}q" for size in (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)]
    certain = VgpuLayouts(hardest_first(names, catalog()), catalog()).of(empty)
    (loosest,) = VgpuLayouts(hardest_first(names, catalog()), catalog(), certain=False).of(empty)
    assert (("nvidia_l40s-48q", 1),) in certain
    assert all(count <= dict(loosest)[name] for filling in certain for name, count in filling)


@pytest.mark.parametrize("unclear", ["it runs vm-9, a VM that this login cannot see"])
def test_what_is_not_known_is_not_free(unclear: str) -> None:
    gpu_state = replace(state("a40", VgpuMode.SAME_SIZE), unclear=unclear)
    assert layout_lines(gpu_state, "nvidia_a40-8q") == []
    assert layout_lines(gpu_state, "nvidia_a40-8q", certain=False) == ["8q x6"], "a bound may not count on it"


def test_a_gpu_in_passthrough_takes_none() -> None:
    assert layout_lines(GpuState(whole(FIRST, "a40")), "nvidia_a40-8q") == []
