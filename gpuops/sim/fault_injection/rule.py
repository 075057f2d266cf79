"""The values of a fault rule: which calls, tasks or reads it applies to, its effect, and how a reply then ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import StrEnum
from functools import cache
from importlib import resources
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import yaml
from msgspec import Meta

from gpuops.errors import UsageError
from gpuops.files.yaml_file import describe_mismatch
from gpuops.sim.core.registry import is_kind_of
from gpuops.sim.state.vm_state import Power, Question

if TYPE_CHECKING:
    from gpuops.sim.core.managed_object import ManagedObject
    from gpuops.sim.core.object_store import ObjectStore
    from gpuops.sim.core.task_object import Task


class Ending(StrEnum):
    """What the wire does with a reply."""

    WHOLE = "whole"
    RESET = "reset"
    """Nothing is sent, the connection is reset."""
    CUT = "cut"
    """Half of it is sent, then the connection is reset."""
    EOF = "eof"
    """Half of it is sent, then the connection ends without TLS's close_notify."""
    TRUNCATED = "truncated"
    """Half of the XML is sent as if it were all of it."""
    STALE = "stale"
    """It is sent whole; then the connection, which the client keeps for its next request, is closed."""
    HANG = "hang"
    """Nothing is sent, and the connection stays open until the client gives up."""
    DRIP = "drip"
    """It is sent a byte at a time."""


Seconds = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0)]


class Effect(StrEnum):
    """What a rule does to the call, task or read that it applies to."""

    # to the reply of a call; see Ending
    RESET = "reset"
    CUT = "cut"
    EOF = "eof"
    TRUNCATED = "truncated"
    STALE = "stale"
    HANG = "hang"
    DRIP = "drip"
    # to a call
    HTTP = "http"
    """An HTTP status instead of SOAP, such as a proxy's 503, with `body`."""
    FAULT = "fault"
    """A SOAP fault of the named type."""
    EXPIRE = "expire"
    """The caller's session ends first: NotAuthenticated, and its filters and views are gone."""
    KILL = "kill"
    """The caller's session ends, and this call ends in the named fault: an administrator terminated it."""
    DELAY = "delay"
    """The call is answered `delay_s` later."""
    # to a property that is read
    MISSING = "missing"
    """Properties that match `property` are left out; with `fault`, missingSet has it for each of them."""
    # to a task, from its start on
    TASK = "task"
    """It ends in the named fault, without its effect, when `share` of its time has passed."""
    SLOW = "slow"
    """It takes `factor` times as long."""
    QUEUED = "queued"
    """It stays queued for `delay_s` first."""
    STUCK = "stuck"
    """It runs for ever."""
    LOST = "lost"
    """The task is gone when `share` of its time has passed; its effect still follows."""
    EARLY = "early"
    """It ends in success `delay_s` before it has its effect."""
    QUESTION = "question"
    """The VM asks a question at the end of it; the task runs on until the answer."""
    LINGER = "linger"
    """The GPU that a VM leaves by it stays taken for `delay_s`."""
    # beside the calls
    HAPPEN = "happen"
    """`happening` is done to the objects that match `target`, at a call that matches, or `at_s` from now."""


class Phase(StrEnum):
    """When it happens: instead of the call's effect, or after it."""

    BEFORE = "before"
    AFTER = "after"


REPLIES: Final = frozenset(
    {Effect.RESET, Effect.CUT, Effect.EOF, Effect.TRUNCATED, Effect.STALE, Effect.HANG, Effect.DRIP}
)
ONLY_AFTER: Final = frozenset({Effect.CUT, Effect.EOF, Effect.TRUNCATED, Effect.STALE, Effect.DRIP})
"""These need a reply: they are applied after the call's effect, even if the rule has `phase: before`."""
TASKS: Final = frozenset(
    {
        Effect.TASK,
        Effect.SLOW,
        Effect.QUEUED,
        Effect.STUCK,
        Effect.LOST,
        Effect.EARLY,
        Effect.QUESTION,
        Effect.LINGER,
    }
)


