"""One host: the pattern that is worth most at given prices, by an integer program over counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.plan.batch.highs import Program
from gpuops.plan.batch.problem import Pattern, Problem

SLACK: Final = 0.05
"""How far from the best a pattern may be, of the largest worth: to prove the last bit takes most of the time."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best pattern of a host, its value at the prices, and a bound on the value of any."""

    pattern: Pattern
    value: float
    bound: float
    work: int


class OneHost:
    """The program of one shape, asked again and again at other prices.

    `keep`: the program stays between two questions, a hundred kilobytes; else it is made for each.
    """

    def __init__(self, number: int, problem: Problem, slack: float = SLACK, *, keep: bool = True) -> None:
        self.number, self._problem = number, problem
        self._slack, self._keep = slack * max(problem.worth, default=0), keep
        self._kept: Program | None = None
        shape = problem.shapes[number]
        self._ways = [(kind, at) for kind, ways in sorted(shape.ways.items()) for at in range(len(ways))]
        self._fillings = [(at, way) for at, group in enumerate(shape.groups) for way in range(len(group.fillings))]
        self._kinds = sorted(shape.ways)
        self._limits = (*shape.capacity, *(group.count for group in shape.groups))
        self._gpus = [shape.groups[at].count for at, _ in self._fillings]

    def _program(self) -> Program:
        if self._kept is not None:
            return self._kept
        shape = self._problem.shapes[self.number]
        rows, groups = len(shape.capacity), len(shape.groups)
        row_of = {kind: rows + groups + at for at, kind in enumerate(self._kinds)}
        columns = [
            *((*shape.ways[kind][at].uses, (row_of[kind], 1)) for kind, at in self._ways),
            *(
                (*((row, -much) for row, much in shape.groups[at].fillings[way]), (rows + at, 1))
                for at, way in self._fillings
            ),
        ]
        program = Program(columns, rows + groups + len(self._kinds), integer=True, slack=self._slack)
        self._kept = program if self._keep else None
        return program

    def best(self, prices: Sequence[float], left: Sequence[int]) -> Best:
        """With what a VM of each kind costs, and how many of each there are left."""
        import numpy as np

        gain = [self._problem.worth_of(self.number, kind, way) - prices[kind] for kind, way in self._ways]
        most = [float(left[kind]) if gain[at] > 0 else 0.0 for at, (kind, _) in enumerate(self._ways)]
        answer = self._program().solve(
            np.array([*gain, *([0.0] * len(self._fillings))]),
            np.array([*most, *self._gpus], dtype=np.float64),
            np.array([*self._limits, *(left[kind] for kind in self._kinds)], dtype=np.float64),
        )
        counts = answer.point.round().astype(int).tolist()
        vms = tuple((*way, count) for way, count in zip(self._ways, counts, strict=False) if count)
        gpus = tuple((*way, n) for way, n in zip(self._fillings, counts[len(self._ways) :], strict=True) if n)
        touching = self._problem.touching
        return Best(Pattern(self.number, vms, gpus), answer.value - touching, answer.bound - touching, answer.work)
