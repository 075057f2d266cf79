"""Injected trouble: rules that make chosen calls fail, stall, or lose their reply.

A rule says which calls it strikes (method, object, from which matching call on, how often, how probably) and what
happens to them. `before` means that the call has no effect; `after` means that it had its effect and only the reply
suffers, which is how a client learns to re-read instead of repeating.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from gpuops.errors import UsageError

if TYPE_CHECKING:
    from gpuops.sim.call import Call
    from gpuops.sim.managed_object import ManagedObject
    from gpuops.sim.objects.task import Task
    from gpuops.sim.world import World


class Effect(StrEnum):
    """What happens to a call that a rule strikes."""

    RESET = "reset"
    """The connection is reset without a reply."""
    CUT = "cut"
    """Half of the reply arrives, then the connection is reset. Always after the effect."""
    HTTP = "http"
    """A plain HTTP status instead of SOAP, such as a proxy's 503."""
    FAULT = "fault"
    """A SOAP fault of the named type."""
    TASK = "task"
    """The task that the call starts ends in the named fault, without its effect."""
    EXPIRE = "expire"
    """The caller's session ends first: NotAuthenticated, and its filters and views are gone."""
    DELAY = "delay"
    """The call is answered, later."""


class Phase(StrEnum):
    """When it happens: instead of the call's effect, or after it."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Rule:
    """Strikes calls whose method and object match these patterns (`*`, `PowerOn*`, `ml-0[1-3]`).

    An object matches by its moid, its name or its type. Of the matching calls the first `skip` go unharmed, the next
    `times` are struck (None = all), each with `probability`.
    """

    effect: Effect
    method: str = "*"
    target: str = "*"
    phase: Phase = Phase.BEFORE
    skip: int = 0
    times: int | None = 1
    probability: float = 1.0
    fault: str = "SystemError"
    status: int = 503
    delay_s: float = 1.0

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Rule:
        """The rule in a JSON object. Raises UsageError for an unknown key or value."""
        known = {each.name for each in fields(cls)}
        unknown = sorted(set(document) - known)
        if unknown or "effect" not in document:
            raise UsageError(f"not a fault rule: {', '.join(unknown) or 'no effect'}", hint=f"keys: {sorted(known)}")
        try:
            enums = {"effect": Effect(document["effect"]), "phase": Phase(document.get("phase", Phase.BEFORE))}
        except ValueError as error:
            raise UsageError(f"not a fault rule: {error}") from error
        return cls(**{**document, **enums})

    def to_json(self) -> dict[str, Any]:
        """The rule as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Interruption:
    """What the client gets instead of its reply."""

    fault: Any = None
    status: int = 0
    lost: bool = False
    cut: bool = False


class Injector:
    """The rules of a world, none to begin with, and how often each was matched."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self._rng = random.Random(f"{seed}:inject")  # noqa: S311 - reproducible trouble, no secrets
        self._rules: list[Rule] = []
        self._matched: list[int] = []

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(self._rules)

    def add(self, rule: Rule) -> None:
        """From now on, strike what this rule matches."""
        self._rules.append(rule)
        self._matched.append(0)

    def clear(self) -> None:
        """No more trouble."""
        self._rules.clear()
        self._matched.clear()

    def before(self, call: Call, receiver: ManagedObject) -> Interruption | None:
        """What becomes of a call before it has any effect; None = it goes on."""
        return self._strike(call, receiver, Phase.BEFORE)

    def after(self, call: Call, receiver: ManagedObject) -> Interruption | None:
        """What becomes of the reply of a call that had its effect; None = it is sent."""
        return self._strike(call, receiver, Phase.AFTER)

    def task_fault(self, task: Task) -> Any:
        """The fault in which this task shall end instead of having its effect, or None."""
        for number, rule in enumerate(self._rules):
            if rule.effect is Effect.TASK and self._strikes(number, task.name, task.entity):
                return make_fault(rule.fault, task.entity)
        return None

    def _strike(self, call: Call, receiver: ManagedObject, phase: Phase) -> Interruption | None:
        for number, rule in enumerate(self._rules):
            if rule.effect is Effect.TASK or _phase(rule) is not phase:
                continue
            if self._strikes(number, call.method, receiver):
                interruption = self._interruption(rule, call, receiver)
                if interruption is not None:
                    return interruption
        return None

    def _strikes(self, number: int, method: str, target: ManagedObject) -> bool:
        rule = self._rules[number]
        names = (target.moid, target.display_name, target.wsdl_name)
        if not fnmatchcase(method, rule.method) or not any(fnmatchcase(name, rule.target) for name in names):
            return False
        self._matched[number] += 1
        turn = self._matched[number] - rule.skip
        if turn < 1 or (rule.times is not None and turn > rule.times):
            return False
        return rule.probability >= 1.0 or self._rng.random() < rule.probability

    def _interruption(self, rule: Rule, call: Call, receiver: ManagedObject) -> Interruption | None:
        match rule.effect:
            case Effect.RESET:
                return Interruption(lost=True)
            case Effect.CUT:
                return Interruption(cut=True)
            case Effect.HTTP:
                return Interruption(status=rule.status)
            case Effect.FAULT:
                return Interruption(fault=make_fault(rule.fault, receiver))
            case Effect.EXPIRE:
                if call.session is not None:
                    self.world.sessions.close(call.session)
                    call.session = None
            case Effect.DELAY:
                self.world.wait(lambda: None, rule.delay_s)
            case Effect.TASK:
                raise AssertionError("a task rule strikes when the task starts")
        return None


def _phase(rule: Rule) -> Phase:
    return Phase.AFTER if rule.effect is Effect.CUT else rule.phase


def make_fault(name: str, receiver: ManagedObject) -> Any:
    """A vim fault of that WSDL name about `receiver`. Raises UsageError for a name that is no fault."""
    from pyVmomi import VmomiSupport, vmodl

    try:
        kind = VmomiSupport.GetWsdlType("urn:vim25", name)
    except KeyError:
        kind = None
    if kind is None or not issubclass(kind, vmodl.MethodFault):
        raise UsageError(f"{name} is no fault of the vSphere API")
    fault = kind(msg=f"{name}, as injected")
    for info in kind._GetPropertyList():
        if getattr(fault, info.name) is None and not info.flags & VmomiSupport.F_OPTIONAL:
            setattr(fault, info.name, _plain(info.type, receiver))
    return fault


def _plain(kind: Any, receiver: ManagedObject) -> Any:
    from pyVmomi import VmomiSupport

    if issubclass(kind, VmomiSupport.ManagedObject):
        return kind(receiver.moid)
    return kind(kind.values[0]) if issubclass(kind, VmomiSupport.Enum) else kind()
