"""The solver on small problems: never more than there is, never above its bound, and as good as trying everything."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import highspy
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest_mock import MockerFixture

from gpuops.advise.occupancy import GpuState, Tenant
from gpuops.model.devices.gpu import VgpuMode
from gpuops.plan.queue.batch import solve as solving
from gpuops.plan.queue.batch.batch_model import VgpuLayouts, hardest_first
from gpuops.plan.queue.batch.column_generation import SolverProgram
from gpuops.plan.queue.batch.integer_program import BatchProblem, GpuGroup, HostPattern, HostShape, PlacementOption
from gpuops.plan.queue.batch.solve import bound, solve
from tests.plan.snapshots import FIRST, catalog, gpu, whole

QUICK = settings(max_examples=60, suppress_health_check=list(HealthCheck))
SIZES = (4, 8, 16)
"""Slots are rows 2, 3, 4 beside the one node (row 0 = its memory) and 5, 6, 7 of the host (row 1 = its memory)."""


@st.composite
def problems(draw: st.DrawFn, most_hosts: int = 2) -> BatchProblem:
    """One or two shapes of hosts with a node and one or two GPUs of 16, and up to six VMs of three kinds."""
    memories = [draw(st.integers(1, 4)) for _ in SIZES]
    counts = [draw(st.sampled_from([1, 1, 2])) for _ in SIZES]
    shapes = []
    for _ in range(draw(st.integers(1, most_hosts))):
        near, elsewhere = draw(st.integers(0, 6)), draw(st.integers(0, 3))
        layouts = tuple(((2 + at, 16 // size), (5 + at, 16 // size)) for at, size in enumerate(SIZES))
        options = {}
        for kind in range(len(SIZES)):
            anywhere = ((1, memories[kind]), (5 + kind, counts[kind]))
            options[kind] = (
                PlacementOption(((0, memories[kind]), (2 + kind, counts[kind]), *anywhere)),
                *([PlacementOption(anywhere, remote=True)] if draw(st.booleans()) else []),
            )
        gpus = draw(st.integers(1, 2))
        shapes.append(HostShape(1, (near, near + elsewhere, 0, 0, 0, 0, 0, 0), (GpuGroup(gpus, layouts),), options))
    demand = tuple(draw(st.integers(0, 2)) for _ in SIZES)
    return BatchProblem(demand, tuple(size * count for size, count in zip(SIZES, counts, strict=True)), tuple(shapes))


def fits(shape: HostShape, vms: Sequence[tuple[int, int]]) -> bool:
    """Whether the host takes these VMs, (kind, way) each, whatever its GPUs are filled with."""
    group = shape.groups[0]
    for filled in product(group.layouts, repeat=group.count):
        room = list(shape.capacity)
        for filling in filled:
            for row, much in filling:
                room[row] += much
        for kind, way in vms:
            for row, much in shape.options[kind][way].uses:
                room[row] -= much
        if min(room) >= 0:
            return True
    return False


def everything(problem: BatchProblem) -> int:
    """The most GPU memory that any of all ways to place the VMs places."""
    vms = [kind for kind, count in enumerate(problem.demand) for _ in range(count)]

    @cache
    def best(at: int, layout: tuple[tuple[tuple[int, int], ...], ...]) -> int:
        if at == len(vms):
            return 0
        best_worth = best(at + 1, layout)
        kind = vms[at]
        for number, shape in enumerate(problem.shapes):
            for way in range(len(shape.options[kind])):
                filled = tuple(sorted((*layout[number], (kind, way))))
                if fits(shape, filled):
                    then = (*layout[:number], filled, *layout[number + 1 :])
                    best_worth = max(best_worth, problem.worth[kind] + best(at + 1, then))
        return best_worth

    return best(0, tuple(() for _ in problem.shapes))


def broken(problem: BatchProblem, patterns: Sequence[tuple[HostPattern, int]]) -> Iterator[str]:
    """What the solution uses more of than there is."""
    unplaced, hosts = list(problem.demand), [shape.count for shape in problem.shapes]
    for pattern, times in patterns:
        hosts[pattern.shape] -= times
        vms = [(kind, way) for kind, way, count in pattern.vms for _ in range(count)]
        for kind, _ in vms:
            unplaced[kind] -= times
        shape = problem.shapes[pattern.shape]
        room = list(shape.capacity)
        for group, filling, count in pattern.gpus:
            for row, much in shape.groups[group].layouts[filling]:
                room[row] += count * much
        for kind, way in vms:
            for row, much in shape.options[kind][way].uses:
                room[row] -= much
        if min(room) < 0 or sum(count for _, _, count in pattern.gpus) > shape.groups[0].count:
            yield f"{pattern} is more than {shape}"
    if min(unplaced) < 0 or min(hosts) < 0:
        yield f"VMs left {unplaced}, hosts left {hosts}"


@pytest.mark.long
@QUICK
@given(problems(most_hosts=1))
def test_on_one_host_it_finds_the_best(problem: BatchProblem) -> None:
    solution = solve(problem)
    assert list(broken(problem, solution.patterns)) == []
    placed = sum(times * problem.memory(pattern) for pattern, times in solution.patterns)
    best = everything(problem)
    assert placed <= best <= bound(problem) + 1e-6
    assert placed >= near_first(problem), "locality comes first, then whatever else fits"


def near_first(problem: BatchProblem) -> int:
    """What is placed at the least: the best that has every VM beside its GPUs."""
    shapes = tuple(
        HostShape(s.count, s.capacity, s.groups, {kind: options[:1] for kind, options in s.options.items()})
        for s in problem.shapes
    )
    return everything(BatchProblem(problem.demand, problem.worth, shapes))


@pytest.mark.long
@QUICK
@given(problems())
def test_on_up_to_three_hosts_it_is_the_best(problem: BatchProblem) -> None:
    solution = solve(problem)
    assert list(broken(problem, solution.patterns)) == []
    placed = sum(times * problem.memory(pattern) for pattern, times in solution.patterns)
    best = everything(problem)
    assert placed == best <= bound(problem) + 1e-6
    assert list(still_fitting(problem, solution.patterns)) == []


def still_fitting(problem: BatchProblem, patterns: Sequence[tuple[HostPattern, int]]) -> Iterator[str]:
    """VMs without a place that a host would take beside its pattern, whose layouts stay."""
    unplaced, hosts = list(problem.demand), [shape.count for shape in problem.shapes]
    for pattern, times in patterns:
        hosts[pattern.shape] -= times
        for kind, _, count in pattern.vms:
            unplaced[kind] -= times * count
    unused = [HostPattern(number, (), ()) for number, count in enumerate(hosts) if count]
    for pattern in (*(pattern for pattern, _ in patterns), *unused):
        shape = problem.shapes[pattern.shape]
        room, group = list(shape.capacity), shape.groups[0]
        for kind, option, count in pattern.vms:
            for row, amount in shape.options[kind][option].uses:
                room[row] -= count * amount
        for _, layout, count in pattern.gpus:
            for row, amount in group.layouts[layout]:
                room[row] += count * amount
        idle = group.count - sum(count for _, _, count in pattern.gpus)
        idle_host = HostShape(1, tuple(room), (GpuGroup(idle, group.layouts),), shape.options)
        for kind, count in enumerate(unplaced):
            if count and any(fits(idle_host, [(kind, option)]) for option in range(len(shape.options[kind]))):
                yield f"one more of kind {kind} on {pattern}"


@pytest.mark.long
def test_the_check_for_room_can_fail() -> None:
    problem = BatchProblem((1, 1, 1), (4, 8, 16), (_mixed_host(2),))
    half = HostPattern(0, ((2, 0, 1),), ((0, 2, 1),))
    assert len(list(still_fitting(problem, [(half, 1)]))) == 2


@pytest.mark.long
def test_what_rounding_loses_is_worked_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hosts, one with half of the memory: all four VMs would be 24, the best is 20; the rounding finds 16."""
    layouts = (((2, 4), (5, 4)), ((3, 2), (6, 2)), ((4, 1), (7, 1)))
    options = {kind: (PlacementOption(((0, 2), (2 + kind, 1), (1, 2), (5 + kind, 1))),) for kind in range(len(SIZES))}
    shapes = [HostShape(1, (memory, memory, 0, 0, 0, 0, 0, 0), (GpuGroup(1, layouts),), options) for memory in (2, 4)]
    problem = BatchProblem((2, 2, 0), SIZES, tuple(shapes))
    solution = solve(problem)
    placed = sum(times * problem.memory(pattern) for pattern, times in solution.patterns)
    assert (placed, everything(problem), list(broken(problem, solution.patterns))) == (20, 20, [])
    monkeypatch.setattr(solving, "FEW_HOSTS_WORK", 0)
    rounded = solve(problem)
    placed = sum(times * problem.memory(pattern) for pattern, times in rounded.patterns)
    assert (placed, list(still_fitting(problem, rounded.patterns))) == (16, [])


