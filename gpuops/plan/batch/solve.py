"""Solve: how many VMs of each kind on how many hosts, so that the most GPU memory is placed.

Columns are generated: the linear program over known patterns prices VMs and hosts, each host's own program looks for a
pattern that is worth more than its price, until there is none. Then the shares are made whole: what is whole stays, else
the largest share is rounded up; the rest of the hosts is priced anew for the rest of the VMs.
Why not one program over all: with hundreds of equal hosts its symmetry never ends; a pattern is there once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuops.plan.batch.columns import Columns, Shares, cut
from gpuops.plan.batch.fluid import fluid
from gpuops.plan.batch.one_host import SLACK, OneHost
from gpuops.plan.batch.problem import Pattern, Problem, Solution
from gpuops.plan.batch.topping import local, loose, topped

WORK: Final = 60_000
TOUCHED: Final = 0.0001
"""Of the largest worth: what a host costs that is used at all. Fewer hosts decide between equals, and no more."""
_FINE: Final = 0.002
_ROUNDS: Final = 500
_ENOUGH: Final = 2e-4
_SMOOTH: Final = 0.5
_ROUNDS_LATER: Final = 12


@dataclass(frozen=True, slots=True)
class Priced:
    """The shares at the end of a search, and what no solution at all is worth more than."""

    shares: Shares
    most: float


class Search:
    """The patterns found so far, and the work that is left for finding more."""

    def __init__(self, problem: Problem, work: int, slack: float = SLACK) -> None:
        self.problem, self.work = problem, work
        self._columns = Columns(problem)
        self._hosts = [OneHost(number, problem, slack) for number in range(len(problem.shapes))]

    def priced(
        self, left: Sequence[int], hosts: Sequence[int], rounds: int, center: Sequence[float] | None = None
    ) -> Priced:
        """The best shares for these VMs and hosts, after so many rounds of looking for better patterns.

        `center`: prices to begin with, where good ones are known.
        """
        most = float(sum(count * worth for count, worth in zip(left, self.problem.worth, strict=True)))
        shares = self._columns.shares(left, hosts)
        center, best = center or shares.kind_prices, float("inf")
        for _ in range(rounds):
            if self.work <= 0 or most - shares.value <= _ENOUGH * most:
                break
            found = False
            for prices in (_between(center, shares.kind_prices), shares.kind_prices):
                bound, found = self._look(prices, shares, left, hosts)
                if bound < best:
                    best, center = bound, prices
                if found:
                    break
            most = min(most, best)
            if not found:
                break
            shares = self._columns.shares(left, hosts)
        return Priced(shares, most)

    def _look(
        self, prices: Sequence[float], shares: Shares, left: Sequence[int], hosts: Sequence[int]
    ) -> tuple[float, bool]:
        """A bound at these prices, and whether a pattern was found that is worth more than it costs now."""
        bound = sum(price * count for price, count in zip(prices, left, strict=True))
        found = False
        for program, count in zip(self._hosts, hosts, strict=True):
            if not count:
                continue
            best = program.best(prices, left)
            self.work -= best.work
            bound += count * max(0.0, best.bound)
            cost = sum(shares.kind_prices[kind] * n for kind, n in best.pattern.counts)
            gain = self.problem.value(best.pattern) - cost - shares.host_prices[program.number]
            if gain > 1e-6 * max(self.problem.worth):
                found |= self._columns.add(best.pattern)
        return bound, found


def solve(problem: Problem, work: int = WORK) -> Solution:
    """A good solution, and what none is better than. `work` limits each search, in simplex iterations."""
    near = replace(local(problem), touching=TOUCHED * max(problem.worth, default=0))
    search = Search(near, work)
    left, hosts = list(problem.demand), [shape.count for shape in problem.shapes]
    most, prices = fluid(loose(problem))
    priced = search.priced(left, hosts, _ROUNDS, prices)
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
    return Solution(tuple(taken), bound(problem, taken, min(most, problem.asked), prices, work))


def bound(
    problem: Problem, taken: Sequence[tuple[Pattern, int]], most: float, prices: Sequence[float], work: int
) -> float:
    """What no solution is worth more than: `most` where these patterns are as good, else what a closer look says."""
    placed = sum(times * problem.memory(pattern) for pattern, times in taken)
    if placed >= most * (1 - _ENOUGH):
        return max(most, placed)
    search = Search(loose(problem), work, _FINE)
    hosts = [shape.count for shape in problem.shapes]
    return max(placed, min(most, search.priced(problem.demand, hosts, _ROUNDS, prices).most))


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


def _between(center: Sequence[float], now: Sequence[float]) -> tuple[float, ...]:
    """Prices half-way back to the best ones known: those of a young mix swing."""
    return tuple(_SMOOTH * old + (1 - _SMOOTH) * new for old, new in zip(center, now, strict=True))
