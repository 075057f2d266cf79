"""What became of each step, and the report of one run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic

from gpuops.errors import StateDamaged, Trouble, report_exit_code
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import AnyStep


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
    """One run, whole: what was asked, seen, intended and done. `applied` False = dry run."""

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
        """Whether vCenter was changed (applied), or would be (dry run)."""
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
