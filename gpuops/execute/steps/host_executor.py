"""Executes steps of hosts: what settings and tasks of hosts have in common, and how a host is set.

`change/rolling_change.py` uses it for hosts in service, `change/host_rounds.py` for hosts that a rolling change has
emptied.
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
from gpuops.execute.steps.step_executor import StepExecutor
from gpuops.model.devices.device_mode import Impacts
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskRef
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.step_checks import host_objection, host_satisfied
from gpuops.plan.core.steps import HostStep, HostTask
from gpuops.plan.hosts.host_plan import describe_impact

GONE: Final = "is gone from vCenter"

OfHost = TypeVar("OfHost", bound=HostStep | HostTask)


class HostExecutor(StepExecutor[OfHost]):
    """Sends the steps of hosts of one run and returns their outcomes."""

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
        """`lease` must be held at each request; None: only this machine's lock keeps other runs away."""
        super().__init__(vcenter, journal, run, inventory, passed_s=passed_s)
        self.hosts = hosts
        self.lease = lease
        self.impacts: dict[str, Impacts] = {}
        """What vCenter reported that a setting needs (for example a reboot), by host ref; hosts without a report are
        missing."""
        self.half_set: set[str] = set()
        """Refs of hosts whose setting ended in an error, and that may need a reboot for the part that was set."""

    def host(self, step: OfHost) -> Host | None:
        """Return the step's host at the latest look, or None if vCenter no longer has it."""
        return self.inventory.hosts.get(step.host)

    @abstractmethod
    def host_refusal(self, step: OfHost, host: Host) -> str | None:
        """Return why the step must not be sent, judged by the latest look at its host, or None."""

    def objection(self, step: OfHost) -> str | None:
        """Return why the step must not be sent, by the latest look or the lease, or None."""
        host = self.host(step)
        return GONE if host is None else self.host_refusal(step, host) or self.lease_objection()

    def last_objection(self, step: OfHost, judged: Inventory) -> str | None:
        """Judge again: the lease may have expired, and the host was read again after a session that ended."""
        return self.objection(step)

    def lease_objection(self) -> str | None:
        """Return why nothing more may be started, or None if the lease is held or the run needs no lease."""
        return self.lease.objection() if self.lease is not None else None

    def keep_lease(self) -> None:
        """Renew the lease, if the run has one."""
        if self.lease is not None:
            self.lease.renew_if_due()

    def send(self, step: OfHost, op_id: str) -> TaskRef | None:
        """Send the request and return its task, or None if the request has no task."""
        if self.lease is not None:
            self.lease.note_change_sent()
        return self.request(step, op_id)

    @abstractmethod
    def request(self, step: OfHost, op_id: str) -> TaskRef | None:
        """Send the request of the step. Raises OutcomeUnknown when the reply was lost."""


class SettingExecutor(HostExecutor[HostStep]):
    """Sets hosts one after another. Each call has ended when vCenter answers it."""

    def set(self, step: HostStep) -> Outcome[HostStep]:
        """Set the host and return the outcome. Raises NotConnected (the intent stays open) and StateDamaged."""
        self.read_back(step)
        begun = self.begin(step)
        outcome = begun if isinstance(begun, Outcome) else self.judge(begun.op_id, begun.step, begun.since)
        impacts = self.impacts.get(step.host)
        if outcome.verdict is not Verdict.DONE or impacts is None:
            return outcome
        return replace(outcome, reason="; ".join(filter(None, (outcome.reason, describe_impact(impacts)))))

    def read_back(self, step: HostStep) -> None:
        """Read the settings of the step's host again."""
        self.inventory = self.hosts.with_settings(self.inventory, [step.host])

    def is_done(self, step: HostStep) -> bool:
        """Return whether the host has this setting, whether or not it is in force yet."""
        host = self.host(step)
        return host is not None and host_satisfied(step, host)

    def host_refusal(self, step: HostStep, host: Host) -> str | None:
        """Return why the host must no longer be set to this, or None."""
        return host_objection(step, host)

    def request(self, step: HostStep, op_id: str) -> None:
        """Set the host, and note what vCenter requires before the setting is in force."""
        try:
            impacts = self.hosts.configure(step, self.inventory, op_id)
        except GpuopsError as error:
            if error.reboot_due:
                self.half_set.add(step.host)
            raise
        if impacts is not None:
            self.impacts[step.host] = impacts

    def find_task(self, step: HostStep, since: datetime) -> TaskRef | None:
        """Return None: a setting has no task."""
        return None

    def may_be_repeated(self, step: HostStep, sent: Inventory) -> bool:
        """Return False: if the first request arrived late, it would undo what another user set after the second."""
        return False

    def not_shown_reason(self, step: HostStep) -> str:
        """Return the reason for a setting that the host accepted and does not show."""
        return "the host reported success, and does not show the setting"
