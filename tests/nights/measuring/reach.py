"""Reach: in which state of the engine, and at which whereabouts of a VM, each fault of a night took effect.

A fault counts when the simulator lets it take effect, not when it is armed: a reply that was broken, a task that was
given its trouble, the happening that changed something. A fault of one VM, or of a host, counts for the whereabouts of
the VMs that it struck; a fault of a whole vCenter counts for all whereabouts. An event that is aimed is fired from
here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Final

from gpuops.errors import GpuopsError
from gpuops.execute.journal.journal import Journal
from gpuops.execute.runs import known_originals
from gpuops.model.nights.rotation_policy import Policy
from gpuops.plan.core.steps import SetAttribute, SetVmDrs
from gpuops.plan.rotation.taken_vms import Whereabouts, taken_vms
from gpuops.sim.core.registry import is_kind_of
from gpuops.sim.fault_injection.rule import TASKS, Effect, Rule, rules_of
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.outside_events.fault_file import OUTSIDE_EVENTS
from gpuops.sim.world import World
from tests.nights.faults.event import Event
from tests.nights.faults.schedule import DISKS, ENDS, HANGS, HOSTS
from tests.nights.measuring.stages import LOGIN, LOOK, NO_RUN, SUBMIT, SUBMITS, WAIT, Stage, Stages
from tests.nights.world.direct import METHODS as OF_STEPS
from tests.nights.world.showing import Showing

OF_ANY_CALL: Final = ("T1", "T2", "T3", "T4", "T5", "T6", "T7", "T8", "T9", "T10", "T11", "N1")
"""Faults that may befall any call: an aimed one befalls the next."""
HEAVY: Final = (*HOSTS, "G10", "T12", "T13", "N7", "N8", "V4", "V5", "V7", "V11", "A12", "K7")
"""Of what happens beside the calls: what takes a VM, a host or vCenter away for a while, or sets a clock wrong."""
REFUSALS: Final = ("V2", "A2", "A8")
"""What a request itself is answered with."""
METHODS: Final = {LOGIN: "Login", WAIT: "WaitForUpdatesEx"}
"""What is called in a stage; in the others, whatever comes."""
SENT: Final = {SUBMITS[kind]: method for kind, method in OF_STEPS.items()}
"""What is called in the submit of each kind of step."""
WHEREABOUTS: Final = frozenset(whereabouts.value for whereabouts in Whereabouts)
LOOKS: Final = 400
"""So often whereabouts are looked at for what is aimed at them."""


class Reach:
    """The pairs that one night reached, and what is aimed at in it."""

    def __init__(
        self,
        world: World,
        policy: Policy,
        events: Sequence[Event],
        fire: Callable[[Event, VirtualMachine | None], None],
    ) -> None:
        """`fire` lets an event strike that is no rule of the simulator."""
        self.stages = Stages(self._enter_stage)
        self.journal: Journal | None = None
        self.pairs: frozenset[tuple[str, str]] = frozenset()
        self._world = world
        self._policy = policy
        self._fire = fire
        self._showing: Showing | None = None
        self._were: dict[str, Whereabouts] = {}
        self._seen = (-1, -1)
        """How much had happened, and how much stood in the journal, when that was looked at."""
        self._aimed = [event for event in events if event.state]
        self._passed: dict[int, int] = {}
        self._about = ""
        """The VM that the stage is about."""
        self._looks = 0
        self._effects = 0
        """How often anything took effect."""
        self._strikes = False
        """Whether an aimed event strikes just now: another process that it begins is not aimed at."""
        self._rules: list[Rule] = []
        """Kept, so that no other rule has the identity of one of them."""
        self._faults: dict[int, str] = {}
        self._rng = random.Random(f"{world.get('ServiceInstance').instance_uuid}:aims")
        for event in events:
            for rule in event.rules:
                self._know(rule, event.fault)
        world.injector.on_strike = self._struck
        world.injector.before_outside_event = self.look

    def stop(self) -> None:
        """What strikes from now on is not of this night any more."""
        self._aimed.clear()
        self._faults.clear()

    def reached(self, fault: str, targets: Sequence[Any] = ()) -> None:
        """It takes effect now: on these objects, or with none of them on all."""
        self._count(fault, self._where(targets))

    def _count(self, fault: str, whereabouts: Iterable[Whereabouts]) -> None:
        self._effects += 1
        pairs = {(fault, self.stages.now)}
        if self.stages.now != NO_RUN:
            pairs |= {(fault, where.value) for where in whereabouts}
        self.pairs |= pairs

    def look(self) -> None:
        """Where the VMs of the night are now, before something changes that."""
        if self.journal is None:
            return
        version = (self._world.changes, self.journal.state.seq)
        if version == self._seen:
            return
        self._seen, injector = version, self._world.injector
        hides, injector.may_hide_properties = injector.may_hide_properties, False
        try:
            self._showing = self._showing or Showing(self._world, as_it_is=True)
            originals = known_originals(self.journal, self._policy, self._world.clock.now())
            vms_of_night = taken_vms(self._policy, originals, self._showing.inventory())
        finally:
            injector.may_hide_properties = hides
        self._were = {mine.original.vm: mine.whereabouts for mine in vms_of_night}

    def _where(self, targets: Sequence[Any]) -> set[Whereabouts]:
        vms = {target.moid for target in targets if isinstance(target, VirtualMachine)}
        if not vms:
            hosts = {target.moid for target in targets if target.wsdl_name == "HostSystem"}
            on_them = [vm.moid for vm in self._world.by_type("VirtualMachine") if vm.state.host in hosts]
            vms = set(on_them) if hosts else set(self._were)
        return {self._were[ref] for ref in vms if ref in self._were}

    def _know(self, rule: Rule, fault: str) -> Rule:
        self._rules.append(rule)
        self._faults[id(rule)] = fault
        return rule

    def _struck(self, rule: Rule, targets: tuple[Any, ...]) -> None:
        fault = self._faults.get(id(rule))
        if fault is None or (rule.effect in TASKS and not (self.stages.submits and self._is_ours())):
            return  # a foreign task, or one that was queued before
        if rule.effect is Effect.EXPIRE and self.stages.now == LOGIN:
            return  # there is no session yet that could end
        if self._looks > 2 * LOOKS:
            return  # a fault of every second call has had its turn
        if rule.effect is not Effect.HAPPEN and rule.effect not in TASKS:
            self._looks += 1
            self.look()
        if rule.effect in TASKS or fault in REFUSALS:
            self._count(fault, {self._were[self._about]} if self._about in self._were else ())
        else:
            self.reached(fault, self._targets_of(rule, targets))

    def _is_ours(self) -> bool:
        """Whether the task that begins was made in this submit, by gpuops."""
        last_task: Any = self._world.tasks.history()[-1]
        return bool(last_task.call.operation_id) and last_task.name == SENT.get(self.stages.now, last_task.name)

    def _targets_of(self, rule: Rule, targets: Sequence[Any]) -> Sequence[Any]:
        """Whom a rule strikes, of the objects that its pattern fits."""
        if rule.effect is Effect.HAPPEN:
            kind = OUTSIDE_EVENTS[rule.happening].kind
            return [target for target in targets if kind and is_kind_of(target.wsdl_name, kind)]
        return targets

    # aims

    def _enter_stage(self, stage: Stage, ref: str) -> None:
        self._about = ref
        if self._aimed and not self._strikes:
            self._let_aimed_strike(stage, ref)
        if self.stages.submits and self._waits_for_tasks():
            self.look()  # where its VM is before it has a task

    def _waits_for_tasks(self) -> bool:
        """Whether there is trouble for the next tasks."""
        armed = self._world.injector.struck()
        return any(rule.effect in TASKS and (rule.times is None or count < rule.times) for rule, count in armed)

    def _let_aimed_strike(self, stage: Stage, ref: str) -> None:
        self._let_due_strike([event for event in self._aimed if _is_in(event.state, stage)], ref)
        waiting = [event for event in self._aimed if event.state in WHEREABOUTS]
        if waiting and stage == LOOK and self._looks < LOOKS:
            self._looks += 1
            self.look()
            self._let_due_strike([event for event in waiting if not _befalls_requests(event)])
        events_at_requests = [event for event in waiting if _befalls_requests(event) and _befalls(event, stage)]
        if events_at_requests:
            self.look()
            where = self._were.get(ref)
            self._let_due_strike([event for event in events_at_requests if event.state == where], ref)

    def _let_due_strike(self, events: Sequence[Event], ref: str = "") -> None:
        """Those whose turn it is strike: all light ones, and one of the others, so that each meets its own moment."""
        due = []
        for event in events:
            targets = self._vms_to_strike(event)
            if targets:
                self._passed[id(event)] = passed = self._passed.get(id(event), 0) + 1
                due += [(event, targets)] if passed > event.point else []
        alone = False
        for event, targets in due:
            light = is_light(event)
            if alone and not light:
                continue
            other_targets = [target for target in targets if target != ref]
            self._rng.shuffle(other_targets)
            self._aimed.remove(event)
            if not self._let_strike(event, [*([ref] if ref in targets else []), *other_targets]):
                self._aimed.append(event)
            elif not light and event.fault:  # without one it is what must be so just before another
                alone = True

    def _vms_to_strike(self, event: Event) -> list[str]:
        """The VMs that an event may strike now: those at its whereabouts, or any."""
        if event.state in WHEREABOUTS:
            return [vm for vm, where in self._were.items() if where.value == event.state]
        return [vm.moid for vm in self._world.by_type("VirtualMachine")]

    def _let_strike(self, event: Event, refs: Sequence[str]) -> bool:
        """Whether it need not be tried again: what happens beside the calls may find nothing that it could change."""
        before, self._strikes = self._effects, True
        try:
            if not _is_beside(event):
                self._strike_alone(event, self._world.find(refs[0]))
                return bool(event.rules) or event.fault in (*DISKS, HANGS) or self._effects > before
            for vm in filter(None, map(self._world.find, refs)):  # another one may have deleted some
                self._strike_beside(event, vm)
                if self._effects > before:
                    self.look()
                    return True
            return False
        finally:
            self._strikes = False

    def _strike_alone(self, event: Event, vm: Any) -> None:
        if not event.rules:
            self._fire(event, None)
        for rule in event.rules:
            with suppress(GpuopsError):
                self._arm(event.fault, rule, vm)

    def _strike_beside(self, event: Event, vm: Any) -> None:
        if not event.rules and isinstance(vm, VirtualMachine):
            self._fire(event, vm)
        for rule in event.rules:
            if rule.effect is Effect.HAPPEN:
                struck = replace(rule, at_s=None, target=_target(rule, vm))
                self._world.injector.happen(self._know(struck, event.fault))
            else:
                self._arm(event.fault, rule, vm)

    def _arm(self, fault: str, rule: Rule, vm: Any) -> None:
        injector, stage = self._world.injector, self.stages.now
        changes: dict[str, Any] = {"skip": 0, "every": 1}
        if rule.effect in TASKS or fault in REFUSALS:  # a task about DRS is one of the cluster
            changes["target"] = "*" if stage == SUBMITS[SetVmDrs] or vm is None else vm.moid
        if rule.effect is Effect.MISSING:
            changes["target"] = vm.moid if vm is not None else "*"
        if fault in OF_ANY_CALL:
            changes["method"] = METHODS.get(stage, "*")
        if fault == "A2":
            changes["method"] = "SetField" if stage == SUBMITS[SetAttribute] else "*_Task"
        if fault == "N6" and stage != LOGIN:
            injector.add(replace(rules_of("N1")[0], method=METHODS.get(stage, "*")))  # who has no session logs in
        injector.add(self._know(replace(rule, **changes), fault))


def _is_beside(event: Event) -> bool:
    """Whether it happens beside the calls, at once, and the run goes on."""
    if event.rules:
        return any(rule.effect is Effect.HAPPEN for rule in event.rules)
    return event.fault not in (*ENDS, *DISKS, "K10")


def _befalls_requests(event: Event) -> bool:
    """Whether it befalls a request, or the task that comes of it: not whatever call is next."""
    return event.fault in REFUSALS or (not _is_beside(event) and any(rule.effect in TASKS for rule in event.rules))


def _befalls(event: Event, stage: Stage) -> bool:
    """Whether the request of this stage is one that it befalls."""
    method = SENT.get(stage, "")
    pattern = "*" if event.fault == "A2" else event.rules[0].method
    return method.endswith("_Task") and fnmatchcase(method, pattern)


def _is_in(state: str, stage: Stage) -> bool:
    """Whether that state is this stage; a submit, with no step named, is one of any step."""
    return state == stage or (state == SUBMIT and stage in SUBMITS.values())


def is_light(event: Event) -> bool:
    """Whether a run and its VMs hardly feel it."""
    return _is_beside(event) and event.fault not in HEAVY and bool(event.fault)


def _target(rule: Rule, vm: Any) -> str:
    """Whom a happening is to strike so that it befalls this VM."""
    kind = OUTSIDE_EVENTS[rule.happening].kind
    if vm is None or not isinstance(vm, VirtualMachine) or not kind:
        return rule.target
    return {"HostSystem": vm.state.host, "Datastore": vm.state.datastore}.get(kind) or vm.moid
