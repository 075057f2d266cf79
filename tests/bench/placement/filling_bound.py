"""The most GPU memory of the requests that any plan could place on a fleet: a linear program over fillings of a GPU.

A filling says how many vGPUs of each profile lie on one GPU at once. GPUs are filled in fractions and requests placed
in fractions, whole hosts and NUMA nodes do not count, so no plan that admission lets start is above it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Final, TypeVar

import numpy as np

from gpuops.model.devices.gpu import VgpuMode
from gpuops.plan.queue.batch.column_generation import SolverProgram
from gpuops.sim.state.board import GpuBoard, GpuMode, VgpuType, board
from tests.bench.placement.filling_fleet import GPUS, HOSTS, MODES, FleetKind

Counts = tuple[int, ...]
Kind = TypeVar("Kind", bound=Hashable)
NEGLIGIBLE_PERCENT: Final = 0.001
"""Of a fleet, by which the solver's answer may miss a whole number."""


def memory_bound(kind: FleetKind, requests: Sequence[tuple[str, int]]) -> float:
    """In percent of the fleet's GPU memory."""
    demand: Counter[str] = Counter()
    for profile, count in requests:
        demand[profile] += count
    profiles = tuple(sorted(demand))
    columns: list[list[tuple[int, float]]] = []
    # Rows: vGPUs of each profile placed less those that fillings give, then GPUs of each mode.
    modes = tuple(sorted(set(kind.modes)))
    for number in range(len(profiles)):
        columns.append([(number, 1.0)])
    for at, mode in enumerate(modes):
        for counts in fillings(kind.board, mode, profiles):
            columns.append([(n, -float(c)) for n, c in enumerate(counts) if c] + [(len(profiles) + at, 1.0)])
    gains = np.zeros(len(columns))
    gains[: len(profiles)] = [kind.size_mib(profile) for profile in profiles]
    most = np.full(len(columns), float(HOSTS * GPUS))
    most[: len(profiles)] = [demand[profile] for profile in profiles]
    gpus = [HOSTS * GPUS * kind.modes.count(mode) / len(kind.modes) for mode in modes]
    limits = np.array([0.0] * len(profiles) + gpus)
    program = SolverProgram(columns, len(limits), integer=False)
    return 100 * program.solve(gains, most, limits).value / kind.memory_mib


def repack(kind: FleetKind, requests: Sequence[tuple[str, int]]) -> float:
    """Percent of the fleet's GPU memory that is taken in the order of coming, with all VMs packed anew for each, for
    nothing."""

    def percent(accepted: Sequence[tuple[str, int]]) -> float:
        return 100 * sum(count * kind.size_mib(profile) for profile, count in accepted) / kind.memory_mib

    accepted_requests = taken_in_turn(
        requests, lambda some: memory_bound(kind, some) >= percent(some) - NEGLIGIBLE_PERCENT
    )
    return percent(accepted_requests)


def taken_in_turn(kinds: Sequence[Kind], fit: Callable[[Sequence[Kind]], bool]) -> list[Kind]:
    """Return the kinds accepted of VMs that come in this order and never leave; `fit` says whether all given may run at
    once.
    """
    # 1. As long as all of them fit, everybody is taken.
    least, most = 0, len(kinds)
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fit(kinds[:middle]) else (least, middle - 1)
    # 2. Then each VM that fits beside the accepted ones. A kind that did not fit never fits again.
    accepted, refused = list(kinds[:least]), set[Kind]()
    for kind in kinds[least:]:
        if kind not in refused and fit([*accepted, kind]):
            accepted.append(kind)
        else:
            refused.add(kind)
    return accepted


@cache
def fillings(board_key: str, mode: VgpuMode, profiles: tuple[str, ...]) -> tuple[Counts, ...]:
    """The fullest ways to fill an empty GPU of this mode, in numbers of each profile."""
    model = board(board_key)
    types = [model.by_name[name] if model.runs(model.by_name[name], MODES[mode]) else None for name in profiles]
    if mode is VgpuMode.SAME_SIZE:
        counts = {_alone(types, number) for number, type_ in enumerate(types) if type_ is not None}
        return tuple(sorted(counts))
    return _largest(_lying(model, MODES[mode], types))


def _alone(types: Sequence[VgpuType | None], number: int) -> Counts:
    type_ = types[number]
    return tuple(type_.max_per_gpu if type_ is not None and at == number else 0 for at in range(len(types)))


def _lying(model: GpuBoard, mode: GpuMode, types: Sequence[VgpuType | None]) -> set[Counts]:
    """Every way to lay vGPUs on the places of one GPU, from its first place to its last."""
    places: list[tuple[int, int, int]] = []
    for number, type_ in enumerate(types):
        if type_ is not None:
            size, starts = (
                (type_.size_gib, type_.starts_gib)
                if type_.instance is None
                else (
                    type_.instance.size,
                    type_.instance.starts,
                )
            )
            places += [(start, start + size, number) for start in starts]
    places.sort()
    empty = (0,) * len(types)
    # From the last place on: what can lie from here on, if nothing before reaches further than `free_from`.
    after: dict[int, set[Counts]] = {}

    def lying_from(at: int) -> set[Counts]:
        if at >= len(places):
            return {empty}
        if at not in after:
            _, end, number = places[at]
            then = next((n for n in range(at + 1, len(places)) if places[n][0] >= end), len(places))
            with_it = {tuple(c + (n == number) for n, c in enumerate(counts)) for counts in lying_from(then)}
            after[at] = with_it | lying_from(at + 1)
        return after[at]

    return lying_from(0)


def _largest(counts: set[Counts]) -> tuple[Counts, ...]:
    """Those that no other contains."""
    largest: list[Counts] = []
    for candidate in sorted(counts, key=sum, reverse=True):
        if not any(all(a <= b for a, b in zip(candidate, larger, strict=True)) for larger in largest):
            largest.append(candidate)
    return tuple(sorted(largest))
