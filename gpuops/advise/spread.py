"""How much room intervals with fixed starts leave for one more kind, over every way they can lie.

vCenter shows which VMs are on a GPU, not where their vGPUs start, in mixed-size mode (placement ids) and in MIG (memory
slices) alike. So the room for another kind is a range: from the worst to the best way the running ones can lie.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from math import prod
from typing import Final

# States of the search below; beyond that (many sizes mixed on one GPU) an answer is not worth its seconds.
_MOST_STATES: Final = 20_000


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """Something of one size that may lie at certain starts, in one unit for all shapes of a GPU."""

    size: int
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """The fewest and the most starts left free."""

    fewest: int
    most: int


@lru_cache(maxsize=4096)
def spread(target: Shape, occupied: tuple[Shape, ...]) -> Spread | None:
    """Return how many starts of `target` stay free of the occupied shapes, in the worst and in the best case.

    Starts of one shape never overlap each other (they do not on any GPU of the catalogue), so free starts can all be
    used at once. None = the occupied shapes cannot all lie there, or there are too many ways to look at.
    """
    if all(len(shape.starts) == 1 for shape in occupied):
        return _where_they_lie(target, occupied)
    counts = Counter(occupied)
    shapes = sorted(counts)
    places = sorted((start, index) for index, shape in enumerate(shapes) for start in shape.starts)
    begins = [start for start, _ in places]
    if len(places) * prod(count + 1 for count in counts.values()) > _MOST_STATES:
        return None

    @cache
    def hits(at: int, remaining: tuple[int, ...], last_hit: int) -> Spread | None:
        """Return the fewest and most starts of `target` that the shapes from `places[at:]` cover beyond `last_hit`.

        `remaining`: how many of each shape have no place yet. `last_hit`: the start that was covered last; -1 = none.
        """
        if not any(remaining):
            return Spread(0, 0)
        if at == len(places):
            return None
        start, index = places[at]
        skipped = hits(at + 1, remaining, last_hit)
        if not remaining[index]:
            return skipped
        end = start + shapes[index].size
        covered = _covered_starts(target, start, end)
        then = hits(
            bisect_left(begins, end),
            (*remaining[:index], remaining[index] - 1, *remaining[index + 1 :]),
            # A start that ends before this place ends cannot be covered again: forgetting it halves the states.
            covered[-1] if covered and target.starts[covered[-1]] + target.size > end else -1,
        )
        fresh = len(covered) - (last_hit in covered)
        placed = None if then is None else Spread(then.fewest + fresh, then.most + fresh)
        return _widest(skipped, placed)

    covered = hits(0, tuple(counts[shape] for shape in shapes), -1)
    if covered is None:
        return None
    total = len(target.starts)
    return Spread(total - covered.most, total - covered.fewest)


def _where_they_lie(target: Shape, occupied: tuple[Shape, ...]) -> Spread | None:
    """Return the spread if each of the occupied shapes lies at a known start: then there is only one way."""
    lying = sorted((shape.starts[0], shape.starts[0] + shape.size) for shape in occupied)
    if any(begins < ended for (_, ended), (begins, _) in pairwise(lying)):
        return None
    free = len(target.starts) - len({number for lies in lying for number in _covered_starts(target, *lies)})
    return Spread(free, free)


def _covered_starts(target: Shape, start: int, end: int) -> list[int]:
    """Return which starts of `target`, by number, something from `start` to `end` makes unusable."""
    return [
        number
        for number, target_start in enumerate(target.starts)
        if target_start < end and start < target_start + target.size
    ]


def _widest(first: Spread | None, second: Spread | None) -> Spread | None:
    if first is None or second is None:
        return first or second
    return Spread(min(first.fewest, second.fewest), max(first.most, second.most))