@pytest.mark.long
def test_no_plan_of_a_few_hosts_places_less_for_being_beside_its_gpus() -> None:
    """A VM of 2,000 takes one unit beside its GPUs, or none elsewhere; a VM of one needs that unit. 2,000 beside GPUs
    are worth more than 2,001 of which most is not, and are no better plan."""
    beside, anywhere = PlacementOption(((0, 1),)), PlacementOption((), remote=True)
    shape = HostShape(1, (1, 0), (), {0: (beside, anywhere), 1: (beside,), 2: (PlacementOption(((1, 1),)),)})
    problem = BatchProblem((1, 1, 1), (2000, 1, 1), (shape,))
    pattern = HostPattern(0, ((0, 1, 1), (1, 0, 1)), ())
    assert problem.value(HostPattern(0, ((0, 0, 1),), ())) > problem.value(pattern)
    assert solving.plan_anew(problem, [pattern], [0, 0, 1], solving.FEW_HOSTS_WORK) == [pattern]


@pytest.mark.long
@pytest.mark.parametrize(("kinds", "programs"), [(20, 40), (1197, 4)])
def test_of_programs_with_many_rows_fewer_are_tried(kinds: int, programs: int, mocker: MockerFixture) -> None:
    """Each counts for a thousand iterations of 120 rows, or for ten times as many."""
    shape = HostShape(20, (1,), (), {kind: (PlacementOption(((0, 1),)),) for kind in range(kinds)})
    hosts = [HostPattern(0, (), ())] * 20
    best = mocker.patch.object(solving._HostsProgram, "best", return_value=(hosts[:3], 0))
    solving.plan_anew(BatchProblem((20,) * kinds, (1,) * kinds, (shape,)), hosts, [20] * kinds, solving.FEW_HOSTS_WORK)
    assert best.call_count == programs


