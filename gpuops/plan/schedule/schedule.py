"""The schedule of a night, and the one function that computes it; `plan/rotation` calls `schedule`.

The same problem with the same units and seed has the same answer on every machine. The caller may stop the search with
`keep_going` at any step, for a clock is the caller's, and gets the best schedule so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpuops.plan.schedule.open_ended import OpenEndedSearch, is_open_ended
from gpuops.plan.schedule.packing import JobRun
from gpuops.plan.schedule.problem import NightProblem
from gpuops.plan.schedule.search import EffortBudget, NightSearch, NightState, with_fewest_desktops
from gpuops.plan.schedule.windows import GpuWindows, compute_windows

QUICK: Final = 1_600_000
"""Units of work: about two seconds of one core."""


@dataclass(frozen=True, slots=True)
class DesktopOperation:
    """The suspend or the resume of a desktop: when it starts and how long it is planned to take."""

    desktop: str
    host: str
    start: int
    minutes: int

    @property
    def end(self) -> int:
        return self.start + self.minutes


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """A job that runs, and its GPUs by name."""

    job: str
    gpus: tuple[str, ...]
    start: int
    minutes: int

    @property
    def end(self) -> int:
        return self.start + self.minutes


@dataclass(frozen=True, slots=True)
class Schedule:
    """One night; suspends, runs and resumes in the order of time."""

    suspends: tuple[DesktopOperation, ...]
    runs: tuple[ScheduledJob, ...]
    resumes: tuple[DesktopOperation, ...]
    left_out: tuple[str, ...]
    """Jobs that do not run."""

    @property
    def gpu_minutes(self) -> int:
        return sum(run.minutes * len(run.gpus) for run in self.runs)

    @property
    def desktops(self) -> int:
        """How many are suspended."""
        return len(self.suspends)


def schedule(
    problem: NightProblem, units: int = QUICK, *, seed: int = 0, keep_going: Callable[[], bool] = lambda: True
) -> Schedule:
    """The best schedule that this many units of work find."""
    search = NightSearch(problem, seed)
    # 1. No job can run: every desktop stays.
    if not search.table.longest:
        return _as_schedule(problem, NightState(compute_windows(problem, []), {}, 0))
    # 2. Every job runs until the morning: a matching answers.
    if is_open_ended(search.table):
        final_state = OpenEndedSearch(problem, search.table, search.window_alone, seed).solve(
            EffortBudget(units, keep_going)
        )
        return _as_schedule(problem, final_state)
    # 3. Else local search: half of the units for more worth, the rest for fewer desktops and then for worth again.
    everything = search.table.most_worth(problem.ends * len(problem.gpus))
    effort = EffortBudget(units // 2, keep_going)
    state = search.improve(search.start(effort), everything, effort)
    effort.units += units - units // 2
    state = with_fewest_desktops(search, state, effort)
    return _as_schedule(problem, search.improve(state, everything, effort))


def _as_schedule(problem: NightProblem, state: NightState) -> Schedule:
    """The state with names instead of numbers, and every resume as late as possible."""
    final_windows = _with_late_resumes(problem, state)
    of_desktop = {
        desktop.name: (problem.gpus[number].host, desktop)
        for number in final_windows.of
        for desktop in problem.gpus[number].desktops
    }
    suspends = [
        DesktopOperation(name, host, final_windows.suspends[name], desktop.suspend_minutes)
        for name, (host, desktop) in of_desktop.items()
    ]
    resumes = [
        DesktopOperation(name, host, final_windows.resumes[name], problem.resume_minutes(desktop))
        for name, (host, desktop) in of_desktop.items()
    ]
    runs = [
        ScheduledJob(
            problem.jobs[run.job].name, tuple(problem.gpus[gpu].name for gpu in run.gpus), run.start, run.minutes
        )
        for run in state.runs()
    ]
    running_jobs = state.running_jobs()
    return Schedule(
        tuple(sorted(suspends, key=lambda move: (move.start, move.desktop))),
        tuple(sorted(runs, key=lambda run: (run.start, run.job))),
        tuple(sorted(resumes, key=lambda move: (move.start, move.desktop))),
        tuple(job.name for number, job in enumerate(problem.jobs) if number not in running_jobs),
    )


def _with_late_resumes(problem: NightProblem, state: NightState) -> GpuWindows:
    """The windows with every resume as late as the limits allow; those of the state where that would stop a run."""
    ends: dict[int, int] = {}
    for run in state.runs():
        for number in run.gpus:
            ends[number] = max(run.end, ends.get(number, 0))
    late_windows = compute_windows(problem, sorted(ends, key=lambda number: (-ends[number], number)))
    return late_windows if all(_run_fits(run, late_windows) for run in state.runs()) else state.windows


def _run_fits(run: JobRun, gpu_windows: GpuWindows) -> bool:
    """Whether the run lies in the windows of all of its GPUs."""
    windows_of = [gpu_windows.of.get(number) for number in run.gpus]
    return all(
        window is not None and window.free_from <= run.start and run.end <= window.back_from for window in windows_of
    )
