"""Schedules of nights: never against a rule, and as good as can be where that is known."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import combinations, count, permutations, product

import pytest

from gpuops.plan.schedule.packing import Stretch, fill_stretch
from gpuops.plan.schedule.problem import Desktop, Job, NightGpu, NightProblem, OperationLimits, longest_windows
from gpuops.plan.schedule.schedule import match_jobs, schedule
from tests.plan.schedule.bound import back_at, late_desktops, most_gpu_minutes
from tests.plan.schedule.nights import broken, gpu, made_up, moves, run_of

UNITS = 20_000


@pytest.mark.quick_cases(30)
@pytest.mark.parametrize("seed", range(120))
def test_no_rule_is_broken_and_the_bound_is_above(seed: int) -> None:
    problem = made_up(seed)
    night_schedule = schedule(problem, UNITS)
    assert broken(problem, night_schedule) == []
    assert night_schedule.gpu_minutes <= most_gpu_minutes(problem)


@pytest.mark.parametrize("seed", range(0, 120, 7))
def test_nobody_is_late_in_a_morning_as_slow_as_was_planned_for(seed: int) -> None:
    problem = made_up(seed)
    assert late_desktops(problem, schedule(problem, UNITS), problem.slowdown) == []


def test_without_a_margin_a_slow_morning_is_late() -> None:
    problem = NightProblem(100, (gpu("a", "h", *[0] * 8),), (Job("long", 1, 60),), slowdown=1.0)
    night_schedule = schedule(problem, UNITS)
    assert late_desktops(problem, night_schedule, 1.0) == []
    assert len(late_desktops(problem, night_schedule, 1.5)) == 4
    assert max(back_at(problem, night_schedule, 1.5).values()) == 102


def test_the_same_question_has_the_same_answer() -> None:
    problem = made_up(7)
    assert schedule(problem, UNITS) == schedule(problem, UNITS)


def test_it_may_be_stopped_at_any_step() -> None:
    problem = replace(made_up(5), jobs=tuple(Job(f"job-{n}", 1 + n % 2, 13 + n) for n in range(30)))
    calls = count()
    night_schedule = schedule(problem, 10**9, keep_going=lambda: next(calls) < 50)
    assert broken(problem, night_schedule) == []
    assert night_schedule.runs


def test_desktops_are_suspended_once_idle_and_resumed_as_late_as_lanes_allow() -> None:
    problem = NightProblem(
        100, (gpu("a", "h", 10, 30, 30),), (Job("job", 1, 20),), OperationLimits(2, None), slowdown=1.0
    )
    night_schedule = schedule(problem, UNITS)
    assert moves(night_schedule.suspends) == {"a-0": 10, "a-1": 30, "a-2": 30}
    assert run_of(night_schedule, "job").start == 32
    assert sorted(moves(night_schedule.resumes).values()) == [96, 98, 98]


def test_a_gpu_with_a_desktop_that_is_never_idle_keeps_all_of_them() -> None:
    problem = NightProblem(100, (gpu("a", "h", 0, None), gpu("b", "h", 50)), (Job("job", 1, 20),))
    assert [move.desktop for move in schedule(problem, UNITS).suspends] == ["b-0"]


def test_the_fewest_desktops_do_it() -> None:
    gpus = (gpu("a", "h", *[0] * 5), gpu("b", "h", 0, 0), gpu("c", "i", 0, 0, 0))
    night_schedule = schedule(NightProblem(200, gpus, (Job("one", 1, 60), Job("two", 1, 60))), UNITS)
    assert [move.host for move in night_schedule.suspends] == ["h", "h"]
    assert night_schedule.left_out == ()


def test_a_wide_job_takes_the_host_that_can_be_freed() -> None:
    gpus = (gpu("a", "h", 0), gpu("b", "h", None), gpu("c", "i", 0), gpu("d", "i", 0))
    night_schedule = schedule(NightProblem(100, gpus, (Job("wide", 2, 50), Job("wider", 3, 10))), UNITS)
    assert run_of(night_schedule, "wide").gpus == ("c", "d")
    assert night_schedule.left_out == ("wider",)


def test_jobs_fill_windows_to_the_minute() -> None:
    """Two windows of 96 minutes, and only one way to fill both."""
    gpus = (gpu("a", "h", 0), gpu("b", "i", 0))
    jobs = tuple(Job(f"job-{n}", 1, minutes) for n, minutes in enumerate((50, 46, 40, 33, 23, 91)))
    night_schedule = schedule(NightProblem(100, gpus, jobs, slowdown=1.0), UNITS)
    assert night_schedule.gpu_minutes == 192
    assert night_schedule.left_out == ("job-5",)


def test_a_higher_priority_comes_first_however_short() -> None:
    jobs = (Job("long", 1, 90), Job("urgent", 1, 20, priority=1))
    night_schedule = schedule(NightProblem(100, (gpu("a", "h", 0),), jobs), UNITS)
    assert [run.job for run in night_schedule.runs] == ["urgent"]


def test_a_deadline_is_kept_or_the_job_left_out() -> None:
    jobs = (Job("early", 1, 30, deadline=40), Job("never", 1, 30, deadline=20), Job("late", 1, 60))
    night_schedule = schedule(NightProblem(100, (gpu("a", "h", 0),), jobs), UNITS)
    assert [(run.job, run.start) for run in night_schedule.runs] == [("early", 2), ("late", 32)]
    assert night_schedule.left_out == ("never",)


def test_a_run_without_an_end_lasts_until_its_gpu_is_given_back_if_that_is_long_enough() -> None:
    gpus = (gpu("a", "h", 0), gpu("b", "h", 80))
    jobs = tuple(Job(name, 1, 10**6, least_minutes=30) for name in ("one", "two"))
    night_schedule = schedule(NightProblem(100, gpus, jobs), UNITS)
    assert [(run.start, run.end) for run in night_schedule.runs] == [(2, 97)]
    assert moves(night_schedule.resumes) == {"a-0": 97}


def test_a_desktop_on_two_gpus_is_moved_once_and_frees_both() -> None:
    wide_desktop = Desktop("wide", 10, 2, 2)
    problem = NightProblem(
        100, (NightGpu("a", "h", (wide_desktop,)), NightGpu("b", "h", (wide_desktop,))), (Job("job", 2, 60),)
    )
    night_schedule = schedule(problem, UNITS)
    assert broken(problem, night_schedule) == []
    assert moves(night_schedule.suspends) == {"wide": 10}
    assert run_of(night_schedule, "job").gpus == ("a", "b")


def test_desktops_must_be_worth_it() -> None:
    """Half an hour more for five desktops: too little when each must win ten minutes."""
    gpus = (gpu("a", "h", *[0] * 5), gpu("b", "h", 35))
    problem = NightProblem(100, gpus, (Job("job", 1, 10**6, least_minutes=10),))
    assert schedule(problem, UNITS).desktops == 5
    assert schedule(replace(problem, desktop_worth_minutes=10), UNITS).desktops == 1


def test_more_gpus_than_the_morning_can_give_back_stay_with_their_desktops() -> None:
    gpus = tuple(gpu(f"gpu-{n}", "h", *[0] * 4, minutes=10) for n in range(6))
    problem = NightProblem(160, gpus, tuple(Job(f"job-{n}", 1, 30) for n in range(6)), OperationLimits(1, None))
    night_schedule = schedule(problem, UNITS)
    assert broken(problem, night_schedule) == []
    assert len(night_schedule.runs) == 2
    assert night_schedule.desktops == 4


def test_no_jobs_no_suspends() -> None:
    night_schedule = schedule(NightProblem(100, (gpu("a", "h", 0),), ()), UNITS)
    assert (night_schedule.suspends, night_schedule.runs, night_schedule.resumes, night_schedule.left_out) == (
        (),
        (),
        (),
        (),
    )


ENDS = 11


def night(limits: OperationLimits, slowdown: float, hosts: tuple[str, str], minutes: tuple[int, int]) -> NightProblem:
    gpus = tuple(gpu(f"gpu-{at}", hosts[at], 0, 1, minutes=minutes[at]) for at in (0, 1))
    return NightProblem(ENDS, gpus, tuple(Job(f"job-{at}", 1, 1) for at in range(40)), limits, slowdown)


def longest(problem: NightProblem) -> int:
    """The most minutes that both GPUs, or one, are free together: all starts of all resumes tried."""
    free_from = {at: window.free_from for at, window in longest_windows(problem, (0, 1)).items()}
    best = max((window.minutes for window in longest_windows(problem, (0, 1)).values()), default=0)
    moves = [
        (at, problem.gpus[at].host, problem.resume_minutes(desktop))
        for at in (0, 1)
        for desktop in problem.gpus[at].desktops
    ]
    for starts in product(range(ENDS), repeat=len(moves)):
        if any(start + minutes > ENDS for start, (_, _, minutes) in zip(starts, moves, strict=True)):
            continue
        back = [
            min(start for start, (at, _, _) in zip(starts, moves, strict=True) if at == number) for number in (0, 1)
        ]
        total = sum(back[number] - free_from[number] for number in (0, 1))
        if total > best and min(back[number] - free_from[number] for number in (0, 1)) > 0:
            best = total if _fits(problem.limits, starts, moves) else best
    return best


def _fits(limits: OperationLimits, starts: tuple[int, ...], moves: list[tuple[int, str, int]]) -> bool:
    busy: Counter[tuple[str, int]] = Counter()
    for start, (_, host, minutes) in zip(starts, moves, strict=True):
        for minute in range(start, start + minutes):
            busy.update([(host, minute), ("", minute)])
    most = dict.fromkeys({host for _, host, _ in moves}, limits.per_host) | {"": limits.per_datastore}
    return all(count <= (most[name] or count) for (name, _), count in busy.items())


@pytest.mark.parametrize("slowdown", [1.0, 1.5])
@pytest.mark.parametrize(
    ("limits", "hosts", "minutes"),
    [
        (OperationLimits(1, None), ("host-0", "host-0"), (1, 1)),
        (OperationLimits(2, None), ("host-0", "host-0"), (2, 2)),
        (OperationLimits(None, 1), ("host-0", "host-1"), (1, 2)),
        (OperationLimits(1, 2), ("host-0", "host-1"), (1, 1)),
    ],
)
def test_no_way_back_leaves_more_than_the_bound(
    limits: OperationLimits, hosts: tuple[str, str], minutes: tuple[int, int], slowdown: float
) -> None:
    problem = night(limits, slowdown, hosts, minutes)
    assert 0 < longest(problem) <= most_gpu_minutes(problem)


def test_a_margin_costs_what_the_bound_says() -> None:
    """Both of a host's GPUs, one lane: with resumes half as long again, four resumes begin four minutes earlier."""
    bare, slow = (night(OperationLimits(1, None), margin, ("host-0", "host-0"), (2, 2)) for margin in (1.0, 1.5))
    assert longest(bare) > longest(slow)
    assert most_gpu_minutes(bare) > most_gpu_minutes(slow) >= longest(slow)