@dataclass(frozen=True, slots=True)
class Rule:
    """Strikes calls whose method and object match these patterns (`*`, `PowerOn*`, `ml-0[1-3]`).

    An object matches by its moid, its name or its type. Of the matching calls the first `skip` go unharmed, of the next
    each `every`th is struck until `times` are (None = for ever), each with `probability`.
    """

    effect: Effect
    method: str = "*"
    target: str = "*"
    phase: Phase = Phase.BEFORE
    skip: Count = 0
    every: Annotated[int, Meta(ge=1)] = 1
    times: Count | None = 1
    probability: Share = 1.0
    fault: str = "SystemError"
    """Empty for MISSING: missingSet names nothing."""
    status: int = 503
    body: str = ""
    delay_s: float = 1.0
    factor: Annotated[float, Meta(gt=0)] = 10.0
    share: Share = 1.0
    property: str = "*"
    happening: str = ""
    at_s: Seconds | None = None
    """Virtual seconds after the rule was added; None = at a call."""
    for_s: Seconds = 0.0
    """How long the outside event lasts, where it can end by itself; 0 = for good."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Rule:
        """The rule in a JSON object. Raises UsageError for an unknown key or a wrong value."""
        names = [field.name for field in fields(cls)]
        wrong = [f"{key}: unknown key" for key in document if key not in names]
        wrong += [
            f"{key}: {value} is not a finite number" for key, value in document.items() if _is_infinite_or_nan(value)
        ]
        if wrong:
            raise UsageError(f"not a fault rule: {'; '.join(wrong)}", hint=f"the keys of a rule are {', '.join(names)}")
        try:
            return msgspec.convert(dict(document), cls)
        except msgspec.ValidationError as error:
            raise UsageError(f"not a fault rule: {describe_mismatch(error)}") from error

    def to_json(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def phase_of_calls(self) -> Phase | None:
        """Return when the rule strikes calls; None for a rule about tasks, reads or a moment (`at_s`)."""
        if self.effect in TASKS or self.effect is Effect.MISSING or self.at_s is not None:
            return None
        return Phase.AFTER if self.effect in ONLY_AFTER else self.phase


def _is_infinite_or_nan(value: object) -> bool:
    return isinstance(value, float) and not isfinite(value)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what a client sees of it, and the rules that make it so."""

    id: str
    sees: str
    rules: tuple[Rule, ...]


@cache
def catalogue() -> Mapping[str, Fault]:
    """Every fault by its id, in the order of the file."""
    source = resources.files("gpuops.sim.fault_injection").joinpath("catalogue.yaml").read_text(encoding="utf-8")
    return {
        name: Fault(name, entry["sees"], tuple(Rule.from_json(rule) for rule in entry["rules"]))
        for name, entry in yaml.safe_load(source).items()
    }


def rules_of(fault: str, changes: Mapping[str, Any] | None = None) -> tuple[Rule, ...]:
    """Return the rules of a fault with some keys changed. Raises UsageError for an unknown id or key."""
    declared_fault = catalogue().get(fault)
    if declared_fault is None:
        raise UsageError(f"no fault is called {fault!r}", hint="`gpuops sim faults` lists the ids")
    if "effect" in (changes or {}):
        raise UsageError(
            f"the effect of {fault} cannot be changed", hint="remove either `effect` or `fault` from the rule"
        )
    return tuple(Rule.from_json({**rule.to_json(), **(changes or {})}) for rule in declared_fault.rules)


OUT_OF_SPACE: Final = Question(
    "msg.hbacommon.outofspace",
    "There is no more space for virtual disk {}. You might be able to continue this session by freeing disk space on "
    "the relevant volume, and clicking Retry. Click Cancel to terminate this session.",
    (("0", "Retry"), ("1", "Cancel")),
)
"""The question of a full datastore, as ESXi asks it (VMware knowledge base on msg.hbacommon.outofspace)."""

