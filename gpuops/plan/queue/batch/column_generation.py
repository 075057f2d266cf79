"""Solves a batch problem by column generation: looks for patterns worth more than they cost until none is left.

The linear program over the known patterns prices VMs and hosts. Each shape's own program then looks for a better
pattern at these prices. What no shape can earn at given prices bounds every solution (the Lagrangian bound). `solve.py`
calls it for a solution and for the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.plan.queue.batch.highs import SolverAnswer, SolverProgram
from gpuops.plan.queue.batch.patterns import SLACK, KnownPatterns, PatternProgram, PatternShares
from gpuops.plan.queue.batch.problem import BatchProblem

ENOUGH: Final = 2e-4
"""Share of the worth: a solution that is closer than this to its bound is good enough."""
_SMOOTH: Final = 0.5
"""Weight of the best prices known in the prices that are tried."""
_AT_ONCE: Final = 32
"""Shapes whose programs are solved in one round; of a fleet with more, each round takes the next part."""

_MOST_WHOLE_LAYOUTS: Final = 3000
"""Limit of layouts of all shapes, up to which the bound counts whole VMs and GPUs; beyond, that takes too long."""


@dataclass(frozen=True, slots=True)
class PricedShares:
    """The shares at the end of a search, and a bound on the worth of any solution."""

    shares: PatternShares
    most: float


class ColumnGeneration:
    """The patterns found so far, and the work that is left for finding more, in simplex iterations."""

    def __init__(self, problem: BatchProblem, work: int, slack: float = SLACK) -> None:
        self.problem, self.work = problem, work
        self._columns = KnownPatterns(problem)
        self._turn = -_AT_ONCE
        # Programs are kept where each is asked often.
        few = len(problem.shapes) <= _AT_ONCE
        self._hosts = [PatternProgram(number, problem, slack, keep=few) for number in range(len(problem.shapes))]

    def price_shares(
        self, unplaced: Sequence[int], hosts: Sequence[int], rounds: int, center: Sequence[float] | None = None
    ) -> PricedShares:
        """The best shares for these VMs and hosts after at most `rounds` rounds.

        `center`: prices to begin with, where good ones are known.
        """
        most = float(sum(count * worth for count, worth in zip(unplaced, self.problem.worth, strict=True)))
        shares = self._columns.shares(unplaced, hosts)
        center, best = center or shares.kind_prices, float("inf")
        # With many shapes a round looks at a part of them; a bound or an end needs as many turns as there are parts.
        rounds_without_gain, turns = 0, -(-sum(map(bool, hosts)) // _AT_ONCE)
        for _ in range(rounds * turns):
            if self.work <= 0 or most - shares.value <= ENOUGH * most:
                break
            improved = False
            # Smoothed prices first: those of a young mix swing. Where they show nothing, the program's own prices.
            for prices in (_smooth(center, shares.kind_prices), shares.kind_prices):
                bound, improved = self._look(prices, shares, unplaced, hosts)
                if bound < best:
                    best, center = bound, prices
                if improved:
                    break
            most = min(most, best)
            # No shape has a better pattern at the program's own prices: the shares are the optimum of the linear
            # program.
            rounds_without_gain = 0 if improved else rounds_without_gain + 1
            if rounds_without_gain >= turns:
                break
            shares = self._columns.shares(unplaced, hosts)
        return PricedShares(shares, most)

    def _look(
        self, prices: Sequence[float], shares: PatternShares, unplaced: Sequence[int], hosts: Sequence[int]
    ) -> tuple[float, bool]:
        """Solve the shapes' programs at these prices, and add the better patterns.

        Returns a bound on any solution, infinite where not every shape was looked at, and whether a pattern was added.
        """
        programs = [program for program in self._hosts if hosts[program.number]]
        # The Lagrangian bound: all VMs at their prices, and for each host what its best pattern earns beyond them.
        bound = sum(price * count for price, count in zip(prices, unplaced, strict=True))
        improved = False
        for program in self._in_turn(programs):
            best = program.best(prices, unplaced)
            self.work -= best.work
            bound += hosts[program.number] * max(0.0, best.bound)
            # A pattern is better where its worth exceeds what its VMs and its host cost in the current shares.
            cost = sum(shares.kind_prices[kind] * n for kind, n in best.pattern.counts)
            gain = self.problem.value(best.pattern) - cost - shares.host_prices[program.number]
            if gain > 1e-6 * max(self.problem.worth):
                improved |= self._columns.add(best.pattern)
        return bound if len(programs) <= _AT_ONCE else float("inf"), improved

    def _in_turn(self, programs: Sequence[PatternProgram]) -> Sequence[PatternProgram]:
        """The next part of the shapes, after those that were looked at last."""
        if len(programs) <= _AT_ONCE:
            return programs
        self._turn = (self._turn + _AT_ONCE) % len(programs)
        return (*programs, *programs)[self._turn : self._turn + _AT_ONCE]


def _smooth(center: Sequence[float], now: Sequence[float]) -> tuple[float, ...]:
    """Prices half-way back to the best ones known. (8, 0) and (4, 2) give (6, 1)."""
    return tuple(_SMOOTH * old + (1 - _SMOOTH) * new for old, new in zip(center, now, strict=True))


def solve_fluid(problem: BatchProblem) -> tuple[float, tuple[float, ...]]:
    """A bound on the worth of any solution, and what one more VM of each kind would be worth.

    All hosts of a shape are one large host, and VMs go there in fractions: a linear program, solved once.
    """
    answer = _solve_large_hosts(problem, integer=False)
    if answer is None:
        return 0.0, (0.0,) * len(problem.demand)
    return answer.bound, tuple(answer.prices[: len(problem.demand)].tolist())


def bound_whole(problem: BatchProblem) -> float:
    """A bound on the worth of any solution: all hosts of a shape are one large host, but VMs and GPUs are whole.

    Example: two GPUs of 48 GiB, each for vGPUs of one size, three VMs of 24 GiB and five of 8 GiB. In fractions one
    and a half GPUs have the large ones and the others small ones, 96 GiB in all; whole GPUs place at most 88 GiB.
    """
    if sum(len(group.layouts) for shape in problem.shapes for group in shape.groups) > _MOST_WHOLE_LAYOUTS:
        return float("inf")
    answer = _solve_large_hosts(problem, integer=True)
    return 0.0 if answer is None else answer.bound


def _solve_large_hosts(problem: BatchProblem, *, integer: bool) -> SolverAnswer | None:
    """None = nothing can be placed anywhere."""
    import numpy as np

    columns: list[list[tuple[int, float]]] = []
    gains: list[float] = []
    limits: list[float] = list(map(float, problem.demand))
    for number, shape in enumerate(problem.shapes):
        first = len(limits)
        limits += [float(shape.count * amount) for amount in shape.capacity]
        limits += [float(shape.count * group.count) for group in shape.groups]
        for kind, options in sorted(shape.options.items()):
            for number_of_option, option in enumerate(options):
                columns.append([(kind, 1), *((first + row, amount) for row, amount in option.uses)])
                gains.append(problem.worth_of(number, kind, number_of_option))
        for index, group in enumerate(shape.groups):
            for layout in group.layouts:
                row = first + len(shape.capacity) + index
                columns.append([*((first + row, -amount) for row, amount in layout), (row, 1)])
                gains.append(0.0)
    if not columns:
        return None
    return SolverProgram(columns, len(limits), integer=integer).solve(
        np.array(gains), np.full(len(columns), np.inf), np.array(limits)
    )
