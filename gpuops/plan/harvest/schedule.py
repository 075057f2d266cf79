"""Schedule: what a night comes to, and the one way to ask for it.

The same question with the same units and seed has the same answer on every machine; a clock is the caller's, who may
stop the search with `keep_going` at any step and has the best schedule so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpuops.plan.harvest.endless import Endless, is_endless
from gpuops.plan.harvest.fewest import fewest
from gpuops.plan.harvest.packing import Run
from gpuops.plan.harvest.problem import Problem
from gpuops.plan.harvest.search import Search
from gpuops.plan.harvest.state import Effort, State
from gpuops.plan.harvest.windows import Windows, windows

QUICK: Final = 1_600_000
"""Units that two seconds of one core are enough for."""
THOROUGH: Final = 40_000_000
"""Units for a minute of one core."""


@dataclass(frozen=True, slots=True)
class Move:
    """A desktop's suspend or resume, by its start and by how long it is planned to take."""

    desktop: str
    host: str
    start: int
    minutes: int

    @property
    def end(self) -> int:
        return self.start + self.minutes


@dataclass(frozen=True, slots=True)
class Started:
    """A job and the GPUs it runs on, by name."""

    job: str
    gpus: tuple[str, ...]
    start: int
    minutes: int

    @property
    def end(self) -> int:
        return self.start + self.minutes


@dataclass(frozen=True, slots=True)
class Schedule:
    """One night: all in the order of time."""

    suspends: tuple[Move, ...]
    runs: tuple[Started, ...]
    resumes: tuple[Move, ...]
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
    problem: Problem, units: int = QUICK, *, seed: int = 0, keep_going: Callable[[], bool] = lambda: True
) -> Schedule:
    """The best schedule that this many units of thought find."""
    search = Search(problem, seed)
    if not search.work.longest:
        return _schedule(problem, State(windows(problem, []), {}, 0))
    if is_endless(search.work):
        found = Endless(problem, search.work, search.alone, seed).solve(Effort(units, keep_going))
        return _schedule(problem, found)
    everything = search.work.most(problem.ends * len(problem.gpus))
    effort = Effort(units // 2, keep_going)
    state = search.improve(search.start(effort), everything, effort)
    effort.units += units - units // 2
    state = fewest(search, state, effort)
    return _schedule(problem, search.improve(state, everything, effort))


def _schedule(problem: Problem, state: State) -> Schedule:
    found = _late(problem, state)
    of_desktop = {
        desktop.name: (problem.gpus[number].host, desktop)
        for number in found.of
        for desktop in problem.gpus[number].desktops
    }
    suspends = [
        Move(name, host, found.suspends[name], desktop.suspend_minutes) for name, (host, desktop) in of_desktop.items()
    ]
    resumes = [
        Move(name, host, found.resumes[name], problem.resume_minutes(desktop))
        for name, (host, desktop) in of_desktop.items()
    ]
    runs = [
        Started(problem.jobs[run.job].name, tuple(problem.gpus[gpu].name for gpu in run.gpus), run.start, run.minutes)
        for run in state.runs()
    ]
    placed = state.placed()
    return Schedule(
        tuple(sorted(suspends, key=lambda move: (move.start, move.desktop))),
        tuple(sorted(runs, key=lambda run: (run.start, run.job))),
        tuple(sorted(resumes, key=lambda move: (move.start, move.desktop))),
        tuple(job.name for number, job in enumerate(problem.jobs) if number not in placed),
    )


def _late(problem: Problem, state: State) -> Windows:
    """The windows of the state, every resume as late as its lanes allow; unless that stops a run."""
    ends: dict[int, int] = {}
    for run in state.runs():
        for number in run.gpus:
            ends[number] = max(run.end, ends.get(number, 0))
    found = windows(problem, sorted(ends, key=lambda number: (-ends[number], number)))
    return found if all(_inside(run, found) for run in state.runs()) else state.windows


def _inside(run: Run, found: Windows) -> bool:
    windows_of = [found.of.get(number) for number in run.gpus]
    return all(
        window is not None and window.free_from <= run.start and run.end <= window.back_from for window in windows_of
    )
