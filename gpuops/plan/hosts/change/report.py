"""What became of a rolling change, host by host, or what would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpuops.errors import report_exit_code
from gpuops.model.vcenter.host_settings import Rolling
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.given_up import Missed
from gpuops.plan.core.host_steps import HostStep
from gpuops.plan.core.outcome import Outcome, Verdict
from gpuops.plan.hosts.change.roll import Roll


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """One run, whole. `applied` False = dry run."""

    verb: str
    """The command whose change it is: `scheduler set`."""
    rolling: Rolling
    before: Inventory
    plan: Roll
    outcomes: tuple[Outcome[HostStep], ...] = ()
    applied: bool = False
    afterwards: tuple[str, ...] = ()
    """What is left to do, in order."""
    taking_up: str = ""
    """What is to be done with a change that did not end: `goes on with` or `gives up`; empty = it is a new one."""
    names: Mapping[str, str] = field(default_factory=dict)
    """By ref, the names of its hosts when it was begun: one may be gone from vCenter since."""

    @property
    def changed(self) -> bool:
        """Whether a host was changed (applied), or would be (dry run)."""
        if not self.applied:
            return self.plan.feasible and bool(self.plan.rounds)
        return any(outcome.verdict is Verdict.DONE for outcome in self.outcomes)

    @property
    def begun(self) -> bool:
        """Whether a host's turn has begun: one that failed in the middle may be changed in part."""
        untouched = {Verdict.ALREADY, Verdict.SKIPPED}
        return self.applied and any(outcome.verdict not in untouched for outcome in self.outcomes)

    @property
    def exit_code(self) -> int:
        """0 done or nothing to do, 3 infeasible, 4 partly done (README, exit codes)."""
        good = {Verdict.DONE, Verdict.ALREADY}
        partly = any(outcome.verdict not in good for outcome in self.outcomes)
        return report_exit_code(refused=not self.plan.feasible, partly=partly)


@dataclass(frozen=True, slots=True)
class PartProgress:
    """One host, or one move, of a change under way."""

    ref: str
    name: str
    state: str
    """`done`, `under way`, `to do` or `given up`."""
    away: tuple[str, ...] = ()
    """Names of its VMs that are not back."""


@dataclass(frozen=True, slots=True)
class ChangeStatus:
    """The change that has not ended. `verb` empty = there is none."""

    verb: str = ""
    began: datetime | None = None
    holder: str = ""
    """Who is at it now; empty = it was cut off, or it stopped."""
    parts: tuple[PartProgress, ...] = ()
    noun: str = "host"
    """What a part is."""
    given_up: tuple[Missed, ...] = ()
    """Hosts and VMs that a person gave up, and that are not back."""
