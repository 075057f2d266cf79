"""Applies the fault rules of a world to its calls, its tasks and its reads, with vim faults made by their names."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pyVmomi import VmomiSupport, vmodl

from gpuops.errors import UsageError
from gpuops.sim.core.encoder import NAMESPACE
from gpuops.sim.fault_injection.rule import (
    REPLIES,
    TASKS,
    Effect,
    Ending,
    OutsideEvent,
    Phase,
    Rule,
    outside_event_named,
)

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.core.managed_object import ManagedObject
    from gpuops.sim.core.object_store import ObjectStore
    from gpuops.sim.core.task_object import Task


@dataclass(frozen=True, slots=True)
class Interruption:
    """What the client gets instead of its reply, or how the connection carries that reply."""

    fault: Any = None
    status: int = 0
    body: str = ""
    ending: Ending = Ending.WHOLE
    pace_s: float = 0.0
    """Between two bytes of a reply that drips."""


@dataclass(slots=True)
class TaskTrouble:
    """What the fault rules do to one task; by default nothing."""

    fault: Any = None
    fails_at: float = 1.0
    factor: float = 1.0
    queued_s: float = 0.0
    stuck: bool = False
    lost_at: float | None = None
    early_s: float = 0.0
    asks: bool = False
    lingers_s: float = 0.0


@dataclass(slots=True)
class ActiveRule:
    """A rule of this world, how often it matched a call, and how often it was applied."""

    rule: Rule
    phase: Phase | None
    """When it applies to a call; None = it applies to no call."""
    matched: int = 0
    struck: int = 0


class Injector:
    """The rules of a world, none to begin with."""

    def __init__(self, store: ObjectStore, seed: int, outside_events: Mapping[str, OutsideEvent]) -> None:
        self._store = store
        self.outside_events = outside_events
        """The events that a rule can cause, by name."""
        self._rng = random.Random(f"{seed}:inject")  # noqa: S311 - reproducible trouble, no secrets
        self._active_rules: list[ActiveRule] = []
        self._by_method: dict[str, tuple[ActiveRule, ...]] = {}
        """The rules by method, kept because every call looks here and most methods have none."""
        self.on_strike: Callable[[Rule, tuple[ManagedObject, ...]], None] = lambda rule, targets: None
        """Called with each rule that takes effect, and the objects that it applies to."""
        self.before_outside_event: Callable[[], None] = lambda: None
        """Called just before an outside event changes the world."""
        self.may_hide_properties = False
        """Whether any rule can hide a property from clients; checked before every read."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(active_rule.rule for active_rule in self._active_rules)

    def struck(self) -> list[tuple[Rule, int]]:
        """Each rule and how often it was applied."""
        return [(active_rule.rule, active_rule.struck) for active_rule in self._active_rules]

    def add(self, rule: Rule) -> None:
        """Applies this rule from now on. Raises UsageError for a rule that can apply to nothing."""
        checked_rule(rule, self.outside_events)
        active_rule = ActiveRule(rule, rule.phase_of_calls())
        self._active_rules.append(active_rule)
        self._by_method.clear()
        self.may_hide_properties = self.may_hide_properties or rule.effect is Effect.MISSING
        if rule.at_s is not None:
            self._store.clock.schedule(rule.at_s, lambda: self._happen(active_rule), background=True)

    def happen(self, rule: Rule) -> None:
        """Applies the outside event of this rule now. Raises UsageError for a rule that can apply to nothing."""
        active_rule = ActiveRule(checked_rule(rule, self.outside_events), None, struck=1)
        self._active_rules.append(active_rule)
        self._by_method.clear()
        self._happen(active_rule)

    def clear(self) -> None:
        self._active_rules.clear()
        self._by_method.clear()
        self.may_hide_properties = False

    def before(self, call: Call, receiver: ManagedObject) -> Interruption | None:
        """What becomes of a call before it has any effect; None = it is carried out."""
        return self._interrupt(call, receiver, Phase.BEFORE)

    def after(self, call: Call, receiver: ManagedObject) -> Interruption | None:
        """What becomes of the reply of a call that had its effect; None = it is sent."""
        return self._interrupt(call, receiver, Phase.AFTER)

    def refusal(self, method: str, target: ManagedObject) -> Any:
        """The fault of a call that another call makes, such as those of PowerOnMultiVM_Task; or None."""
        for active_rule in self._of(method):
            if active_rule.rule.effect is Effect.FAULT and self._strikes(active_rule, target):
                return make_fault(active_rule.rule.fault, target)
        return None

    def trouble_of_task(self, task: Task) -> TaskTrouble:
        """Return what the rules do to this task."""
        trouble = TaskTrouble()
        for active_rule in self._of(task.name):
            if active_rule.rule.effect in TASKS and self._strikes(active_rule, task.entity):
                _add_effect(trouble, active_rule.rule, task.entity)
        return trouble

    def hidden(self, managed_object: ManagedObject, paths: Iterable[str], method: str) -> dict[str, Any]:
        """The properties of an object that are left out, each with its fault in missingSet (None = not in it)."""
        hidden: dict[str, Any] = {}
        for active_rule in self._of(method):
            rule = active_rule.rule
            if rule.effect is not Effect.MISSING:
                continue
            matching = [path for path in paths if fnmatchcase(path, rule.property)]
            if matching and self._strikes(active_rule, managed_object):
                hidden |= dict.fromkeys(matching, make_fault(rule.fault, managed_object) if rule.fault else None)
        return hidden

    def _interrupt(self, call: Call, receiver: ManagedObject, phase: Phase) -> Interruption | None:
        for active_rule in self._of(call.method):
            if active_rule.phase is not phase:
                continue
            # A rule with an outside event is matched by a call, and applies to other objects than that call's.
            target = None if active_rule.rule.effect is Effect.HAPPEN else receiver
            if self._strikes(active_rule, target):
                interruption = self._interruption(active_rule, call, receiver)
                if interruption is not None:
                    return interruption
        return None

    def _of(self, method: str) -> tuple[ActiveRule, ...]:
        """The rules that match this method, in order."""
        rules = self._by_method.get(method)
        if rules is None:
            rules = tuple(active_rule for active_rule in self._active_rules if _fits(method, active_rule.rule.method))
            self._by_method[method] = rules
        return rules

    def _strikes(self, active_rule: ActiveRule, target: ManagedObject | None) -> bool:
        """Return whether a rule that matches the method applies to this object now; count matches and strikes.

        Example: `skip=1, every=2` applies to the second, fourth and sixth match.
        """
        rule = active_rule.rule
        if not (target is None or matches(target, rule.target)):
            return False
        active_rule.matched += 1
        match_number = active_rule.matched - rule.skip  # 1 = the first match that is not skipped
        is_used_up = rule.times is not None and active_rule.struck >= rule.times
        if match_number < 1 or (match_number - 1) % rule.every or is_used_up:
            return False
        if rule.probability < 1.0 and self._rng.random() >= rule.probability:
            return False
        active_rule.struck += 1
        if rule.effect is not Effect.HAPPEN:  # `_happen` reports an outside event itself, if it changed anything
            self.on_strike(rule, () if target is None else (target,))
        return True

    def _interruption(self, active_rule: ActiveRule, call: Call, receiver: ManagedObject) -> Interruption | None:
        """Apply a rule's effect to a call; return what replaces the reply, or None if the call goes on."""
        rule = active_rule.rule
        match rule.effect:
            case effect if effect in REPLIES:
                return Interruption(ending=Ending(effect.value), pace_s=rule.delay_s)
            case Effect.HTTP:
                return Interruption(status=rule.status, body=rule.body)
            case Effect.FAULT:
                return Interruption(fault=make_fault(rule.fault, receiver))
            case Effect.KILL:
                self._end_session(call)
                return Interruption(fault=make_fault(rule.fault, receiver))
            case Effect.EXPIRE:
                self._end_session(call)
            case Effect.DELAY:
                self._store.wait(lambda: None, rule.delay_s)
            case _:
                self._happen(active_rule)
        return None

    def _end_session(self, call: Call) -> None:
        if call.session is not None:
            self._store.sessions.close(call.session)
            call.session = None

    def _happen(self, active_rule: ActiveRule) -> None:
        """Let a rule's outside event happen to its targets; report the rule if anything changed."""
        rule = active_rule.rule
        if rule.at_s is not None:
            if active_rule not in self._active_rules:
                return  # the rules were cleared before its time came
            active_rule.struck += 1
        outside_event = outside_event_named(rule.happening, self.outside_events)
        targets = [managed_object for managed_object in self._store.registry if matches(managed_object, rule.target)]
        self.before_outside_event()
        changes = self._store.changes
        outside_event.strike(self._store, targets, rule)
        if self._store.changes > changes or outside_event.is_unseen:
            self.on_strike(rule, tuple(targets))