NO_END = 10**6


def open_ended_night(seed: int) -> NightProblem:
    """Few enough GPUs and jobs to try everything; all idle now, and no lanes to wait for."""
    chance = random.Random(seed)
    gpus = tuple(gpu(f"gpu-{n}", f"host-{n % 2}", *[0] * chance.randrange(4), minutes=0) for n in range(5))
    jobs = tuple(
        Job(
            f"job-{n}",
            chance.choice((1, 1, 1, 2)),
            NO_END,
            least_minutes=10,
            priority=chance.choice((0, 0, 1)),
            allowed=frozenset(of.name for of in gpus if chance.random() < 0.5),
        )
        for n in range(5)
    )
    return NightProblem(100, gpus, jobs, OperationLimits(None, None))


def best(problem: NightProblem) -> tuple[int, int, int]:
    """(GPUs with work of priority 1, of priority 0, desktops not spent), over all assignments."""
    best_so_far = (0, 0, 0)
    sets = [[None, *_sets(job, problem.gpus)] for job in problem.jobs]
    for choice in product(*sets):
        used = [of for chosen in choice if chosen is not None for of in chosen]
        if len({of.name for of in used}) == len(used):
            gpus = [
                sum(
                    len(chosen)
                    for job, chosen in zip(problem.jobs, choice, strict=True)
                    if chosen and job.priority == p
                )
                for p in (1, 0)
            ]
            best_so_far = max(best_so_far, (gpus[0], gpus[1], -sum(len(of.desktops) for of in used)))
    return best_so_far


