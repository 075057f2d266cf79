"""Exact: all orders of moves, shortest first, but for those that cannot beat what is known.

Hosts that are alike, GPUs that are alike and VMs that are alike are looked at once, so a table that some other order
has led to is not looked at again: a VM that goes and comes back costs nothing here. `budget` bounds the tables.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from gpuops.plan.defrag.ground import Ground
from gpuops.plan.defrag.landing import arrive, leave
from gpuops.plan.defrag.line import Frontier, Line, frontier_of, movable_on, one_of_each
from gpuops.plan.defrag.table import Hop, Table, with_host


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
    while layer and moves < limit:
        following: list[Line] = []
        for after in _following(ground, layer):
            key = _key(after.table)
            if key in seen:
                continue
            if len(seen) >= budget:
                return Searched(frontier_of([*best, *following]), moves)
            seen.add(key)
            following.append(after)
        moves += 1
        best = frontier_of([*best, *following])
        layer = [line for line in following if _may_win(ground, line, best, start.worth + most, limit)]
    return Searched(best, limit)


def _following(ground: Ground, layer: Sequence[Line]) -> Iterator[Line]:
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


def _may_win(ground: Ground, line: Line, best: Frontier, most: int, limit: int) -> bool:
    """Whether more moves from here on can free as much as a known plan with fewer of them, or more than all do."""
    worths = [known.worth for known in best]
    for more, moves in enumerate(_fewest(ground, line.table), 1):
        if line.moves + moves > limit or line.worth + more > most:
            return False
        at = bisect_right(worths, line.worth + more - 1)
        if at == len(best) or best[at].moves > line.moves + moves:
            return True
    return False


def _fewest(ground: Ground, table: Table) -> Iterator[int]:
    """No fewer moves than these free one more, two more and so on, wherever there is room."""
    whole = ground.goal.profile is None
    gains: list[tuple[int, int]] = []
    shared = 1
    for now in table:
        spread = Counter(vm for content in now.contents for vm in {seat[0] for seat in content})
        shared = max(shared, *spread.values(), 1)
        for gpu, content in enumerate(now.contents):
            left = tuple(seat for seat in content if not ground.pieces[seat[0]].movable)
            gain = ground.worth(now.number, gpu, left) - ground.worth(now.number, gpu, content)
            if gain > 0:
                # A whole GPU takes all of its VMs; of its slots a single VM may have been in the way of many.
                gains.append((-1 if whole else -gain, len({seat[0] for seat in content}) if whole else 1))
    gains.sort(key=lambda each: (each[1], each[0]))
    for (gain, _), total in zip(gains, accumulate(moves for _, moves in gains), strict=True):
        yield from (-(-total // shared) for _ in range(-gain))
