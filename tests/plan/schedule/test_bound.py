"""No way at all to give GPUs back leaves more than the bound says: every one of them is tried, on small nights."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from gpuops.plan.schedule.problem import Job, NightProblem, OperationLimits, longest_windows
from tests.plan.schedule.bound import most_gpu_minutes
from tests.plan.schedule.nights import gpu

ENDS = 11


def night(limits: OperationLimits, slowdown: float, hosts: tuple[str, str], minutes: tuple[int, int]) -> NightProblem:
    gpus = tuple(gpu(f"gpu-{at}", hosts[at], 0, 1, minutes=minutes[at]) for at in (0, 1))
    return NightProblem(ENDS, gpus, tuple(Job(f"job-{at}", 1, 1) for at in range(40)), limits, slowdown)


def longest(problem: NightProblem) -> int:
    """The most minutes that both GPUs, or one, are free together: all starts of all resumes tried."""
    free_from = {at: window.free_from for at, window in longest_windows(problem, (0, 1)).items()}
    best = max((window.minutes for window in longest_windows(problem, (0, 1)).values()), default=0)
    moves = [
        (at, problem.gpus[at].host, problem.resume_minutes(desktop))
        for at in (0, 1)
        for desktop in problem.gpus[at].desktops
    ]
    for starts in product(range(ENDS), repeat=len(moves)):
        if any(start + minutes > ENDS for start, (_, _, minutes) in zip(starts, moves, strict=True)):
            continue
        back = [
            min(start for start, (at, _, _) in zip(starts, moves, strict=True) if at == number) for number in (0, 1)
        ]
        total = sum(back[number] - free_from[number] for number in (0, 1))
        if total > best and min(back[number] - free_from[number] for number in (0, 1)) > 0:
            best = total if _fits(problem.limits, starts, moves) else best
    return best


def _fits(limits: OperationLimits, starts: tuple[int, ...], moves: list[tuple[int, str, int]]) -> bool:
    busy: Counter[tuple[str, int]] = Counter()
    for start, (_, host, minutes) in zip(starts, moves, strict=True):
        for minute in range(start, start + minutes):
            busy.update([(host, minute), ("", minute)])
    most = dict.fromkeys({host for _, host, _ in moves}, limits.per_host) | {"": limits.per_datastore}
    return all(count <= (most[name] or count) for (name, _), count in busy.items())


@pytest.mark.parametrize("slowdown", [1.0, 1.5])
@pytest.mark.parametrize(
    ("limits", "hosts", "minutes"),
    [
        (OperationLimits(1, None), ("host-0", "host-0"), (1, 1)),
        (OperationLimits(2, None), ("host-0", "host-0"), (2, 2)),
        (OperationLimits(None, 1), ("host-0", "host-1"), (1, 2)),
        (OperationLimits(1, 2), ("host-0", "host-1"), (1, 1)),
    ],
)
def test_no_way_back_leaves_more_than_the_bound(
    limits: OperationLimits, hosts: tuple[str, str], minutes: tuple[int, int], slowdown: float
) -> None:
    problem = night(limits, slowdown, hosts, minutes)
    assert 0 < longest(problem) <= most_gpu_minutes(problem)


def test_a_margin_costs_what_the_bound_says() -> None:
    """Both of a host's GPUs, one lane: with resumes half as long again, four resumes begin four minutes earlier."""
    bare, slow = (night(OperationLimits(1, None), margin, ("host-0", "host-0"), (2, 2)) for margin in (1.0, 1.5))
    assert longest(bare) > longest(slow)
    assert most_gpu_minutes(bare) > most_gpu_minutes(slow) >= longest(slow)
