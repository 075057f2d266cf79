"""Windows: from when a GPU is free, and when it must be given back, by list scheduling on the lanes.

GPUs are freed in the order in which their last desktop falls idle, and every desktop is suspended as soon as it may be.
They are given back in the opposite order of `order`: the first of them keeps its desktops away the longest. A resume
starts as late as is safe, counted backwards from the end of the night. All suspends and resumes share one book.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from gpuops.plan.harvest.lanes import Lanes
from gpuops.plan.harvest.problem import Desktop, Gpu, Problem


@dataclass(frozen=True, slots=True)
class Window:
    """When one GPU is without desktops."""

    free_from: int
    back_from: int

    @property
    def minutes(self) -> int:
        return self.back_from - self.free_from


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of the GPUs that are freed, by number, and the start of every suspend and resume."""

    order: tuple[int, ...]
    of: dict[int, Window]
    suspends: dict[str, int]
    resumes: dict[str, int]

    @property
    def minutes(self) -> int:
        return sum(window.minutes for window in self.of.values())

    def on(self, problem: Problem, gpus: Collection[int]) -> Windows:
        """The same windows of these GPUs alone, everything at the same time."""
        names = {desktop.name for number in gpus for desktop in problem.gpus[number].desktops}
        return Windows(
            tuple(number for number in self.order if number in gpus),
            {number: window for number, window in self.of.items() if number in gpus},
            {name: start for name, start in self.suspends.items() if name in names},
            {name: start for name, start in self.resumes.items() if name in names},
        )


def freeable(problem: Problem) -> list[int]:
    """Numbers of the GPUs whose desktops may all be suspended, those free first before the others."""
    ready = [(gpu.idle_from, len(gpu.desktops), number) for number, gpu in enumerate(problem.gpus)]
    return [number for at, _, number in sorted((at, *rest) for at, *rest in ready if at is not None)]


def windows(problem: Problem, order: Sequence[int], least_minutes: int = 1) -> Windows:
    """The windows of these GPUs. One whose window would be shorter than `least_minutes` is left to its desktops."""
    lanes = Lanes(problem.limits, problem.ends)
    given_back: dict[int, int] = {}
    resumes: dict[str, int] = {}
    for number in order:
        back_from = _give_back(problem, problem.gpus[number], lanes, resumes)
        if back_from is not None:
            given_back[number] = back_from
    found: dict[int, Window] = {}
    suspends: dict[str, int] = {}
    for number in sorted(given_back, key=lambda number: (problem.gpus[number].idle_from or 0, number)):
        free_from = _take(problem.gpus[number], lanes, suspends)
        if free_from is not None and given_back[number] - free_from >= least_minutes:
            found[number] = Window(free_from, given_back[number])
    useless = [number for number in order if number not in found]
    if useless:
        # What those booked is in the way of the others, and of each other: half of them leave, then the rest may do.
        leave = set(useless[len(useless) // 2 :])
        return windows(problem, [number for number in order if number not in leave], least_minutes)
    return Windows(tuple(order), found, suspends, resumes)


def alone_windows(problem: Problem, gpus: Iterable[int]) -> dict[int, Window]:
    """The window of each GPU if it alone were freed: no schedule gives it a longer one."""
    found = {}
    for number in gpus:
        alone = windows(problem, [number]).of
        if alone:
            found[number] = alone[number]
    return found


def _give_back(problem: Problem, gpu: Gpu, lanes: Lanes, resumes: dict[str, int]) -> int | None:
    """When its first desktop resumes; the start of each of its resumes goes into `resumes`."""
    back_from = problem.ends
    booked: list[tuple[Desktop, int]] = []
    for desktop in gpu.desktops:
        start = resumes.get(desktop.name)
        if start is None:
            start = lanes.last(gpu.host, desktop, problem.ends, problem.resume_minutes(desktop))
            if start is None:
                for other, at in booked:
                    lanes.cancel(gpu.host, other, at, problem.resume_minutes(other))
                    del resumes[other.name]
                return None
            booked.append((desktop, start))
            resumes[desktop.name] = start
        back_from = min(back_from, start)
    return back_from


def _take(gpu: Gpu, lanes: Lanes, suspends: dict[str, int]) -> int | None:
    """When its last desktop is suspended; the start of each of its suspends goes into `suspends`."""
    free_from = 0
    for desktop in sorted(gpu.desktops, key=lambda desktop: (desktop.idle_from or 0, desktop.name)):
        start = suspends.get(desktop.name)
        if start is None:
            start = lanes.first(gpu.host, desktop, desktop.idle_from or 0, desktop.suspend_minutes)
            if start is None:
                return None
            suspends[desktop.name] = start
        free_from = max(free_from, start + desktop.suspend_minutes)
    return free_from
