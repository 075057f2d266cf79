"""Solve: how many VMs of each kind on how many hosts, so that the most GPU memory is placed.

The search shares the hosts out among patterns. Then the shares are made whole: what is whole stays, else the largest
share is rounded up; the rest of the hosts is priced anew for the rest of the VMs. At last what is left is put where
there is room, beside its GPUs or not.
Why not one program over all: with hundreds of equal hosts its symmetry never ends; a pattern is there once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpuops.plan.batch.columns import Shares, cut
from gpuops.plan.batch.fluid import fluid
from gpuops.plan.batch.problem import Pattern, Problem, Solution
from gpuops.plan.batch.search import Search
from gpuops.plan.batch.topping import local, topped

WORK: Final = 60_000
"""Simplex iterations: ten seconds of the hardest problems that were measured, a second of most."""
ROUNDS: Final = 500
_ROUNDS_LATER: Final = 12
_TOUCHED: Final = 0.0001
"""Of the largest worth: what a host costs that is used at all. Fewer hosts decide between equals, and no more."""


def solve(problem: Problem, work: int = WORK) -> Solution:
    """A good solution. `work` limits the search for patterns, and then the rounding, in simplex iterations."""
    near = replace(local(problem), touching=_TOUCHED * max(problem.worth, default=0))
    search = Search(near, work)
    left, hosts = list(problem.demand), [shape.count for shape in problem.shapes]
    _, prices = fluid(near)
    priced = search.priced(left, hosts, ROUNDS, prices)
    search.work = work
    taken: list[tuple[Pattern, int]] = []
    while priced.shares.patterns:
        for pattern, times in _whole(priced.shares):
            fitting = cut(pattern, left)
            if fitting.vms and hosts[pattern.shape]:
                taken.append(_take(fitting, times, left, hosts))
        priced = search.priced(left, hosts, _ROUNDS_LATER)
    if any(left):
        taken = topped(problem, taken, hosts, left)
    return Solution(tuple(taken))


def _whole(shares: Shares) -> list[tuple[Pattern, int]]:
    """What the shares say for whole hosts; where they say nothing, the largest of them."""
    whole = [(pattern, int(share + 1e-6)) for pattern, share in shares.patterns if share + 1e-6 >= 1]
    if whole:
        return whole
    ranked = sorted(shares.patterns, key=lambda each: -each[1])
    return [(pattern, 1) for pattern, _ in ranked[: max(1, len(ranked) // 16)]]


def _take(pattern: Pattern, times: int, left: list[int], hosts: list[int]) -> tuple[Pattern, int]:
    """The pattern on as many hosts, up to so many, as there are hosts and VMs for it."""
    enough = min(left[kind] // count for kind, count in pattern.counts)
    times = max(1, min(times, hosts[pattern.shape], enough))
    hosts[pattern.shape] -= times
    for kind, count in pattern.counts:
        left[kind] -= times * count
    return pattern, times
