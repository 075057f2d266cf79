"""Decides which steps of a plan may be sent now, and counts how long the steps in flight have been running.

A step waits for all earlier waves of its own host and of its own VM. A marker and a DRS override wait only for their
VM. ML VMs of one host start in the order of the plan, whichever is ready first, because the plan found room for them in
that order. A step only ever waits for steps that come earlier in the plan, even if those are retried after others, so
no wait is endless.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpuops.execute.steps.step_executor import StepInFlight
from gpuops.model.nights.rotation_policy import Limits
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
"""A step of a return that takes longer no longer delays other steps of its host, and does not count as in flight."""

# Constants, because each waiting step is compared with all of them whenever a step ends.
_INDEPENDENT_OF_HOST: Final = (SetAttribute, SetVmDrs, CloseGate, OpenGate)
"""Steps that wait for earlier steps of their VM only."""
_NAMES_ITS_HOST: Final = (PowerOnVm, ResumeVm, RelocateVm)
"""Steps that may name the host to use; any other step is on the present host of its VM."""
_MOVES_MEMORY: Final = (SuspendVm, ResumeVm)
"""Steps that write the memory of the VM to a datastore, or read it from there."""


@dataclass(slots=True)
class WaitingStep:
    """A step that has not ended, with the wave it came from."""

    wave: int
    number: int
    """Its position in the plan, counted from 0."""
    step: Step
    tries: int = 0
    rest_s: float = 0.0
    """Seconds until it may be tried again."""
    reason: str = ""
    """Why it is now done in another way."""
    ignores_failures: bool = False
    """Whether it is sent even if an earlier step of its VM failed."""


@dataclass(slots=True)
class SentStep:
    """A step that was sent: `waiting` itself, or a replacement for it."""

    waiting: WaitingStep
    in_flight: StepInFlight
    limit_s: float
    returning: bool = False
    waited_s: float = 0.0

    @property
    def step(self) -> Step:
        return self.waiting.step

    @property
    def is_hung(self) -> bool:
        """Whether no other step waits for it any more. A step that takes a VM is waited for until its time limit."""
        return_steps = (ResumeVm, PowerOffVm, *((PowerOnVm, SetVmDrs) if self.returning else ()))
        return self.waited_s >= HUNG_S and isinstance(self.in_flight.step, return_steps)


class _Starts:
    """The starts that are still to be sent. Each must come after those that precede it in the plan on its host."""

    def __init__(self, waiting: Iterable[WaitingStep], inventory: Inventory) -> None:
        starts = (step for step in waiting if isinstance(step.step, PowerOnVm))
        self._host_of = {step.number: _host(step.step, inventory) for step in starts}
        self._remaining = defaultdict[str | None, list[int]](list)
        for number in sorted(self._host_of):
            self._remaining[self._host_of[number]].append(number)

    def may_follow(self, waiting: WaitingStep) -> bool:
        """Return whether no other start of its host comes before it; True for a step that is not a start."""
        number = waiting.number
        return number not in self._host_of or number == self._remaining[self._host_of[number]][0]

    def note_sent(self, waiting: WaitingStep) -> None:
        """Note that it is sent, so that the next start of its host may follow at once."""
        if waiting.number in self._host_of:
            self._remaining[self._host_of[waiting.number]].remove(waiting.number)


class StepQueue:
    """The steps of one plan that have not ended."""

    def __init__(self, plan: Plan, limits: Limits, *, returning: bool = False) -> None:
        """`returning`: every step of the plan only brings desktops back."""
        self._limits = limits
        self._returning = returning
        steps = ((wave, step) for wave, wave_steps in enumerate(plan.waves) for step in wave_steps.steps)
        self.waiting = [WaitingStep(wave, number, step) for number, (wave, step) in enumerate(steps)]
        self.sent: list[SentStep] = []
        self._steps = len(self.waiting)

    def add(self, step: Step) -> None:
        """Add a step that the plan did not contain; it is sent before any other step of its VM."""
        self.waiting.append(WaitingStep(-1, self._steps, step, ignores_failures=True))
        self._steps += 1

    @property
    def has_steps(self) -> bool:
        return bool(self.waiting or self.sent)

    @property
    def rest_s(self) -> float:
        """Seconds until the first step may be retried."""
        return min((waiting.rest_s for waiting in self.waiting if waiting.rest_s), default=0.0)

    @property
    def next_due_s(self) -> float:
        """Seconds until the first step in flight exceeds its time limit, or the first one may be retried."""
        remaining_s = [sent.limit_s - sent.waited_s for sent in self.sent]
        delays_s = [waiting.rest_s for waiting in self.waiting if waiting.rest_s]
        return max(1.0, min((*remaining_s, *delays_s)))

    def ready(self, inventory: Inventory, *, broker_fails: bool = False) -> list[WaitingStep]:
        """Return the next steps to send, within the limits: in flight, per host, per datastore, one per VM.

        `broker_fails`: steps that need the broker wait as long as other steps can proceed, because each may take
        minutes.
        """
        if broker_fails:
            without_broker = [waiting for waiting in self.waiting if not isinstance(waiting.step, GateStep)]
            ready = self._ready(without_broker, inventory)
            if ready or self.sent or any(waiting.rest_s for waiting in without_broker):
                return ready
        return self._ready(self.waiting, inventory)

    def _ready(self, candidates: Iterable[WaitingStep], inventory: Inventory) -> list[WaitingStep]:
        """Return the candidates that may be sent now, in their order.

        A step waits for the earlier waves of its VM and its host, and a start for the starts before it on its host.
        """
        active = [sent for sent in self.sent if not sent.is_hung]
        free_places = self._limits.in_flight - len(active)
        if free_places <= 0:
            return []
        busy_vms = {sent.step.vm for sent in self.sent}
        on_host, on_store = defaultdict[str | None, int](int), Counter[str]()
        for sent in active:
            on_host[_host(sent.step, inventory)] += 1
            on_store.update(_stores(sent.step, inventory))
        # a hung step holds up only its own VM (`busy_vms`), not the other steps of its host
        first_waves = self._first_waves((*(sent.waiting for sent in active), *self.waiting), inventory)
        # in a return, starts bring desktops back, and no desktop waits for another one
        starts = _Starts(() if self._returning else self.waiting, inventory)
        # vCenter keeps the DRS overrides of a cluster in one configuration: one change of it at a time
        busy_clusters = {_cluster(sent.step, inventory) for sent in active}
        ready: list[WaitingStep] = []
        for waiting in candidates:
            if len(ready) == free_places:
                break
            host, vm = _host(waiting.step, inventory), waiting.step.vm
            if waiting.rest_s or vm in busy_vms or (host is not None and on_host[host] >= self._limits.per_host):
                continue
            has_earlier_wave = any(waiting.wave > first_waves[ref] for ref in _waits_behind(waiting.step, inventory))
            if has_earlier_wave or not starts.may_follow(waiting):
                continue
            cluster = _cluster(waiting.step, inventory)
            if cluster is not None and cluster in busy_clusters:
                continue
            stores = _stores(waiting.step, inventory)
            if any(on_store[store] >= self._limits.per_datastore for store in stores):
                continue
            ready.append(waiting)
            starts.note_sent(waiting)
            busy_clusters.add(cluster)
            for store in stores:
                on_store[store] += 1
            busy_vms.add(vm)
            on_host[host] += 1
        return ready

    def _first_waves(self, steps: Iterable[WaitingStep], inventory: Inventory) -> dict[str, int]:
        """Return ref of a host or VM -> the earliest wave of its steps among these, which have not ended."""
        first_waves: dict[str, int] = {}
        for waiting in steps:
            for ref in _waits_behind(waiting.step, inventory):
                first_waves[ref] = min(waiting.wave, first_waves.get(ref, waiting.wave))
        return first_waves

    def add_sent(self, waiting: WaitingStep, in_flight: StepInFlight) -> None:
        """Note that the step was sent."""
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
        """Note that the step is no longer in flight; the step that it was sent for has not ended yet."""
        self.sent.remove(sent)
        return sent.waiting

    def retry_later(self, waiting: WaitingStep, rest_s: float) -> None:
        """Retry the step after the other waiting steps, and not before `rest_s` have passed."""
        if waiting in self.waiting:
            self.waiting.remove(waiting)
        waiting.tries += 1
        waiting.rest_s = rest_s
        self.waiting.append(waiting)

    def end(self, waiting: WaitingStep) -> None:
        """Note that the step has ended."""
        if waiting in self.waiting:
            self.waiting.remove(waiting)

    def count_time(self, seconds: float) -> None:
        """Count these seconds for the steps in flight and for those that wait to be retried."""
        for sent in self.sent:
            sent.waited_s += seconds
        for waiting in self.waiting:
            waiting.rest_s = max(0.0, waiting.rest_s - seconds)

    def overdue(self) -> list[SentStep]:
        """Return the steps in flight that have exceeded their time limit."""
        return [sent for sent in self.sent if sent.waited_s >= sent.limit_s]


def _waits_behind(step: Step, inventory: Inventory) -> tuple[str, ...]:
    """Return the VM and the host whose earlier steps a step waits for. The host is left out if it does not matter."""
    host = None if isinstance(step, _INDEPENDENT_OF_HOST) else _host(step, inventory)
    return (step.vm,) if host is None else (step.vm, host)


def _cluster(step: Step, inventory: Inventory) -> str | None:
    """Return the cluster whose configuration the step changes: only one such change is sent at a time."""
    vm = inventory.vms.get(step.vm) if isinstance(step, SetVmDrs) else None
    cluster = inventory.cluster_of(vm) if vm is not None else None
    return cluster.ref if cluster is not None else None


def _stores(step: Step, inventory: Inventory) -> tuple[str, ...]:
    """Return the datastores of the VM if the step reads or writes its memory: it may be on any of them."""
    vm = inventory.vms.get(step.vm) if isinstance(step, _MOVES_MEMORY) else None
    return vm.datastores if vm else ()


def _host(step: Step, inventory: Inventory) -> str | None:
    if isinstance(step, _NAMES_ITS_HOST) and step.host is not None:
        return step.host
    vm = inventory.vms.get(step.vm)
    return vm.host if vm else None
