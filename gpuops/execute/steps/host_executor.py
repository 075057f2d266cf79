"""Executes steps of hosts: what settings and tasks of hosts have in common, and how a setting is made.

`change/host_settings.py` sets hosts in service, `change/host_rounds.py` those that a rolling change has emptied.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Final, TypeVar

from gpuops import clock
from gpuops.errors import GpuopsError
from gpuops.execute.journal import Journal, Run
from gpuops.execute.lease.lease import HeldLease
from gpuops.execute.site.ports import Hosts, Vcenter
from gpuops.execute.steps.step_executor import STATES, StepExecutor
from gpuops.model.devices.device_mode import Impacts
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskRef
from gpuops.plan.core.host_steps import HostStep, HostTask
from gpuops.plan.core.outcome import Outcome, Verdict
from gpuops.plan.core.step_checks import host_objection, host_satisfied
from gpuops.plan.hosts.host_plan import impact_words

GONE: Final = "is gone from vCenter"

OfHost = TypeVar("OfHost", bound=HostStep | HostTask)


class HostExecutor(StepExecutor[OfHost]):
    """Does steps of hosts in one run."""

    def __init__(
        self,
        vcenter: Vcenter,
        hosts: Hosts,
        journal: Journal,
        run: Run,
        inventory: Inventory,
        *,
        lease: HeldLease | None = None,
        passed_s: Callable[[], float] = clock.passed_s,
    ) -> None:
        """`lease` must be held at each request; None = this machine's lock alone keeps others away."""
        super().__init__(vcenter, journal, run, inventory, passed_s=passed_s)
        self.hosts = hosts
        self.lease = lease
        self.impacts: dict[str, Impacts] = {}
        """By host (ref), what vCenter said that its setting takes; of others it said nothing."""
        self.half_set: set[str] = set()
        """Hosts (refs) whose setting ended in an error, and that may need a reboot for what was set all the same."""

    def host(self, step: OfHost) -> Host | None:
        """The step's host at the latest look; None = it is gone from vCenter."""
        return self.inventory.hosts.get(step.host)

    @abstractmethod
    def against(self, step: OfHost, host: Host) -> str | None:
        """What speaks against the step on the latest look at its host; None = nothing does."""

    def objection(self, step: OfHost) -> str | None:
        """What speaks against the step on the latest look, or of the lease; None = nothing does."""
        host = self.host(step)
        return GONE if host is None else self.against(step, host) or self.lease_objection()

    def last_objection(self, step: OfHost, judged: Inventory) -> str | None:
        """The same: the lease may have run out, and after a login that ended the host was looked at anew."""
        return self.objection(step)

    def lease_objection(self) -> str | None:
        """Why nothing more may be begun; None = the lease is held, or there is none."""
        return self.lease.objection() if self.lease is not None else None

    def send(self, step: OfHost, op_id: str) -> TaskRef | None:
        """The task of the request; None = it has none."""
        if self.lease is not None:
            self.lease.sends()
        return self.request(step, op_id)

    @abstractmethod
    def request(self, step: OfHost, op_id: str) -> TaskRef | None:
        """Sends the request of the step. Raises OutcomeUnknown when the reply was lost."""

    def settle(self, op_id: str, outcome: Outcome[OfHost], *, counts: bool = True) -> Outcome[OfHost]:
        """The outcome, once it is in the journal. No night counts it, and nothing is planned by how long it took."""
        self.journal.settled(op_id, STATES[outcome.verdict], outcome.reason)
        return outcome


class SettingExecutor(HostExecutor[HostStep]):
    """Sets hosts, one after another: each by calls that have ended when they are answered."""

    def set(self, step: HostStep) -> Outcome[HostStep]:
        """What became of the setting. Raises NotConnected (the intent stays open) and StateDamaged."""
        self.read_back(step)
        done = self.begin(step)
        outcome = done if isinstance(done, Outcome) else self.judge(done.op_id, done.step, done.since)
        told = self.impacts.get(step.host)
        if outcome.verdict is not Verdict.DONE or told is None:
            return outcome
        return replace(outcome, reason="; ".join(filter(None, (outcome.reason, impact_words(told)))))

    def read_back(self, step: HostStep) -> None:
        """Reads the settings of the step's host anew."""
        self.inventory = self.hosts.with_settings(self.inventory, [step.host])

    def is_done(self, step: HostStep) -> bool:
        """Whether the host is set to this, in force or not."""
        host = self.host(step)
        return host is not None and host_satisfied(step, host)

    def against(self, step: HostStep, host: Host) -> str | None:
        """Why the host must not be set to this any more."""
        return host_objection(step, host)

    def request(self, step: HostStep, op_id: str) -> None:
        """Sets the host."""
        try:
            told = self.hosts.configure(step, self.inventory, op_id)
        except GpuopsError as error:
            if error.reboot_due:
                self.half_set.add(step.host)
            raise
        if told is not None:
            self.impacts[step.host] = told

    def find_task(self, step: HostStep, since: datetime) -> TaskRef | None:
        """None: a setting has no task."""
        return None

    def twice_is_once(self, step: HostStep, sent: Inventory) -> bool:
        """False: a late first request would undo what somebody else sets after the second."""
        return False

    def not_shown(self, step: HostStep) -> str:
        """What is said of a setting that the host took and does not show."""
        return "the host called it done, and does not show it"
