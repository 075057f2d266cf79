"""A night as the scheduler sees it: GPUs with their desktops, jobs and limits, and when each GPU is free.

All times are whole minutes from the moment that the night opens.

`compute_windows` finds when each GPU is free, from the last suspend of its desktops to the first resume, by list
scheduling. GPUs are freed in the order in which their last desktop is idle, and every desktop is suspended as soon as
it may be. They are given back in the opposite order of `order`: the first GPU keeps its desktops away the longest. A
resume starts as late as is safe, counted backwards from the end of the night. All suspends and resumes share one book
of the running operations per host, per datastore and in total.

`JobTable` has the jobs by number, each with the GPUs that it may run on and its weight.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Desktop:
    """A desktop: when it may be suspended, and how long its suspend and resume take."""

    name: str
    idle_from: int | None
    """None = it may not be suspended tonight, and its GPUs take no jobs."""
    suspend_minutes: int
    resume_minutes: int
    datastores: tuple[str, ...] = ()
    """The datastores of its memory; the operation counts in the limit of each."""
    cost: int = 1
    """Its weight when the number of suspended desktops is minimized."""


@dataclass(frozen=True, slots=True)
class NightGpu:
    """A physical GPU with its desktops; without desktops it is free. A desktop with several vGPUs is on several
    GPUs."""

    name: str
    host: str
    desktops: tuple[Desktop, ...]

    @property
    def idle_from(self) -> int | None:
        """When the last of its desktops may be suspended; None = one of them may not."""
        times = [desktop.idle_from for desktop in self.desktops]
        return None if None in times else max((time for time in times if time is not None), default=0)


@dataclass(frozen=True, slots=True)
class Job:
    """An ML job that runs on complete GPUs of one host without interruption."""

    name: str
    gpus: int
    minutes: int
    """How long it runs, unless its GPUs are given back sooner: see `least_minutes`."""
    least_minutes: int | None = None
    """A run that the morning cuts off counts if it lasted this long. None = only a complete run counts."""
    priority: int = 0
    """A minute of a higher one is worth more than all minutes of the lower ones."""
    deadline: int | None = None
    """The minute by which it must have ended."""
    allowed: frozenset[str] | None = None
    """Names of the GPUs that it may run on; None = any."""

    def last_end(self, end: int) -> int:
        """The earlier of its deadline and this end."""
        return end if self.deadline is None else min(end, self.deadline)

    @property
    def at_least(self) -> int:
        """The shortest run that counts."""
        return self.minutes if self.least_minutes is None else min(self.minutes, self.least_minutes)


@dataclass(frozen=True, slots=True)
class OperationLimits:
    """How many suspends and resumes may run at once; None = any number."""

    per_host: int | None = 4
    per_datastore: int | None = 8
    in_total: int | None = None


@dataclass(frozen=True, slots=True)
class NightProblem:
    """One night."""

    ends: int
    """By then every desktop must run again. The night opens at 0."""
    gpus: tuple[NightGpu, ...]
    jobs: tuple[Job, ...]
    limits: OperationLimits = OperationLimits()
    slowdown: float = 1.5
    """Factor by which each resume is planned longer than expected."""
    desktop_worth_minutes: int = 0
    """GPU-minutes of the lowest priority that are given up for each desktop that is not suspended, if no job is
    lost."""

    def resume_minutes(self, desktop: Desktop) -> int:
        """How long the plan allows for the desktop's resume."""
        # A product such as 2 * 1.5 may be a little more than 3: without the subtraction that would be 4 minutes.
        return math.ceil(desktop.resume_minutes * self.slowdown - 1e-9)


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

    def book_first(self, host: str, desktop: Desktop, at: int, minutes: int) -> int | None:
        """Book the first start not before `at`; None = it would not end before the night ends."""
        booked = self._resources_of(host, desktop)
        free_starts = ~(_blocked_minutes(booked, minutes) >> at)
        # x & -x is the lowest set bit of x.
        start_at = at + (free_starts & -free_starts).bit_length() - 1
        if start_at + minutes > self._minutes:
            return None
        _book(booked, start_at, minutes)
        return start_at

    def book_last(self, host: str, desktop: Desktop, end: int, minutes: int) -> int | None:
        """Book the last start that ends by `end`; None = it would begin before the night opens."""
        booked = self._resources_of(host, desktop)
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
        for resource in self._resources_of(host, desktop):
            for minute in range(start, start + minutes):
                resource.minutes[minute] -= 1
                resource.full &= ~(1 << minute)

    def _resources_of(self, host: str, desktop: Desktop) -> list[_BookedResource]:
        """The limited resources in which an operation on the desktop counts."""
        # (kind, name) of each resource, and how many operations it allows at once; None = any number.
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
    """Return bits of the minutes at which an operation of this length cannot start.

    A full minute m also rules out starts at m - 1 ... m - minutes + 1. Example: if minute 4 is full, an operation of 3
    minutes cannot start at 2, 3 or 4.

    >>> host = _BookedResource(minutes=8, at_once=1)
    >>> host.full = 0b10000
    >>> bin(_blocked_minutes([host], minutes=3))
    '0b11100'
    """
    full = 0
    for resource in resources:
        full |= resource.full
    covered = 1
    while covered < minutes:  # each round doubles how far back it reaches
        step = min(covered, minutes - covered)
        full |= full >> step
        covered += step
    return full


