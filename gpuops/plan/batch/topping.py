"""Topping: what still goes on hosts that have their pattern, away from its GPUs if need be.

Locality comes first, so the search looks at no remote place. A VM that is left is better remote than nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuops.plan.batch.one_host import OneHost
from gpuops.plan.batch.problem import GpuGroup, Pattern, Problem, Shape, Way


def local(problem: Problem) -> Problem:
    """The same problem with every VM beside its GPUs."""
    shapes = (
        replace(shape, ways={kind: near for kind, ways in shape.ways.items() if (near := _near(ways))})
        for shape in problem.shapes
    )
    return replace(problem, shapes=tuple(shapes))


def loose(problem: Problem) -> Problem:
    """The same problem with every VM where it is hardest to say no: its locality does not count. For bounds only."""
    shapes = (
        replace(shape, ways={kind: _loosest(ways) for kind, ways in shape.ways.items()}) for shape in problem.shapes
    )
    return replace(problem, shapes=tuple(shapes))


def topped(
    problem: Problem, patterns: Sequence[tuple[Pattern, int]], hosts: Sequence[int], left: Sequence[int]
) -> list[tuple[Pattern, int]]:
    """The patterns with what else fits beside them, and on the hosts that were not used; most of `left` first."""
    unused = [(Pattern(number, (), ()), count) for number, count in enumerate(hosts) if count]
    rest, found = list(left), []
    for pattern, times in (*patterns, *unused):
        while times:
            more = _best(problem, pattern, rest)
            on = min([times, *(rest[kind] // count for kind, count in more.counts)]) if more.vms else times
            if pattern.vms or more.vms:
                found.append((_both(pattern, more), on))
            for kind, count in more.counts:
                rest[kind] -= on * count
            times -= on
    return found


def _best(problem: Problem, pattern: Pattern, left: Sequence[int]) -> Pattern:
    shape = _rest(problem.shapes[pattern.shape], pattern, left)
    if not shape.ways:
        return Pattern(pattern.shape, (), ())
    alone = replace(problem, shapes=(shape,))
    return replace(OneHost(0, alone).best((0.0,) * len(left), left).pattern, shape=pattern.shape)


def _rest(shape: Shape, pattern: Pattern, left: Sequence[int]) -> Shape:
    """What the pattern leaves of the host, for those kinds of VM that may find a place there."""
    capacity, gpus = list(shape.capacity), [group.count for group in shape.groups]
    for kind, way, count in pattern.vms:
        for row, much in shape.ways[kind][way].uses:
            capacity[row] -= count * much
    for group, filling, count in pattern.gpus:
        gpus[group] -= count
        for row, much in shape.groups[group].fillings[filling]:
            capacity[row] += count * much
    groups = tuple(replace(group, count=count) for group, count in zip(shape.groups, gpus, strict=True))
    most = _most(capacity, groups)
    ways = {kind: each for kind, each in shape.ways.items() if left[kind] and any(_fits(way, most) for way in each)}
    return Shape(1, tuple(capacity), groups, ways)


def _most(capacity: Sequence[int], groups: Sequence[GpuGroup]) -> list[int]:
    """The most there can be of each row."""
    most = list(capacity)
    for group in groups:
        best: dict[int, int] = {}
        for filling in group.fillings:
            for row, much in filling:
                best[row] = max(best.get(row, 0), much)
        for row, much in best.items():
            most[row] += group.count * much
    return most


def _fits(way: Way, most: Sequence[int]) -> bool:
    return all(much <= most[row] for row, much in way.uses)


def _near(ways: Sequence[Way]) -> tuple[Way, ...]:
    """The ways beside the GPUs. They stand before the others, so their numbers stay."""
    return tuple(way for way in ways if not way.remote)


def _loosest(ways: Sequence[Way]) -> tuple[Way, ...]:
    far = tuple(replace(way, remote=False) for way in ways if way.remote)
    return far or tuple(ways)


def _both(one: Pattern, other: Pattern) -> Pattern:
    return Pattern(one.shape, tuple(_sums((*one.vms, *other.vms))), tuple(_sums((*one.gpus, *other.gpus))))


def _sums(counts: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    total: dict[tuple[int, int], int] = {}
    for first, second, count in counts:
        total[first, second] = total.get((first, second), 0) + count
    return ((first, second, count) for (first, second), count in sorted(total.items()))