def _sets(job: Job, gpus: tuple[NightGpu, ...]) -> list[tuple[NightGpu, ...]]:
    allowed = [of for of in gpus if job.allowed is not None and of.name in job.allowed]
    return [chosen for chosen in combinations(allowed, job.gpus) if len({of.host for of in chosen}) == 1]


@pytest.mark.parametrize("seed", range(80))
def test_no_assignment_is_better(seed: int) -> None:
    problem = open_ended_night(seed)
    night_schedule = schedule(problem, 100_000)
    assert broken(problem, night_schedule) == []
    priority = {job.name: job.priority for job in problem.jobs}
    gpus = [sum(len(run.gpus) for run in night_schedule.runs if priority[run.job] == level) for level in (1, 0)]
    assert (*gpus, -night_schedule.desktops) == best(problem)


def test_those_with_the_better_right_and_the_cheapest_places() -> None:
    may_run = {1: [10, 11], 2: [10], 3: [10], 4: [11, 12]}
    assert match_jobs([1, 2, 3, 4], [12, 11, 10], may_run) == {1: 11, 2: 10, 4: 12}
    assert match_jobs([3, 2, 1], [10, 11], may_run) == {3: 10, 1: 11}
    assert match_jobs([1, 4], [10, 12, 11], may_run) == {1: 10, 4: 12}


