"""Plans, the protocol of requests, and the report of a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Generic, Protocol

from gpuops.errors import StateDamaged, Trouble, report_exit_code
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import AnyStep


@dataclass(frozen=True, slots=True)
class Wave(Generic[AnyStep]):
    """Steps that do not depend on each other; the next wave starts when all of them are done."""

    title: str
    steps: tuple[AnyStep, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One line of `--explain`: a candidate (host, GPU, VM), whether it was chosen, and why."""

    subject: str
    chosen: bool
    reason: str
    feasible: bool = False
    """Whether it could be chosen, even if another one was."""

    @classmethod
    def refused(cls, rejection: Rejection) -> Choice:
        return cls(rejection.subject, chosen=False, reason=rejection.reason)


@dataclass(frozen=True, slots=True)
class Plan(Generic[AnyStep]):
    """The steps to do, in order. If there are no waves and no rejections, `because` has the reason."""

    waves: tuple[Wave[AnyStep], ...] = ()
    rejections: tuple[Rejection, ...] = ()
    """Why nothing can be done; not empty = exit code 3."""
    unmet: tuple[Rejection, ...] = ()
    """What is left out while the other steps are done, for example a desktop that cannot resume; exit code 4."""
    warnings: tuple[str, ...] = ()
    because: tuple[str, ...] = ()
    """Remarks that are shown even if all steps succeed, for example why a VM is left as it is."""
    choices: tuple[Choice, ...] = ()
    withheld: tuple[AnyStep, ...] = ()
    """The steps of a refused plan: privileges that the login lacks for them are reported with the other reasons."""
    not_after: Mapping[str, datetime] = field(default_factory=dict)
    """VM ref -> the moment (UTC) from which no step may begin on the VM, so that it can return in time."""
    disruptive: bool = False
    """Whether something is stopped, moved or rebooted: gpuops then asks on a terminal, and needs --yes without one."""
    afterwards: tuple[str, ...] = ()
    """What the admin must do, in order, before the change is in force."""
    due: tuple[AnyStep, ...] = ()
    """Steps that are already configured on their hosts and that a reboot puts in force."""
    reboots: frozenset[str] = frozenset()
    """Refs of the hosts that must reboot before their step is in force."""

    @property
    def feasible(self) -> bool:
        return not self.rejections

    @property
    def steps(self) -> tuple[AnyStep, ...]:
        return tuple(step for wave in self.waves for step in wave.steps)


def refuse(
    *rejections: Rejection, choices: tuple[Choice, ...] = (), withheld: tuple[AnyStep, ...] = ()
) -> Plan[AnyStep]:
    """Return a plan without steps for these reasons, without duplicates."""
    return Plan(rejections=tuple(dict.fromkeys(rejections)), choices=choices, withheld=withheld)


class Request(Protocol):
    """A frozen dataclass whose fields are the options of a command."""

    run_kind: ClassVar[str]
    """The name of such a run in journals. It is stored, so it never changes."""

    def vm_details(self, inventory: Inventory) -> Collection[str]:
        """Return the VMs (refs) on hosts without GPUs whose devices the plan needs: the bulk read leaves them out."""
        ...

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        """Return the hosts (refs) whose QueryConfigTarget the plan needs, for static DirectPath and device groups."""
        ...

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """Return the plan for this snapshot. Raises UsageError for names that do not exist in it."""
        ...


class Verdict(StrEnum):
    """The result of one step."""

    DONE = "done"
    ALREADY = "already"
    """It was done before anything was sent."""
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The reply was lost, and reading the VM again did not show whether the step was done."""
    SKIPPED = "skipped"
    """Not tried, because an earlier wave failed."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[AnyStep]):
    """One step and its result, with a `reason` unless it is DONE, and the duration of its task."""

    step: AnyStep
    verdict: Verdict
    reason: str = ""
    duration_s: float | None = None
    trouble: Trouble | None = None
    """The kind of vCenter error with which it ended; None = no error."""
    fault: str = ""
    """The code of that error, for example `no-permission`; empty = no error."""


@dataclass(frozen=True, slots=True)
class Report(Generic[AnyStep]):
    """One run: the request, the snapshot, the plan and the outcomes. `applied` False = dry run."""

    request: object
    before: Inventory
    plan: Plan[AnyStep]
    outcomes: tuple[Outcome[AnyStep], ...] = ()
    applied: bool = False
    journal_lost: bool = False
    """Whether the run used only vCenter's markers because the journal cannot be read, written or trusted, or ran
    without the lock of its machine."""
    after: Inventory | None = None
    """The last snapshot of the objects that the steps change; None = none was read after `before`."""

    @property
    def deeds(self) -> Plan[AnyStep] | tuple[()] | None:
        """What is to be done, with the reasons that are shown; empty = nothing, None = the plan is refused."""
        if not self.plan.feasible:
            return None
        return self.plan if self.plan.steps else ()

    @property
    def changed(self) -> bool:
        """Whether vCenter was changed, or would be after a dry run."""
        if not self.applied:
            return self.plan.feasible and bool(self.plan.steps)
        return any(outcome.verdict is Verdict.DONE for outcome in self.outcomes)

    @property
    def exit_code(self) -> int:
        """0 done or nothing to do, 3 refused, 4 partly done, 7 the journal was lost (README, exit codes)."""
        if self.journal_lost:
            return StateDamaged.exit_code
        not_done = (Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED)
        partly = self.plan.unmet or any(outcome.verdict in not_done for outcome in self.outcomes)
        return report_exit_code(refused=not self.plan.feasible, partly=partly)
