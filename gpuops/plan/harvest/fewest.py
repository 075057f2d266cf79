"""Fewest: the same work with fewer desktops suspended.

GPUs on which nothing runs stay with their desktops. Then other sets of GPUs with fewer desktops are searched for the
same worth: without one of the GPUs, with one changed for another, or as few hosts as can be enough. Most trials end
at a bound before they begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from gpuops.plan.harvest.problem import Problem
from gpuops.plan.harvest.search import Search
from gpuops.plan.harvest.state import Effort, State

_FIRST_LOOK: Final = 4_000
"""Units for a trial. When all have failed, each gets more."""


def fewest(search: Search, state: State, effort: Effort) -> State:
    """A state worth as much as this one, or what `Problem.desktop_worth_minutes` lets go, with as few desktops."""
    state = state.on_used(search.problem)
    look = _FIRST_LOOK
    while effort.left:
        smaller = _smaller(search, state, look, effort)
        if smaller is not None:
            state = smaller.on_used(search.problem)
        elif look > effort.units:
            break
        else:
            look *= 4
    return state


def _smaller(search: Search, state: State, look: int, effort: Effort) -> State | None:
    """The first state with fewer desktops that is worth it."""
    problem = search.problem
    now = _desktops(problem, state.windows.of)
    for order in chain(_fewer(search, state), _changed(search, state), _together(search, state)):
        then = _desktops(problem, order)
        if sum(then.values()) >= sum(now.values()):
            continue
        if not effort.left:
            break
        wanted = state.worth - max(0, len(now) - len(then)) * problem.desktop_worth_minutes
        found = search.windows(order, effort)
        if search.work.most(found.minutes) < wanted:
            continue
        trial = Effort(look, effort.keep_going)
        other = search.improve(search.moved(state, found, trial), wanted, trial)
        effort.spend(look - trial.units)
        if other.worth >= wanted and search.counts(other) >= search.counts(state):
            return other
    return None


def _desktops(problem: Problem, gpus: Iterable[int]) -> dict[str, int]:
    """What each desktop on these GPUs costs, by name."""
    return {desktop.name: desktop.cost for number in gpus for desktop in problem.gpus[number].desktops}


def _cost(problem: Problem, number: int) -> int:
    return sum(desktop.cost for desktop in problem.gpus[number].desktops)


def _fewer(search: Search, state: State) -> Iterator[list[int]]:
    """Without one of the GPUs. A host that does little is emptied first, so that wide jobs find room on the others."""
    gpus, order = search.problem.gpus, state.windows.order
    minutes = dict.fromkeys(order, 0)
    of_host = {gpus[number].host: 0 for number in order}
    for run in state.runs():
        for number in run.gpus:
            minutes[number] += run.minutes
            of_host[gpus[number].host] += run.minutes
    for left_out in sorted(order, key=lambda number: (of_host[gpus[number].host], minutes[number], number)):
        yield [number for number in order if number != left_out]


def _changed(search: Search, state: State) -> Iterator[list[int]]:
    """With one GPU in the place of another that costs more."""
    problem, order = search.problem, state.windows.order
    cost = {number: _cost(problem, number) for number in search.alone}
    spare = sorted(set(search.alone) - set(order), key=lambda number: (cost[number], number))
    for number in sorted(order, key=lambda number: (-cost[number], number)):
        for other in spare:
            if cost[other] < cost[number]:
                yield [other if each == number else each for each in order]


def _together(search: Search, state: State) -> Iterator[list[int]]:
    """All of one host and then of the next, those with the longest windows first, as many GPUs as could be enough."""
    by_host: dict[str, list[int]] = {}
    for number in sorted(search.alone, key=lambda number: (-search.alone[number].minutes, number)):
        by_host.setdefault(search.problem.gpus[number].host, []).append(number)
    total = {host: sum(search.alone[number].minutes for number in numbers) for host, numbers in by_host.items()}
    needed = sum(run.minutes * len(run.gpus) for run in state.runs())
    freed_in_order = list(search.alone)
    for first in by_host:
        chosen: set[int] = set()
        minutes = 0
        for host in sorted(by_host, key=lambda host: (host != first, -total[host])):
            for number in by_host[host]:
                if minutes < needed:
                    chosen.add(number)
                    minutes += search.alone[number].minutes
        yield [number for number in freed_in_order if number in chosen]