def _book(resources: list[_BookedResource], start: int, minutes: int) -> None:
    """Count an operation of this length in these resources."""
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
    by_gpu: dict[int, GpuWindow]
    suspends: dict[str, int]
    resumes: dict[str, int]

    @property
    def minutes(self) -> int:
        return sum(window.minutes for window in self.by_gpu.values())

    def on(self, problem: NightProblem, gpus: Collection[int]) -> GpuWindows:
        """The windows of these GPUs only, with their suspends and resumes at the same times."""
        names = {desktop.name for number in gpus for desktop in problem.gpus[number].desktops}
        return GpuWindows(
            tuple(number for number in self.order if number in gpus),
            {number: window for number, window in self.by_gpu.items() if number in gpus},
            {name: start for name, start in self.suspends.items() if name in names},
            {name: start for name, start in self.resumes.items() if name in names},
        )


def freeable_gpus(problem: NightProblem) -> list[int]:
    """Return the numbers of the GPUs whose desktops may all be suspended: those that are idle first before the others,
    and of these those with the fewest desktops."""
    freeable = []
    for number, gpu in enumerate(problem.gpus):
        if gpu.idle_from is not None:
            freeable.append((gpu.idle_from, len(gpu.desktops), number))
    return [number for _, _, number in sorted(freeable)]


