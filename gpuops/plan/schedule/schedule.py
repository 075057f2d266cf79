"""The schedule of a night, and the one function that computes it: `plan/rotation` calls `schedule`.

The same problem with the same units and seed has the same answer on every machine. The caller may stop the search with
`keep_going` at any step, by its own clock, and gets the best schedule so far.

If every job runs until its GPUs are due, a GPU has at most one job, and `OpenEndedSearch` schedules the night. Which
one-GPU jobs run, and on which GPUs, is a matching and exact. Only the places of jobs with several GPUs are searched:
each at first on the cheapest GPUs of a host, then in random other places as long as that improves the schedule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.plan.schedule.packing import HostPacking, JobRun, SeededRandom
from gpuops.plan.schedule.problem import GpuWindow, GpuWindows, Job, JobTable, NightProblem, compute_windows
from gpuops.plan.schedule.schedule_search import EffortBudget, NightSearch, NightState, with_fewest_desktops

GpusOfJob = dict[int, tuple[int, ...]]
"""The GPUs of each job, both by number."""
_PATIENCE: Final = 50
"""Changes without gain, for each job of several GPUs, after which the search ends."""
_UNITS_PER_GPU: Final = 50
_UNITS_PER_JOB: Final = 10
"""Units for a GPU and for a job of a matching."""
_HOSTS_TRIED: Final = 8
"""Hosts that are tried for a job of several GPUs at first, the cheapest; the others may be drawn later."""


def is_open_ended(table: JobTable) -> bool:
    """Return whether each job that could run would run until the end of the longest window it has."""
    return bool(table.longest) and all(
        table.jobs[number].minutes > minutes for number, minutes in table.longest.items()
    )


class OpenEndedSearch:
    """The search of one such night: costs and allowed GPUs are computed once."""

    def __init__(self, problem: NightProblem, table: JobTable, window_alone: dict[int, GpuWindow], seed: int) -> None:
        self._problem, self._table, self._random = problem, table, SeededRandom(seed)
        desktop_cost = {
            number: sum(desktop.cost for desktop in problem.gpus[number].desktops) for number in window_alone
        }
        worth = problem.desktop_worth_minutes
        # GPU -> the worth of its desktops less its minutes, and the cost of its desktops.
        self._cost = {
            number: (worth * desktop_cost[number] - window_alone[number].minutes, desktop_cost[number])
            for number in window_alone
        }
        # Cheapest first: the most minutes for the least worth of desktops, then the fewest desktops.
        self._gpus = sorted(window_alone, key=lambda number: (self._cost[number], number))
        order = sorted(table.longest, key=lambda number: (-table.jobs[number].priority, number))
        self._one_gpu = [number for number in order if table.jobs[number].gpus == 1]
        self._multi_gpu = [number for number in order if table.jobs[number].gpus > 1]
        self._may_run = {
            number: [
                gpu
                for gpu in self._gpus
                if table.may_run_on(number, gpu) and _longest_run(table.jobs[number], [window_alone[gpu]]) is not None
            ]
            for number in order
        }

    def solve(self, effort: EffortBudget) -> NightState:
        """The state with the most GPUs at work by priority, then the most minutes, then the fewest desktops."""
        # 1. The one-GPU jobs alone, exactly.
        multi_gpu: GpusOfJob = {}
        best = self._with_one_gpu_jobs(multi_gpu, effort)
        # 2. Job by job of several GPUs, by priority: kept on the best of the cheapest GPUs if it gains anything.
        for job in self._multi_gpu:
            # The cheapest GPUs of each of the cheapest hosts.
            width = self._table.jobs[job].gpus
            choices = [tuple(gpus[:width]) for gpus in self._free_gpus_by_host(job, multi_gpu)]
            for gpus in sorted(choices, key=lambda gpus: (self._total_cost(gpus), gpus))[:_HOSTS_TRIED]:
                candidate = self._with_one_gpu_jobs({**multi_gpu, job: gpus}, effort)
                if self._value(candidate) > self._value(best):
                    best = candidate
            multi_gpu = {number: gpus for number, gpus in best.items() if number in self._multi_gpu}
        # 3. Random changes, until there have been enough without gain.
        without_gain = 0
        while self._multi_gpu and without_gain < _PATIENCE * len(self._multi_gpu) and effort.has_work_left:
            candidate = self._with_one_changed(best, effort)
            without_gain = 0 if self._value(candidate) > self._value(best) else without_gain + 1
            best = candidate
        return self._as_state(best)

    def _with_one_changed(self, places: GpusOfJob, effort: EffortBudget) -> GpusOfJob:
        """The places with one job of several GPUs moved, and perhaps another one left out.

        The given places if the changed ones are worse.
        """
        job = self._random.choice(self._multi_gpu)
        multi_gpu = {number: gpus for number, gpus in places.items() if number in self._multi_gpu and number != job}
        # The job that moves may need the GPUs of another one, so half of the time one is left out to free them.
        if self._random.uniform() < 0.5 and multi_gpu:
            del multi_gpu[self._random.choice(list(multi_gpu))]
        gpus_by_host = self._free_gpus_by_host(job, multi_gpu)
        if gpus_by_host:
            gpus, width = self._random.choice(gpus_by_host), self._table.jobs[job].gpus
            # The cheapest GPUs may be the only ones that a job of higher priority can run on, so others are tried too.
            multi_gpu[job] = tuple((gpus if self._random.uniform() < 0.5 else self._random.shuffle(gpus))[:width])
        candidate = self._with_one_gpu_jobs(multi_gpu, effort)
        return candidate if self._value(candidate) >= self._value(places) else places

    def _free_gpus_by_host(self, job: int, multi_gpu: GpusOfJob) -> list[list[int]]:
        """The free GPUs of each host that has enough of them for the job, the cheapest first."""
        used_gpus = {gpu for gpus in multi_gpu.values() for gpu in gpus}
        by_host: dict[str, list[int]] = defaultdict(list)
        for gpu in self._may_run[job]:
            if gpu not in used_gpus:
                by_host[self._problem.gpus[gpu].host].append(gpu)
        return [gpus for gpus in by_host.values() if len(gpus) >= self._table.jobs[job].gpus]

    def _with_one_gpu_jobs(self, multi_gpu: GpusOfJob, effort: EffortBudget) -> GpusOfJob:
        """These jobs of several GPUs, and the best one-GPU jobs beside them."""
        used_gpus = {gpu for gpus in multi_gpu.values() for gpu in gpus}
        free_gpus = [gpu for gpu in self._gpus if gpu not in used_gpus]
        effort.spend(_UNITS_PER_GPU * len(free_gpus) + _UNITS_PER_JOB * len(self._one_gpu))
        one_gpu = match_jobs(self._one_gpu, free_gpus, self._may_run)
        return {**multi_gpu, **{job: (gpu,) for job, gpu in one_gpu.items()}}

    def _value(self, places: GpusOfJob) -> tuple[int, int, int]:
        """(worth, minutes less what the desktops are worth, fewer desktops): greater is better."""
        worth = sum(self._table.weights[job] * len(gpus) for job, gpus in places.items())
        minutes, desktops = self._total_cost(gpu for gpus in places.values() for gpu in gpus)
        return worth, -minutes, -desktops

    def _total_cost(self, gpus: Iterable[int]) -> tuple[int, int]:
        """(minutes that the desktops are worth less the minutes that the GPUs are free, desktops)."""
        costs = [self._cost[gpu] for gpu in gpus]
        return sum(minutes for minutes, _ in costs), sum(desktops for _, desktops in costs)

    def _as_state(self, places: GpusOfJob) -> NightState:
        """The places with their times. Jobs for which suspends and resumes leave too little time are left out."""
        jobs = self._table.jobs
        while True:
            gpus_used = {gpu for gpus in places.values() for gpu in gpus}
            gpu_windows = compute_windows(self._problem, [gpu for gpu in self._gpus if gpu in gpus_used])
            runs = []
            for job, gpus in places.items():
                windows = [gpu_windows.by_gpu[gpu] for gpu in gpus if gpu in gpu_windows.by_gpu]
                longest = _longest_run(jobs[job], windows) if len(windows) == len(gpus) else None
                if longest is not None:
                    runs.append(JobRun(job, *longest, gpus))
            if len(runs) == len(places):
                break
            # Without these jobs other GPUs may have longer windows, so the windows are computed again.
            places = {run.job: run.gpus for run in runs}
        hosts: dict[str, list[JobRun]] = defaultdict(list)
        for run in runs:
            hosts[self._problem.gpus[run.gpus[0]].host].append(run)
        packings = {name: HostPacking(tuple(runs_of_host)) for name, runs_of_host in hosts.items()}
        return NightState(gpu_windows, packings, sum(packing.worth(self._table) for packing in packings.values()))


def _longest_run(job: Job, windows: Sequence[GpuWindow]) -> tuple[int, int] | None:
    """Start and minutes of the run from when all of the GPUs are free until one is due; None = too short to count."""
    start = max(window.free_from for window in windows)
    minutes = job.last_end(min(window.back_from for window in windows)) - start
    return (start, minutes) if minutes >= job.at_least else None


def match_jobs(jobs: Iterable[int], gpus: Sequence[int], may_run: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Return a GPU for each job that gets one. `jobs` by priority, `gpus` the cheapest first.

    Jobs are taken in their order, each if those before it can keep a GPU; GPUs in the same way, for the jobs that were
    taken. Both greedy choices are optimal, and one matching has both (transversal matroids; Mendelsohn and Dulmage,
    1958). Example: job 0 may run on GPUs 5 and 6, job 1 on 5 only: job 0 first takes 5, then moves to 6, and both run.
    """
    # 1. Which jobs can be served: each in turn, earlier ones changing their GPU if need be.
    places = set(gpus)
    by_gpu: dict[int, int] = {}
    edges = {job: [gpu for gpu in may_run[job] if gpu in places] for job in jobs}
    served = [job for job in edges if _augment(job, edges, by_gpu)]
    # 2. Which GPUs serve them: each in turn from the cheapest on, for the jobs of step 1.
    jobs_for: dict[int, list[int]] = {gpu: [] for gpu in gpus}
    for job in served:
        for gpu in edges[job]:
            jobs_for[gpu].append(job)
    by_job: dict[int, int] = {}
    for gpu in gpus:
        if len(by_job) == len(served):
            break
        _augment(gpu, jobs_for, by_job)
    return by_job


