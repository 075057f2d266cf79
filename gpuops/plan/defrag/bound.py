"""Bound: how much can be free at the most, whatever is moved where."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from gpuops.model.catalog import Board
from gpuops.model.gpu import VgpuMode
from gpuops.model.vgpu import VgpuProfile
from gpuops.plan.defrag.ground import Ground, serves_vgpus
from gpuops.plan.defrag.pieces import CERTAIN
from gpuops.plan.defrag.table import Table


def most(ground: Ground, table: Table) -> int:
    """How much more there can be at the most, whatever is moved where; no promise that it can be had."""
    there = sum(now.worth for now in table)
    left = sum(
        ground.worth(now.number, gpu, tuple(seat for seat in content if not ground.pieces[seat[0]].movable))
        for now in table
        for gpu, content in enumerate(now.contents)
    )
    packed = _packed(ground, table)
    return left - there if packed is None else min(left, packed) - there


@dataclass(frozen=True, slots=True)
class _Gpu:
    """One GPU, and what is on it."""

    mode: VgpuMode | None
    content: tuple[VgpuProfile, ...]
    fixed: bool
    """Something on it may not move."""


@dataclass(frozen=True, slots=True)
class _Packing:
    """All GPUs of one model in a cluster; how little room it takes to hold what is on them."""

    board: Board
    gpus: list[_Gpu]

    @property
    def same_size(self) -> bool:
        return all(gpu.mode is VgpuMode.SAME_SIZE for gpu in self.gpus)

    def of_sizes(self) -> dict[int, int]:
        """GPUs that each size needs at least, where a GPU takes one size."""
        shares: dict[int, Fraction] = defaultdict(Fraction)
        bound: Counter[int] = Counter()
        for gpu in self.gpus:
            for profile in gpu.content:
                shares[profile.framebuffer_mib] += Fraction(1, profile.max_per_gpu)
            if gpu.fixed:
                bound[gpu.content[0].framebuffer_mib] += 1
        return {size: max(bound[size], ceil(share)) for size, share in shares.items()}

    @property
    def by_memory(self) -> int:
        """GPUs that all of it needs at least by its memory, whatever lies beside what."""
        share = sum(
            min(Fraction(1, profile.max_per_gpu), Fraction(profile.framebuffer_mib, self.board.framebuffer_mib))
            for gpu in self.gpus
            for profile in gpu.content
        )
        return max(sum(gpu.fixed for gpu in self.gpus), ceil(share))


def _packed(ground: Ground, table: Table) -> int | None:
    """What is free when all vGPUs lie as densely as can be; None = no such bound is known."""
    packings = _packings(ground, table)
    if packings is None:
        return None
    if ground.goal.profile is not None:
        return _slots(packings, ground.catalog.profile(ground.goal.profile))
    return sum(
        len(each.gpus) - (sum(each.of_sizes().values()) if each.same_size else each.by_memory) for each in packings
    )


def _slots(packings: Sequence[_Packing], profile: VgpuProfile | None) -> int | None:
    """Slots of the profile, where the other sizes take no GPU more than they need."""
    found = [each for each in packings if profile is not None and each.board.key == profile.board]
    if profile is None or not all(each.same_size for each in found):
        return None
    free = 0
    for each in found:
        others = sum(gpus for size, gpus in each.of_sizes().items() if size != profile.framebuffer_mib)
        held = sum(there.framebuffer_mib == profile.framebuffer_mib for gpu in each.gpus for there in gpu.content)
        free += (len(each.gpus) - others) * profile.max_per_gpu - held
    return free


def _packings(ground: Ground, table: Table) -> list[_Packing] | None:
    """By model; None = GPUs take part that nobody counts on, or something on them is not known."""
    found: dict[str, _Packing] = {}
    for now in table:
        stand = ground.stands[now.number]
        for gpu, content in enumerate(now.contents):
            if stand.unclear[gpu] or not serves_vgpus(stand.gpus[gpu]):
                continue  # no vGPU ever comes there
            board = ground.board(now.number, gpu)
            profiles = [profile for seat in content if (profile := ground.catalog.profile(seat[1])) is not None]
            unknown = len(profiles) < len(content) or any(seat[2] != CERTAIN for seat in content)
            if board is None or unknown or not (stand.counted[gpu] or _of_no_use(ground, board)):
                return None
            fixed = any(not ground.pieces[seat[0]].movable for seat in content)
            of_board = found.setdefault(board.key, _Packing(board, []))
            of_board.gpus.append(_Gpu(stand.gpus[gpu].vgpu_mode, tuple(profiles), fixed))
    return list(found.values())


def _of_no_use(ground: Ground, board: Board) -> bool:
    """Whether GPUs of this model have nothing to do with what is wanted."""
    wanted = ground.catalog.profile(ground.goal.profile) if ground.goal.profile is not None else None
    return wanted is not None and wanted.board != board.key