def checked_rule(rule: Rule, outside_events: Mapping[str, OutsideEvent]) -> Rule:
    """Return the rule if it can apply. Raises UsageError if its fault, outside event or method does not exist."""
    if rule.effect in (Effect.FAULT, Effect.TASK, Effect.KILL) or (rule.effect is Effect.MISSING and rule.fault):
        fault_type(rule.fault)
    if rule.effect is Effect.HAPPEN:
        outside_event_named(rule.happening, outside_events)
    if not any(wild in rule.method for wild in "*?[") and not _is_method(rule.method):
        raise UsageError(
            f"the vSphere API has no method {rule.method!r}",
            hint="use a name such as PowerOnVM_Task or WaitForUpdatesEx, or a pattern such as *_Task",
        )
    return rule


def _is_method(name: str) -> bool:
    try:
        VmomiSupport.GetWsdlMethod(NAMESPACE, name)
    except KeyError:
        return name == "Fetch"  # how pyVmomi reads one property; it stands in no table
    return True


def matches(target: ManagedObject, pattern: str) -> bool:
    """Whether the pattern fits the object's moid, name or type."""
    return pattern == "*" or any(_fits(name, pattern) for name in (target.moid, target.display_name, target.wsdl_name))


def _fits(name: str, pattern: str) -> bool:
    return pattern in ("*", name) or fnmatchcase(name, pattern)