ANSWER_CHECK_INTERVAL: Final = timedelta(seconds=5)
"""How often a task of vCenter checks whether its VM's question was answered."""


def must_wait_for_answer(store: ObjectStore, entity: Any) -> bool:
    """Return whether a VM waits for an answer; the first call for a VM makes it ask. False for any other object."""
    if entity.wsdl_name != "VirtualMachine":
        return False
    if entity.moid in store.vms_with_question:
        return entity.state.question is not None
    store.vms_with_question.add(entity.moid)
    text = OUT_OF_SPACE.text.format(f"{entity.name}.vmdk")
    entity.state.question = Question(OUT_OF_SPACE.id, text, OUT_OF_SPACE.choices)
    entity.touch("runtime", "summary")
    return True


class AwaitingAnswer:
    """Resumes a task after its VM's question was answered, at the next of vCenter's checks.

    It watches the VM instead of polling, because polling would take seven thousand timers in one simulated night.
    """

    def __init__(self, store: ObjectStore, vm: Any, resume: Callable[[], None]) -> None:
        self._store = store
        self._resume = resume
        self._asked_at = store.clock.now()
        store.registry.watch(vm.moid, self)

    def object_touched(self, managed_object: Any, paths: Collection[str]) -> None:
        if managed_object.state.question is not None:
            return
        self._store.registry.unwatch(managed_object.moid, self)
        clock = self._store.clock
        # the checks count from the question: an answer after 12 s is seen at the check after 15 s, 3 s later
        until_check = ANSWER_CHECK_INTERVAL - (clock.now() - self._asked_at) % ANSWER_CHECK_INTERVAL
        # No wait of a client jumps to this check.
        clock.schedule(until_check.total_seconds(), self._resume, background=True)

    def object_removed(self, managed_object: Any) -> None:
        """Its question can no longer be answered."""


def with_lingering_gpus(task: Task, complete: Callable[[], None], lingers_s: float) -> Callable[[], None]:
    """Return `complete`, changed so that the VM's GPUs stay in use for `lingers_s` seconds after it stopped."""
    if not lingers_s or task.entity.wsdl_name != "VirtualMachine":
        return complete
    vm: Any = task.entity

    def complete_and_linger() -> None:
        host, seats = vm.host(), vm.state.seats
        complete()
        if vm.state.power is not Power.ON and seats:
            host.lingering = (*host.lingering, *seats)
            host.load_changed()
            host.world.clock.schedule(lingers_s, lambda: _free_gpus(host, seats))

    return complete_and_linger


def _free_gpus(host: Any, seats: tuple[Any, ...]) -> None:
    host.lingering = tuple(seat for seat in host.lingering if seat not in seats)
    host.load_changed()


Act = Callable[[Any, "Rule"], None]


@dataclass(frozen=True, slots=True)
class OutsideEvent:
    """What is done to each targeted object of a type; with no type, once to the whole vCenter."""

    kind: str
    act: Act
    is_unseen: bool = False
    """Whether it only changes what vCenter answers, so that no object counts as changed."""

    def strike(self, store: ObjectStore, targets: Iterable[ManagedObject], rule: Rule) -> None:
        """Apply the event to the targets of its type, or once to the whole vCenter."""
        if not self.kind:
            self.act(store, rule)
            return
        for target in targets:
            if is_kind_of(target.wsdl_name, self.kind):
                self.act(target, rule)


def outside_event_named(name: str, outside_events: Mapping[str, OutsideEvent]) -> OutsideEvent:
    """Return the event that a rule names as its `happening`. Raises UsageError for an unknown name."""
    try:
        return outside_events[name]
    except KeyError:
        raise UsageError(
            f"`happening` names no outside event: {name!r}", hint=f"use one of: {', '.join(outside_events)}"
        ) from None
