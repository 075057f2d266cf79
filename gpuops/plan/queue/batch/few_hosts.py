"""Plans a few hosts anew, together with the VMs that have no place: what rounding left behind is found there.

`solve.py` calls `plan_anew` at its end. A large neighbourhood search (Shaw, 1998): of a plan for many hosts all but
three are left as they are, and one integer program has all VMs of these three and those without a place. Three hosts
have little symmetry, so that ends soon; it is taken where it places more than before, or as much and more beside GPUs.

Example: two hosts of three units, each with a VM of two, and a VM of one and one of three without a place. Host by host
the one is added, five units in all; planned anew together, one host has the three, the other a two and the one: six.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd
from typing import Final

from gpuops.plan.queue.batch.column_generation import SolverProgram, solve_fluid
from gpuops.plan.queue.batch.problem import BatchProblem, HostPattern, with_loosest_options

WORK: Final = 40_000
"""Limit of the search in simplex iterations of programs of `_ROWS` rows: five to ten seconds for the hardest problems
that were measured."""
_TOGETHER: Final = 3
_AT_LEAST: Final = 1000
"""Iterations that each program counts for: a small one takes as long to begin."""
_ROWS: Final = 120
"""Rows of a program up to which an iteration counts once: of three hosts of the trace. With twice as many, for many
kinds of VM, it takes twice as long (0.7 to 2 microseconds a row were measured), and counts twice."""
_SLACK: Final = 0.01
"""How far below the best the plan of a few hosts may be, as a share of the largest worth."""


def plan_anew(
    problem: BatchProblem, hosts: Sequence[HostPattern], unplaced: Sequence[int], work: int
) -> list[HostPattern]:
    """Return the hosts' patterns with more VMs placed, if room is found for some of the `unplaced` ones."""
    patterns, remaining_vms = list(hosts), list(unplaced)
    programs: dict[tuple[int, ...], _HostsProgram] = {}
    # Look first at the hosts that could hold the most more GPU memory than they do. Take at least `_TOGETHER` of them:
    # full hosts help to fill others.
    loosest = with_loosest_options(problem)
    most = [solve_fluid(replace(loosest, shapes=(replace(shape, count=1),)))[0] for shape in loosest.shapes]
    lacks = [most[pattern.shape] - problem.memory(pattern) for pattern in patterns]
    ranked = sorted(range(len(patterns)), key=lambda number: (-lacks[number], number))
    open_hosts = sum(lack >= gcd(*problem.worth) - 1e-6 for lack in lacks)
    lacking = ranked[: max(_TOGETHER, open_hosts)]
    for three in _threes(len(lacking)):
        if work <= 0 or not any(remaining_vms):
            break
        numbers = [lacking[at] for at in three]
        chosen = [patterns[number] for number in numbers]
        shapes = tuple(pattern.shape for pattern in chosen)
        if shapes not in programs:
            programs[shapes] = _HostsProgram(problem, shapes)
        vms = _change_counts(remaining_vms, chosen, 1)
        better_patterns, used = programs[shapes].best(vms)
        work -= max(used, _AT_LEAST) * max(programs[shapes].rows, _ROWS) // _ROWS
        if _worth(problem, better_patterns) > _worth(problem, chosen):
            remaining_vms = _change_counts(vms, better_patterns, -1)
            for number, pattern in zip(numbers, better_patterns, strict=True):
                patterns[number] = pattern
    return patterns


def _worth(problem: BatchProblem, patterns: Sequence[HostPattern]) -> tuple[int, float]:
    """The GPU memory first: of much of it, beside its GPUs or not, the penalty is more than the worth of a small VM."""
    return sum(map(problem.memory, patterns)), sum(map(problem.value, patterns))


def _threes(hosts: int) -> Iterator[tuple[int, ...]]:
    """Three hosts each time, first neighbours and then ever farther ones; all of them where there are no more.

    Of six: (0, 1, 2), (3, 4, 5), (0, 1, 3), (3, 4, 0), (0, 2, 3), ...
    """
    if hosts <= _TOGETHER:
        yield tuple(range(hosts))
        return
    for far in range(2, hosts):
        for near in range(1, far):
            for first in range(0, hosts, _TOGETHER):
                yield first, (first + near) % hosts, (first + far) % hosts


def _change_counts(vms: Sequence[int], patterns: Sequence[HostPattern], sign: int) -> list[int]:
    """The VMs of each kind with those of the patterns, or without them."""
    counts = list(vms)
    for pattern in patterns:
        for kind, count in pattern.counts:
            counts[kind] += sign * count
    return counts


class _HostsProgram:
    """The integer program of hosts of these shapes: as `PatternProgram`, host beside host, which share the VMs."""

    def __init__(self, problem: BatchProblem, shapes: Sequence[int]) -> None:
        self._problem, self._shapes = problem, shapes
        columns: list[list[tuple[int, float]]] = []
        self._options: list[list[tuple[int, int]]] = []
        self._layouts: list[list[tuple[int, int]]] = []
        first = len(problem.demand)
        for number in shapes:
            shape = problem.shapes[number]
            groups = first + len(shape.capacity)
            options = [
                (kind, at)
                for kind, options_of_kind in sorted(shape.options.items())
                for at in range(len(options_of_kind))
            ]
            layouts = [(at, layout) for at, group in enumerate(shape.groups) for layout in range(len(group.layouts))]
            for kind, at in options:
                columns.append([(kind, 1), *((first + row, much) for row, much in shape.options[kind][at].uses)])
            for at, layout in layouts:
                gives = ((first + row, -much) for row, much in shape.groups[at].layouts[layout])
                columns.append([*gives, (groups + at, 1)])
            self._options.append(options)
            self._layouts.append(layouts)
            first = groups + len(shape.groups)
        slack = _SLACK * max(problem.worth, default=0)
        self._program = SolverProgram(columns, first, integer=True, slack=slack)

    @property
    def rows(self) -> int:
        """The kinds of VM, and what each of the hosts has of everything."""
        return self._program.rows

    def best(self, vms: Sequence[int]) -> tuple[list[HostPattern], int]:
        """The best patterns for so many VMs of each kind, and the simplex iterations that it took."""
        import numpy as np

        gains: list[float] = []
        most: list[float] = []
        limits: list[float] = list(map(float, vms))
        for number, options, layouts in zip(self._shapes, self._options, self._layouts, strict=True):
            shape = self._problem.shapes[number]
            gains += [self._problem.worth_of(number, kind, at) for kind, at in options] + [0.0] * len(layouts)
            most += [float(vms[kind]) for kind, _ in options]
            most += [float(shape.groups[at].count) for at, _ in layouts]
            limits += [*map(float, shape.capacity), *(float(group.count) for group in shape.groups)]
        answer = self._program.solve(np.array(gains), np.array(most), np.array(limits))
        counts = iter(answer.point.round().astype(int).tolist())
        patterns = [HostPattern(number, (), ()) for number in self._shapes]
        for at, (options, layouts) in enumerate(zip(self._options, self._layouts, strict=True)):
            vm_counts = tuple((*option, count) for option in options if (count := next(counts)))
            gpus = tuple((*layout, count) for layout in layouts if (count := next(counts)))
            patterns[at] = replace(patterns[at], vms=vm_counts, gpus=gpus)
        return patterns, answer.work
