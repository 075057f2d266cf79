"""What the records of one night come to, gathered as they are read."""

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
"""The step by which a night takes a VM."""
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
"""What a VM must have been to its night, when only its return is known."""


@dataclass(slots=True)
class RunSoFar:
    """A run, as far as its records were read."""

    id: str
    kind: str
    by: RunBy
    begins: datetime
    night: str | None
    order: str = ""
    ends: datetime | None = None
    cut_off: bool = False
    nights: list[NightSoFar] = field(default_factory=list)
    """Those that it took from, or brought back to."""

    @property
    def returns(self) -> bool:
        return self.kind in (RunKind.DAY, RunKind.RESTORE)

    def past(self) -> PastRun:
        return PastRun(self.id, self.kind, self.by, self.begins, self.ends, self.cut_off)


@dataclass(slots=True)
class VmSoFar:
    """A VM of a night, as far as its records were read."""

    ref: str
    uuid: str | None
    name: str
    role: Role
    profiles: tuple[str, ...]
    night: NightSoFar
    held: list[HeldPeriod] = field(default_factory=list)
    unsure: bool = False
    """Whether the reply to the step that takes it was lost."""
    owner: NotedOwner | None = None
    closed: bool = False
    given_up: bool = False
    steps: dict[str, PastStep] = field(default_factory=dict)
    """By op id."""

    @property
    def is_held(self) -> bool:
        return bool(self.held) and self.held[-1].ends is None

    def took(self, at: datetime) -> None:
        """It is held from this moment on."""
        self.unsure = self.closed = False
        if not self.is_held:
            self.held.append(HeldPeriod(at))

    def brought_back(self, at: datetime, *, by_itself: bool = False) -> None:
        """It is as it was, from this moment on; `by_itself`: from an earlier one, which no record tells."""
        if self.is_held:
            self.held[-1] = HeldPeriod(self.held[-1].begins, at, by_itself)
        elif (self.unsure or self.night.by_markers) and not by_itself:
            self.held.append(HeldPeriod(None, at))
        self.unsure = False

    def past(self) -> PastVm:
        return PastVm(
            self.ref, self.uuid, self.name, self.role, self.profiles, _gpus(self.profiles), tuple(self.held),
            self.closed, self.given_up, tuple(self.steps.values()), self.owner,
        )  # fmt: skip


@dataclass(slots=True)
class NightSoFar:
    """A night, as far as its records were read."""

    id: str
    began: datetime
    policy: str = ""
    """The text of its file."""
    runs: list[RunSoFar] = field(default_factory=list)
    vms: dict[str, VmSoFar] = field(default_factory=dict)
    incidents: dict[str, Incident] = field(default_factory=dict)
    """Each under what it is of: one that was made good is taken out again."""
    by_markers: bool = False
    free: dict[str, FreeGpus] | None = None
    """By host, the GPUs that were free there; None = an older gpuops did not note that."""

    def noted_free(self, by_host: Mapping[str, float | None], at: datetime) -> None:
        """What a run found free on hosts that no earlier one of the night used."""
        found = {host: FreeGpus(gpus, at) for host, gpus in by_host.items()}
        self.free = {**found, **(self.free or {})}

    def joined_by(self, run: RunSoFar) -> None:
        """The run took from this night, or brought back to it."""
        if run not in self.runs:
            self.runs.append(run)
            run.nights.append(self)

    def saved(self, body: Mapping[str, Any]) -> VmSoFar:
        """A VM as it was before the night; what is saved already stays as it was saved."""
        ref, uuid = body["vm"], body["uuid"]
        found = self.vms.get(ref) or next(
            (vm for vm in self.vms.values() if uuid is not None and vm.uuid == uuid), None
        )
        if found is None:
            owner = from_stored(NotedOwner, body["owner"]) if "owner" in body else None
            found = VmSoFar(ref, uuid, body["name"], Role(body["role"]), tuple(body["profiles"]), self, owner=owner)
            self.vms[ref] = found
        return found

    def past(self, vcenter: str) -> PastNight:
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
    """None = this version cannot read it, or no run of the night is known."""
    try:
        return parse_policy(text, "the journal", accepted_before=True) if text else None
    except PolicyError:
        return None


def _back_by(policy: Policy, night: str) -> datetime | None:
    """The deadline of the window that this night was of; of a night without a window, whose name is a minute, none."""
    return max((each.back_by for each in nights_called(night, policy)), default=None)
