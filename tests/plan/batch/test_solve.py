"""The solver on small problems: never more than there is, never above its bound, and as good as trying everything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuops.plan.batch.bound import bound
from gpuops.plan.batch.problem import GpuGroup, Pattern, Problem, Shape, Way
from gpuops.plan.batch.solve import solve

QUICK = settings(max_examples=60, suppress_health_check=list(HealthCheck))
SIZES = (4, 8, 16)
"""Slots are rows 2, 3, 4 beside the one node (row 0 = its memory) and 5, 6, 7 of the host (row 1 = its memory)."""


@st.composite
def problems(draw: st.DrawFn, most_hosts: int = 2) -> Problem:
    """One or two shapes of hosts with a node and one or two GPUs of 16, and up to six VMs of three kinds."""
    memories = [draw(st.integers(1, 4)) for _ in SIZES]
    counts = [draw(st.sampled_from([1, 1, 2])) for _ in SIZES]
    shapes = []
    for _ in range(draw(st.integers(1, most_hosts))):
        near, far = draw(st.integers(0, 6)), draw(st.integers(0, 3))
        fillings = tuple(((2 + at, 16 // size), (5 + at, 16 // size)) for at, size in enumerate(SIZES))
        ways = {}
        for kind in range(len(SIZES)):
            anywhere = ((1, memories[kind]), (5 + kind, counts[kind]))
            ways[kind] = (
                Way(((0, memories[kind]), (2 + kind, counts[kind]), *anywhere)),
                *([Way(anywhere, remote=True)] if draw(st.booleans()) else []),
            )
        gpus = draw(st.integers(1, 2))
        shapes.append(Shape(1, (near, near + far, 0, 0, 0, 0, 0, 0), (GpuGroup(gpus, fillings),), ways))
    demand = tuple(draw(st.integers(0, 2)) for _ in SIZES)
    return Problem(demand, tuple(size * count for size, count in zip(SIZES, counts, strict=True)), tuple(shapes))


def fits(shape: Shape, vms: Sequence[tuple[int, int]]) -> bool:
    """Whether the host takes these VMs, (kind, way) each, whatever its GPUs are filled with."""
    group = shape.groups[0]
    for filled in product(group.fillings, repeat=group.count):
        room = list(shape.capacity)
        for filling in filled:
            for row, much in filling:
                room[row] += much
        for kind, way in vms:
            for row, much in shape.ways[kind][way].uses:
                room[row] -= much
        if min(room) >= 0:
            return True
    return False


def everything(problem: Problem) -> int:
    """The most GPU memory that any of all ways to place the VMs places."""
    vms = [kind for kind, count in enumerate(problem.demand) for _ in range(count)]

    @cache
    def best(at: int, there: tuple[tuple[tuple[int, int], ...], ...]) -> int:
        if at == len(vms):
            return 0
        found = best(at + 1, there)
        kind = vms[at]
        for number, shape in enumerate(problem.shapes):
            for way in range(len(shape.ways[kind])):
                more = tuple(sorted((*there[number], (kind, way))))
                if fits(shape, more):
                    then = (*there[:number], more, *there[number + 1 :])
                    found = max(found, problem.worth[kind] + best(at + 1, then))
        return found

    return best(0, tuple(() for _ in problem.shapes))


def broken(problem: Problem, patterns: Sequence[tuple[Pattern, int]]) -> Iterator[str]:
    """What the solution uses more of than there is."""
    left, hosts = list(problem.demand), [shape.count for shape in problem.shapes]
    for pattern, times in patterns:
        hosts[pattern.shape] -= times
        vms = [(kind, way) for kind, way, count in pattern.vms for _ in range(count)]
        for kind, _ in vms:
            left[kind] -= times
        shape = problem.shapes[pattern.shape]
        room = list(shape.capacity)
        for group, filling, count in pattern.gpus:
            for row, much in shape.groups[group].fillings[filling]:
                room[row] += count * much
        for kind, way in vms:
            for row, much in shape.ways[kind][way].uses:
                room[row] -= much
        if min(room) < 0 or sum(count for _, _, count in pattern.gpus) > shape.groups[0].count:
            yield f"{pattern} is more than {shape}"
    if min(left) < 0 or min(hosts) < 0:
        yield f"VMs left {left}, hosts left {hosts}"


@QUICK
@given(problems(most_hosts=1))
def test_on_one_host_it_finds_the_best(problem: Problem) -> None:
    solution = solve(problem)
    assert list(broken(problem, solution.patterns)) == []
    placed = sum(times * problem.memory(pattern) for pattern, times in solution.patterns)
    best = everything(problem)
    assert placed <= best <= bound(problem) + 1e-6
    assert placed >= near_first(problem), "locality comes first, then whatever else fits"


def near_first(problem: Problem) -> int:
    """What is placed at the least: the best that has every VM beside its GPUs."""
    shapes = tuple(
        Shape(s.count, s.capacity, s.groups, {kind: ways[:1] for kind, ways in s.ways.items()}) for s in problem.shapes
    )
    return everything(Problem(problem.demand, problem.worth, shapes))


@QUICK
@given(problems())
def test_on_several_it_is_between_the_best_and_what_is_known_to_fit(problem: Problem) -> None:
    solution = solve(problem)
    assert list(broken(problem, solution.patterns)) == []
    placed = sum(times * problem.memory(pattern) for pattern, times in solution.patterns)
    best = everything(problem)
    assert placed <= best <= bound(problem) + 1e-6
    assert placed >= near_first(problem)


def test_equal_hosts_are_one_shape_and_all_used() -> None:
    shape = Shape(500, (8, 0), (GpuGroup(2, (((1, 4),),)),), {0: (Way(((0, 1), (1, 1))),)})
    problem = Problem((3000,), (4,), (shape,))
    solution = solve(problem)
    assert sum(times * problem.memory(pattern) for pattern, times in solution.patterns) == 12_000
    assert bound(problem) == 12_000
    assert sum(times for _, times in solution.patterns) == 375, "no more hosts than it takes"


def test_the_same_question_has_the_same_answer() -> None:
    problem = Problem((2, 1, 2), (4, 8, 16), (_mixed(3), _mixed(1)))
    assert solve(problem) == solve(problem)


def test_the_checker_can_fail() -> None:
    problem = Problem((1, 1, 1), (4, 8, 16), (_mixed(1),))
    assert list(broken(problem, [(Pattern(0, ((2, 0, 2),), ((0, 2, 1),)), 1)]))


def _mixed(gpus: int) -> Shape:
    fillings = tuple(((1 + at, 16 // size),) for at, size in enumerate(SIZES))
    ways = {at: (Way(((0, 1), (1 + at, 1))),) for at in range(3)}
    return Shape(1, (9, 0, 0, 0), (GpuGroup(gpus, fillings),), ways)
