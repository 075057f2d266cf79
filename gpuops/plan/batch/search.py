"""Search: patterns that are worth more than they cost, until there is none: column generation.

The linear program over the known patterns prices VMs and hosts; each shape's own program looks for a better pattern at
these prices, and what it cannot beat bounds every solution (the Lagrangian bound).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.plan.batch.columns import Columns, Shares
from gpuops.plan.batch.one_host import SLACK, OneHost
from gpuops.plan.batch.problem import Problem

ENOUGH: Final = 2e-4
"""Of the worth: what is closer to its bound is left."""
_SMOOTH: Final = 0.5
_AT_ONCE: Final = 32
"""Shapes looked at for one pricing: of a fleet without two equal hosts, a part in turn."""


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
        self._turn = -_AT_ONCE
        few = len(problem.shapes) <= _AT_ONCE  # of many, each is asked a few times at the most
        self._hosts = [OneHost(number, problem, slack, keep=few) for number in range(len(problem.shapes))]

    def priced(
        self, left: Sequence[int], hosts: Sequence[int], rounds: int, center: Sequence[float] | None = None
    ) -> Priced:
        """The best shares for these VMs and hosts, after so many rounds of looking for better patterns.

        `center`: prices to begin with, where good ones are known.
        """
        most = float(sum(count * worth for count, worth in zip(left, self.problem.worth, strict=True)))
        shares = self._columns.shares(left, hosts)
        center, best = center or shares.kind_prices, float("inf")
        in_vain, turns = 0, -(-sum(map(bool, hosts)) // _AT_ONCE)
        for _ in range(rounds * turns):
            if self.work <= 0 or most - shares.value <= ENOUGH * most:
                break
            found = False
            for prices in (_between(center, shares.kind_prices), shares.kind_prices):
                bound, found = self._look(prices, shares, left, hosts)
                if bound < best:
                    best, center = bound, prices
                if found:
                    break
            most = min(most, best)
            in_vain = 0 if found else in_vain + 1
            if in_vain >= turns:
                break
            shares = self._columns.shares(left, hosts)
        return Priced(shares, most)

    def _look(
        self, prices: Sequence[float], shares: Shares, left: Sequence[int], hosts: Sequence[int]
    ) -> tuple[float, bool]:
        """A bound at these prices, infinite where not every shape was looked at; and whether a better pattern is found.

        Better: it is worth more than what its VMs and its host cost now.
        """
        live = [program for program in self._hosts if hosts[program.number]]
        bound = sum(price * count for price, count in zip(prices, left, strict=True))
        found = False
        for program in self._in_turn(live):
            best = program.best(prices, left)
            self.work -= best.work
            bound += hosts[program.number] * max(0.0, best.bound)
            cost = sum(shares.kind_prices[kind] * n for kind, n in best.pattern.counts)
            gain = self.problem.value(best.pattern) - cost - shares.host_prices[program.number]
            if gain > 1e-6 * max(self.problem.worth):
                found |= self._columns.add(best.pattern)
        return bound if len(live) <= _AT_ONCE else float("inf"), found

    def _in_turn(self, live: Sequence[OneHost]) -> Sequence[OneHost]:
        """So many as are looked at at once, after those that were looked at last."""
        if len(live) <= _AT_ONCE:
            return live
        self._turn = (self._turn + _AT_ONCE) % len(live)
        return (*live, *live)[self._turn : self._turn + _AT_ONCE]


def _between(center: Sequence[float], now: Sequence[float]) -> tuple[float, ...]:
    """Prices half-way back to the best ones known: those of a young mix swing."""
    return tuple(_SMOOTH * old + (1 - _SMOOTH) * new for old, new in zip(center, now, strict=True))
