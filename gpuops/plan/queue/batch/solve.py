"""Solves a batch problem: how many VMs of each kind go on how many hosts, so that the most GPU memory is placed.

`place_all.py` calls `solve` for the plan and `bound` for the memory that no plan can exceed.

The search shares the hosts out among patterns, in fractions. Then the shares become whole hosts: whole parts stay, else
the largest share is rounded up; the rest of the hosts is priced anew for the rest of the VMs. The VMs that are left go
where there is room, beside their GPUs or not: a remote VM is better than an unplaced one. One integer program over all
hosts would not end, because hundreds of equal hosts make it symmetric; a pattern exists only once.

In fleets that are not large, `plan_anew` then finds what rounding missed. It is a large neighbourhood search (Shaw,
1998): all hosts but three stay as they are, and one integer program plans the VMs of these three and those without a
place. Three hosts have little symmetry, so that ends soon. Its result is taken if it places more than before, or as
much and more of it beside the GPUs.

Example: two hosts of three units, each with a VM of two, and a VM of one and one of three without a place. Host by host
only the VM of one can be added, five units in all. Planned anew together, one host has the three, the other a two and
the one: six units.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd
from typing import Final

from gpuops.plan.queue.batch.column_generation import (
    ColumnGeneration,
    PatternProgram,
    PatternShares,
    SolverProgram,
    bound_whole,
    cut_to_demand,
    solve_fluid,
)
from gpuops.plan.queue.batch.integer_program import (
    BatchProblem,
    BatchSolution,
    GpuGroup,
    HostPattern,
    HostShape,
    with_local_options,
    with_loosest_options,
)

FEW_HOSTS_WORK: Final = 40_000
"""Limit of the search in simplex iterations of programs of `_ROWS` rows: five to ten seconds for the hardest problems
that were measured."""
_HOSTS_TOGETHER: Final = 3
"""How many hosts are planned anew together: few, so that the program has little symmetry."""
_MIN_WORK: Final = 1000
"""Iterations that each program counts for at least: also a small one takes that long to begin."""
_ROWS: Final = 120
"""Rows of a program up to which an iteration counts once: of three hosts of the trace. With twice as many, for many
kinds of VM, it takes twice as long (0.7 to 2 microseconds a row were measured), and counts twice."""
_SLACK: Final = 0.01
"""How far below the best the plan of a few hosts may be, as a share of the largest worth of a VM."""


def plan_anew(
    problem: BatchProblem, hosts: Sequence[HostPattern], unplaced: Sequence[int], work: int
) -> list[HostPattern]:
    """Return the hosts' patterns with more VMs placed, if room is found for some of the `unplaced` ones.

    `work` limits the search, in simplex iterations.
    """
    patterns, remaining_vms = list(hosts), list(unplaced)
    programs: dict[tuple[int, ...], _HostsProgram] = {}
    # Look first at the hosts with the most unused GPU memory. Take at least `_HOSTS_TOGETHER` of them: full hosts help
    # to fill others.
    loosest = with_loosest_options(problem)
    most_mib = [solve_fluid(replace(loosest, shapes=(replace(shape, count=1),)))[0] for shape in loosest.shapes]
    unused_mib = [most_mib[pattern.shape] - problem.memory(pattern) for pattern in patterns]
    smallest_gain_mib = gcd(*problem.worth)
    open_count = sum(gpu_mib >= smallest_gain_mib - 1e-6 for gpu_mib in unused_mib)
    ranked = sorted(range(len(patterns)), key=lambda number: (-unused_mib[number], number))
    open_hosts = ranked[: max(_HOSTS_TOGETHER, open_count)]
    for three in _threes(len(open_hosts)):
        if work <= 0 or not any(remaining_vms):
            break
        # Take the VMs of these hosts away, and plan them again together with those that have no place.
        numbers = [open_hosts[at] for at in three]
        old_patterns = [patterns[number] for number in numbers]
        shapes = tuple(pattern.shape for pattern in old_patterns)
        if shapes not in programs:
            programs[shapes] = _HostsProgram(problem, shapes)
        vms = _change_counts(remaining_vms, old_patterns, 1)
        new_patterns, iterations = programs[shapes].best(vms)
        work -= max(iterations, _MIN_WORK) * max(programs[shapes].rows, _ROWS) // _ROWS
        if _worth(problem, new_patterns) > _worth(problem, old_patterns):
            remaining_vms = _change_counts(vms, new_patterns, -1)
            for number, pattern in zip(numbers, new_patterns, strict=True):
                patterns[number] = pattern
    return patterns


def _worth(problem: BatchProblem, patterns: Sequence[HostPattern]) -> tuple[int, float]:
    """Return the GPU memory of these patterns, then their value. Memory decides first: on large patterns the penalties
    for remote VMs in the value add up to more than a small VM is worth."""
    return sum(map(problem.memory, patterns)), sum(map(problem.value, patterns))


def _threes(hosts: int) -> Iterator[tuple[int, ...]]:
    """Yield three hosts each time, first neighbours and then ever farther ones; all of them if there are no more.

    >>> list(_threes(6))[:5]
    [(0, 1, 2), (3, 4, 5), (0, 1, 3), (3, 4, 0), (0, 2, 3)]
    """
    if hosts <= _HOSTS_TOGETHER:
        yield tuple(range(hosts))
        return
    for far in range(2, hosts):
        for near in range(1, far):
            for first in range(0, hosts, _HOSTS_TOGETHER):
                yield first, (first + near) % hosts, (first + far) % hosts


def _change_counts(vms: Sequence[int], patterns: Sequence[HostPattern], sign: int) -> list[int]:
    """Return the VMs of each kind with those of the patterns (`sign` 1), or without them (-1)."""
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
        # The rows: the VMs of each kind, then for each host its capacity and the GPUs of each group.
        first_row = len(problem.demand)
        for number in shapes:
            shape = problem.shapes[number]
            first_group_row = first_row + len(shape.capacity)
            options = [
                (kind, option)
                for kind, options_of_kind in sorted(shape.options.items())
                for option in range(len(options_of_kind))
            ]
            layouts = [
                (group, layout) for group, gpus in enumerate(shape.groups) for layout in range(len(gpus.layouts))
            ]
            for kind, option in options:
                uses = ((first_row + row, amount) for row, amount in shape.options[kind][option].uses)
                columns.append([(kind, 1), *uses])
            for group, layout in layouts:
                # a layout adds capacity: its use is negative
                uses = ((first_row + row, -amount) for row, amount in shape.groups[group].layouts[layout])
                columns.append([*uses, (first_group_row + group, 1)])
            self._options.append(options)
            self._layouts.append(layouts)
            first_row = first_group_row + len(shape.groups)
        slack = _SLACK * max(problem.worth, default=0)
        self._program = SolverProgram(columns, first_row, integer=True, slack=slack)

    @property
    def rows(self) -> int:
        """Return the number of rows: one for each kind of VM, and those of each host."""
        return self._program.rows

    def best(self, vms: Sequence[int]) -> tuple[list[HostPattern], int]:
        """Return the best patterns for these numbers of VMs of each kind, and the simplex iterations that it took."""
        import numpy as np

        gains: list[float] = []
        upper_limits: list[float] = []
        row_limits: list[float] = list(map(float, vms))
        for number, options, layouts in zip(self._shapes, self._options, self._layouts, strict=True):
            shape = self._problem.shapes[number]
            # VMs earn their worth, layouts nothing
            gains += [self._problem.worth_of(number, kind, option) for kind, option in options] + [0.0] * len(layouts)
            upper_limits += [float(vms[kind]) for kind, _ in options]
            upper_limits += [float(shape.groups[group].count) for group, _ in layouts]
            row_limits += [*map(float, shape.capacity), *(float(group.count) for group in shape.groups)]
        answer = self._program.solve(np.array(gains), np.array(upper_limits), np.array(row_limits))
        # The point holds for each host the counts of its options, then those of its layouts.
        counts = iter(answer.point.round().astype(int).tolist())
        patterns = []
        for number, options, layouts in zip(self._shapes, self._options, self._layouts, strict=True):
            vm_counts = tuple((*option, count) for option in options if (count := next(counts)))
            gpu_counts = tuple((*layout, count) for layout in layouts if (count := next(counts)))
            patterns.append(HostPattern(number, vm_counts, gpu_counts))
        return patterns, answer.work


WORK: Final = 60_000
"""Limit of the search in simplex iterations: ten seconds for the hardest problems that were measured, a second for
most."""
ROUNDS: Final = 500
"""Rounds of the first search; work or optimality end it sooner."""
_ROUNDS_LATER: Final = 12
"""Rounds after each rounding."""
_USED_HOST_COST: Final = 0.0001
"""Cost of using a host at all, as a share of the largest worth: fewer hosts decide between equals, and no more."""
_BOUND_SLACK: Final = 0.002
"""Slack of the patterns where the bound is wanted: finer than for a solution."""
_MOST_HOSTS_ANEW: Final = 64
"""Hosts up to which some are planned anew at the end: in a larger fleet rounding loses a smaller share."""
_MANY_SHAPES: Final = 32
"""Host shapes: with more, the fluid bound is as good as that of column generation."""


def solve(problem: BatchProblem, work: int = WORK) -> BatchSolution:
    """Return a good solution. `work` limits the search for patterns, and then the rounding, in simplex iterations.

    The example of the module: two hosts of three units, and VMs of two, one and three units, each worth its units.

    >>> from gpuops.plan.queue.batch.integer_program import PlacementOption
    >>> options = {kind: (PlacementOption(uses=((0, units),)),) for kind, units in enumerate((2, 1, 3))}
    >>> problem = BatchProblem(demand=(2, 1, 1), worth=(2, 1, 3), shapes=(HostShape(2, (3,), (), options),))
    >>> sorted((pattern.counts, hosts) for pattern, hosts in solve(problem).patterns)
    [(((0, 1), (1, 1)), 1), (((2, 1),), 1)]
    """
    # 1. Locality comes first, so the search looks at no remote option; the last step does.
    local_problem = replace(with_local_options(problem), used_host_cost=_USED_HOST_COST * max(problem.worth, default=0))
    search = ColumnGeneration(local_problem, work)
    unplaced, hosts = list(problem.demand), [shape.count for shape in problem.shapes]
    # 2. Prices from the fluid problem start the search near its end.
    _, prices = solve_fluid(local_problem)
    priced_shares = search.price_shares(unplaced, hosts, ROUNDS, prices)
    # 3. Round: take whole hosts from the shares, and price what is left anew, until nothing is left to share.
    search.work = work
    chosen: list[tuple[HostPattern, int]] = []
    while priced_shares.shares.patterns:
        for pattern, times in _whole_hosts(priced_shares.shares):
            fitting = cut_to_demand(pattern, unplaced)
            if fitting.vms and hosts[pattern.shape]:
                chosen.append(_take(fitting, times, unplaced, hosts))
        priced_shares = search.price_shares(unplaced, hosts, _ROUNDS_LATER)
    # 4. VMs that are left, remote options included, beside the patterns and on unused hosts.
    if any(unplaced):
        chosen = fill_remaining(problem, chosen, hosts, unplaced)
    # 5. If some are still left, plan a few hosts at a time anew with them, then fill what remains once more.
    return BatchSolution(tuple(_with_unplaced(problem, chosen)))


def _with_unplaced(
    problem: BatchProblem, chosen: Sequence[tuple[HostPattern, int]]
) -> Sequence[tuple[HostPattern, int]]:
    """Return patterns that place more of the VMs without a place; patterns of other VMs may change for that."""
    unplaced, unused = _remaining(problem, chosen)
    if not any(unplaced) or sum(shape.count for shape in problem.shapes) > _MOST_HOSTS_ANEW:
        return chosen
    # Stop if even the smallest gain would exceed what any plan can place.
    placed_mib = sum(times * problem.memory(pattern) for pattern, times in chosen)
    next_better_mib, loosest = placed_mib + gcd(*problem.worth), with_loosest_options(problem)
    if next_better_mib > solve_fluid(loosest)[0] + 1e-6 or next_better_mib > bound_whole(loosest) + 1e-6:
        return chosen
    hosts = [pattern for pattern, times in chosen for _ in range(times)]
    hosts += [HostPattern(number, (), ()) for number, count in enumerate(unused) for _ in range(count)]
    new_patterns = plan_anew(problem, hosts, unplaced, FEW_HOSTS_WORK)
    pattern_counts = tuple(Counter(pattern for pattern in new_patterns if pattern.vms).items())
    unplaced, unused = _remaining(problem, pattern_counts)
    return fill_remaining(problem, pattern_counts, unused, unplaced)


def _remaining(problem: BatchProblem, chosen: Sequence[tuple[HostPattern, int]]) -> tuple[list[int], list[int]]:
    """Return the VMs of each kind that have no place, and the hosts of each shape without a pattern."""
    unplaced, hosts = list(problem.demand), [shape.count for shape in problem.shapes]
    for pattern, times in chosen:
        hosts[pattern.shape] -= times
        for kind, count in pattern.counts:
            unplaced[kind] -= times * count
    return unplaced, hosts


def _whole_hosts(shares: PatternShares) -> list[tuple[HostPattern, int]]:
    """Return the whole parts of the shares; if all are below 1, one host each for the largest sixteenth of them.

    >>> a, b = (HostPattern(0, ((kind, 0, 1),), ()) for kind in (0, 1))
    >>> [(pattern.vms, hosts) for pattern, hosts in _whole_hosts(PatternShares(((a, 2.4), (b, 0.7)), 0.0, (), ()))]
    [(((0, 0, 1),), 2)]
    >>> [(pattern.vms, hosts) for pattern, hosts in _whole_hosts(PatternShares(((a, 0.3), (b, 0.7)), 0.0, (), ()))]
    [(((1, 0, 1),), 1)]
    """
    whole_parts = [(pattern, int(share + 1e-6)) for pattern, share in shares.patterns if share + 1e-6 >= 1]
    if whole_parts:
        return whole_parts
    ranked = sorted(shares.patterns, key=lambda pattern_share: -pattern_share[1])
    return [(pattern, 1) for pattern, _ in ranked[: max(1, len(ranked) // 16)]]


def _take(pattern: HostPattern, times: int, unplaced: list[int], hosts: list[int]) -> tuple[HostPattern, int]:
    """Take the pattern on up to `times` hosts, as far as hosts and VMs are left; both are counted down."""
    vms_suffice_for = min(unplaced[kind] // count for kind, count in pattern.counts)
    times = max(1, min(times, hosts[pattern.shape], vms_suffice_for))
    hosts[pattern.shape] -= times
    for kind, count in pattern.counts:
        unplaced[kind] -= times * count
    return pattern, times


def fill_remaining(
    problem: BatchProblem, patterns: Sequence[tuple[HostPattern, int]], hosts: Sequence[int], unplaced: Sequence[int]
) -> list[tuple[HostPattern, int]]:
    """Return the patterns with as many unplaced VMs added as fit, and patterns for hosts that were not used."""
    unused = [(HostPattern(number, (), ()), count) for number, count in enumerate(hosts) if count]
    remaining_vms, filled = list(unplaced), []
    for pattern, times in (*patterns, *unused):
        while times:
            # The same addition goes on as many of these equal hosts as there are VMs for; then another one is sought.
            addition = _best_addition(problem, pattern, remaining_vms)
            hosts_alike = min([times, *(remaining_vms[kind] // count for kind, count in addition.counts)])
            if pattern.vms or addition.vms:
                vms = _sum_counts((*pattern.vms, *addition.vms))
                gpus = _sum_counts((*pattern.gpus, *addition.gpus))
                filled.append((HostPattern(pattern.shape, vms, gpus), hosts_alike))
            for kind, count in addition.counts:
                remaining_vms[kind] -= hosts_alike * count
            times -= hosts_alike
    return filled


def _best_addition(problem: BatchProblem, pattern: HostPattern, unplaced: Sequence[int]) -> HostPattern:
    """Return the most valuable of the unplaced VMs that fit beside the pattern, as a pattern of their own."""
    shape = _remaining_shape(problem.shapes[pattern.shape], pattern, unplaced)
    if not shape.options:
        return HostPattern(pattern.shape, (), ())
    this_host = replace(problem, shapes=(shape,))
    addition = PatternProgram(0, this_host).best((0.0,) * len(unplaced), unplaced).pattern
    return replace(addition, shape=pattern.shape)


def _remaining_shape(shape: HostShape, pattern: HostPattern, unplaced: Sequence[int]) -> HostShape:
    """Return the host as the pattern leaves it, with the kinds of VM that may still fit there."""
    capacity, gpus = list(shape.capacity), [group.count for group in shape.groups]
    for kind, option, count in pattern.vms:
        for row, amount in shape.options[kind][option].uses:
            capacity[row] -= count * amount
    for group, layout, count in pattern.gpus:
        gpus[group] -= count
        for row, amount in shape.groups[group].layouts[layout]:
            capacity[row] += count * amount
    groups = tuple(replace(group, count=count) for group, count in zip(shape.groups, gpus, strict=True))
    # Leave out kinds that surely do not fit: each kind makes the program larger.
    upper_limits = _most_of_each_row(capacity, groups)
    fitting = {
        kind: options
        for kind, options in shape.options.items()
        if unplaced[kind] and any(all(amount <= upper_limits[row] for row, amount in option.uses) for option in options)
    }
    return HostShape(1, tuple(capacity), groups, fitting)


def _most_of_each_row(capacity: Sequence[int], groups: Sequence[GpuGroup]) -> list[int]:
    """Return an upper limit for each row: its capacity, and the best layout for it on every GPU."""
    upper_limits = list(capacity)
    for group in groups:
        largest: dict[int, int] = {}
        for layout in group.layouts:
            for row, amount in layout:
                largest[row] = max(largest.get(row, 0), amount)
        for row, amount in largest.items():
            upper_limits[row] += group.count * amount
    return upper_limits


def _sum_counts(counts: Sequence[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Return the triples with the last numbers of equal pairs added up.

    >>> _sum_counts([(0, 1, 2), (3, 0, 1), (0, 1, 5)])
    ((0, 1, 7), (3, 0, 1))
    """
    total: Counter[tuple[int, int]] = Counter()
    for first, second, count in counts:
        total[first, second] += count
    return tuple((first, second, count) for (first, second), count in sorted(total.items()))


def bound(problem: BatchProblem, work: int = WORK) -> float:
    """Return the GPU memory in MiB that no solution can exceed. `work` limits the search, in simplex iterations."""
    loosest_problem = with_loosest_options(problem)
    most, prices = solve_fluid(loosest_problem)
    most = min(most, problem.memory_of_all)
    if len(problem.shapes) > _MANY_SHAPES:
        return most
    most = min(most, bound_whole(loosest_problem))
    if most >= problem.memory_of_all:
        return most
    hosts = [shape.count for shape in problem.shapes]
    search = ColumnGeneration(loosest_problem, work, _BOUND_SLACK)
    return min(most, search.price_shares(problem.demand, hosts, ROUNDS, prices).most)
