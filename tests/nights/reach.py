"""Reach: in which state of the engine, and at which whereabouts of a VM, each fault of a night took effect.

A fault counts when the simulator lets it take effect, not when it is armed: a reply that was broken, a task that was
given its trouble, the happening that changed something. A fault of one VM, or of a host, counts for the whereabouts of
the VMs that it struck; one of a whole vCenter for all that there are. An event that is aimed is fired from here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from gpuops.errors import GpuopsError
from gpuops.execute.journal.journal import Journal
from gpuops.execute.originals import Originals
from gpuops.model.rotation import Policy
from gpuops.plan.rotation.ours import Whereabouts, ours
from gpuops.sim.happenings.by_name import HAPPENINGS
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.trouble.catalogue import rules_of
from gpuops.sim.trouble.rule import TASKS, Effect, Rule
from gpuops.sim.world import World
from tests.nights.event import Event
from tests.nights.showing import Showing
from tests.nights.stages import Stage, Stages

OF_ANY_CALL: Final = ("T1", "T2", "T3", "T4", "T5", "T6", "T7", "T8", "T9", "T10", "T11", "N1")
"""Faults that may befall any call: an aimed one befalls the next."""
METHODS: Final = {Stage.LOGIN: "Login", Stage.WAIT: "WaitForUpdatesEx"}
"""What is called in a stage; in the others, whatever comes."""
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
        self.stages = Stages(self._entered)
        self.journal: Journal | None = None
        self.pairs: frozenset[tuple[str, str]] = frozenset()
        self._world = world
        self._policy = policy
        self._fire = fire
        self._showing: Showing | None = None
        self._were: dict[str, Whereabouts] = {}
        self._aimed = [event for event in events if event.state]
        self._passed: dict[int, int] = {}
        self._looks = 0
        self._rules: list[Rule] = []
        """Kept, so that no other rule has the identity of one of them."""
        self._faults: dict[int, str] = {}
        self._rng = random.Random(f"{len(events)}:aims")
        for event in events:
            for rule in event.rules:
                self._know(rule, event.fault)
        world.injector.on_strike = self._struck
        world.injector.before_happening = self.look

    def stop(self) -> None:
        """What strikes from now on is not of this night any more."""
        self._aimed.clear()
        self._faults.clear()

    def reached(self, fault: str, targets: Sequence[Any] = ()) -> None:
        """It takes effect now: on these objects, or with none of them on all."""
        pairs = {(fault, self.stages.now.value)}
        if self.stages.now is not Stage.NONE:
            pairs |= {(fault, where.value) for where in self._where(targets)}
        self.pairs |= pairs

    def look(self) -> None:
        """Where the VMs of the night are now, before something changes that."""
        if self.journal is None:
            return
        injector = self._world.injector
        hides, injector.hides = injector.hides, False
        try:
            self._showing = self._showing or Showing(self._world)
            found = ours(self._policy, Originals(self.journal).all(), self._showing.inventory())
        finally:
            injector.hides = hides
        self._were = {mine.original.vm: mine.whereabouts for mine in found}

    def _where(self, targets: Sequence[Any]) -> set[Whereabouts]:
        vms = {each.moid for each in targets if isinstance(each, VirtualMachine)}
        if not vms:
            hosts = {each.moid for each in targets if each.wsdl_name == "HostSystem"}
            on_them = [vm.moid for vm in self._world.by_type("VirtualMachine") if vm.state.host in hosts]
            vms = set(on_them) if hosts else set(self._were)
        return {self._were[ref] for ref in vms if ref in self._were}

    def _know(self, rule: Rule, fault: str) -> Rule:
        self._rules.append(rule)
        self._faults[id(rule)] = fault
        return rule

    def _struck(self, rule: Rule, targets: tuple[Any, ...]) -> None:
        fault = self._faults.get(id(rule))
        if fault is None or (rule.effect in TASKS and self.stages.now not in (Stage.SUBMIT, Stage.LEASE)):
            return  # the task of somebody else
        if rule.effect is Effect.EXPIRE and self.stages.now is Stage.LOGIN:
            return  # there is no session yet that could end
        if self._looks > 2 * LOOKS:
            return  # a fault of every second call has had its turn
        if rule.effect is not Effect.HAPPEN and rule.effect not in TASKS:
            self._looks += 1
            self.look()
        self.reached(fault, targets)

    # aims

    def _entered(self, stage: Stage, ref: str) -> None:
        if stage in (Stage.SUBMIT, Stage.LEASE) and any(rule.effect in TASKS for rule in self._rules):
            self.look()  # where its VM is before it has a task
        if not self._aimed:
            return
        for event in [event for event in self._aimed if event.state == stage.value]:
            self._let_strike(event, ref or self._anyone())
        waiting = [event for event in self._aimed if event.state in list(Whereabouts)]
        if not waiting or stage is not Stage.LOOK or self._looks > LOOKS:
            return
        self._looks += 1
        self.look()
        for event in waiting:
            there = [vm for vm, where in self._were.items() if where.value == event.state]
            if there:
                self._let_strike(event, self._rng.choice(there))

    def _anyone(self) -> str:
        """A VM of the night, or any; empty in a world without any."""
        vms = [vm.moid for vm in self._world.by_type("VirtualMachine")]
        known = [ref for ref in self._were if ref in vms] or vms
        return self._rng.choice(known) if known else ""

    def _let_strike(self, event: Event, ref: str) -> None:
        if event not in self._aimed:
            return  # what struck just before let another process act, and that one met it
        number = id(event)
        self._passed[number] = self._passed.get(number, 0) + 1
        if self._passed[number] <= event.point:
            return
        self._aimed.remove(event)
        vm: Any = self._world.find(ref)
        if not event.rules:
            self._fire(event, vm if isinstance(vm, VirtualMachine) else None)
        for rule in event.rules:
            with suppress(GpuopsError):
                self._arm(event.fault, rule, vm)

    def _arm(self, fault: str, rule: Rule, vm: Any) -> None:
        injector, stage = self._world.injector, self.stages.now
        if rule.effect is Effect.HAPPEN:
            injector.happen(self._know(replace(rule, at_s=None, target=_target(rule, vm)), fault))
            return
        changes: dict[str, Any] = {"skip": 0, "every": 1}
        if rule.effect in TASKS and vm is not None:
            changes["target"] = vm.moid
        if rule.effect is Effect.MISSING:
            changes["target"] = vm.moid if vm is not None else "*"
        if fault in OF_ANY_CALL:
            changes["method"] = METHODS.get(stage, "*")
        if fault == "A2":
            changes["method"] = "*_Task"
        if fault == "N6" and stage is not Stage.LOGIN:
            injector.add(replace(rules_of("N1")[0], method=METHODS.get(stage, "*")))  # who has no session logs in
        injector.add(self._know(replace(rule, **changes), fault))


def _target(rule: Rule, vm: Any) -> str:
    """Whom a happening is to strike so that it befalls this VM."""
    kind = HAPPENINGS[rule.happening].kind
    if vm is None or not isinstance(vm, VirtualMachine) or not kind:
        return rule.target
    return {"HostSystem": vm.state.host, "Datastore": vm.state.datastore}.get(kind) or vm.moid