def test_a_job_that_the_lanes_leave_too_little_time_for_is_left_out() -> None:
    gpus = tuple(gpu(f"gpu-{n}", "h", *[0] * 4, minutes=10) for n in range(3))
    jobs = tuple(Job(f"job-{n}", 1, NO_END, least_minutes=40) for n in range(3))
    problem = NightProblem(160, gpus, jobs, OperationLimits(1, None))
    night_schedule = schedule(problem, 100_000)
    assert broken(problem, night_schedule) == []
    assert len(night_schedule.runs) == 1
    assert night_schedule.desktops == 4


def fullest(stretch: Stretch, jobs: list[Job]) -> int:
    """By trying all orders of all subsets."""
    best = 0
    for size in range(len(jobs) + 1):
        for chosen in combinations(jobs, size):
            if any(_in_time(stretch, order) for order in permutations(chosen)):
                best = max(best, sum(job.minutes for job in chosen))
    return best


def _in_time(stretch: Stretch, order: tuple[Job, ...]) -> bool:
    at = stretch.start
    for job in order:
        at += job.minutes
        if at > (stretch.end if job.deadline is None else min(stretch.end, job.deadline)):
            return False
    return True


@pytest.mark.parametrize("seed", range(60))
def test_nothing_fills_it_better(seed: int) -> None:
    chance = random.Random(seed)
    stretch = Stretch(0, 5, 5 + chance.randrange(10, 60), ends_with_return=False)
    jobs = [
        Job(str(number), 1, chance.randrange(3, 30), deadline=chance.choice((None, chance.randrange(10, 60))))
        for number in range(5)
    ]
    pool = sorted(range(5), key=lambda number: (jobs[number].deadline or 999, jobs[number].minutes))
    stretch_jobs = fill_stretch(stretch, jobs, pool)
    assert sum(piece.minutes for piece in stretch_jobs) == fullest(stretch, jobs)
    assert _in_time(stretch, tuple(jobs[piece.job] for piece in stretch_jobs))


def test_the_end_of_the_night_cuts_a_run_off_only_where_that_is_worth_more() -> None:
    jobs = [Job("short", 1, 20), Job("long", 1, 500, least_minutes=25)]
    cut = fill_stretch(Stretch(0, 0, 50, ends_with_return=True), jobs, [0, 1])
    assert [(piece.job, piece.minutes) for piece in cut] == [(0, 20), (1, 30)]
    assert [piece.job for piece in fill_stretch(Stretch(0, 0, 50, ends_with_return=False), jobs, [0, 1])] == [0]
    assert [piece.job for piece in fill_stretch(Stretch(0, 0, 20, ends_with_return=True), jobs, [0, 1])] == [0]


def test_large_jobs_are_used_up_first() -> None:
    jobs = [Job("a", 1, 10), Job("b", 1, 10), Job("c", 1, 20)]
    assert [piece.job for piece in fill_stretch(Stretch(0, 0, 20, ends_with_return=False), jobs, [0, 1, 2])] == [2]