def compute_windows(problem: NightProblem, order: Sequence[int], least_minutes: int = 1) -> GpuWindows:
    """Return the windows of these GPUs. A GPU with a window shorter than `least_minutes` is left to its desktops."""
    # 1. Resumes, backwards from the end of the night: each GPU of the order as late as the book allows.
    book = OperationBook(problem.limits, problem.ends)
    given_back: dict[int, int] = {}
    resumes: dict[str, int] = {}
    for number in order:
        back_from = _book_resumes(problem, problem.gpus[number], book, resumes)
        if back_from is not None:
            given_back[number] = back_from
    # 2. Suspends, forwards: the GPU that is idle first is freed first.
    window_by_gpu: dict[int, GpuWindow] = {}
    suspends: dict[str, int] = {}
    for number in sorted(given_back, key=lambda number: (problem.gpus[number].idle_from or 0, number)):
        free_from = _book_suspends(problem.gpus[number], book, suspends)
        if free_from is not None and given_back[number] - free_from >= least_minutes:
            window_by_gpu[number] = GpuWindow(free_from, given_back[number])
    useless = [number for number in order if number not in window_by_gpu]
    if useless:
        # 3. GPUs without a useful window use places in the book that others need, and block each other: leave out the
        #    later half of them and compute again; the other half may then have windows.
        left_out = set(useless[len(useless) // 2 :])
        return compute_windows(problem, [number for number in order if number not in left_out], least_minutes)
    return GpuWindows(tuple(order), window_by_gpu, suspends, resumes)


def longest_windows(problem: NightProblem, gpus: Iterable[int]) -> dict[int, GpuWindow]:
    """Return the window that each GPU would have if it alone were freed: no schedule gives it a longer one."""
    window_by_gpu = {}
    for number in gpus:
        single = compute_windows(problem, [number]).by_gpu
        if single:
            window_by_gpu[number] = single[number]
    return window_by_gpu


def _book_resumes(problem: NightProblem, gpu: NightGpu, book: OperationBook, resumes: dict[str, int]) -> int | None:
    """Book the resumes of the GPU's desktops as late as possible, and add their starts to `resumes`. Returns when the
    first of them starts; None = there is no room for one, and none is booked."""
    back_from = problem.ends
    booked: list[tuple[Desktop, int]] = []
    for desktop in gpu.desktops:
        start = resumes.get(desktop.name)  # a desktop on several GPUs may be booked already
        if start is None:
            start = book.book_last(gpu.host, desktop, problem.ends, problem.resume_minutes(desktop))
            if start is None:
                for booked_desktop, booked_start in booked:
                    book.cancel(gpu.host, booked_desktop, booked_start, problem.resume_minutes(booked_desktop))
                    del resumes[booked_desktop.name]
                return None
            booked.append((desktop, start))
            resumes[desktop.name] = start
        back_from = min(back_from, start)
    return back_from


def _book_suspends(gpu: NightGpu, book: OperationBook, suspends: dict[str, int]) -> int | None:
    """Book the suspends of the GPU's desktops as early as possible, and add their starts to `suspends`. Returns when
    the last of them ends; None = there is no room for one. Those before it then stay booked."""
    free_from = 0
    for desktop in sorted(gpu.desktops, key=lambda desktop: (desktop.idle_from or 0, desktop.name)):
        start = suspends.get(desktop.name)  # a desktop on several GPUs may be booked already
        if start is None:
            start = book.book_first(gpu.host, desktop, desktop.idle_from or 0, desktop.suspend_minutes)
            if start is None:
                return None
            suspends[desktop.name] = start
        free_from = max(free_from, start + desktop.suspend_minutes)
    return free_from


@dataclass(frozen=True, slots=True)
class JobTable:
    """Jobs by number, with the facts that the search needs of each."""

    jobs: tuple[Job, ...]
    may_run: tuple[frozenset[int] | None, ...]
    """The numbers of the GPUs on which each may run; None = any."""
    rank: tuple[int, ...]
    """Place of each job in a pool: the higher priority first, then by deadline, then the shorter first, then those that
    may run on fewer GPUs."""
    weights: tuple[int, ...]
    """The worth of a GPU-minute of each job; one minute of a priority outweighs all minutes of lower priorities."""
    longest: Mapping[int, int]
    """How long each job could run if it were the only one; a job that could not run at all is missing."""

    def may_run_on(self, job: int, gpu: int) -> bool:
        """Whether the job may run on the GPU."""
        allowed = self.may_run[job]
        return allowed is None or gpu in allowed

    def pool(self, numbers: Iterable[int], *, multi_gpu: bool) -> list[int]:
        """The jobs of several GPUs among these, or those of one, in the order in which they are packed."""
        return sorted(
            (number for number in numbers if (self.jobs[number].gpus > 1) is multi_gpu), key=self.rank.__getitem__
        )

    def allowed_on(self, pool: Iterable[int], gpu: int) -> list[int]:
        """The jobs of the pool that may run on this GPU, in the same order."""
        return [number for number in pool if self.may_run_on(number, gpu)]

    def gpu_minutes(self) -> int:
        """The GPU-minutes of all jobs that could run."""
        return sum(self.jobs[number].gpus * minutes for number, minutes in self.longest.items())

    def most_worth(self, gpu_minutes: int) -> int:
        """An upper limit on the worth of this number of GPU-minutes: the best jobs for as long as they could run, and a
        part of one."""
        worth = 0
        for number in sorted(self.longest, key=lambda number: -self.weights[number]):
            used_minutes = min(gpu_minutes, self.jobs[number].gpus * self.longest[number])
            worth += used_minutes * self.weights[number]
            gpu_minutes -= used_minutes
        return worth


def make_job_table(problem: NightProblem, window_alone: Mapping[int, GpuWindow]) -> JobTable:
    """Return the jobs of the problem. `window_alone`: the window that each GPU that can be freed would have alone."""
    number_of = {problem.gpus[number].name: number for number in window_alone}
    may_run = tuple(
        None if job.allowed is None else frozenset(number_of[name] for name in job.allowed if name in number_of)
        for job in problem.jobs
    )

    def pool_order(number: int) -> tuple[int, float, int, float, int]:
        job, allowed = problem.jobs[number], may_run[number]
        due = inf if job.deadline is None else job.deadline
        return -job.priority, due, job.minutes, inf if allowed is None else len(allowed), number

    order = sorted(range(len(problem.jobs)), key=pool_order)
    rank = [0] * len(order)
    for place, number in enumerate(order):
        rank[number] = place
    priorities = sorted({job.priority for job in problem.jobs})
    # The base of the powers is more than a complete night of all GPUs, so that all lower priorities together are worth
    # less than one minute. Two GPUs for 480 minutes: the weights are 1, 961, 961 * 961.
    base = problem.ends * max(1, len(window_alone)) + 1
    weights = tuple(base ** priorities.index(job.priority) for job in problem.jobs)
    return JobTable(problem.jobs, may_run, tuple(rank), weights, _longest_runs(problem, window_alone, may_run))


def _longest_runs(
    problem: NightProblem, window_alone: Mapping[int, GpuWindow], may_run: Sequence[frozenset[int] | None]
) -> dict[int, int]:
    """Return how many minutes each job could run on the GPUs of its best host if it were the only one. Jobs that could
    not run long enough are left out."""
    gpus_by_host: dict[str, list[int]] = defaultdict(list)
    for number in window_alone:
        gpus_by_host[problem.gpus[number].host].append(number)
    longest_runs: dict[int, int] = {}
    minutes_for: dict[tuple[int, int | None, frozenset[int] | None], int] = {}  # many jobs have equal demands
    for number, job in enumerate(problem.jobs):
        allowed = may_run[number]
        demand = (job.gpus, job.deadline, allowed)
        if demand not in minutes_for:
            minutes_for[demand] = 0
            for gpus in gpus_by_host.values():
                windows = [window_alone[gpu] for gpu in gpus if allowed is None or gpu in allowed]
                minutes_for[demand] = max(minutes_for[demand], _longest_common(windows, job))
        if minutes_for[demand] >= job.at_least:
            longest_runs[number] = min(job.minutes, minutes_for[demand])
    return longest_runs


def _longest_common(windows: Sequence[GpuWindow], job: Job) -> int:
    """Return how many minutes the job could run if each of its GPUs had one of these windows.

    Example: of three windows two are open together for 40 minutes (10 to 50), all three for 20.

    >>> windows = [GpuWindow(0, 60), GpuWindow(10, 50), GpuWindow(20, 40)]
    >>> [_longest_common(windows, Job("train", gpus, minutes=90)) for gpus in (2, 3)]
    [40, 20]
    """
    # The best time ends with a window. Of those that are open until then, the first to open are used.
    longest = 0
    for window in windows:
        end = job.last_end(window.back_from)
        starts = sorted(candidate.free_from for candidate in windows if candidate.back_from >= end)
        if len(starts) >= job.gpus:
            longest = max(longest, end - starts[job.gpus - 1])
    return longest
