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
from gpuops.sim.fault_injection.rule import REPLIES, TASKS, Effect, Ending, OutsideEvent, Phase, Rule, named

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.core.managed_object import ManagedObject
    from gpuops.sim.core.object_store import ObjectStore
    from gpuops.sim.core.task_object import Task


@dataclass(frozen=True, slots=True)
class Interruption:
    """What the client gets instead of its reply, or how that reply comes."""

    fault: Any = None
    status: int = 0
    body: str = ""
    ending: Ending = Ending.WHOLE
    pace_s: float = 0.0
    """Between two bytes of a reply that drips."""


@dataclass(slots=True)
class TaskTrouble:
    """What a task has before it; nothing by default."""

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
        self._armed: list[ActiveRule] = []
        self._by_method: dict[str, tuple[ActiveRule, ...]] = {}
        """The rules by method, kept because every call looks here and most methods have none."""
        self.on_strike: Callable[[Rule, tuple[ManagedObject, ...]], None] = lambda rule, targets: None
        """Called with each rule that takes effect, and the objects that it applies to."""
        self.before_outside_event: Callable[[], None] = lambda: None
        """Called just before an outside event changes the world."""
        self.hides = False
        """Whether any rule can hide a property from clients; checked before every read."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(armed.rule for armed in self._armed)

    def struck(self) -> list[tuple[Rule, int]]:
        """Each rule and how often it was applied."""
        return [(armed.rule, armed.struck) for armed in self._armed]

    def add(self, rule: Rule) -> None:
        """Applies this rule from now on. Raises UsageError for a rule that can apply to nothing."""
        checked(rule, self.outside_events)
        armed = ActiveRule(rule, rule.phase_of_calls())
        self._armed.append(armed)
        self._by_method.clear()
        self.hides = self.hides or rule.effect is Effect.MISSING
        if rule.at_s is not None:
            self._store.clock.schedule(rule.at_s, lambda: self._happen(armed), background=True)

    def happen(self, rule: Rule) -> None:
        """Applies the outside event of this rule now. Raises UsageError for a rule that can apply to nothing."""
        armed = ActiveRule(checked(rule, self.outside_events), None, struck=1)
        self._armed.append(armed)
        self._by_method.clear()
        self._happen(armed)

    def clear(self) -> None:
        self._armed.clear()
        self._by_method.clear()
        self.hides = False

    def before(self, call: Call, receiver: ManagedObject) -> Interruption | None:
        """What becomes of a call before it has any effect; None = it is carried out."""
        return self._interrupt(call, receiver, Phase.BEFORE)

    def after(self, call: Call, receiver: ManagedObject) -> Interruption | None:
        """What becomes of the reply of a call that had its effect; None = it is sent."""
        return self._interrupt(call, receiver, Phase.AFTER)

    def refusal(self, method: str, target: ManagedObject) -> Any:
        """The fault of a call that another call makes, such as those of PowerOnMultiVM_Task; or None."""
        for armed in self._of(method):
            if armed.rule.effect is Effect.FAULT and self._strikes(armed, target):
                return make_fault(armed.rule.fault, target)
        return None

    def of_task(self, task: Task) -> TaskTrouble:
        """What this task has before it."""
        trouble = TaskTrouble()
        for armed in self._of(task.name):
            if armed.rule.effect in TASKS and self._strikes(armed, task.entity):
                _trouble(trouble, armed.rule, task.entity)
        return trouble

    def hidden(self, managed_object: ManagedObject, paths: Iterable[str], method: str) -> dict[str, Any]:
        """The properties of an object that are left out, each with its fault in missingSet (None = not in it)."""
        hidden: dict[str, Any] = {}
        for armed in self._of(method):
            rule = armed.rule
            if rule.effect is not Effect.MISSING:
                continue
            matching = [path for path in paths if fnmatchcase(path, rule.property)]
            if matching and self._strikes(armed, managed_object):
                hidden |= dict.fromkeys(matching, make_fault(rule.fault, managed_object) if rule.fault else None)
        return hidden

    def _interrupt(self, call: Call, receiver: ManagedObject, phase: Phase) -> Interruption | None:
        for armed in self._of(call.method):
            if armed.phase is not phase:
                continue
            # A rule with an outside event is matched by a call, and applies to other objects than that call's.
            target = None if armed.rule.effect is Effect.HAPPEN else receiver
            if self._strikes(armed, target):
                interruption = self._interruption(armed, call, receiver)
                if interruption is not None:
                    return interruption
        return None

    def _of(self, method: str) -> tuple[ActiveRule, ...]:
        """The rules that match this method, in order."""
        rules = self._by_method.get(method)
        if rules is None:
            rules = tuple(armed for armed in self._armed if _fits(method, armed.rule.method))
            self._by_method[method] = rules
        return rules

    def _strikes(self, armed: ActiveRule, target: ManagedObject | None) -> bool:
        """Return whether a rule that matches the method applies to this object now; count matches and strikes.

        Example: `skip=1, every=2` applies to the second, fourth and sixth match.
        """
        rule = armed.rule
        if not (target is None or matches(target, rule.target)):
            return False
        armed.matched += 1
        turn = armed.matched - rule.skip
        spent = rule.times is not None and armed.struck >= rule.times
        if turn < 1 or (turn - 1) % rule.every or spent:
            return False
        if rule.probability < 1.0 and self._rng.random() >= rule.probability:
            return False
        armed.struck += 1
        if rule.effect is not Effect.HAPPEN:  # `_happen` reports an outside event itself, if it changed anything
            self.on_strike(rule, () if target is None else (target,))
        return True

    def _interruption(self, armed: ActiveRule, call: Call, receiver: ManagedObject) -> Interruption | None:
        """Apply a rule's effect to a call; return what replaces the reply, or None if the call goes on."""
        rule = armed.rule
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
                self._happen(armed)
        return None

    def _end_session(self, call: Call) -> None:
        if call.session is not None:
            self._store.sessions.close(call.session)
            call.session = None

    def _happen(self, armed: ActiveRule) -> None:
        """Let a rule's outside event happen to its targets; report the rule if anything changed."""
        rule = armed.rule
        if rule.at_s is not None:
            if armed not in self._armed:
                return  # cleared meanwhile
            armed.struck += 1
        happening = named(rule.happening, self.outside_events)
        targets = [managed_object for managed_object in self._store.registry if matches(managed_object, rule.target)]
        self.before_outside_event()
        changes = self._store.changes
        happening.strike(self._store, targets, rule)
        if self._store.changes > changes or happening.is_unseen:
            self.on_strike(rule, tuple(targets))


