"""Defines plans with their refusals, the protocol of requests, and the report of a run.

Similar refusals of many hosts or VMs are summarised. Two rejections are alike if their reasons differ only in numbers,
PCI addresses, their own subjects, and who holds a GPU. Example: `has 3 free` of esx-01, `has 3 free` of esx-02 and
`has 1 free` of esx-03 are one refusal.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, StrEnum, auto
from typing import ClassVar, Final, Generic, Protocol

from gpuops.errors import StateDamaged, Trouble, report_exit_code
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.steps import AnyStep


class Shortage(Enum):
    """The resource of a host or node that is too small for a VM, if the rejection has its numbers."""

    VCPUS = auto()
    MEMORY = auto()


@dataclass(frozen=True, slots=True)
class Rejection:
    """A refusal with its numbers: `esx-01: memory: needs 65536 MiB, 32768 there`."""

    subject: str
    """What is refused: a VM, a host, a GPU (`esx-01 0000:3b:00.0`), a NUMA node."""
    rule: str
    needed: float | str | None = None
    available: float | str | None = None
    unit: str = ""
    hint: str = ""
    short_of: Shortage | None = None
    """The resource that a smaller VM would need less of; None = the size of the VM is not the reason."""
    by_the_hour: bool = False
    """Whether the time of day is the only reason. Cron causes such a refusal every day, so no notice is sent."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}"

    @property
    def reason(self) -> str:
        """The rule with its numbers, for a text that already names the subject."""
        if self.needed is None and self.available is None:
            return self.rule
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.rule}: needs {self.needed}{unit}, {self.available} there"

    @property
    def line(self) -> str:
        return f"{self} (next: {self.hint})" if self.hint else str(self)


# Hints for refusals of something that cannot be read or reached.
READ_HOST: Final = "give this login read access to the host (System.Read)"
READ_HOST_AND_VMS: Final = "give this login read access to the host and its VMs (System.Read)"
READ_VM: Final = "give this login read access to the VM (System.Read)"
TEST_LOGIN: Final = "gpuops login test shows the privileges that this login lacks"
RECONNECT: Final = "reconnect it, or leave it out"

_HOLDERS: Final = re.compile(r"; held by [^:;]*")
_NUMBER: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]|\d+")


def summarize_similar(rejections: Iterable[Rejection]) -> tuple[Rejection, ...]:
    """Return one rejection for each group of similar ones, with all subjects and the hint of the first.

    The rejection with the most subjects comes first; otherwise the order is kept.

    >>> [str(rejection) for rejection in summarize_similar(Rejection(f"esx-{n}", "has no link") for n in range(1, 6))]
    ['esx-1, esx-2, esx-3 and 2 more: has no link']
    """
    groups: dict[str, list[Rejection]] = {}
    for rejection in dict.fromkeys(rejections):
        # reasons that differ only in names and numbers are similar
        without_names = _HOLDERS.sub("", rejection.reason.replace(rejection.subject, ""))
        groups.setdefault(_NUMBER.sub("N", without_names), []).append(rejection)
    return tuple(_summarize_group(group) for group in sorted(groups.values(), key=len, reverse=True))


def _summarize_group(group: Sequence[Rejection]) -> Rejection:
    """Return one rejection for all: with all subjects if the reasons are equal, else with the first reason."""
    example, subjects = group[0], list(dict.fromkeys(rejection.subject for rejection in group))
    if all(rejection.reason == example.reason for rejection in group):
        return replace(example, subject=some_names(subjects))
    further_subjects = [subject for subject in subjects if subject != example.subject]
    also = f"also {some_names(further_subjects)}" if further_subjects else f"also {len(group) - 1} more"
    return Rejection(example.subject, f"{example.reason} ({also})", hint=example.hint)


def some_names(names: Sequence[str], most: int = 3) -> str:
    """Return the first names and the number of the others: `esx-01, esx-02, esx-03 and 97 more`."""
    further = len(names) - most
    return ", ".join(names[:most]) + (f" and {further} more" if further > 0 else "")


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
