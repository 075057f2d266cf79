"""Defines plans, the protocol of requests, and the report of one run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Generic, Protocol

from gpuops.errors import StateDamaged, Trouble, report_exit_code
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.rejection import Rejection as Rejection
from gpuops.plan.core.rejection import Shortage as Shortage
from gpuops.plan.core.steps import AnyStep


@dataclass(frozen=True, slots=True)
class Wave(Generic[AnyStep]):
    """Steps that do not depend on each other; the next wave starts when all of them are done."""

    title: str
    steps: tuple[AnyStep, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Where something goes and why: one line per host or GPU looked at (`--explain`)."""

    subject: str
    chosen: bool
    reason: str
    feasible: bool = False
    """It would do, chosen or not."""

    @classmethod
    def refused(cls, rejection: Rejection) -> Choice:
        """Return what is refused, with the reason."""
        return cls(rejection.subject, chosen=False, reason=rejection.reason)


@dataclass(frozen=True, slots=True)
class Plan(Generic[AnyStep]):
    """An ordered intent. No waves and no rejections = nothing to do, and `because` says why."""

    waves: tuple[Wave[AnyStep], ...] = ()
    rejections: tuple[Rejection, ...] = ()
    """Not empty = infeasible: nothing is done (exit 3)."""
    unmet: tuple[Rejection, ...] = ()
    """Left out, each with its reason, while the rest is done (exit 4): a desktop that cannot be returned."""
    warnings: tuple[str, ...] = ()
    because: tuple[str, ...] = ()
    """Reasons worth a line even when all goes well: nothing to do, left as it is, checked less."""
    choices: tuple[Choice, ...] = ()
    withheld: tuple[AnyStep, ...] = ()
    """What would be done if nothing spoke against it: what the login lacks for it is one more reason."""
    not_after: Mapping[str, datetime] = field(default_factory=dict)
    """VM ref -> the moment from which on no step of this plan may begin on it, in UTC: what it takes has to return."""
    disruptive: bool = False
    """Stops, moves or reboots something: asks on a terminal, needs --yes without one."""
    afterwards: tuple[str, ...] = ()
    """What the admin has to do, in order, before it is in force."""
    due: tuple[AnyStep, ...] = ()
    """What hosts without a step are configured as already, and what is not in force before their reboot."""
    reboots: frozenset[str] = frozenset()
    """Refs of the hosts whose step is not in force before a reboot."""

    @property
    def feasible(self) -> bool:
        return not self.rejections

    @property
    def steps(self) -> tuple[AnyStep, ...]:
        return tuple(step for wave in self.waves for step in wave.steps)


def refuse(
    *rejections: Rejection, choices: tuple[Choice, ...] = (), withheld: tuple[AnyStep, ...] = ()
) -> Plan[AnyStep]:
    """Return a plan that does nothing, for all of these reasons, each said once."""
    return Plan(rejections=tuple(dict.fromkeys(rejections)), choices=choices, withheld=withheld)


class Request(Protocol):
    """A frozen dataclass whose fields are the options of a verb."""

    run_kind: ClassVar[str]
    """What journals call a run that carries it out. It is stored, and never changes."""

    def vm_details(self, inventory: Inventory) -> Collection[str]:
        """Return refs of VMs whose devices the plan needs and the bulk read left out (those on hosts without GPUs)."""
        ...

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        """Return refs of the hosts whose QueryConfigTarget the plan needs (static DirectPath, device groups).

        Often none.
        """
        ...

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """Return the change wanted on this snapshot. Raises UsageError for names that mean nothing here."""
        ...


class Verdict(StrEnum):
    """How one step ended."""

    DONE = "done"
    ALREADY = "already"
    """Found done before anything was sent."""
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The reply was lost and reading back did not settle it."""
    SKIPPED = "skipped"
    """Not tried: an earlier wave it depends on failed."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[AnyStep]):
    """One step and what became of it; `reason` for anything but DONE, `duration_s` of the task."""

    step: AnyStep
    verdict: Verdict
    reason: str = ""
    duration_s: float | None = None
    trouble: Trouble | None = None
    """What kind of error of vCenter it ended in, if it did."""
    fault: str = ""
    """The code of that error: `no-permission`; empty = none."""


@dataclass(frozen=True, slots=True)
class Report(Generic[AnyStep]):
    """One complete run: the request, the snapshot, the plan and the outcomes. `applied` False = dry run."""

    request: object
    before: Inventory
    plan: Plan[AnyStep]
    outcomes: tuple[Outcome[AnyStep], ...] = ()
    applied: bool = False
    journal_lost: bool = False
    """Whether it went by vCenter's markers alone, because the journal cannot be read, written or trusted; or without
    the lock of its machine."""
    after: Inventory | None = None
    """What was read back last of all that the steps are about; None = nothing was read after `before`."""

    @property
    def changed(self) -> bool:
        """Return whether vCenter was changed (applied), or would be (dry run)."""
        if not self.applied:
            return self.plan.feasible and bool(self.plan.steps)
        return any(outcome.verdict is Verdict.DONE for outcome in self.outcomes)

    @property
    def exit_code(self) -> int:
        """0 done or nothing to do, 3 infeasible, 4 partly done, 7 without its journal (README, exit codes)."""
        if self.journal_lost:
            return StateDamaged.exit_code
        bad = {Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED}
        partly = self.plan.unmet or any(outcome.verdict in bad for outcome in self.outcomes)
        return report_exit_code(refused=not self.plan.feasible, partly=partly)
