"""Improves a night's schedule by local search: more worth in the same GPUs, then as much with fewer desktops suspended.

`schedule.py` calls it. A state is the windows of the GPUs and what runs in them. Each step changes it a little and is
kept if the worth is no less. Steps are cheap, and chance picks among four kinds:

* fill a few stretches anew with one-GPU jobs, one that idles among them;
* pack a host anew, some of its jobs of several GPUs staying where they are;
* pack two hosts anew;
* exchange two GPUs in the order in which they are returned.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from gpuops.plan.schedule.packing import HostPacking, JobRun, SeededRandom, Stretch, fill_stretches, pack_host
from gpuops.plan.schedule.problem import (
    GpuWindow,
    GpuWindows,
    NightProblem,
    compute_windows,
    freeable_gpus,
    longest_windows,
    make_job_table,
)

_UPTO_REFILL: Final = 0.75
_UPTO_ONE_HOST: Final = 0.90
_UPTO_TWO_HOSTS: Final = 0.95
"""The upper limits of the random number for each kind of step; above all of them, the order of returns changes."""
_STAYING_SHARES: Final = (0.0, 0.5, 0.8, 0.9)
_LEFT_OUT_SHARES: Final = (0.0, 0.3, 0.6, 0.9)
"""Shares of the jobs of several GPUs that stay where they are, and that are left out when a host is packed."""
_PASSED_OVER_SHARES: Final = (0.0, 0.0, 0.2, 0.4)
"""Shares of the one-GPU jobs that are left out when stretches are filled anew: the exact answer is always the same
one."""
_UNITS_PER_STEP: Final = 20
"""Units for a step in addition to the jobs that it tries."""
_UNITS_PER_DESKTOP: Final = 30
"""Units for booking the suspend and the resume of a desktop."""
_FIRST_TRIAL_UNITS: Final = 4_000
"""Units for one trial with fewer desktops. When all trials have failed, each gets four times as many."""


@dataclass(slots=True)
class EffortBudget:
    """The remaining work in units: one unit is one job tried for one stretch, about half a microsecond. `keep_going`
    lets the caller end the search by a clock."""

    units: int
    keep_going: Callable[[], bool] = lambda: True

    def spend(self, units: int) -> None:
        """Count down."""
        self.units -= units

    @property
    def has_work_left(self) -> bool:
        """Whether the search may continue."""
        return self.units > 0 and self.keep_going()


@dataclass(frozen=True, slots=True)
class NightState:
    """The windows of the GPUs, the jobs in them on each host, and their worth."""

    windows: GpuWindows
    hosts: dict[str, HostPacking]
    worth: int

    def runs(self) -> list[JobRun]:
        """Every run on every host."""
        return [run for packing in self.hosts.values() for run in packing.runs()]

    def running_jobs(self) -> set[int]:
        """The jobs that run."""
        return {job for packing in self.hosts.values() for job in packing.jobs()}

    def used_gpus(self) -> set[int]:
        """The GPUs on which something runs."""
        return {number for run in self.runs() for number in run.gpus}

    def on_used_gpus(self, problem: NightProblem) -> NightState:
        """The state without the GPUs on which nothing runs: their desktops stay."""
        used_gpus = self.used_gpus()
        if used_gpus == set(self.windows.by_gpu):
            return self
        return NightState(self.windows.on(problem, used_gpus), _packings_on(self.hosts, used_gpus), self.worth)


def _packings_on(hosts: dict[str, HostPacking], gpus: Collection[int]) -> dict[str, HostPacking]:
    """Return the packings on these GPUs, of hosts on which something runs."""
    packings = {name: packing.on(gpus) for name, packing in hosts.items()}
    return {name: packing for name, packing in packings.items() if packing.jobs()}


class NightSearch:
    """The search of one night, with the tables that are computed once and the random numbers of the steps."""

    def __init__(self, problem: NightProblem, seed: int) -> None:
        self.problem = problem
        self.window_alone = longest_windows(problem, freeable_gpus(problem))
        self.table = make_job_table(problem, self.window_alone)
        self._random = SeededRandom(seed)
        self._shortest = min((job.at_least for job in problem.jobs), default=1)

    def start(self, effort: EffortBudget) -> NightState:
        """A first packing of all GPUs that can be freed."""
        gpu_windows = self.windows_of(list(self.window_alone), effort)
        return self._repack_hosts(
            NightState(gpu_windows, {}, 0), gpu_windows, _by_host(self.problem, gpu_windows), effort
        )

    def windows_of(self, order: Sequence[int], effort: EffortBudget) -> GpuWindows:
        """The windows of these GPUs that are long enough for the shortest job."""
        effort.spend(_UNITS_PER_DESKTOP * sum(len(self.problem.gpus[number].desktops) for number in order))
        return compute_windows(self.problem, order, self._shortest)

    def improve(self, state: NightState, enough: int, effort: EffortBudget) -> NightState:
        """The state after steps, until it is worth `enough` or the most possible, or the budget is spent."""
        limit = min(enough, self.table.most_worth(state.windows.minutes))
        while state.worth < limit and effort.has_work_left:
            effort.spend(_UNITS_PER_STEP)
            state = self._step(state, effort)
            limit = min(enough, self.table.most_worth(state.windows.minutes))
        return state

    def in_windows(self, state: NightState, gpu_windows: GpuWindows, effort: EffortBudget) -> NightState:
        """The state in these windows; hosts whose windows changed are packed anew."""
        before, after = _by_host(self.problem, state.windows), _by_host(self.problem, gpu_windows)
        changed = [name for name in after if before.get(name) != after[name]]
        return self._repack_hosts(state, gpu_windows, changed, effort)

    def counts(self, state: NightState) -> list[int]:
        """The number of jobs that run of each priority, the highest first."""
        running = Counter(self.table.weights[number] for number in state.running_jobs())
        return [running[weight] for weight in sorted(set(self.table.weights), reverse=True)]

    def _step(self, state: NightState, effort: EffortBudget) -> NightState:
        """The state after one random step, or the given state if the step would lose worth."""
        draw = self._random.uniform()
        if draw < _UPTO_REFILL:
            return self._refill_stretches(state, effort)
        if draw < _UPTO_TWO_HOSTS:
            # A host may be drawn twice; then the step packs one.
            names = [self._random.choice(list(state.hosts)) for _ in range(1 if draw < _UPTO_ONE_HOST else 2)]
            staying = {name: self._draw_staying_runs(state.hosts[name]) for name in names}
            candidate = self._repack_hosts(state, state.windows, names, effort, staying)
        else:
            order = list(state.windows.order)
            first, second = self._random.integer_below(len(order)), self._random.integer_below(len(order))
            order[first], order[second] = order[second], order[first]  # these GPUs return in the other order
            candidate = self.in_windows(state, self.windows_of(order, effort), effort)
        return candidate if candidate.worth >= state.worth else state

    def _refill_stretches(self, state: NightState, effort: EffortBudget) -> NightState:
        """The state with a few stretches filled anew from their own jobs and those that wait, or the given state if
        that would lose worth."""
        chosen_stretches = self._choose_stretches(state)
        if not chosen_stretches:
            return state
        before = [state.hosts[name].stretches[index] for name, index in chosen_stretches]
        jobs_on_stretches = {stretch_job.job for stretch in before for stretch_job in stretch.stretch_jobs}
        pool = self.table.pool(self._waiting(state.hosts) | jobs_on_stretches, multi_gpu=False)
        # The exact filling of the same jobs is always the same: leave out a random part of them.
        passed_over_share = self._random.choice(_PASSED_OVER_SHARES)
        if passed_over_share:
            pool = [number for number in pool if self._random.uniform() >= passed_over_share]
        effort.spend(len(pool) * len(before))
        after = fill_stretches(before, self.table, pool, self._random)
        gain = self._worth(after) - self._worth(before)
        if gain < 0:
            return state
        hosts = dict(state.hosts)
        for (name, index), stretch in zip(chosen_stretches, after, strict=True):
            stretches = hosts[name].stretches
            hosts[name] = replace(hosts[name], stretches=(*stretches[:index], stretch, *stretches[index + 1 :]))
        return NightState(state.windows, hosts, state.worth + gain)

    def _choose_stretches(self, state: NightState) -> list[tuple[str, int]]:
        """Return up to four random stretches by host and number, one of them with idle time if there is one."""
        all_stretches = [
            (name, index) for name, packing in state.hosts.items() for index in range(len(packing.stretches))
        ]
        if not all_stretches:
            return []
        idle = [(name, index) for name, index in all_stretches if state.hosts[name].stretches[index].idle_minutes]
        chosen = {self._random.choice(idle or all_stretches)}
        chosen.update(self._random.choice(all_stretches) for _ in range(1 + self._random.integer_below(3)))
        return sorted(chosen)

    def _repack_hosts(
        self,
        state: NightState,
        gpu_windows: GpuWindows,
        names: Collection[str],
        effort: EffortBudget,
        staying: dict[str, list[JobRun]] | None = None,
    ) -> NightState:
        """The state with these hosts packed anew, in a random order; their runs in `staying` remain."""
        by_host = _by_host(self.problem, gpu_windows)
        hosts = {name: packing for name, packing in state.hosts.items() if name in by_host and name not in names}
        staying = staying or {}
        waiting = self._waiting(hosts) - {run.job for runs in staying.values() for run in runs}
        for name in self._random.shuffle([name for name in by_host if name in names]):
            effort.spend(3 * len(waiting) * (1 + len(by_host[name])))
            left_out = self._random.choice(_LEFT_OUT_SHARES)
            hosts[name] = pack_host(by_host[name], self.table, waiting, self._random, left_out, staying.get(name, ()))
            waiting -= set(hosts[name].jobs())
        in_order = {name: hosts[name] for name in by_host}
        return NightState(gpu_windows, in_order, sum(packing.worth(self.table) for packing in hosts.values()))

    def _waiting(self, hosts: dict[str, HostPacking]) -> set[int]:
        """The jobs that could run and do not."""
        return set(self.table.longest) - {job for packing in hosts.values() for job in packing.jobs()}

    def _draw_staying_runs(self, packing: HostPacking) -> list[JobRun]:
        """A random part of the runs of several GPUs, which stays when the host is packed anew."""
        share = self._random.choice(_STAYING_SHARES)
        return [run for run in packing.multi_gpu if self._random.uniform() < share]

    def _worth(self, stretches: Iterable[Stretch]) -> int:
        weights = self.table.weights
        return sum(
            stretch_job.minutes * weights[stretch_job.job]
            for stretch in stretches
            for stretch_job in stretch.stretch_jobs
        )


def _by_host(problem: NightProblem, gpu_windows: GpuWindows) -> dict[str, dict[int, GpuWindow]]:
    by_host: dict[str, dict[int, GpuWindow]] = defaultdict(dict)
    for number, window in sorted(gpu_windows.by_gpu.items()):
        by_host[problem.gpus[number].host][number] = window
    return dict(by_host)


def with_fewest_desktops(search: NightSearch, state: NightState, effort: EffortBudget) -> NightState:
    """A state with as few desktops suspended as the budget finds.

    It is worth as much as this one, less at most `NightProblem.desktop_worth_minutes` for each desktop that stays, and
    as many jobs of each priority run. GPUs on which nothing runs stay with their desktops at once. Then other sets of
    GPUs with fewer desktops are tried. Most of these are skipped, because an upper limit shows that they are worth too
    little.
    """
    state = state.on_used_gpus(search.problem)
    trial_units = _FIRST_TRIAL_UNITS
    while effort.has_work_left:
        better_state = _find_cheaper_state(search, state, trial_units, effort)
        if better_state is not None:
            state = better_state.on_used_gpus(search.problem)
        elif trial_units > effort.units:
            break
        else:
            trial_units *= 4
    return state


def _find_cheaper_state(
    search: NightSearch, state: NightState, trial_units: int, effort: EffortBudget
) -> NightState | None:
    """Return the first state found with cheaper desktops that is worth enough; None = no trial found one."""
    problem = search.problem
    cost_now = _cost_of_desktops(problem, state.windows.by_gpu)
    for order in chain(_without_one(search, state), _with_one_exchanged(search, state), _host_by_host(search, state)):
        cost_then = _cost_of_desktops(problem, order)
        if sum(cost_then.values()) >= sum(cost_now.values()):
            continue
        if not effort.has_work_left:
            break
        # The worth may fall by a fixed number of minutes for each desktop that is no longer suspended.
        least_worth = state.worth - max(0, len(cost_now) - len(cost_then)) * problem.desktop_worth_minutes
        # 1. An upper limit: all of the windows filled with the best jobs.
        gpu_windows = search.windows_of(order, effort)
        if search.table.most_worth(gpu_windows.minutes) < least_worth:
            continue
        # 2. A trial with a budget of its own.
        trial = EffortBudget(trial_units, effort.keep_going)
        candidate = search.improve(search.in_windows(state, gpu_windows, trial), least_worth, trial)
        effort.spend(trial_units - trial.units)
        if candidate.worth >= least_worth and search.counts(candidate) >= search.counts(state):
            return candidate
    return None


def _cost_of_desktops(problem: NightProblem, gpus: Iterable[int]) -> dict[str, int]:
    """The cost of each desktop on these GPUs, by name; one on several GPUs counts once."""
    return {desktop.name: desktop.cost for number in gpus for desktop in problem.gpus[number].desktops}


def _cost(problem: NightProblem, number: int) -> int:
    return sum(desktop.cost for desktop in problem.gpus[number].desktops)


def _without_one(search: NightSearch, state: NightState) -> Iterator[list[int]]:
    """Yield the order without one GPU, for each GPU in turn. GPUs of hosts with few runs come first, to empty hosts."""
    gpus, order = search.problem.gpus, state.windows.order
    minutes = dict.fromkeys(order, 0)
    runs_of_host = {gpus[number].host: 0 for number in order}
    for run in state.runs():
        for number in run.gpus:
            minutes[number] += run.minutes
            runs_of_host[gpus[number].host] += run.minutes
    for left_out in sorted(order, key=lambda number: (runs_of_host[gpus[number].host], minutes[number], number)):
        yield [number for number in order if number != left_out]


def _with_one_exchanged(search: NightSearch, state: NightState) -> Iterator[list[int]]:
    """Yield the order with one GPU replaced by a cheaper one, for each such pair, the most expensive GPU first."""
    problem, order = search.problem, state.windows.order
    cost = {number: _cost(problem, number) for number in search.window_alone}
    spare = sorted(set(search.window_alone) - set(order), key=lambda number: (cost[number], number))
    for number in sorted(order, key=lambda number: (-cost[number], number)):
        for cheaper in spare:
            if cost[cheaper] < cost[number]:
                yield [cheaper if gpu == number else gpu for gpu in order]


def _host_by_host(search: NightSearch, state: NightState) -> Iterator[list[int]]:
    """Yield, for each host, its GPUs and then those of other hosts until their minutes suffice for all runs."""
    by_host: dict[str, list[int]] = {}
    for number in sorted(search.window_alone, key=lambda number: (-search.window_alone[number].minutes, number)):
        by_host.setdefault(search.problem.gpus[number].host, []).append(number)
    total = {host: sum(search.window_alone[number].minutes for number in numbers) for host, numbers in by_host.items()}
    needed = sum(run.minutes * len(run.gpus) for run in state.runs())
    freed_in_order = list(search.window_alone)
    for first in by_host:
        chosen: set[int] = set()
        minutes = 0
        for host in sorted(by_host, key=lambda host: (host != first, -total[host])):
            for number in by_host[host]:
                if minutes < needed:
                    chosen.add(number)
                    minutes += search.window_alone[number].minutes
        yield [number for number in freed_in_order if number in chosen]