def _augment(first: int, edges: Mapping[int, Sequence[int]], partner: dict[int, int]) -> bool:
    """Give `first` a partner, moving other partners if necessary; False = that is not possible. This is an augmenting
    path, searched breadth first, so that as few partners as possible change."""
    came_from: dict[int, int] = {}
    heads = [first]
    for head in heads:
        for candidate in edges[head]:
            if candidate in came_from:
                continue
            came_from[candidate] = head
            if candidate in partner:
                heads.append(partner[candidate])
                continue
            _swap_along(candidate, first, came_from, partner)
            return True
    return False


def _swap_along(end: int, first: int, came_from: Mapping[int, int], partner: dict[int, int]) -> None:
    """Follow the path back from its end to `first`: each on it takes the partner after it."""
    partner_before = {head: partnered for partnered, head in partner.items()}
    current = end
    while True:
        head = came_from[current]
        previous = partner_before.get(head)
        partner[current] = head
        if head == first or previous is None:
            return
        current = previous


QUICK_UNITS: Final = 1_600_000
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
    problem: NightProblem, units: int = QUICK_UNITS, *, seed: int = 0, keep_going: Callable[[], bool] = lambda: True
) -> Schedule:
    """Return the best schedule found with these units of work; the search ends early if `keep_going` returns False."""
    search = NightSearch(problem, seed)
    # 1. No job can run: every desktop stays.
    if not search.table.longest:
        return _as_schedule(problem, NightState(compute_windows(problem, []), {}, 0))
    # 2. Every job runs until the morning: a matching answers.
    if is_open_ended(search.table):
        open_ended = OpenEndedSearch(problem, search.table, search.window_alone, seed)
        return _as_schedule(problem, open_ended.solve(EffortBudget(units, keep_going)))
    # 3. Else local search: half of the units for more worth, the rest for fewer desktops and then for worth again.
    best_possible_worth = search.table.most_worth(problem.ends * len(problem.gpus))
    effort = EffortBudget(units // 2, keep_going)
    state = search.improve(search.start(effort), best_possible_worth, effort)
    effort.units += units - units // 2
    state = with_fewest_desktops(search, state, effort)
    return _as_schedule(problem, search.improve(state, best_possible_worth, effort))


def _as_schedule(problem: NightProblem, state: NightState) -> Schedule:
    """Return the state with names instead of numbers, and every resume as late as possible."""
    final_windows = _with_late_resumes(problem, state)
    host_and_desktop = {
        desktop.name: (problem.gpus[number].host, desktop)
        for number in final_windows.by_gpu
        for desktop in problem.gpus[number].desktops
    }
    suspends = [
        DesktopOperation(name, host, final_windows.suspends[name], desktop.suspend_minutes)
        for name, (host, desktop) in host_and_desktop.items()
    ]
    resumes = [
        DesktopOperation(name, host, final_windows.resumes[name], problem.resume_minutes(desktop))
        for name, (host, desktop) in host_and_desktop.items()
    ]
    runs = [
        ScheduledJob(
            problem.jobs[run.job].name, tuple(problem.gpus[gpu].name for gpu in run.gpus), run.start, run.minutes
        )
        for run in state.runs()
    ]
    running_jobs = state.running_jobs()
    return Schedule(
        tuple(sorted(suspends, key=lambda operation: (operation.start, operation.desktop))),
        tuple(sorted(runs, key=lambda run: (run.start, run.job))),
        tuple(sorted(resumes, key=lambda operation: (operation.start, operation.desktop))),
        tuple(job.name for number, job in enumerate(problem.jobs) if number not in running_jobs),
    )


def _with_late_resumes(problem: NightProblem, state: NightState) -> GpuWindows:
    """Return the windows with every resume as late as the limits allow; those of the state if a run would not fit."""
    ends: dict[int, int] = {}
    for run in state.runs():
        for number in run.gpus:
            ends[number] = max(run.end, ends.get(number, 0))
    late_windows = compute_windows(problem, sorted(ends, key=lambda number: (-ends[number], number)))
    for run in state.runs():
        for number in run.gpus:
            window = late_windows.by_gpu.get(number)
            if window is None or not window.free_from <= run.start <= run.end <= window.back_from:
                return state.windows
    return late_windows
