"""Endless: nights in which every job runs until its GPUs are due, so that a GPU has one job or none.

Which of the one-GPU jobs run, and on which GPUs, is then a matching, exact and quick (`matching.py`). The search is for
places of wide jobs only: every place that is tried has all the others matched anew around it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from gpuops.plan.harvest.dice import Dice
from gpuops.plan.harvest.matching import matched
from gpuops.plan.harvest.packing import HostPacking, Run
from gpuops.plan.harvest.problem import Job, Problem
from gpuops.plan.harvest.state import Effort, State
from gpuops.plan.harvest.windows import Window, Windows, windows
from gpuops.plan.harvest.work import Work

Places = dict[int, tuple[int, ...]]
"""Job -> its GPUs."""
_PATIENCE: Final = 50
"""Fruitless changes of each wide job after which there is no more to find."""
_HOSTS: Final = 8
"""Hosts that are tried for a wide job at first, the cheapest; each of the others may come by chance."""


def is_endless(work: Work) -> bool:
    """Whether each job that could run would run until the end of the longest window it has."""
    return bool(work.longest) and all(work.jobs[number].minutes > minutes for number, minutes in work.longest.items())


class Endless:
    """Such a night, made ready."""

    def __init__(self, problem: Problem, work: Work, alone: dict[int, Window], seed: int) -> None:
        self._problem, self._work, self._dice = problem, work, Dice(seed)
        desktops = {number: sum(desktop.cost for desktop in problem.gpus[number].desktops) for number in alone}
        worth = problem.desktop_worth_minutes
        self._cost = {number: (worth * desktops[number] - alone[number].minutes, desktops[number]) for number in alone}
        self._gpus = sorted(alone, key=lambda number: (self._cost[number], number))
        order = sorted(work.longest, key=lambda number: (-work.jobs[number].priority, number))
        self._narrow = [number for number in order if work.jobs[number].gpus == 1]
        self._wide = [number for number in order if work.jobs[number].gpus > 1]
        self._may_run = {
            number: [
                gpu for gpu in self._gpus if work.runs_on(number, gpu) and _long_enough(work.jobs[number], alone[gpu])
            ]
            for number in order
        }

    def solve(self, effort: Effort) -> State:
        """The most GPUs at work, the higher priority first, then the longest and with the fewest desktops."""
        wide: Places = {}
        best = self._around(wide, effort)
        for job in self._wide:
            for gpus in self._cheapest(job, wide):
                found = self._around({**wide, job: gpus}, effort)
                if self._value(found) > self._value(best):
                    best = found
            wide = {number: gpus for number, gpus in best.items() if number in self._wide}
        fruitless = 0
        while self._wide and fruitless < _PATIENCE * len(self._wide) and effort.left:
            found = self._changed(best, effort)
            fruitless = 0 if self._value(found) > self._value(best) else fruitless + 1
            best = found
        return self._state(best)

    def _changed(self, places: Places, effort: Effort) -> Places:
        """With one wide job in another place, or in none, if that is no worse."""
        job = self._dice.one_of(self._wide)
        wide = {number: gpus for number, gpus in places.items() if number in self._wide and number != job}
        if self._dice.roll() < 0.5 and wide:
            del wide[self._dice.one_of(list(wide))]
        hosts = self._free(job, wide)
        if hosts:
            gpus, width = self._dice.one_of(hosts), self._work.jobs[job].gpus
            # The cheapest may be just those that a job with more right can run on.
            wide[job] = tuple((gpus if self._dice.roll() < 0.5 else self._dice.shuffled(gpus))[:width])
        found = self._around(wide, effort)
        return found if self._value(found) >= self._value(places) else places

    def _free(self, job: int, wide: Places) -> list[list[int]]:
        """The GPUs of each host that has enough for a wide job, the cheapest first."""
        taken = {gpu for gpus in wide.values() for gpu in gpus}
        by_host: dict[str, list[int]] = defaultdict(list)
        for gpu in self._may_run[job]:
            if gpu not in taken:
                by_host[self._problem.gpus[gpu].host].append(gpu)
        return [gpus for gpus in by_host.values() if len(gpus) >= self._work.jobs[job].gpus]

    def _cheapest(self, job: int, wide: Places) -> list[tuple[int, ...]]:
        """The cheapest GPUs of each of the cheapest hosts."""
        width = self._work.jobs[job].gpus
        found = [tuple(gpus[:width]) for gpus in self._free(job, wide)]
        return sorted(found, key=lambda gpus: (self._costs(gpus), gpus))[:_HOSTS]

    def _around(self, wide: Places, effort: Effort) -> Places:
        """These wide jobs, and what of the others has room beside them."""
        taken = {gpu for gpus in wide.values() for gpu in gpus}
        left = [gpu for gpu in self._gpus if gpu not in taken]
        effort.spend(50 * len(left) + 10 * len(self._narrow))
        narrow = matched(self._narrow, left, self._may_run)
        return {**wide, **{job: (gpu,) for job, gpu in narrow.items()}}

    def _value(self, places: Places) -> tuple[int, int, int]:
        """(worth of the GPUs at work, what is not spent on them)."""
        worth = sum(self._work.weights[job] * len(gpus) for job, gpus in places.items())
        minutes, desktops = self._costs(gpu for gpus in places.values() for gpu in gpus)
        return worth, -minutes, -desktops

    def _costs(self, gpus: Iterable[int]) -> tuple[int, int]:
        """(minutes that desktops are worth, less those that the GPUs are free; desktops)."""
        costs = [self._cost[gpu] for gpu in gpus]
        return sum(minutes for minutes, _ in costs), sum(desktops for _, desktops in costs)

    def _state(self, places: Places) -> State:
        """The places with their times; a job that the lanes leave too little time for is left out."""
        jobs = self._work.jobs
        while True:
            used = {gpu for gpus in places.values() for gpu in gpus}
            found = windows(self._problem, [gpu for gpu in self._gpus if gpu in used])
            runs = {job: _run(job, jobs[job], gpus, found) for job, gpus in places.items()}
            kept = {job: gpus for job, gpus in places.items() if runs[job] is not None}
            if len(kept) == len(places):
                break
            places = kept
        hosts: dict[str, list[Run]] = defaultdict(list)
        for run in runs.values():
            if run is not None:
                hosts[self._problem.gpus[run.gpus[0]].host].append(run)
        packings = {name: HostPacking(tuple(of_host)) for name, of_host in hosts.items()}
        return State(found, packings, sum(packing.worth(self._work) for packing in packings.values()))


def _long_enough(job: Job, window: Window) -> bool:
    end = window.back_from if job.deadline is None else min(window.back_from, job.deadline)
    return end - window.free_from >= job.at_least


def _run(number: int, job: Job, gpus: tuple[int, ...], found: Windows) -> Run | None:
    of = [found.of[gpu] for gpu in gpus if gpu in found.of]
    if len(of) < len(gpus):
        return None
    start = max(window.free_from for window in of)
    end = min(window.back_from for window in of)
    end = end if job.deadline is None else min(end, job.deadline)
    return Run(number, start, end - start, gpus) if end - start >= job.at_least else None
