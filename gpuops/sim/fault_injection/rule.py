"""The values of a fault rule: which calls, tasks or reads it applies to, its effect, and how a reply then ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from math import isfinite
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from gpuops.errors import UsageError
from gpuops.files.yaml_file import describe_mismatch


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
    """What happens to what a rule strikes."""

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
    """The task is gone when `share` of its time has passed; what it does goes on."""
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
        names = {field.name for field in fields(cls)}
        wrong = [f"{key}: unknown key" for key in document if key not in names]
        wrong += [f"{key}: {value} is no number" for key, value in document.items() if _endless(value)]
        if wrong:
            raise UsageError(f"not a fault rule: {'; '.join(wrong)}")
        try:
            return msgspec.convert(dict(document), cls)
        except msgspec.ValidationError as error:
            raise UsageError(f"not a fault rule: {describe_mismatch(error)}") from error

    def to_json(self) -> dict[str, Any]:
        """The rule as JSON values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def phase_of_calls(self) -> Phase | None:
        """When it strikes calls; None for a rule of tasks, of reads, or of a moment."""
        if self.effect in TASKS or self.effect is Effect.MISSING or self.at_s is not None:
            return None
        return Phase.AFTER if self.effect in ONLY_AFTER else self.phase


def _endless(value: object) -> bool:
    return isinstance(value, float) and not isfinite(value)
