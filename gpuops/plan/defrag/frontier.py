"""Frontier: the best plan for each number of moves: of one cluster, and of all of them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from gpuops.plan.defrag.bound import most
from gpuops.plan.defrag.exact import following, searched
from gpuops.plan.defrag.greedy import Greedy
from gpuops.plan.defrag.ground import Ground
from gpuops.plan.defrag.line import Frontier, Line, frontier_of, replayed
from gpuops.plan.defrag.table import Table

TABLES: Final = 4000
"""The exact search looks at no more of them: about two seconds, and all there are where a dozen GPUs take part."""
_FIRST_MOVES: Final = 8000
"""So many, divided by the square of the GPUs, are tried: the rule takes the longer the more there are."""
_REPLAYS: Final = 50


@dataclass(frozen=True, slots=True)
class Area:
    """One cluster: its plans, and what is known of all others."""

    ground: Ground
    frontier: Frontier
    most: int
    """No more than this can be freed."""
    settled: int
    """No plan of up to so many moves is better than these."""

    @property
    def start(self) -> Line:
        return self.frontier[0]

    def gain(self, line: Line) -> int:
        return line.worth - self.start.worth


def explored(ground: Ground, table: Table, limit: int, tables: int = TABLES) -> Area:
    """The best plans of up to `limit` moves in this cluster: greedy ones, and where it is small enough the best."""
    start, bound = Line(table), most(ground, table)
    if not bound or not limit:
        return Area(ground, (start,), bound, limit)
    found = _by_rule(ground, start, limit)
    found = frontier_of([*found, *_shortened(ground, found[-1], start)])
    branches = sum(piece.movable for piece in ground.pieces) * (len(table) - 1)
    if branches > tables:  # not even one move could be looked at in every way
        return Area(ground, found, bound, 0)
    exact = searched(ground, found, bound, limit, tables)
    return Area(ground, exact.best, bound, exact.settled)


def _by_rule(ground: Ground, start: Line, limit: int) -> Frontier:
    """What the rule leads to; and in a small cluster, where it leads to after each first move against it.

    A host that chooses its emptiest GPU takes a VM well only before that GPU is free: the rule, that frees what is
    cheapest first, may have to wait.
    """
    greedy = Greedy(ground, limit)
    found = greedy.lines(start)
    gpus = sum(len(stand.gpus) for stand in ground.stands)
    for line in islice(following(ground, [start]), _FIRST_MOVES // gpus**2):
        found = frontier_of([*found, *greedy.anew().lines(line)])
    return found


def _shortened(ground: Ground, line: Line, start: Line) -> Sequence[Line]:
    """The plan without moves that it does not need, move by move: a VM that moves twice may go at once."""
    hops, times = line.hops, Counter(hop.piece for hop in line.hops)
    for hop in [hop for hop in hops if times[hop.piece] > 1][:_REPLAYS]:
        without = tuple(each for each in hops if each is not hop)
        tried = replayed(ground, start.table, without)
        if tried is not None and tried.worth >= line.worth:
            hops = without
    if len(hops) == line.moves:
        return ()
    parts = (replayed(ground, start.table, hops[:moves]) for moves in range(len(hops) + 1))
    return [part for part in parts if part is not None]


def together(areas: Sequence[Area], limit: int) -> tuple[Line, ...]:
    """One line for each cluster: what frees most in `limit` moves, and that with the fewest moves."""
    best: dict[int, tuple[int, tuple[Line, ...]]] = {0: (0, ())}
    for area in areas:
        after: dict[int, tuple[int, tuple[Line, ...]]] = {}
        for moves, (gain, lines) in best.items():
            for line in area.frontier:
                total = moves + line.moves
                freed = gain + area.gain(line)
                if total <= limit and (total not in after or freed > after[total][0]):
                    after[total] = (freed, (*lines, line))
        best = after
    return min(best.items(), key=lambda each: (-each[1][0], each[0]))[1][1]