@pytest.mark.long
def test_equal_hosts_are_one_shape_and_all_used() -> None:
    shape = HostShape(500, (8, 0), (GpuGroup(2, (((1, 4),),)),), {0: (PlacementOption(((0, 1), (1, 1))),)})
    problem = BatchProblem((3000,), (4,), (shape,))
    solution = solve(problem)
    assert sum(times * problem.memory(pattern) for pattern, times in solution.patterns) == 12_000
    assert bound(problem) == 12_000
    assert sum(times for _, times in solution.patterns) == 375, "no more hosts than it takes"


@pytest.mark.long
def test_the_same_question_has_the_same_answer() -> None:
    problem = BatchProblem((2, 1, 2), (4, 8, 16), (_mixed_host(3), _mixed_host(1)))
    assert solve(problem) == solve(problem)


@pytest.mark.long
def test_the_checker_can_fail() -> None:
    problem = BatchProblem((1, 1, 1), (4, 8, 16), (_mixed_host(1),))
    assert list(broken(problem, [(HostPattern(0, ((2, 0, 2),), ((0, 2, 1),)), 1)]))


def _mixed_host(gpus: int) -> HostShape:
    layouts = tuple(((1 + at, 16 // size),) for at, size in enumerate(SIZES))
    options = {at: (PlacementOption(((0, 1), (1 + at, 1))),) for at in range(3)}
    return HostShape(1, (9, 0, 0, 0), (GpuGroup(gpus, layouts),), options)


@pytest.mark.long
def test_no_gpu_is_counted_for_two_sizes() -> None:
    """Two GPUs of 48, each for one size; three VMs of 24 and five of 8: in fractions 96 would fit, in truth 88."""
    options = {kind: (PlacementOption(((1 + kind, 1),)),) for kind in (0, 1)}
    layouts = (((1, 2),), ((2, 6),))
    shape = HostShape(2, (0, 0, 0), (GpuGroup(1, layouts),), options)
    problem = BatchProblem((3, 5), (24, 8), (shape,))
    placed = sum(times * problem.memory(pattern) for pattern, times in solve(problem).patterns)
    assert (placed, round(bound(problem))) == (88, 88)


MIG = ("grid_a100-1-5c", "grid_a100-2-10c", "grid_a100-3-20c", "grid_a100-4-20c")


def state(board: str, mode: VgpuMode, *profiles: str) -> GpuState:
    state_of_gpu = GpuState(replace(gpu(FIRST, board, 0, mode), vms=("vm-1",) if profiles else ()))
    return state_of_gpu.with_tenants(*(Tenant("vm-1", "a", profile) for profile in profiles))


def layout_lines(gpu_state: GpuState, *profiles: str, certain: bool = True) -> list[str]:
    """In words: `3-20c x1 1-5c x3`."""
    order = hardest_first(profiles, catalog())
    layouts = VgpuLayouts(order, catalog(), certain).of(gpu_state)
    return sorted(" ".join(f"{name.partition('-')[2]} x{count}" for name, count in layout) for layout in layouts)


def test_same_size_takes_one_size() -> None:
    empty = state("a40", VgpuMode.SAME_SIZE)
    assert layout_lines(empty, "nvidia_a40-8q", "nvidia_a40-24q") == ["24q x2", "8q x6"]
    locked = state("a40", VgpuMode.SAME_SIZE, "nvidia_a40-8q")
    assert layout_lines(locked, "nvidia_a40-8q", "nvidia_a40-24q") == ["8q x5"]


def test_a_lucky_placement_of_instances_is_no_certain_one() -> None:
    """3g may lie where it leaves three slices or where it leaves four: vCenter does not tell."""
    empty = state("a100", VgpuMode.MULTI_INSTANCE)
    assert "3-20c x1 1-5c x3" in layout_lines(empty, *MIG)
    assert "3-20c x1 1-5c x4" not in layout_lines(empty, *MIG)
    assert "3-20c x1 1-5c x4" in layout_lines(empty, *MIG, certain=False)
    assert "4-20c x1 3-20c x1" in layout_lines(empty, *MIG)


def test_mixed_sizes() -> None:
    empty = state("l40s", VgpuMode.MIXED_SIZE)
    assert layout_lines(empty, "nvidia_l40s-24c", "nvidia_l40s-16q") == ["16q x2", "24c x1 16q x1", "24c x2"]


@pytest.mark.long
def test_of_ten_sizes_some_fillings_do_and_the_bound_is_above_all() -> None:
    empty = state("l40s", VgpuMode.MIXED_SIZE)
    names = [f"nvidia_l40s-{size}q" for size in (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)]
    certain = VgpuLayouts(hardest_first(names, catalog()), catalog()).of(empty)
    (loosest,) = VgpuLayouts(hardest_first(names, catalog()), catalog(), certain=False).of(empty)
    assert (("nvidia_l40s-48q", 1),) in certain
    assert all(count <= dict(loosest)[name] for filling in certain for name, count in filling)


@pytest.mark.parametrize("unclear", ["it runs vm-9, a VM that this login cannot see"])
def test_what_is_not_known_is_not_free(unclear: str) -> None:
    gpu_state = replace(state("a40", VgpuMode.SAME_SIZE), unclear=unclear)
    assert layout_lines(gpu_state, "nvidia_a40-8q") == []
    assert layout_lines(gpu_state, "nvidia_a40-8q", certain=False) == ["8q x6"], "a bound may not count on it"


def test_a_gpu_in_passthrough_takes_none() -> None:
    assert layout_lines(GpuState(whole(FIRST, "a40")), "nvidia_a40-8q") == []


class SpeakingHighs(highspy.Highs):
    """Writes its version as HiGHS 1.16 does: when callbacks are enabled, and there is output."""

    def enableCallbacks(self) -> None:
        if self.getOptionValue("output_flag")[1]:
            os.write(1, b"Running HiGHS\n")
        super().enableCallbacks()


@pytest.mark.parametrize("integer", [False, True])
def test_a_solver_that_prints_when_it_is_made_is_silent(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, integer: bool
) -> None:
    monkeypatch.setattr(highspy, "Highs", SpeakingHighs)
    program = SolverProgram([[(0, 1.0)], [(0, 2.0)]], 1, integer=integer)
    answer = program.solve(np.array([1.0, 3.0]), np.array([2.0, 2.0]), np.array([4.0]))
    assert answer.value == pytest.approx(6.0)
    assert capfd.readouterr() == ("", "")
