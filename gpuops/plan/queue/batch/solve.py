"""Solves a batch problem: how many VMs of each kind go on how many hosts, so that the most GPU memory is placed.

`place_all.py` calls `solve` for the plan and `bound` for the memory that no plan can exceed.

The search shares the hosts out among patterns, in fractions. Then the shares become whole hosts: whole parts stay, else
the largest share is rounded up; the rest of the hosts is priced anew for the rest of the VMs. At last the VMs that are
left go where there is room, beside their GPUs or not: a remote VM is better than an unplaced one. In fleets that are
not large, hosts are then planned anew by threes, with those that are still left.
One program over all hosts does not end: hundreds of equal hosts make it symmetric. A pattern exists once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd
from typing import Final

from gpuops.plan.queue.batch import few_hosts
from gpuops.plan.queue.batch.column_generation import (
    ColumnGeneration,
    PatternProgram,
    PatternShares,
    bound_whole,
    cut_to_demand,
    solve_fluid,
)
from gpuops.plan.queue.batch.few_hosts import plan_anew
from gpuops.plan.queue.batch.problem import (
    BatchProblem,
    BatchSolution,
    GpuGroup,
    HostPattern,
    HostShape,
    PlacementOption,
    with_local_options,
    with_loosest_options,
)

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
    """A good solution. `work` limits the search for patterns, and then the rounding, in simplex iterations."""
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
    # 5. Where some are left even so: a few hosts at a time planned anew with them, then once more what fits beside.
    return BatchSolution(tuple(_with_unplaced(problem, chosen)))


def _with_unplaced(
    problem: BatchProblem, chosen: Sequence[tuple[HostPattern, int]]
) -> Sequence[tuple[HostPattern, int]]:
    """The patterns with more of the VMs that have no place, where those of other VMs can be changed for that."""
    unplaced, unused = _remaining(problem, chosen)
    if not any(unplaced) or sum(shape.count for shape in problem.shapes) > _MOST_HOSTS_ANEW:
        return chosen
    # Nothing is looked for where the least that could be gained is more than any plan could place.
    placed = sum(times * problem.memory(pattern) for pattern, times in chosen)
    least, loosest = placed + gcd(*problem.worth), with_loosest_options(problem)
    if least > solve_fluid(loosest)[0] + 1e-6 or least > bound_whole(loosest) + 1e-6:
        return chosen
    hosts = [pattern for pattern, times in chosen for _ in range(times)]
    hosts += [HostPattern(number, (), ()) for number, count in enumerate(unused) for _ in range(count)]
    anew = Counter(pattern for pattern in plan_anew(problem, hosts, unplaced, few_hosts.WORK) if pattern.vms)
    unplaced, unused = _remaining(problem, tuple(anew.items()))
    return fill_remaining(problem, tuple(anew.items()), unused, unplaced)


def _remaining(problem: BatchProblem, chosen: Sequence[tuple[HostPattern, int]]) -> tuple[list[int], list[int]]:
    """The VMs of each kind that have no place, and the hosts of each shape without a pattern."""
    unplaced, hosts = list(problem.demand), [shape.count for shape in problem.shapes]
    for pattern, times in chosen:
        hosts[pattern.shape] -= times
        for kind, count in pattern.counts:
            unplaced[kind] -= times * count
    return unplaced, hosts


def _whole_hosts(shares: PatternShares) -> list[tuple[HostPattern, int]]:
    """The whole parts of the shares; where all are below 1, one host each for the largest sixteenth of them.

    Shares of 2.4 and 0.7 give two hosts of the first pattern; shares of 0.7 and 0.3 give one host of the first.
    """
    whole_parts = [(pattern, int(share + 1e-6)) for pattern, share in shares.patterns if share + 1e-6 >= 1]
    if whole_parts:
        return whole_parts
    ranked = sorted(shares.patterns, key=lambda pattern_share: -pattern_share[1])
    return [(pattern, 1) for pattern, _ in ranked[: max(1, len(ranked) // 16)]]


def _take(pattern: HostPattern, times: int, unplaced: list[int], hosts: list[int]) -> tuple[HostPattern, int]:
    """Take the pattern on up to `times` hosts, as far as hosts and VMs are left; both are counted down."""
    enough = min(unplaced[kind] // count for kind, count in pattern.counts)
    times = max(1, min(times, hosts[pattern.shape], enough))
    hosts[pattern.shape] -= times
    for kind, count in pattern.counts:
        unplaced[kind] -= times * count
    return pattern, times


def fill_remaining(
    problem: BatchProblem, patterns: Sequence[tuple[HostPattern, int]], hosts: Sequence[int], unplaced: Sequence[int]
) -> list[tuple[HostPattern, int]]:
    """The patterns with as much of `left` beside them as fits, then what fits on the hosts that were not used."""
    unused = [(HostPattern(number, (), ()), count) for number, count in enumerate(hosts) if count]
    remaining_vms, filled = list(unplaced), []
    for pattern, times in (*patterns, *unused):
        while times:
            addition = _best_addition(problem, pattern, remaining_vms)
            hosts_alike = (
                min([times, *(remaining_vms[kind] // count for kind, count in addition.counts)])
                if addition.vms
                else times
            )
            if pattern.vms or addition.vms:
                filled.append((_combine(pattern, addition), hosts_alike))
            for kind, count in addition.counts:
                remaining_vms[kind] -= hosts_alike * count
            times -= hosts_alike
    return filled


def _best_addition(problem: BatchProblem, pattern: HostPattern, unplaced: Sequence[int]) -> HostPattern:
    shape = _remaining_shape(problem.shapes[pattern.shape], pattern, unplaced)
    if not shape.options:
        return HostPattern(pattern.shape, (), ())
    alone = replace(problem, shapes=(shape,))
    return replace(PatternProgram(0, alone).best((0.0,) * len(unplaced), unplaced).pattern, shape=pattern.shape)


def _remaining_shape(shape: HostShape, pattern: HostPattern, unplaced: Sequence[int]) -> HostShape:
    """The host as the pattern leaves it, with the kinds of VM that may still fit there."""
    capacity, gpus = list(shape.capacity), [group.count for group in shape.groups]
    for kind, option, count in pattern.vms:
        for row, amount in shape.options[kind][option].uses:
            capacity[row] -= count * amount
    for group, layout, count in pattern.gpus:
        gpus[group] -= count
        for row, amount in shape.groups[group].layouts[layout]:
            capacity[row] += count * amount
    groups = tuple(replace(group, count=count) for group, count in zip(shape.groups, gpus, strict=True))
    upper_limits = _most_of_each_row(capacity, groups)
    options = {
        kind: options
        for kind, options in shape.options.items()
        if unplaced[kind] and any(_may_fit(option, upper_limits) for option in options)
    }
    return HostShape(1, tuple(capacity), groups, options)


def _most_of_each_row(capacity: Sequence[int], groups: Sequence[GpuGroup]) -> list[int]:
    """An upper limit for each row: its capacity, and the best layout for it on every GPU."""
    upper_limits = list(capacity)
    for group in groups:
        largest: dict[int, int] = {}
        for layout in group.layouts:
            for row, amount in layout:
                largest[row] = max(largest.get(row, 0), amount)
        for row, amount in largest.items():
            upper_limits[row] += group.count * amount
    return upper_limits


def _may_fit(option: PlacementOption, upper_limits: Sequence[int]) -> bool:
    return all(amount <= upper_limits[row] for row, amount in option.uses)


def _combine(pattern: HostPattern, addition: HostPattern) -> HostPattern:
    return HostPattern(
        pattern.shape,
        tuple(_sum_counts((*pattern.vms, *addition.vms))),
        tuple(_sum_counts((*pattern.gpus, *addition.gpus))),
    )


def _sum_counts(counts: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    count_of: dict[tuple[int, int], int] = {}
    for first, second, count in counts:
        count_of[first, second] = count_of.get((first, second), 0) + count
    return ((first, second, count) for (first, second), count in sorted(count_of.items()))


def bound(problem: BatchProblem, work: int = WORK) -> float:
    """GPU memory that no solution can exceed. `work` limits the search, in simplex iterations."""
    loosest_problem = with_loosest_options(problem)
    most, prices = solve_fluid(loosest_problem)
    most = min(most, problem.memory_of_all)
    if len(problem.shapes) > _MANY_SHAPES:
        return most
    most = min(most, bound_whole(loosest_problem))
    if most >= problem.memory_of_all:
        return most
    hosts = [shape.count for shape in problem.shapes]
    return min(
        most,
        ColumnGeneration(loosest_problem, work, _BOUND_SLACK).price_shares(problem.demand, hosts, ROUNDS, prices).most,
    )