def _add_effect(trouble: TaskTrouble, rule: Rule, entity: ManagedObject) -> None:
    """Set in `trouble` what the rule does to a task of `entity`."""
    match rule.effect:
        case Effect.TASK:
            trouble.fault, trouble.fails_at = make_fault(rule.fault, entity), rule.share
        case Effect.SLOW:
            trouble.factor = rule.factor
        case Effect.QUEUED:
            trouble.queued_s = rule.delay_s
        case Effect.STUCK:
            trouble.stuck = True
        case Effect.LOST:
            trouble.lost_at = rule.share
        case Effect.EARLY:
            trouble.early_s = rule.delay_s
        case Effect.QUESTION:
            trouble.asks = True
        case _:  # Effect.LINGER
            trouble.lingers_s = rule.delay_s


def fault_type(name: str) -> Any:
    """The vim fault of that WSDL name. Raises UsageError for an unknown name."""
    try:
        kind = VmomiSupport.GetWsdlType("urn:vim25", name)
    except KeyError:
        kind = None
    if kind is None or not issubclass(kind, vmodl.MethodFault):
        raise UsageError(
            f"{name} is not a fault of the vSphere API", hint="use the name of a vSphere fault, such as NoDiskSpace"
        )
    return kind


def make_fault(name: str, receiver: ManagedObject) -> Any:
    """A vim fault of that WSDL name about `receiver`. Raises UsageError for a name that is no fault."""
    kind = fault_type(name)
    fault = kind(msg=f"{name}, as injected")
    for info in kind._GetPropertyList():
        if getattr(fault, info.name) is None and not info.flags & VmomiSupport.F_OPTIONAL:
            setattr(fault, info.name, _required_field_value(info.type, receiver))
    return fault


def _required_field_value(kind: Any, receiver: ManagedObject) -> Any:
    """Return any valid value of a required field's type; a reference names `receiver`."""
    if issubclass(kind, VmomiSupport.ManagedObject):
        return kind(receiver.moid)
    return kind(kind.values[0]) if issubclass(kind, VmomiSupport.Enum) else kind()
