"""Decides which steps of a plan may be sent now, and knows how long those that were sent have been running.

A step waits for all earlier waves of its own host and of its own VM. A marker, and an override of
DRS, wait for their VM alone. ML VMs of one host start in the order of the plan, whichever is ready first: in that order
each of them was found to have room. Every wait is for a step that comes earlier in the plan, also where one is tried
again after others, so none is for ever.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpuops.execute.steps.step_executor import StepInFlight
from gpuops.model.nights.rotation import Limits
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import (
    CloseGate,
    GateStep,
    OpenGate,
    PowerOffVm,
    PowerOnVm,
    RelocateVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
)

HUNG_S: Final = 300.0
"""A step of the way back that takes longer holds nobody up: neither steps of its host nor a place in flight."""

# Named once: each step that waits is asked for all of these whenever one ends.
_BESIDE_ITS_HOST: Final = (SetAttribute, SetVmDrs, CloseGate, OpenGate)
_TO_A_HOST: Final = (PowerOnVm, ResumeVm, RelocateVm)
_OF_MEMORY: Final = (SuspendVm, ResumeVm)


@dataclass(slots=True)
class WaitingStep:
    """A step that has not ended, in the wave it came from."""

    wave: int
    number: int
    """In the plan, counted from 0."""
    step: Step
    tries: int = 0
    rest_s: float = 0.0
    """Not before so many seconds have passed."""
    reason: str = ""
    """Why it is now done by other means."""
    whatever_failed: bool = False
    """Whether it is done also where an earlier step of its VM failed."""


@dataclass(slots=True)
class SentStep:
    """A step that was sent: for `waiting`, or in its place."""

    waiting: WaitingStep
    in_flight: StepInFlight
    limit_s: float
    returning: bool = False
    waited_s: float = 0.0

    @property
    def step(self) -> Step:
        return self.waiting.step

    @property
    def hung(self) -> bool:
        """Whether nothing waits for it any more; what takes is waited for until its time is up."""
        back = (ResumeVm, PowerOffVm, *((PowerOnVm, SetVmDrs) if self.returning else ()))
        return self.waited_s >= HUNG_S and isinstance(self.in_flight.step, back)


class _Starts:
    """The starts that are still to be sent, each after those of its host that come before it in the plan."""

    def __init__(self, waiting: Iterable[WaitingStep], inventory: Inventory) -> None:
        starts = (each for each in waiting if isinstance(each.step, PowerOnVm))
        self._host_of = {each.number: _host(each.step, inventory) for each in starts}
        self._left = defaultdict[str | None, list[int]](list)
        for number in sorted(self._host_of):
            self._left[self._host_of[number]].append(number)

    def in_turn(self, waiting: WaitingStep) -> bool:
        """Whether no other one comes before it."""
        number = waiting.number
        return number not in self._host_of or number == self._left[self._host_of[number]][0]

    def sends(self, waiting: WaitingStep) -> None:
        """It is sent, and the next one of its host may follow at once."""
        if waiting.number in self._host_of:
            self._left[self._host_of[waiting.number]].remove(waiting.number)


class StepQueue:
    """The steps of one plan that have not ended."""

    def __init__(self, plan: Plan, limits: Limits, *, returning: bool = False) -> None:
        """`returning`: all of it only brings back."""
        self._limits = limits
        self._returning = returning
        steps = ((wave, step) for wave, each in enumerate(plan.waves) for step in each.steps)
        self.waiting = [WaitingStep(wave, number, step) for number, (wave, step) in enumerate(steps)]
        self.sent: list[SentStep] = []
        self._steps = len(self.waiting)

    def add(self, step: Step) -> None:
        """One more step, which the plan did not foresee: it is sent before any other of its VM."""
        self.waiting.append(WaitingStep(-1, self._steps, step, whatever_failed=True))
        self._steps += 1

    @property
    def unended(self) -> bool:
        return bool(self.waiting or self.sent)

    @property
    def rest_s(self) -> float:
        """How long until something that rests is ready again."""
        return min((waiting.rest_s for waiting in self.waiting if waiting.rest_s), default=0.0)

    @property
    def next_due_s(self) -> float:
        """How long until the first of those in flight has outlived its time, or one that rests is ready."""
        left = [sent.limit_s - sent.waited_s for sent in self.sent]
        resting = [waiting.rest_s for waiting in self.waiting if waiting.rest_s]
        return max(1.0, min((*left, *resting)))

    def ready(self, inventory: Inventory, *, broker_fails: bool = False) -> list[WaitingStep]:
        """The next steps to send: so many in all, so many on one host, one on one VM.

        `broker_fails`: what needs the broker waits as long as anything else can go on, for each of its steps may take
        minutes.
        """
        if broker_fails:
            others = [waiting for waiting in self.waiting if not isinstance(waiting.step, GateStep)]
            ready = self._ready(others, inventory)
            if ready or self.sent or any(waiting.rest_s for waiting in others):
                return ready
        return self._ready(self.waiting, inventory)

    def _ready(self, candidates: Iterable[WaitingStep], inventory: Inventory) -> list[WaitingStep]:
        active = [sent for sent in self.sent if not sent.hung]
        places = self._limits.in_flight - len(active)
        if places <= 0:
            return []
        busy_vms = {sent.step.vm for sent in self.sent}
        on_host, on_store = defaultdict[str | None, int](int), Counter[str]()
        for sent in active:
            on_host[_host(sent.step, inventory)] += 1
            on_store.update(_stores(sent.step, inventory))
        first = self._first_waves((*(sent.waiting for sent in active), *self.waiting), inventory)
        starts = _Starts(() if self._returning else self.waiting, inventory)
        overridden = {_cluster(sent.step, inventory) for sent in active}
        ready: list[WaitingStep] = []
        for waiting in candidates:
            if len(ready) == places:
                break
            host, vm = _host(waiting.step, inventory), waiting.step.vm
            if waiting.rest_s or vm in busy_vms or (host is not None and on_host[host] >= self._limits.per_host):
                continue
            earlier = any(waiting.wave > first[ref] for ref in _waits_behind(waiting.step, inventory))
            if earlier or not starts.in_turn(waiting):
                continue
            cluster = _cluster(waiting.step, inventory)
            if cluster is not None and cluster in overridden:
                continue
            stores = _stores(waiting.step, inventory)
            if any(on_store[store] >= self._limits.per_datastore for store in stores):
                continue
            ready.append(waiting)
            starts.sends(waiting)
            overridden.add(cluster)
            for store in stores:
                on_store[store] += 1
            busy_vms.add(vm)
            on_host[host] += 1
        return ready

    def _first_waves(self, unended: Iterable[WaitingStep], inventory: Inventory) -> dict[str, int]:
        """The earliest wave that has not ended, of each host and of each VM."""
        first: dict[str, int] = {}
        for waiting in unended:
            for ref in _waits_behind(waiting.step, inventory):
                if waiting.wave <= first.get(ref, waiting.wave):
                    first[ref] = waiting.wave
        return first

    def add_sent(self, waiting: WaitingStep, in_flight: StepInFlight) -> None:
        """It was sent."""
        if waiting in self.waiting:
            self.waiting.remove(waiting)
        step = in_flight.step
        self.sent.append(SentStep(waiting, in_flight, self._limit_s(step), self._returning))

    def _limit_s(self, step: Step) -> float:
        match step:
            case ShutDownGuest(grace_s=grace_s):
                return grace_s
            case RunInGuest(limit_s=limit_s):
                return limit_s
            case _:
                return self._limits.step_timeout_s

    def remove_sent(self, sent: SentStep) -> WaitingStep:
        """It is in flight no more; what it was sent for has not ended yet."""
        self.sent.remove(sent)
        return sent.waiting

    def again(self, waiting: WaitingStep, rest_s: float) -> None:
        """It is tried once more, after the others that wait, and not before it has rested."""
        if waiting in self.waiting:
            self.waiting.remove(waiting)
        waiting.tries += 1
        waiting.rest_s = rest_s
        self.waiting.append(waiting)

    def end(self, waiting: WaitingStep) -> None:
        """It has ended."""
        if waiting in self.waiting:
            self.waiting.remove(waiting)

    def spend(self, seconds: float) -> None:
        """So much time has passed."""
        for sent in self.sent:
            sent.waited_s += seconds
        for waiting in self.waiting:
            waiting.rest_s = max(0.0, waiting.rest_s - seconds)

    def overdue(self) -> list[SentStep]:
        """Those in flight that have outlived their time."""
        return [sent for sent in self.sent if sent.waited_s >= sent.limit_s]


def _waits_behind(step: Step, inventory: Inventory) -> tuple[str, ...]:
    """Whose earlier steps a step waits for: those of its VM, and of its host unless that has nothing to do with it."""
    host = None if isinstance(step, _BESIDE_ITS_HOST) else _host(step, inventory)
    return (step.vm,) if host is None else (step.vm, host)


def _cluster(step: Step, inventory: Inventory) -> str | None:
    """The cluster whose configuration a step changes: one change at a time."""
    vm = inventory.vms.get(step.vm) if isinstance(step, SetVmDrs) else None
    cluster = inventory.cluster_of(vm) if vm is not None else None
    return cluster.ref if cluster is not None else None


def _stores(step: Step, inventory: Inventory) -> tuple[str, ...]:
    """The datastores that a step reads or writes the memory of its VM on, whichever of the VM's they are."""
    vm = inventory.vms.get(step.vm) if isinstance(step, _OF_MEMORY) else None
    return vm.datastores if vm else ()


def _host(step: Step, inventory: Inventory) -> str | None:
    if isinstance(step, _TO_A_HOST) and step.host is not None:
        return step.host
    vm = inventory.vms.get(step.vm)
    return vm.host if vm else None
