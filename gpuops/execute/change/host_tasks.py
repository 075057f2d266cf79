"""Runs the tasks of hosts in a rolling change: maintenance mode and reboots, several hosts at once.

A reboot is over when the host shows another boot time. No second reboot is requested while the first may still happen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from gpuops.errors import OutcomeUnknown
from gpuops.execute.change.unfinished_change import History, history_of, ids_now, intents_now
from gpuops.execute.journal import Journal, Run
from gpuops.execute.journal.journal_reads import OPEN_STATES
from gpuops.execute.journal.record import load_step
from gpuops.execute.lease.lease import HeldLease
from gpuops.execute.site.ports import Hosts, Vcenter
from gpuops.execute.steps.host_executor import GONE, HostExecutor
from gpuops.execute.steps.step_executor import NOT_REACHED, StepInFlight
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.steps import EnterMaintenance, HostTask, RebootHost
from gpuops.plan.hosts.change.rolling_plan import task_satisfied

GRACE_S: Final = 60.0
"""A task ends within its own limit plus this time."""

TASK_LIMIT_S: Final = 900.0
"""The limit for a task that has no limit of its own."""
GOING_DOWN_S: Final = 300.0
"""A host goes down within this time if the request to reboot reached it."""

BACK_S: Final = 3600.0
"""The limit for a boot. A server with much memory and many GPUs takes a quarter of an hour or more."""

UNCONNECTED: Final = "is not connected"

Failures = dict[str, str]
"""Host (ref) -> the reason why its step was not done."""


class HostTaskExecutor(HostExecutor[HostTask]):
    """Runs tasks of hosts in one run."""

    def __init__(
        self,
        vcenter: Vcenter,
        hosts: Hosts,
        journal: Journal,
        run: Run,
        inventory: Inventory,
        *,
        lease: HeldLease | None,
        passed_s: Callable[[], float],
        uuids: Mapping[str, str],
    ) -> None:
        """`uuids`: the hardware uuids of the hosts of the change, by their ids at the start of the change."""
        super().__init__(vcenter, hosts, journal, run, inventory, lease=lease, passed_s=passed_s)
        open_run = journal.state.runs[run.id]
        self.ids = ids_now(uuids, open_run.intents.values(), inventory)
        """Current ids of hosts and VMs of the change, by their ids in the journal, where they differ."""

    def history(self) -> History:
        """Return the history of this run, as the journal holds it."""
        open_run = self.journal.state.runs[self.run.id]
        given_up = frozenset(self.ids.get(ref, ref) for ref in open_run.given_up)
        return history_of(intents_now(open_run.intents.values(), self.ids), given_up)

    def look(self) -> Inventory:
        """Read the inventory again (hosts, their GPUs and all VMs) and return it."""
        self.inventory = self.vcenter.inventory()
        return self.inventory

    def tasks(self, steps: Sequence[HostTask]) -> Failures:
        """Start these tasks, one for each host, all at once, wait for them, and return the failures.

        Raises NotConnected (the intents stay open). A host that does not respond gets no request.
        """
        self.look()
        refusals = {step.host: reason for step in steps if (reason := self._why_unreachable(step)) is not None}
        missing = [step for step in steps if step.host not in refusals and not self.is_done(step)]
        return refusals | self._wait_for_tasks([self.begin(step) for step in missing])

    def open_tasks(self) -> list[HostTask]:
        """Return the tasks that an interrupted run intended and whose end is not in the journal."""
        return [step for _, step in self._open_intents()]

    def settle_open(self) -> Failures:
        """Wait for the tasks that an interrupted run requested, without new requests. Return the failures by host ref.

        If vCenter does not show a task, it did not happen. That is not returned as a failure: the caller may request
        it again. Raises NotConnected.
        """
        intents, sent = self._open_intents(), []
        if intents:
            self.look()
        for op_id, step in intents:
            if self.host(step) is None:  # the host was removed from vCenter, so no look can settle the task
                continue
            in_flight = self._find_in_flight(op_id, step)
            if in_flight is not None:
                sent.append(in_flight)
            else:
                self.settle(op_id, Outcome(step, Verdict.FAILED, NOT_REACHED))
        return self._wait_for_tasks(sent) if sent else {}

    def wait_for_one_boot(self, host: str, seconds: float) -> None:
        """Wait for `seconds`, or until the host has booted again."""
        current_host = self.inventory.hosts.get(host)
        if current_host is not None:
            booted = {host: current_host.booted}
            self.wait_until(lambda slice_s: self.hosts.wait_for_boot(booted, slice_s), seconds)

    # how a task is read back, judged and requested

    def read_back(self, step: HostTask) -> None:
        """Read the inventory again."""
        self.look()

    def is_done(self, step: HostTask) -> bool:
        """Return whether the latest inventory shows the effect of the task on its host."""
        host = self.host(step)
        return host is not None and task_satisfied(step, host)

    def host_refusal(self, step: HostTask, host: Host) -> str | None:
        """Return None: `tasks` has already checked whether the host responds."""
        return None

    def request(self, step: HostTask, op_id: str) -> TaskRef:
        """Send the request and return its task."""
        return self.hosts.submit(step, self.inventory, op_id)

    def find_task(self, step: HostTask, since: datetime) -> TaskRef | None:
        """Return a task of this kind that runs on the host now, no matter who started it."""
        return self.hosts.find_task(step)

    def may_be_repeated(self, step: HostTask, sent: Inventory) -> bool:
        """Return True: on a host without VMs the second request has no further effect."""
        return True

    def is_seen_at_work(self, step: HostTask, *, repeated: bool) -> bool:
        """Return whether a reboot is going on: the host goes down, or was asked twice and may still do so."""
        return isinstance(step, RebootHost) and (repeated or self._goes_down(step))

    def not_shown_reason(self, step: HostTask) -> str:
        """Return the reason for a task that shows no effect, although it succeeded or was not seen to end."""
        if isinstance(step, RebootHost):
            return f"it did not come back within {BACK_S / 60:.0f} min of its reboot"
        return super().not_shown_reason(step)

    # several tasks at once

    def _find_in_flight(self, op_id: str, step: HostTask) -> StepInFlight[HostTask] | None:
        """Return the step in flight that an interrupted run sent, or None if vCenter does not show it."""
        task = self.hosts.find_task(step)
        if task is None:
            self.look()
            if not self.is_done(step) and not self._goes_down(step):
                return None
        return StepInFlight(op_id, step, task, self.inventory.taken_at)

    def _wait_for_tasks(self, started_tasks: Sequence[Outcome[HostTask] | StepInFlight[HostTask]]) -> Failures:
        """Wait for these tasks, read the inventory again, and return the reasons of failures by host ref."""
        in_flight = [begun for begun in started_tasks if isinstance(begun, StepInFlight)]
        tasks = [sent.task for sent in in_flight if sent.task is not None]
        ends = self.wait_for_tasks(tasks, _limit_s([sent.step for sent in in_flight]))
        self._wait_for_boots([sent.step for sent in in_flight if _may_take_effect(sent, ends)])
        self.look()
        outcomes = [
            self._judge_task(begun, ends) if isinstance(begun, StepInFlight) else begun for begun in started_tasks
        ]
        failures = [outcome for outcome in outcomes if outcome.verdict not in (Verdict.DONE, Verdict.ALREADY)]
        return {outcome.step.host: outcome.reason for outcome in failures}

    def _judge_task(self, sent: StepInFlight[HostTask], ends: Mapping[TaskRef, TaskEnd]) -> Outcome[HostTask]:
        end = ends.get(sent.task) if sent.task is not None else None
        if self.host(sent.step) is None:
            return self.settle(sent.op_id, Outcome(sent.step, Verdict.UNKNOWN, GONE))
        return self.finish(sent, end) if end is not None else self.judge(sent.op_id, sent.step, sent.since)

    def _why_unreachable(self, step: HostTask) -> str | None:
        """Return why the step's host cannot be used, or None."""
        host = self.host(step)
        if host is None:
            return GONE
        return None if host.connected is True else UNCONNECTED

    def _open_intents(self) -> list[tuple[str, HostTask]]:
        """Return the op id and the step of each task without a known outcome, with the current id of its host."""
        open_run = self.journal.state.runs[self.run.id]
        open_intents = [intent for intent in open_run.intents.values() if intent.state in OPEN_STATES]
        steps = [(intent.op_id, load_step(intent.step)) for intent in intents_now(open_intents, self.ids)]
        return [(op_id, step) for op_id, step in steps if isinstance(step, HostTask)]

    def _goes_down(self, step: HostTask) -> bool:
        """Return whether a reboot that may have been requested shows within a few minutes, or is over."""
        if not isinstance(step, RebootHost):
            return False
        if not self._is_unconnected(step):
            remaining_s = GOING_DOWN_S - self._age_of_request_s(step)
            self.wait_until(lambda slice_s: self._is_down(step, slice_s), remaining_s)
            self.look()
        return self._is_unconnected(step) or self.is_done(step)

    def _is_down(self, step: RebootHost, slice_s: float) -> bool:
        """Wait at most `slice_s`, and return whether the host went down meanwhile: it is away, or has booted again."""
        booted_hosts = self.hosts.wait_for_boot({step.host: step.booted}, slice_s)
        self.look()
        return bool(booted_hosts) or self._is_unconnected(step)

    def _is_unconnected(self, step: HostTask) -> bool:
        host = self.host(step)
        return host is None or host.connected is not True

    def _age_of_request_s(self, step: RebootHost) -> float:
        """Return how long ago the reboot was requested, by vCenter's clock; 0 if the request is only sent now."""
        requested_at = self.history().reboot_requested_at.get(step.host)
        return (self.inventory.taken_at - requested_at).total_seconds() if requested_at is not None else 0.0

    def _wait_for_boots(self, tasks: Sequence[HostTask]) -> None:
        """Wait until the hosts whose tasks are reboots are back, at most an hour from the request of the reboot.

        The hour also counts the time before an interrupted change was resumed.
        """
        reboots = [step for step in tasks if isinstance(step, RebootHost)]
        booted_before = {step.host: step.booted for step in reboots}
        limit_s = max((BACK_S - self._age_of_request_s(step) for step in reboots), default=0.0)

        def are_all_back(slice_s: float) -> bool:
            for ref in self.hosts.wait_for_boot(booted_before, slice_s):
                del booted_before[ref]
            return not booted_before

        if booted_before:
            self.wait_until(are_all_back, limit_s)


def _may_take_effect(sent: StepInFlight[HostTask], ends: Mapping[TaskRef, TaskEnd]) -> bool:
    """Return whether the step may still take effect: no error says for certain that it will not."""
    end = ends.get(sent.task) if sent.task is not None else None
    return end is None or end.error is None or isinstance(end.error, OutcomeUnknown)


def _limit_s(steps: Sequence[HostTask]) -> float:
    return max([TASK_LIMIT_S, *(step.limit_s + GRACE_S for step in steps if isinstance(step, EnterMaintenance))])
