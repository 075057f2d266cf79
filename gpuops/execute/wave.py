"""Wave: many steps that do not depend on each other, a few of them in flight at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from gpuops.execute.doer import Doer, Underway
from gpuops.model.rotation import Limits
from gpuops.model.task import TaskEnd, TaskRef
from gpuops.plan.outcome import Outcome
from gpuops.plan.steps import PowerOnVm, RelocateVm, ResumeVm, Step

SLICE_S: Final = 20.0
"""The longest silent wait: how often the time of steps in flight is looked at."""


def run_wave(doer: Doer, steps: Sequence[Step], limits: Limits) -> Iterator[Outcome]:
    """The outcome of each step, as it ends. Order is kept among the steps of one host."""
    waiting = list(steps)
    flight: dict[TaskRef, Underway] = {}
    silent_s: dict[TaskRef, float] = {}
    while waiting or flight:
        yield from _send(doer, waiting, flight, limits)
        silent_s = {task: silent_s.get(task, 0.0) for task in flight}
        if not flight:
            continue
        ends = _next_ends(doer, flight, drain=not waiting)
        if not ends:
            silent_s = {task: waited + SLICE_S for task, waited in silent_s.items()}
        doer.look([flight[end.task].step.vm for end in ends])
        for end in ends:
            yield doer.finish(flight.pop(end.task), end)
        late = [task for task in flight if silent_s[task] >= limits.step_timeout_s]
        yield from doer.settle_late([flight.pop(task) for task in late], limits.step_timeout_s)


def _send(doer: Doer, waiting: list[Step], flight: dict[TaskRef, Underway], limits: Limits) -> Iterator[Outcome]:
    """Sends what the limits allow, out of `waiting` into `flight`; steps that end at once are yielded."""
    batch = _allowed(doer, waiting, flight, limits)
    if batch:
        doer.look({step.vm for step in batch})
    for step in batch:
        waiting.remove(step)
        result = doer.begin(step)
        if isinstance(result, Outcome):
            yield result
        elif result.task is not None:
            flight[result.task] = result


def _allowed(doer: Doer, waiting: list[Step], flight: dict[TaskRef, Underway], limits: Limits) -> list[Step]:
    """The next steps to send: so many in all, so many on one host, one on one VM."""
    busy_vms = {underway.step.vm for underway in flight.values()}
    on_host = Counter(_host(doer, underway.step) for underway in flight.values())
    allowed: list[Step] = []
    for step in waiting:
        if len(flight) + len(allowed) >= limits.in_flight:
            break
        host = _host(doer, step)
        if step.vm in busy_vms or (host is not None and on_host[host] >= limits.per_host):
            continue
        allowed.append(step)
        busy_vms.add(step.vm)
        on_host[host] += 1
    return allowed


def _host(doer: Doer, step: Step) -> str | None:
    if isinstance(step, PowerOnVm | ResumeVm | RelocateVm) and step.host is not None:
        return step.host
    vm = doer.inventory.vms.get(step.vm)
    return vm.host if vm else None


def _next_ends(doer: Doer, flight: dict[TaskRef, Underway], *, drain: bool) -> list[TaskEnd]:
    """The tasks that ended within a slice; with steps still waiting, the first end is enough to send the next."""
    ends: list[TaskEnd] = []
    for end in doer.vcenter.wait(list(flight), SLICE_S):
        ends.append(end)
        if not drain:
            break
    return ends
