"""What a journal remembers: records, each chained by its checksum to the one before, and what they hold.

These are runs with the effects that they intended, VMs as they were before a night, and steps as plain JSON:
`{"SuspendVm": {"vm": "vm-42"}}`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, get_args

from gpuops.errors import StateDamaged
from gpuops.model.nights.night_record import Role
from gpuops.model.stored import stored_name, to_stored
from gpuops.model.stored_json import decode_stored, json_values
from gpuops.model.vcenter.vm import VmDrs
from gpuops.plan.core.steps import EndTurn, HostStep, HostTask, RunClusterProgram, Step, VcenterSetting

GENESIS: Final = "0" * 64
"""The checksum before the first record of a vCenter."""


class Kind(StrEnum):
    """What a record is about. A new word is a new schema: an older gpuops must not skip a record that it cannot
    read."""

    BEGUN = "begun"
    ORIGINAL = "original"
    """A VM as it was, before a night may touch it."""
    INTENT = "intent"
    """An effect about to be sent."""
    SUBMITTED = "submitted"
    """vCenter took it and named a task."""
    SETTLED = "settled"
    RETURNED = "returned"
    """A VM was seen as it was before the night."""
    SKIP = "skip"
    """A night that is not to be taken, or that is to be taken after all."""
    GIVEN_UP = "given_up"
    """A host or VM that an admin gave up, or that is back after all."""
    ENDED = "ended"
    CHECKPOINT = "checkpoint"
    """The state after all records up to here: reading may begin with it."""


@dataclass(frozen=True, slots=True)
class Record:
    """One event, in its place. `body` is plain JSON."""

    seq: int
    """Its position among the records of its vCenter, from 1 on, without a gap."""
    run: str
    """Empty for a record that belongs to no run."""
    kind: Kind
    at: datetime
    body: Mapping[str, Any]


def text_of(body: Mapping[str, Any]) -> str:
    """Return the body as it is stored: the checksum is computed from this exact text."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def checksum(previous: str, vcenter: str, seq: int, run: str, kind: str, at: str, body: str) -> str:
    """Return the SHA-256, in hexadecimal, of a stored record together with the checksum before it.

    The input is a JSON list, not the joined texts: two different records never have the same input.
    """
    return hashlib.sha256(json.dumps([previous, vcenter, seq, run, kind, at, body]).encode("ascii")).hexdigest()


RETURN_KINDS: Final = ("rotate day", "rotate restore")
"""The kinds of runs that bring back what nights took."""


class IntentState(StrEnum):
    INTENT = "intent"
    """Durable; the request may or may not have left this machine."""
    SUBMITTED = "submitted"
    """vCenter took it and named a task."""
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The reply was lost, or the task outlived its time."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the executor."""

    id: str
    vcenter: str
    kind: str
    night: str | None
    policy: str
    """Text of the policy file; empty for a run without one."""
    pid: int
    started: datetime
    vms: tuple[str, ...] = ()
    """Names of the VMs that the run is limited to; empty if it is not limited."""
    order: str = ""
    """What a change is to do, as JSON; empty for a run of another kind."""

    @property
    def returns(self) -> bool:
        """Whether the run brings back what nights took."""
        return self.kind in RETURN_KINDS


@dataclass(slots=True)
class Intended:
    """One intended effect of an open run."""

    op_id: str
    step: Mapping[str, Any]
    seen: datetime
    """vCenter's time of the last look before it was sent: its task is younger."""
    before: Mapping[str, Any]
    state: IntentState = IntentState.INTENT
    task: str | None = None

    @property
    def kind(self) -> str:
        return next(iter(self.step))

    @property
    def vm(self) -> str:
        """Managed object id at that time."""
        return str(self.step[self.kind]["vm"])

    @property
    def uuid(self) -> str | None:
        """Instance uuid of its VM, or hardware uuid of its host; None if unknown."""
        uuid: str | None = self.before.get("uuid")
        return uuid

    @property
    def login(self) -> str:
        """The vCenter user that it was sent as; empty if unknown."""
        return str(self.before.get("login", ""))


@dataclass(slots=True)
class OpenRun:
    """A run that began and did not end, with its effects in order."""

    run: Run
    intents: dict[str, Intended] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    """Refs of its hosts and VMs that an admin gave up."""


@dataclass(slots=True)
class Saved:
    """A VM as it was before a night."""

    night: str
    vm: str
    role: Role
    uuid: str | None
    name: str
    host: str | None
    profiles: tuple[str, ...]
    returned: datetime | None = None
    drs: VmDrs | None = None
    policy: str = ""
    """Text of the policy under which a night last took it, or was to; empty if no record has it."""
    suspended_at: datetime | None = None
    """When the night suspended it, as vCenter showed; for a VM that was shut down, the time of the look before. None if
    no record has it."""
    started_at: datetime | None = None
    """When the night started it, as vCenter showed; the time of the look before, while the start is not known to be
    done."""
    stopped: bool = False
    """For an ML VM: whether a return has stopped it, or found it powered off. A later start is not the night's."""
    gpu_modes: tuple[tuple[str, str], ...] = ()
    """PCI address and vGPU mode of each GPU that it ran on."""


class DurationKey(NamedTuple):
    """What a duration belongs to: a kind of step, on a VM with these profiles, on a host."""

    step: str
    profiles: str
    """Joined by `+`; empty for a VM without profiles."""
    host: str


Recorded = Step | HostStep | HostTask | EndTurn | VcenterSetting | RunClusterProgram
"""The steps whose intent a journal records."""
_KINDS: Final[Mapping[str, type[Recorded]]] = {stored_name(kind): kind for kind in get_args(Recorded)}
"""By stored name: several kinds have the same fields."""


def dump_step(step: Recorded) -> dict[str, Any]:
    return {stored_name(type(step)): json_values(to_stored(step))}


def load_step(body: Mapping[str, Any]) -> Recorded:
    """Return the step that `dump_step` wrote. Raises StateDamaged."""
    try:
        [(kind, fields)] = body.items()
        return decode_stored(_KINDS[kind], fields)
    except (ValueError, KeyError) as error:
        raise StateDamaged(
            f"the journal holds a step that this version cannot read: {str(body)[:80]}",
            hint="use the gpuops that wrote it, or a later one",
        ) from error
