"""What a journal remembers: runs with the effects that they intended, and VMs as they were before a night."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.vm import VmDrs

RETURN_KINDS: Final = ("rotate day", "rotate restore")


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
