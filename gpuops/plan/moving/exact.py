"""Searches all orders of moves, shortest first, except those that cannot free more than a known plan.

`frontier.py` calls it for small clusters. Hosts that are alike, GPUs that are alike and VMs that are alike are looked
at once, so a state that some other order has led to is not looked at again: a VM that goes and comes back costs nothing
here. `budget` limits the number of states.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import ceil
from typing import Final

from gpuops.plan.moving.cluster import ClusterModel, ClusterState, GpuContent
from gpuops.plan.moving.moves import Frontier, MoveSequence, make_frontier, one_move_further

GainSteps = dict[tuple[object, ...], tuple[tuple[Fraction, int], ...]]
"""For GPUs that are alike: (moves for each one freed, how many), the cheapest first."""
_MANY_VMS: Final = 8
"""Up to so many VMs on one GPU every subset is considered; of more only all of them, as if that were one move."""


@dataclass(frozen=True, slots=True)
class ExactResult:
    """The best plans, and how far they are proven."""

    best: Frontier
    settled: int
    """No plan of up to so many moves is better than these."""


def search_all_orders(
    model: ClusterModel, known: Frontier, most: int, limit: int, budget: int, *, binding: bool = False
) -> ExactResult:
    """The best plans of up to `limit` moves.

    `known`: plans that were found by other means. `most`: no more than this can be freed. `binding`: VMs may be bound.
    """
    start = known[0]
    best, layer, moves, proven = known, [start], 0, limit
    seen = {_key(start.cluster_state)}
    gain_steps: GainSteps = {}
    # Breadth first: a layer holds the sequences of so many moves that may still lead to something better.
    while layer and moves < limit:
        new_sequences: list[MoveSequence] = []
        for after in one_move_further(model, layer, binding=binding):
            key = _key(after.cluster_state)
            if key in seen:
                continue
            # The budget is spent inside this layer, so only the layers before it are proven.
            if len(seen) >= budget:
                return ExactResult(make_frontier([*best, *new_sequences]), min(proven, moves))
            seen.add(key)
            new_sequences.append(after)
            # Counted on several GPUs: more may be free than is found here, so only the layers before it are proven.
            if after.overcounted:
                proven = min(proven, moves)
        # Prune: a sequence goes on only if an optimistic estimate beats the frontier.
        moves += 1
        best = make_frontier([*best, *new_sequences])
        layer = [
            sequence
            for sequence in new_sequences
            if _may_win(model, sequence, best, start.worth + most, limit, gain_steps)
        ]
    return ExactResult(best, proven)


def _key(cluster_state: ClusterState) -> tuple[int, ...]:
    return tuple(sorted(now.key for now in cluster_state))


def _may_win(
    model: ClusterModel, sequence: MoveSequence, best: Frontier, most: int, limit: int, gain_steps: GainSteps
) -> bool:
    """Whether further moves can free as much as a known plan with fewer moves, or more than any known plan."""
    worths = [known.worth for known in best]
    for more, moves in enumerate(_fewest_moves(model, sequence.cluster_state, gain_steps), 1):
        if sequence.moves + moves > limit or sequence.worth + more > most:
            return False
        at = bisect_right(worths, sequence.worth + more - 1)
        if at == len(best) or best[at].moves > sequence.moves + moves:
            return True
    return False


def _fewest_moves(model: ClusterModel, cluster_state: ClusterState, known: GainSteps) -> Iterator[int]:
    """Lower bounds on the moves that free one more, two more and so on, whatever room there is.

    The cheapest gains of all GPUs, added up. A VM on several GPUs frees on each of them, so the sum is divided by the
    largest number of GPUs that one VM is on.
    """
    steps: list[tuple[Fraction, int]] = []
    shared = 1
    for now in cluster_state:
        spread = Counter(vm for content in now.contents for vm in {vgpu[0] for vgpu in content})
        shared = max(shared, *spread.values(), 1)
        for gpu, content in enumerate(now.contents):
            alike = model.kind_of_gpu(now.number, gpu, content)
            if alike not in known:
                known[alike] = tuple(_gain_steps(model, now.number, gpu, content))
            steps += known[alike]
    total = Fraction()
    for moves, gain in sorted(steps):
        for _ in range(gain):
            total += moves
            yield ceil(total / shared)


def _gain_steps(model: ClusterModel, host: int, gpu: int, content: GpuContent) -> Iterator[tuple[Fraction, int]]:
    """What departures free on one GPU, as (moves for each one freed, how many), the cheapest first.

    The upper convex hull of gain over moves: if one move frees 0, two free 3 and three free 4, the steps are three
    freed at 2/3 move each, then one at a whole move.
    """
    start = model.worth(host, gpu, content)
    movable = list(dict.fromkeys(vgpu[0] for vgpu in content if model.search_vms[vgpu[0]].movable))
    best = [0]
    for moves in range(1, len(movable) + 1):
        sets = _sets_of_departing_vms(movable, moves, whole=model.goal.profile is None)
        worths = [model.worth(host, gpu, tuple(vgpu for vgpu in content if vgpu[0] not in gone)) for gone in sets]
        best.append(max(worths, default=start) - start)
    at = 0
    while at < len(best) - 1:
        slope, to = max((Fraction(best[to] - best[at], to - at), to) for to in range(at + 1, len(best)))
        if slope <= 0:
            return
        yield 1 / slope, best[to] - best[at]
        at = to


def _sets_of_departing_vms(movable: Sequence[int], moves: int, *, whole: bool) -> Iterable[tuple[int, ...]]:
    """The sets of VMs that so many moves may take away; a GPU is whole only when all are gone."""
    if whole:
        return [tuple(movable)] if moves == len(movable) else []
    return combinations(movable, moves) if len(movable) <= _MANY_VMS else [tuple(movable)]
