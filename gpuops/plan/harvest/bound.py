"""Bound: GPU-minutes that no schedule can pass.

Each GPU alone has its longest window. Together they share lanes on the way back: `n` GPUs of a host, or with their
desktops on one datastore, cannot all be given back later than so many resumes take on so many lanes. How jobs fit into
the windows is not asked.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from gpuops.plan.harvest.problem import Gpu, Problem
from gpuops.plan.harvest.windows import Window, alone_windows, freeable
from gpuops.plan.harvest.work import work_of


def most_gpu_minutes(problem: Problem) -> int:
    """The least of: what lanes leave, by host, by datastore and in total; and all jobs that could run."""
    alone = alone_windows(problem, freeable(problem))
    shared = _shared(problem.gpus[number] for number in alone)
    limits = problem.limits
    ways = [
        (limits.per_host, [[problem.gpus[number].host] for number in alone]),
        (limits.per_datastore, [_stores(problem.gpus[number]) for number in alone]),
        (limits.in_total, [[""] for _ in alone]),
    ]
    bounds = [work_of(problem, alone).gpu_minutes(), sum(window.minutes for window in alone.values())]
    for at_once, names in ways:
        if at_once is not None:
            bounds.append(_by_groups(problem, alone, names, at_once, shared))
    return min(bounds)


def _stores(gpu: Gpu) -> list[str]:
    return sorted({name for desktop in gpu.desktops for name in desktop.datastores})


def _shared(gpus: Iterable[Gpu]) -> set[str]:
    """Desktops of several GPUs: which of those they delay is not known, so they delay none."""
    seen: set[str] = set()
    twice: set[str] = set()
    for gpu in gpus:
        for desktop in gpu.desktops:
            (twice if desktop.name in seen else seen).add(desktop.name)
    return twice


def _by_groups(
    problem: Problem, alone: dict[int, Window], names: Sequence[list[str]], at_once: int, shared: Collection[str]
) -> int:
    """Each group of GPUs that shares lanes by itself; a GPU in several groups or in none has its own window."""
    groups: dict[str, list[int]] = defaultdict(list)
    total = 0
    for number, of in zip(alone, names, strict=True):
        if len(of) == 1:
            groups[of[0]].append(number)
        else:
            total += alone[number].minutes
    return total + sum(_group(problem, alone, group, at_once, shared) for group in groups.values())


def _group(
    problem: Problem, alone: dict[int, Window], group: Sequence[int], at_once: int, shared: Collection[str]
) -> int:
    """The best number of GPUs to free: the first `n` to be free, and `n` that are given back as late as lanes allow."""
    resumes = [
        [problem.resume_minutes(desktop) for desktop in problem.gpus[number].desktops if desktop.name not in shared]
        for number in group
    ]
    shortest = min((minutes for of_gpu in resumes for minutes in of_gpu), default=0)
    counts = sorted(len(of_gpu) for of_gpu in resumes)
    loads = sorted(sum(of_gpu) for of_gpu in resumes)
    free_from = sorted(alone[number].free_from for number in group)
    back_from = sorted((alone[number].back_from for number in group), reverse=True)
    best = minutes = count = load = 0
    for at in range(len(group)):
        count += counts[at]
        load += loads[at]
        takes = max(math.ceil(load / at_once), shortest * math.ceil(count / at_once))
        minutes += min(back_from[at], problem.ends - takes) - free_from[at]
        best = max(best, minutes)
    return best
