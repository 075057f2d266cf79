"""Exact: all orders of moves, shortest first, but for those that cannot beat what is known.

Hosts that are alike, GPUs that are alike and VMs that are alike are looked at once, so a table that some other order
has led to is not looked at again: a VM that goes and comes back costs nothing here. `budget` bounds the tables.
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

from gpuops.plan.defrag.ground import Ground
from gpuops.plan.defrag.landing import arrive, leave
from gpuops.plan.defrag.line import Frontier, Line, frontier_of, movable_on, one_of_each
from gpuops.plan.defrag.pieces import Content
from gpuops.plan.defrag.table import Hop, Table, with_host

Ladders = dict[tuple[object, ...], tuple[tuple[Fraction, int], ...]]
"""What moves free on GPUs that are alike."""
_FEW: Final = 8
"""Of so many VMs on one GPU every part is thought gone; of more only all of them, at the price of one."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What all orders of moves have shown."""

    best: Frontier
    settled: int
    """No plan of up to so many moves is better than these."""


def searched(ground: Ground, known: Frontier, most: int, limit: int, budget: int) -> Searched:
    """The best plans of up to `limit` moves. `known` were found some other way; `most` can be freed, never more."""
    start = known[0]
    best, layer, moves = known, [start], 0
    seen = {_key(start.table)}
    ladders: Ladders = {}
    while layer and moves < limit:
        found: list[Line] = []
        for after in following(ground, layer):
            key = _key(after.table)
            if key in seen:
                continue
            if len(seen) >= budget:
                return Searched(frontier_of([*best, *found]), moves)
            seen.add(key)
            found.append(after)
        moves += 1
        best = frontier_of([*best, *found])
        layer = [line for line in found if _may_win(ground, line, best, start.worth + most, limit, ladders)]
    return Searched(best, limit)


def following(ground: Ground, layer: Sequence[Line]) -> Iterator[Line]:
    """These lines with one more move, every one there is but for those that are like another one."""
    for line in layer:
        for source in one_of_each(line.table):
            for piece in movable_on(ground, source):
                here = leave(ground, source, piece)
                if here is None:
                    continue
                for target in one_of_each(line.table, without=source):
                    there = arrive(ground, target, piece) if target.number in piece.allowed else None
                    if there is not None:
                        table = with_host(with_host(line.table, here), there.now)
                        yield Line(table, (*line.hops, Hop(piece.number, target.number)))


def _key(table: Table) -> tuple[int, ...]:
    return tuple(sorted(now.key for now in table))


def _may_win(ground: Ground, line: Line, best: Frontier, most: int, limit: int, ladders: Ladders) -> bool:
    """Whether more moves from here on can free as much as a known plan with fewer of them, or more than all do."""
    worths = [known.worth for known in best]
    for more, moves in enumerate(_fewest(ground, line.table, ladders), 1):
        if line.moves + moves > limit or line.worth + more > most:
            return False
        at = bisect_right(worths, line.worth + more - 1)
        if at == len(best) or best[at].moves > line.moves + moves:
            return True
    return False


def _fewest(ground: Ground, table: Table, known: Ladders) -> Iterator[int]:
    """No fewer moves than these free one more, two more and so on, wherever there is room."""
    steps: list[tuple[Fraction, int]] = []
    shared = 1
    for now in table:
        spread = Counter(vm for content in now.contents for vm in {seat[0] for seat in content})
        shared = max(shared, *spread.values(), 1)
        for gpu, content in enumerate(now.contents):
            alike = ground.kind_of_gpu(now.number, gpu, content)
            if alike not in known:
                known[alike] = tuple(_ladder(ground, now.number, gpu, content))
            steps += known[alike]
    total = Fraction()
    for moves, gain in sorted(steps):
        for _ in range(gain):
            total += moves
            yield ceil(total / shared)


def _ladder(ground: Ground, host: int, gpu: int, content: Content) -> Iterator[tuple[Fraction, int]]:
    """(moves for each, how many) of what leaving VMs free on one GPU, the cheapest first: no other order is cheaper."""
    start = ground.worth(host, gpu, content)
    movable = list(dict.fromkeys(seat[0] for seat in content if ground.pieces[seat[0]].movable))
    best = [0]
    for moves in range(1, len(movable) + 1):
        sets = _parts(movable, moves, whole=ground.goal.profile is None)
        worths = [ground.worth(host, gpu, tuple(seat for seat in content if seat[0] not in gone)) for gone in sets]
        best.append(max(worths, default=start) - start)
    at = 0
    while at < len(best) - 1:
        slope, to = max((Fraction(best[to] - best[at], to - at), to) for to in range(at + 1, len(best)))
        if slope <= 0:
            return
        yield 1 / slope, best[to] - best[at]
        at = to


def _parts(movable: Sequence[int], moves: int, *, whole: bool) -> Iterable[tuple[int, ...]]:
    """The VMs that so many moves may take away; a GPU is whole only when all are gone."""
    if whole:
        return [tuple(movable)] if moves == len(movable) else []
    return combinations(movable, moves) if len(movable) <= _FEW else [tuple(movable)]
