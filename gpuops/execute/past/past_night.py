"""Collect one night from its records, as they are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from gpuops.catalog import load
from gpuops.config.policy import parse_policy
from gpuops.errors import PolicyError
from gpuops.execute.runs.run_kind import RunKind
from gpuops.model.nights.history import FreeGpus, HeldPeriod, Incident, PastNight, PastRun, PastStep, PastVm, RunBy
from gpuops.model.nights.night_record import Role
from gpuops.model.nights.rotation import Policy
from gpuops.model.stored import from_stored
from gpuops.model.vcenter.owner import NotedOwner
from gpuops.plan.rotation.ml_queue.team_shares import gpus_of
from gpuops.plan.rotation.returns.return_time import nights_called

TAKEN_BY: Final = {
    Role.DESKTOP: frozenset({"SuspendVm"}),
    Role.SHUT_DOWN: frozenset({"ShutDownGuest"}),
    Role.ML: frozenset({"PowerOnVm"}),
}
"""The steps by which a night takes a VM."""
RETURNED_BY: Final = {
    Role.DESKTOP: frozenset({"ResumeVm", "PowerOnVm"}),
    Role.SHUT_DOWN: frozenset({"ResumeVm", "PowerOnVm"}),
    Role.ML: frozenset({"ShutDownGuest", "PowerOffVm", "SuspendVm"}),
}
ROLE_OF_RETURN: Final = {
    "ResumeVm": Role.DESKTOP,
    "PowerOnVm": Role.SHUT_DOWN,
    "ShutDownGuest": Role.ML,
    "PowerOffVm": Role.ML,
    "SuspendVm": Role.ML,
}
"""The role of a VM of which only the return is known, by the step of that return."""


@dataclass(slots=True)
class RunSoFar:
    """A run, from the records read so far."""

    id: str
    kind: str
    by: RunBy
    begins: datetime
    night: str | None
    order: str = ""
    ends: datetime | None = None
    cut_off: bool = False
    nights: list[NightSoFar] = field(default_factory=list)
    """The nights whose VMs it took or brought back."""

    @property
    def returns(self) -> bool:
        return self.kind in (RunKind.DAY, RunKind.RESTORE)

    def past(self) -> PastRun:
        return PastRun(self.id, self.kind, self.by, self.begins, self.ends, self.cut_off)


@dataclass(slots=True)
class VmSoFar:
    """A VM of a night, from the records read so far."""

    ref: str
    uuid: str | None
    name: str
    role: Role
    profiles: tuple[str, ...]
    night: NightSoFar
    held_periods: list[HeldPeriod] = field(default_factory=list)
    unsure: bool = False
    """Whether the reply to the step that takes it was lost."""
    owner: NotedOwner | None = None
    closed: bool = False
    given_up: bool = False
    steps: dict[str, PastStep] = field(default_factory=dict)
    """By op id."""

    @property
    def is_held(self) -> bool:
        return bool(self.held_periods) and self.held_periods[-1].ends is None

    def took(self, at: datetime) -> None:
        """Note that the night holds the VM from this moment on."""
        self.unsure = self.closed = False
        if not self.is_held:
            self.held_periods.append(HeldPeriod(at))

    def brought_back(self, at: datetime, *, by_itself: bool = False) -> None:
        """Note that the VM is back since this moment; `by_itself`: since an earlier moment that was not recorded."""
        if self.is_held:
            self.held_periods[-1] = HeldPeriod(self.held_periods[-1].begins, at, by_itself)
        elif (self.unsure or self.night.by_markers) and not by_itself:
            self.held_periods.append(HeldPeriod(None, at))
        self.unsure = False

    def past(self) -> PastVm:
        return PastVm(
            self.ref, self.uuid, self.name, self.role, self.profiles, _gpus(self.profiles), tuple(self.held_periods),
            self.closed, self.given_up, tuple(self.steps.values()), self.owner,
        )  # fmt: skip


@dataclass(slots=True)
class NightSoFar:
    """A night, from the records read so far."""

    id: str
    began: datetime
    policy: str = ""
    """The text of its policy file."""
    runs: list[RunSoFar] = field(default_factory=list)
    vms: dict[str, VmSoFar] = field(default_factory=dict)
    incidents: dict[str, Incident] = field(default_factory=dict)
    """Incidents by their cause; an incident is removed when its cause is repaired."""
    by_markers: bool = False
    free: dict[str, FreeGpus] | None = None
    """Host -> free GPUs on it; None = an older version of gpuops did not record them."""

    def note_free_gpus(self, by_host: Mapping[str, float | None], at: datetime) -> None:
        """Note the GPUs that a run found free on hosts that no earlier run of the night used."""
        free_gpus = {host: FreeGpus(gpus, at) for host, gpus in by_host.items()}
        self.free = {**free_gpus, **(self.free or {})}

    def add_run(self, run: RunSoFar) -> None:
        """Note that the run took VMs in this night, or brought some of them back."""
        if run not in self.runs:
            self.runs.append(run)
            run.nights.append(self)

    def save_vm(self, body: Mapping[str, Any]) -> VmSoFar:
        """Return the VM of this record, adding it if it is new; a VM that is already saved is not changed."""
        ref, uuid = body["vm"], body["uuid"]
        saved_vm = self.vms.get(ref) or next(
            (vm for vm in self.vms.values() if uuid is not None and vm.uuid == uuid), None
        )
        if saved_vm is None:
            owner = from_stored(NotedOwner, body["owner"]) if "owner" in body else None
            saved_vm = VmSoFar(ref, uuid, body["name"], Role(body["role"]), tuple(body["profiles"]), self, owner=owner)
            self.vms[ref] = saved_vm
        return saved_vm

    def past(self, vcenter: str) -> PastNight:
        """Return the night by the records read so far."""
        policy = _policy(self.policy)
        return PastNight(
            self.id,
            vcenter,
            self.began,
            policy.name if policy is not None else None,
            tuple(run.past() for run in self.runs),
            tuple(sorted((vm.past() for vm in self.vms.values()), key=lambda vm: (vm.is_ml, vm.name))),
            in_order(self.incidents.values()),
            self.by_markers,
            tuple(self.free.values()) if self.free is not None else None,
            _back_by(policy, self.id) if policy is not None else None,
        )


def in_order(incidents: Iterable[Incident]) -> tuple[Incident, ...]:
    return tuple(sorted(incidents, key=lambda incident: incident.at))


@lru_cache(maxsize=256)
def _gpus(profiles: tuple[str, ...]) -> float | None:
    return gpus_of(profiles, load(profiles=profiles))


@lru_cache(maxsize=16)
def _policy(text: str) -> Policy | None:
    """Return the policy; None if this version cannot read it, or if no run of the night is recorded."""
    try:
        return parse_policy(text, "the journal", accepted_before=True) if text else None
    except PolicyError:
        return None


def _back_by(policy: Policy, night: str) -> datetime | None:
    """Return the deadline of this night's window; None for a night without a window, whose name is a minute."""
    return max((window_of_night.back_by for window_of_night in nights_called(night, policy)), default=None)
