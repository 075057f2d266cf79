"""When each GPU is free tonight: from the last suspend of its desktops to the first resume.

`search.py`, `open_ended.py` and `schedule.py` call it. List scheduling: GPUs are freed in the order in
which their last desktop is idle, and every desktop is suspended as soon as it may be. They are given back in the
opposite order of `order`: the first of them keeps its desktops away the longest. A resume starts as late as is safe,
counted backwards from the end of the night. All suspends and resumes share one book of what goes on at once, per host,
per datastore and in total.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from gpuops.plan.schedule.problem import Desktop, NightGpu, NightProblem, OperationLimits


class _BookedResource:
    """The number of operations in each minute on a host, a datastore or the complete site.

    `full` is an integer whose bits are the minutes in which it can take no more: the first place for an operation is
    then found by shifts of that integer, not minute by minute.
    """

    __slots__ = ("at_once", "full", "minutes")

    def __init__(self, minutes: int, at_once: int) -> None:
        self.minutes = [0] * minutes
        self.at_once = at_once
        self.full = 0


class OperationBook:
    """The suspends and resumes that are planned. Each counts in all of its resources from its start to its end."""

    def __init__(self, limits: OperationLimits, minutes: int) -> None:
        self._limits, self._minutes = limits, minutes
        self._resources: dict[tuple[str, str], _BookedResource] = {}

    def first(self, host: str, desktop: Desktop, at: int, minutes: int) -> int | None:
        """Book the first start not before `at`; None = it would not end before the night ends."""
        booked = self._of(host, desktop)
        start_at = _next_free(_blocked_minutes(booked, minutes), at)
        if start_at + minutes > self._minutes:
            return None
        _book(booked, start_at, minutes)
        return start_at

    def last(self, host: str, desktop: Desktop, end: int, minutes: int) -> int | None:
        """Book the last start that ends by `end`; None = it would begin before the night opens."""
        booked = self._of(host, desktop)
        if end < minutes:
            return None
        free_starts = ~_blocked_minutes(booked, minutes) & ((1 << (end - minutes + 1)) - 1)
        if not free_starts:
            return None
        start_at = free_starts.bit_length() - 1
        _book(booked, start_at, minutes)
        return start_at

    def cancel(self, host: str, desktop: Desktop, start: int, minutes: int) -> None:
        """Take an operation out of the book."""
        for resource in self._of(host, desktop):
            for minute in range(start, start + minutes):
                resource.minutes[minute] -= 1
                resource.full &= ~(1 << minute)

    def _of(self, host: str, desktop: Desktop) -> list[_BookedResource]:
        """The limited resources in which an operation on the desktop counts."""
        names = [(("host", host), self._limits.per_host), (("", ""), self._limits.in_total)]
        names += [(("datastore", name), self._limits.per_datastore) for name in desktop.datastores]
        booked = []
        for name, at_once in names:
            if at_once is not None:
                resource = self._resources.get(name)
                if resource is None:
                    resource = self._resources[name] = _BookedResource(self._minutes, at_once)
                booked.append(resource)
        return booked


def _blocked_minutes(resources: list[_BookedResource], minutes: int) -> int:
    """Bits of the minutes at which an operation of this length cannot start.

    A full minute m also rules out starts at m - 1 ... m - minutes + 1. Each round doubles how far back that reaches:
    full = 0b10000 and minutes = 3 give 0b11100 (an operation of 3 minutes cannot start at 2, 3 or 4).
    """
    full = 0
    for resource in resources:
        full |= resource.full
    covered = 1
    while covered < minutes:
        step = min(covered, minutes - covered)
        full |= full >> step
        covered += step
    return full


def _next_free(blocked: int, at: int) -> int:
    """The first minute from `at` on whose bit is not set."""
    free_starts = ~(blocked >> at)
    # x & -x is the lowest set bit of x.
    return at + (free_starts & -free_starts).bit_length() - 1


def _book(resources: list[_BookedResource], start: int, minutes: int) -> None:
    for resource in resources:
        for minute in range(start, start + minutes):
            resource.minutes[minute] += 1
            if resource.minutes[minute] >= resource.at_once:
                resource.full |= 1 << minute


@dataclass(frozen=True, slots=True)
class GpuWindow:
    """The minutes in which one GPU is without desktops."""

    free_from: int
    back_from: int

    @property
    def minutes(self) -> int:
        return self.back_from - self.free_from


@dataclass(frozen=True, slots=True)
class GpuWindows:
    """The windows of the GPUs that are freed, by their numbers, and the start of every suspend and resume."""

    order: tuple[int, ...]
    of: dict[int, GpuWindow]
    suspends: dict[str, int]
    resumes: dict[str, int]

    @property
    def minutes(self) -> int:
        return sum(window.minutes for window in self.of.values())

    def on(self, problem: NightProblem, gpus: Collection[int]) -> GpuWindows:
        """The windows of these GPUs only, with their suspends and resumes at the same times."""
        names = {desktop.name for number in gpus for desktop in problem.gpus[number].desktops}
        return GpuWindows(
            tuple(number for number in self.order if number in gpus),
            {number: window for number, window in self.of.items() if number in gpus},
            {name: start for name, start in self.suspends.items() if name in names},
            {name: start for name, start in self.resumes.items() if name in names},
        )


def freeable_gpus(problem: NightProblem) -> list[int]:
    """Numbers of the GPUs whose desktops may all be suspended, those that are idle first before the others."""
    ready = [(gpu.idle_from, len(gpu.desktops), number) for number, gpu in enumerate(problem.gpus)]
    return [number for at, _, number in sorted((at, *sort_key) for at, *sort_key in ready if at is not None)]


def compute_windows(problem: NightProblem, order: Sequence[int], least_minutes: int = 1) -> GpuWindows:
    """The windows of these GPUs. A GPU whose window would be shorter than `least_minutes` is left to its desktops."""
    # 1. Resumes, backwards from the end of the night: each GPU of the order as late as the book allows.
    book = OperationBook(problem.limits, problem.ends)
    given_back: dict[int, int] = {}
    resumes: dict[str, int] = {}
    for number in order:
        back_from = _book_resumes(problem, problem.gpus[number], book, resumes)
        if back_from is not None:
            given_back[number] = back_from
    # 2. Suspends, forwards: the GPU that is idle first is freed first.
    window_of: dict[int, GpuWindow] = {}
    suspends: dict[str, int] = {}
    for number in sorted(given_back, key=lambda number: (problem.gpus[number].idle_from or 0, number)):
        free_from = _book_suspends(problem.gpus[number], book, suspends)
        if free_from is not None and given_back[number] - free_from >= least_minutes:
            window_of[number] = GpuWindow(free_from, given_back[number])
    useless = [number for number in order if number not in window_of]
    if useless:
        # 3. GPUs without a useful window use places in the book that others need, and block each other: leave out the
        #    later half of them and compute again; the other half may then have windows.
        left_out = set(useless[len(useless) // 2 :])
        return compute_windows(problem, [number for number in order if number not in left_out], least_minutes)
    return GpuWindows(tuple(order), window_of, suspends, resumes)


def longest_windows(problem: NightProblem, gpus: Iterable[int]) -> dict[int, GpuWindow]:
    """The window that each GPU would have if it alone were freed: no schedule gives it a longer one."""
    window_of = {}
    for number in gpus:
        single = compute_windows(problem, [number]).of
        if single:
            window_of[number] = single[number]
    return window_of


def _book_resumes(problem: NightProblem, gpu: NightGpu, book: OperationBook, resumes: dict[str, int]) -> int | None:
    """Book the resumes of the GPU's desktops as late as possible, and add their starts to `resumes`.

    Returns when the first of them starts; None = there is no room for one, and none is booked.
    """
    back_from = problem.ends
    booked: list[tuple[Desktop, int]] = []
    for desktop in gpu.desktops:
        start = resumes.get(desktop.name)
        if start is None:
            start = book.last(gpu.host, desktop, problem.ends, problem.resume_minutes(desktop))
            if start is None:
                for booked_desktop, at in booked:
                    book.cancel(gpu.host, booked_desktop, at, problem.resume_minutes(booked_desktop))
                    del resumes[booked_desktop.name]
                return None
            booked.append((desktop, start))
            resumes[desktop.name] = start
        back_from = min(back_from, start)
    return back_from


def _book_suspends(gpu: NightGpu, book: OperationBook, suspends: dict[str, int]) -> int | None:
    """Book the suspends of the GPU's desktops as early as possible, and add their starts to `suspends`.

    Returns when the last of them ends; None = there is no room for one.
    """
    free_from = 0
    for desktop in sorted(gpu.desktops, key=lambda desktop: (desktop.idle_from or 0, desktop.name)):
        start = suspends.get(desktop.name)
        if start is None:
            start = book.first(gpu.host, desktop, desktop.idle_from or 0, desktop.suspend_minutes)
            if start is None:
                return None
            suspends[desktop.name] = start
        free_from = max(free_from, start + desktop.suspend_minutes)
    return free_from