def checked(rule: Rule, outside_events: Mapping[str, OutsideEvent]) -> Rule:
    """Return the rule. Raises UsageError if its fault, outside event or method does not exist."""
    if rule.effect in (Effect.FAULT, Effect.TASK, Effect.KILL) or (rule.effect is Effect.MISSING and rule.fault):
        fault_type(rule.fault)
    if rule.effect is Effect.HAPPEN:
        named(rule.happening, outside_events)
    if not any(wild in rule.method for wild in "*?[") and not _is_method(rule.method):
        raise UsageError(
            f"no method of the vSphere API is called {rule.method!r}",
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


def _trouble(trouble: TaskTrouble, rule: Rule, entity: ManagedObject) -> None:
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
        raise UsageError(f"{name} is no fault of the vSphere API", hint="use a name of the API, such as NoDiskSpace")
    return kind


def make_fault(name: str, receiver: ManagedObject) -> Any:
    """A vim fault of that WSDL name about `receiver`. Raises UsageError for a name that is no fault."""
    kind = fault_type(name)
    fault = kind(msg=f"{name}, as injected")
    for info in kind._GetPropertyList():
        if getattr(fault, info.name) is None and not info.flags & VmomiSupport.F_OPTIONAL:
            setattr(fault, info.name, _plain(info.type, receiver))
    return fault


def _plain(kind: Any, receiver: ManagedObject) -> Any:
    if issubclass(kind, VmomiSupport.ManagedObject):
        return kind(receiver.moid)
    return kind(kind.values[0]) if issubclass(kind, VmomiSupport.Enum) else kind()
