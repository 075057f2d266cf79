"""Checks of a schedule: the GPU-minutes that no schedule can exceed, and who is late if resumes are slower.

The bound: each GPU alone has its longest window. Together they share the limits on the way back: `n` GPUs of a host, or
with their desktops on one datastore, cannot all be given back later than so many resumes take at so many at once. How
jobs fit into the windows does not count.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from gpuops.plan.schedule.problem import (
    GpuWindow,
    NightGpu,
    NightProblem,
    OperationBook,
    freeable_gpus,
    longest_windows,
    make_job_table,
)
from gpuops.plan.schedule.schedule import Schedule


def most_gpu_minutes(problem: NightProblem) -> int:
    """The least of the bounds by host, by datastore, in total, of the windows alone, and of all jobs that could run."""
    window_alone = longest_windows(problem, freeable_gpus(problem))
    shared = _shared_desktops(problem.gpus[number] for number in window_alone)
    limits = problem.limits
    groupings = [
        (limits.per_host, [[problem.gpus[number].host] for number in window_alone]),
        (limits.per_datastore, [_stores(problem.gpus[number]) for number in window_alone]),
        (limits.in_total, [[""] for _ in window_alone]),
    ]
    bounds = [
        make_job_table(problem, window_alone).gpu_minutes(),
        sum(window.minutes for window in window_alone.values()),
    ]
    for at_once, names in groupings:
        if at_once is not None:
            bounds.append(_by_groups(problem, window_alone, names, at_once, shared))
    return min(bounds)


def _stores(gpu: NightGpu) -> list[str]:
    return sorted({name for desktop in gpu.desktops for name in desktop.datastores})


def _shared_desktops(gpus: Iterable[NightGpu]) -> set[str]:
    """Desktops of several GPUs: which of the GPUs they delay is not known, so they are taken to delay none."""
    known_names: set[str] = set()
    several_gpus: set[str] = set()
    for gpu in gpus:
        for desktop in gpu.desktops:
            (several_gpus if desktop.name in known_names else known_names).add(desktop.name)
    return several_gpus


def _by_groups(
    problem: NightProblem,
    window_alone: dict[int, GpuWindow],
    names: Sequence[list[str]],
    at_once: int,
    shared: Collection[str],
) -> int:
    """The bound where GPUs share the limit of their group; a GPU in several groups or in none has its own window."""
    groups: dict[str, list[int]] = defaultdict(list)
    total = 0
    for number, of in zip(window_alone, names, strict=True):
        if len(of) == 1:
            groups[of[0]].append(number)
        else:
            total += window_alone[number].minutes
    return total + sum(_group(problem, window_alone, group, at_once, shared) for group in groups.values())


def _group(
    problem: NightProblem,
    window_alone: dict[int, GpuWindow],
    group: Sequence[int],
    at_once: int,
    shared: Collection[str],
) -> int:
    """The bound for one group: the best number `n` of GPUs to free, whichever they are.

    The `n` earliest to be free, less the `n` latest to be given back, no later than the limit lets `n` GPUs resume.
    """
    resumes = [
        [problem.resume_minutes(desktop) for desktop in problem.gpus[number].desktops if desktop.name not in shared]
        for number in group
    ]
    shortest = min((minutes for of_gpu in resumes for minutes in of_gpu), default=0)
    counts = sorted(len(of_gpu) for of_gpu in resumes)
    loads = sorted(sum(of_gpu) for of_gpu in resumes)
    free_from = sorted(window_alone[number].free_from for number in group)
    back_from = sorted((window_alone[number].back_from for number in group), reverse=True)
    best = minutes = count = load = 0
    for at in range(len(group)):
        count += counts[at]
        load += loads[at]
        # At the least the resumes of the cheapest GPUs take: their total spread over the lanes, or full rounds of the
        # shortest one.
        takes = max(math.ceil(load / at_once), shortest * math.ceil(count / at_once))
        minutes += min(back_from[at], problem.ends - takes) - free_from[at]
        best = max(best, minutes)
    return best


def back_at(problem: NightProblem, schedule: Schedule, slower: float) -> dict[str, int]:
    """When each desktop runs again if a resume takes `slower` times what `Desktop.resume_minutes` says.

    The limits are those of the plan. A resume begins at its planned start, or as soon after it as there is room, in the
    order of the plan. Jobs do not delay it: what still runs when its GPU is due is stopped.
    """
    desktops = {desktop.name: desktop for gpu in problem.gpus for desktop in gpu.desktops}
    most_worth = max((desktop.resume_minutes for desktop in desktops.values()), default=0)
    # Long enough for all of them one after the other, however slow.
    book = OperationBook(problem.limits, problem.ends + math.ceil(most_worth * slower) * (len(schedule.resumes) + 1))
    for move in schedule.suspends:
        book.book_first(move.host, desktops[move.desktop], move.start, move.minutes)
    back = {}
    for move in schedule.resumes:
        minutes = math.ceil(desktops[move.desktop].resume_minutes * slower - 1e-9)
        start = book.book_first(move.host, desktops[move.desktop], move.start, minutes)
        assert start is not None
        back[move.desktop] = start + minutes
    return back


def late_desktops(problem: NightProblem, schedule: Schedule, slower: float) -> list[str]:
    """The desktops that do not run again when the night ends, by name."""
    return sorted(name for name, at in back_at(problem, schedule, slower).items() if at > problem.ends)
