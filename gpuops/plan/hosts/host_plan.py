"""Plans for hosts: settings to change, host by host, and what became of it.

Why not the `Plan` of VM steps: those go in lanes by VM, are tasks that take minutes, and lead from one power state to
another. A host's setting is one call without a task on an object that no VM step changes, so it needs none of that.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from gpuops.errors import Trouble
from gpuops.model.catalog import Catalog
from gpuops.model.inventory import Inventory
from gpuops.plan.core.outcome import Verdict
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.steps import HostStep


@dataclass(frozen=True, slots=True)
class HostPlan:
    """An ordered intent. No steps and no rejections = nothing to do, and `because` says why."""

    steps: tuple[HostStep, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    """Not empty = infeasible: nothing is done on any host (exit 3)."""
    warnings: tuple[str, ...] = ()
    because: tuple[str, ...] = ()
    afterwards: tuple[str, ...] = ()
    """What is left to do by hand, in order, before it is in force."""
    withheld: tuple[HostStep, ...] = ()
    """What would be done if nothing spoke against it: what the login lacks for it is one more reason."""
    due: tuple[HostStep, ...] = ()
    """What hosts without a step are configured as already, and what is not in force before their reboot."""
    reboots: frozenset[str] = frozenset()
    """Refs of the hosts whose step is not in force before a reboot."""

    @property
    def feasible(self) -> bool:
        return not self.rejections


@dataclass(frozen=True, slots=True)
class HostOutcome:
    """One step and what became of it; `reason` for anything but DONE."""

    step: HostStep
    verdict: Verdict
    reason: str = ""
    trouble: Trouble | None = None


@dataclass(frozen=True, slots=True)
class HostReport:
    """One run, whole: what was asked, seen, intended and done. `applied` False = dry run."""

    request: object
    before: Inventory
    plan: HostPlan
    outcomes: tuple[HostOutcome, ...] = ()
    applied: bool = False

    @property
    def changed(self) -> bool:
        """Whether a host was changed (applied), or would be (dry run)."""
        if not self.applied:
            return self.plan.feasible and bool(self.plan.steps)
        return any(outcome.verdict is Verdict.DONE for outcome in self.outcomes)

    @property
    def exit_code(self) -> int:
        """0 done or nothing to do, 3 infeasible, 4 partly done (README, exit codes)."""
        if not self.plan.feasible:
            return 3
        bad = {Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED}
        return 4 if any(outcome.verdict in bad for outcome in self.outcomes) else 0


class HostRequest(Protocol):
    """A frozen dataclass whose fields are the options of a verb on hosts."""

    def hosts(self, inventory: Inventory) -> Collection[str]:
        """Refs of the hosts whose settings the plan needs. Raises UsageError for a name that is not there."""
        ...

    def plan(self, inventory: Inventory, catalog: Catalog) -> HostPlan:
        """The change wanted on this snapshot. Raises UsageError for a request that means nothing."""
        ...
