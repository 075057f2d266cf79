"""Goal: what is to be freed: whole GPUs, or slots of one profile; and how many there can be at the most."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from gpuops.model.gpu import VgpuMode

if TYPE_CHECKING:
    from gpuops.model.catalog import Board, Catalog
    from gpuops.plan.defrag.ground import Ground
    from gpuops.plan.defrag.table import Table


@dataclass(frozen=True, slots=True)
class Goal:
    """`profile` None = GPUs that nothing runs on."""

    profile: str | None = None

    def __str__(self) -> str:
        return "whole GPU" if self.profile is None else f"slot of {self.profile}"


def most(ground: Ground, table: Table) -> int:
    """How much more there can be at the most, whatever is moved where; no promise that it can be had."""
    left = sum(
        ground.worth(now.number, gpu, tuple(seat for seat in content if not ground.pieces[seat[0]].movable))
        for now in table
        for gpu, content in enumerate(now.contents)
    )
    bound = left - sum(now.worth for now in table)
    packed = _packed(ground, table) if ground.goal.profile is None else None
    return bound if packed is None else min(bound, packed)


def _packed(ground: Ground, table: Table) -> int | None:
    """GPUs left over when all vGPUs lie as densely as can be; None = GPUs take part that nobody counts on."""
    if not all(all(stand.counted) for stand in ground.stands):
        return None
    gpus: dict[str, list[tuple[VgpuMode | None, tuple[str, ...], bool]]] = defaultdict(list)
    for now in table:
        for gpu, content in enumerate(now.contents):
            if any(seat[2] != 2 for seat in content):
                return None
            board = ground.board(now.number, gpu)
            if board is None:
                return None
            fixed = any(not ground.pieces[seat[0]].movable for seat in content)
            mode = ground.stands[now.number].gpus[gpu].vgpu_mode
            gpus[board.key].append((mode, tuple(seat[1] for seat in content), fixed))
    spared = 0
    for each in gpus.values():
        held = [(profiles, fixed) for _, profiles, fixed in each if profiles]
        same_size = all(mode is VgpuMode.SAME_SIZE for mode, _, _ in each)
        spared += len(held) - (_same_size(held, ground.catalog) if same_size else _by_share(held, ground.catalog))
    return spared


def _same_size(held: Iterable[tuple[tuple[str, ...], bool]], catalog: Catalog) -> int:
    """GPUs that are needed at least where each takes one size."""
    shares: dict[int, Fraction] = defaultdict(Fraction)
    bound: Counter[int] = Counter()
    for profiles, fixed in held:
        for name in profiles:
            profile = catalog.profile(name)
            if profile is not None:
                shares[profile.framebuffer_mib] += Fraction(1, profile.max_per_gpu)
        first = catalog.profile(profiles[0])
        if fixed and first is not None:
            bound[first.framebuffer_mib] += 1
    return sum(max(bound[size], ceil(share)) for size, share in shares.items())


def _by_share(held: Iterable[tuple[tuple[str, ...], bool]], catalog: Catalog) -> int:
    """GPUs that are needed at least by memory, whatever lies beside what."""
    share, fixed_gpus = Fraction(), 0
    for profiles, fixed in held:
        fixed_gpus += fixed
        for name in profiles:
            profile, board = catalog.profile(name), catalog.board_of(name)
            if profile is not None and board is not None:
                share += min(Fraction(1, profile.max_per_gpu), _of_memory(profile.framebuffer_mib, board))
    return max(fixed_gpus, ceil(share))


def _of_memory(framebuffer_mib: int, board: Board) -> Fraction:
    return Fraction(framebuffer_mib, max(framebuffer_mib, board.framebuffer_mib))
