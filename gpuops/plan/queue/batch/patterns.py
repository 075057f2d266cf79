"""Builds the two programs of column generation: one shares hosts out among known patterns, one finds a better pattern.

`column_generation.py` solves them in turn: the first is a linear program over all known patterns and gives prices, the
second an integer program over one host at these prices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.plan.queue.batch.highs import SolverProgram
from gpuops.plan.queue.batch.problem import BatchProblem, HostPattern

SLACK: Final = 0.05
"""How far below the best a pattern may be, as a share of the largest worth: the last bit takes most of the time."""


@dataclass(frozen=True, slots=True)
class PatternShares:
    """The best mix of known patterns: on how many hosts each is, in fractions; and the dual prices of VMs and hosts."""

    patterns: tuple[tuple[HostPattern, float], ...]
    value: float
    kind_prices: tuple[float, ...]
    host_prices: tuple[float, ...]


class KnownPatterns:
    """The patterns found so far, in the order in which they were found, each once."""

    def __init__(self, problem: BatchProblem) -> None:
        self._problem = problem
        self._patterns: dict[HostPattern, None] = {}

    def __len__(self) -> int:
        return len(self._patterns)

    def add(self, pattern: HostPattern) -> bool:
        """Add a pattern. Returns whether it is new and holds any VM."""
        if not pattern.vms or pattern in self._patterns:
            return False
        self._patterns[pattern] = None
        return True

    def shares(self, remaining: Sequence[int], hosts: Sequence[int]) -> PatternShares:
        """Return the best mix for the remaining VMs of each kind and the remaining hosts of each shape.

        Maximise the worth of the patterns; rows: the VMs of each kind, then the hosts of each shape.
        """
        import numpy as np

        kinds, shapes = len(remaining), len(hosts)
        fitting = dict.fromkeys(self._cut(remaining, hosts))
        if not fitting:
            return PatternShares((), 0.0, (0.0,) * kinds, (0.0,) * shapes)
        patterns = tuple(fitting)
        columns = [[*pattern.counts, (kinds + pattern.shape, 1)] for pattern in patterns]
        gains = np.array([self._problem.value(pattern) for pattern in patterns])
        answer = SolverProgram(columns, kinds + shapes, integer=False).solve(
            gains, np.full(len(patterns), np.inf), np.array([*remaining, *hosts], dtype=np.float64)
        )
        point, prices = answer.point.tolist(), answer.prices.tolist()
        shared = tuple((pattern, share) for pattern, share in zip(patterns, point, strict=True) if share > 1e-6)
        return PatternShares(shared, answer.value, tuple(prices[:kinds]), tuple(prices[kinds:]))

    def _cut(self, remaining: Sequence[int], hosts: Sequence[int]) -> Iterable[HostPattern]:
        for pattern in self._patterns:
            if hosts[pattern.shape]:
                fitting = cut_to_demand(pattern, remaining)
                if fitting.vms:
                    yield fitting


def cut_to_demand(pattern: HostPattern, remaining: Sequence[int]) -> HostPattern:
    """Return the pattern without the VMs that exceed the remaining ones of their kind.

    With `remaining` (2, 0), a pattern of three VMs of kind 0 and one of kind 1 becomes two VMs of kind 0.
    """
    if all(count <= remaining[kind] for kind, count in pattern.counts):
        return pattern
    uncovered, vms = list(remaining), []
    for kind, option, count in pattern.vms:
        fitting = min(count, uncovered[kind])
        uncovered[kind] -= fitting
        if fitting:
            vms.append((kind, option, fitting))
    return HostPattern(pattern.shape, tuple(vms), pattern.gpus)


@dataclass(frozen=True, slots=True)
class BestPattern:
    """The best pattern of a host, its value at the prices, and a bound on the value of any."""

    pattern: HostPattern
    value: float
    bound: float
    work: int


class PatternProgram:
    """The integer program that finds the best pattern of one host shape, solved many times at changing prices.

    Variables: VMs by kind and option, then GPUs by group and layout. Rows: what the host has (a VM uses it, a layout
    provides it), the GPUs of each group, the VMs left of each kind.
    `keep`: the program is kept between two calls (a hundred kilobytes of memory); else it is built for each call.
    """

    def __init__(self, number: int, problem: BatchProblem, slack: float = SLACK, *, keep: bool = True) -> None:
        self.number, self._problem = number, problem
        self._slack, self._keep = slack * max(problem.worth, default=0), keep
        self._kept: SolverProgram | None = None
        shape = problem.shapes[number]
        self._options = [
            (kind, index) for kind, options in sorted(shape.options.items()) for index in range(len(options))
        ]
        self._layouts = [
            (index, layout) for index, group in enumerate(shape.groups) for layout in range(len(group.layouts))
        ]
        self._kinds = sorted(shape.options)
        self._limits = (*shape.capacity, *(group.count for group in shape.groups))
        self._gpus = [shape.groups[index].count for index, _ in self._layouts]

    def _program(self) -> SolverProgram:
        if self._kept is not None:
            return self._kept
        shape = self._problem.shapes[self.number]
        rows, groups = len(shape.capacity), len(shape.groups)
        row_of = {kind: rows + groups + index for index, kind in enumerate(self._kinds)}
        columns = [
            *((*shape.options[kind][index].uses, (row_of[kind], 1)) for kind, index in self._options),
            *(
                (*((row, -amount) for row, amount in shape.groups[index].layouts[layout]), (rows + index, 1))
                for index, layout in self._layouts
            ),
        ]
        program = SolverProgram(columns, rows + groups + len(self._kinds), integer=True, slack=self._slack)
        self._kept = program if self._keep else None
        return program

    def best(self, prices: Sequence[float], remaining: Sequence[int]) -> BestPattern:
        """Return the best pattern if a VM of each kind costs `prices`, with the `remaining` VMs of each kind."""
        import numpy as np

        # A VM earns its worth less its price; layouts cost nothing. VMs that earn nothing are limited to none.
        gain = [self._problem.worth_of(self.number, kind, option) - prices[kind] for kind, option in self._options]
        most = [float(remaining[kind]) if gain[index] > 0 else 0.0 for index, (kind, _) in enumerate(self._options)]
        answer = self._program().solve(
            np.array([*gain, *([0.0] * len(self._layouts))]),
            np.array([*most, *self._gpus], dtype=np.float64),
            np.array([*self._limits, *(remaining[kind] for kind in self._kinds)], dtype=np.float64),
        )
        # The point holds the counts of the VMs first, then those of the layouts.
        counts = answer.point.round().astype(int).tolist()
        vms = tuple((*choice, count) for choice, count in zip(self._options, counts, strict=False) if count)
        gpus = tuple((*choice, n) for choice, n in zip(self._layouts, counts[len(self._options) :], strict=True) if n)
        used_host_cost = self._problem.used_host_cost
        return BestPattern(
            HostPattern(self.number, vms, gpus),
            answer.value - used_host_cost,
            answer.bound - used_host_cost,
            answer.work,
        )
