"""Schedules of nights: never against a rule, and as good as can be where that is known."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from gpuops.plan.schedule.problem import Desktop, Job, NightGpu, NightProblem, OperationLimits
from gpuops.plan.schedule.schedule import schedule
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
