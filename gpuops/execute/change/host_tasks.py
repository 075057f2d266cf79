"""Tasks of hosts in a rolling change: maintenance mode and reboots, several hosts at once.

A reboot is over when the host shows another boot time, and is never asked for twice while a first one may still be on
its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from gpuops.errors import OutcomeUnknown
from gpuops.execute.change.current_ids import ids_now, intents_now
from gpuops.execute.change.history import History, history_of
from gpuops.execute.journal import IntentState, Journal, Run
from gpuops.execute.journal.step_json import dump_step
from gpuops.execute.lease.lease import HeldLease
from gpuops.execute.site.ports import Hosts, Vcenter
from gpuops.execute.steps.host_executor import GONE, HostExecutor
from gpuops.execute.steps.step_executor import SLICE_S, StepInFlight
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.steps import EnterMaintenance, HostTask, RebootHost
from gpuops.plan.hosts.change.in_force import task_satisfied

GRACE_S: Final = 60.0
"""A task ends by itself within the time it was given, and so much."""

TASK_S: Final = 900.0
GOING_DOWN_S: Final = 300.0
"""A host that was asked to reboot, as far as anybody knows, goes down within so long, or was not asked."""

BACK_S: Final = 3600.0
"""A server with much memory and many GPUs boots for a quarter of an hour or more; after an hour it does not."""

UNCONNECTED: Final = "is not connected"

Failures = dict[str, str]
"""By host, why its step was not done."""


_OPEN: Final = (IntentState.INTENT, IntentState.SUBMITTED, IntentState.UNKNOWN)


class HostTaskExecutor(HostExecutor[HostTask]):
    """Does tasks of hosts in one run."""

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
        """`uuids`: those of the hosts of the change, by the id they had when it was begun."""
        super().__init__(vcenter, hosts, journal, run, inventory, lease=lease, passed_s=passed_s)
        mine = journal.state.runs[run.id]
        self.ids = ids_now(uuids, mine.intents.values(), inventory)
        """The ids that hosts and VMs of the change have now, where the journal knows them by others."""

    def history(self) -> History:
        """What the journal says has happened so far in this run."""
        mine = self.journal.state.runs[self.run.id]
        given_up = frozenset(self.ids.get(ref, ref) for ref in mine.given_up)
        return history_of(intents_now(mine.intents.values(), self.ids), given_up)

    def look(self) -> Inventory:
        """Reads everything anew: hosts, their GPUs and all VMs."""
        self.inventory = self.vcenter.inventory()
        return self.inventory

    def tasks(self, steps: Sequence[HostTask]) -> Failures:
        """Has vCenter do these, one for each host, all at once, and looks at all when they have ended.

        Raises NotConnected (the intents stay open).
        Only a reboot that was asked for before is waited for on a host that does not respond; nothing is asked of it.
        """
        self.look()
        against = {step.host: reason for step in steps if (reason := self._unreachable(step)) is not None}
        missing = [step for step in steps if step.host not in against and not self.is_done(step)]
        return against | self._ended([self._begun(step) for step in missing])

    def wait_for_sent(self, reboots: Iterable[RebootHost]) -> Failures:
        """Waits for reboots that were asked for before, and asks for none.

        One that vCenter shows nothing of did not come about: no failure. Raises NotConnected.
        """
        self.look()
        sent = []
        for step in reboots:
            op_id = self._open(step)
            if op_id is None or self.host(step) is None:
                continue
            under_way = self._under_way(op_id, step)
            if under_way is not None:
                sent.append(under_way)
            else:
                self.journal.record_outcome(op_id, IntentState.FAILED, "it did not reach the host")
        return self._ended(sent)

    def rest(self, host: str, seconds: float) -> None:
        """Lets time pass, until the host boots once more at the most."""
        there = self.inventory.hosts.get(host)
        if there is not None:
            self._slices(seconds, lambda slice_s: self.hosts.wait_for_boot({host: there.booted}, slice_s))

    # how a task is looked at, judged and sent

    def read_back(self, step: HostTask) -> None:
        """Reads everything anew."""
        self.look()

    def is_done(self, step: HostTask) -> bool:
        """Whether the latest look shows the host as the task leaves it."""
        host = self.host(step)
        return host is not None and task_satisfied(step, host)

    def against(self, step: HostTask, host: Host) -> str | None:
        """None: whether the host can be asked was seen when the task was begun."""
        return None

    def request(self, step: HostTask, op_id: str) -> TaskRef:
        """Has vCenter make the task."""
        return self.hosts.submit(step, self.inventory, op_id)

    def find_task(self, step: HostTask, since: datetime) -> TaskRef | None:
        """A task of this kind that runs on the host now, whoever asked for it."""
        return self.hosts.find_task(step)

    def twice_is_once(self, step: HostTask, sent: Inventory) -> bool:
        """True: of a host without VMs nothing more is asked by the second request."""
        return True

    def comes_about(self, step: HostTask, *, repeated: bool) -> bool:
        """Whether a reboot goes on: the host goes down, or was asked twice and may still do so."""
        return isinstance(step, RebootHost) and (repeated or self._goes_down(step))

    def not_shown(self, step: HostTask) -> str:
        """What is said of a task that succeeded, or is not seen to end, and shows no effect."""
        if isinstance(step, RebootHost):
            return f"it did not come back within {BACK_S / 60:.0f} min of its reboot"
        return super().not_shown(step)

    # several at once

    def _begun(self, step: HostTask) -> Outcome[HostTask] | StepInFlight[HostTask]:
        """The step under way: as a run that was cut off left it, or sent now."""
        op_id = self._open(step)
        if op_id is None:
            return self.begin(step)
        return self._under_way(op_id, step) or self.submit(op_id, step, self.inventory)

    def _under_way(self, op_id: str, step: HostTask) -> StepInFlight[HostTask] | None:
        """The step as a run that was cut off left it; None = nothing is seen of it."""
        task = self.hosts.find_task(step)
        if task is None:
            self.look()
            if not self.is_done(step) and not self._goes_down(step):
                return None
        return StepInFlight(op_id, step, task, self.inventory.taken_at)

    def _ended(self, begun: Sequence[Outcome[HostTask] | StepInFlight[HostTask]]) -> Failures:
        """These waited for, and what vCenter shows then."""
        sent = [each for each in begun if isinstance(each, StepInFlight)]
        ends = self._wait([each.task for each in sent if each.task is not None], _limit_s([s.step for s in sent]))
        self._wait_for_boot({each.step.host: each.step for each in sent if _goes_on(each, ends)})
        self.look()
        ended = [self._judged(each, ends) if isinstance(each, StepInFlight) else each for each in begun]
        return {each.step.host: each.reason for each in ended if each.verdict not in (Verdict.DONE, Verdict.ALREADY)}

    def _judged(self, sent: StepInFlight[HostTask], ends: Mapping[TaskRef, TaskEnd]) -> Outcome[HostTask]:
        end = ends.get(sent.task) if sent.task is not None else None
        if self.host(sent.step) is None:
            return self.settle(sent.op_id, Outcome(sent.step, Verdict.UNKNOWN, GONE))
        return self.finish(sent, end) if end is not None else self.judge(sent.op_id, sent.step, sent.since)

    def _unreachable(self, step: HostTask) -> str | None:
        """Why nothing can be asked of the step's host, nor waited for on it; None = it can."""
        host = self.host(step)
        if host is None:
            return GONE
        if host.connected is True or (isinstance(step, RebootHost) and self._open(step) is not None):
            return None
        return UNCONNECTED

    def _open(self, step: HostTask) -> str | None:
        """The op id of this very step, if a run that was cut off intended it and nobody saw its end."""
        mine, body = self.journal.state.runs[self.run.id], dump_step(step)
        intents = [each for each in intents_now(mine.intents.values(), self.ids) if each.step == body]
        return intents[-1].op_id if intents and intents[-1].state in _OPEN else None

    def _goes_down(self, step: HostTask) -> bool:
        """Whether a reboot that may have been asked for is seen within a few minutes, or is over."""
        if not isinstance(step, RebootHost):
            return False
        if not self._is_unconnected(step):
            left_s = GOING_DOWN_S - self._since_s(step)
            self._slices(left_s, lambda slice_s: self._is_down(step, slice_s))
            self.look()
        return self._is_unconnected(step) or self.is_done(step)

    def _is_down(self, step: RebootHost, slice_s: float) -> bool:
        back = self.hosts.wait_for_boot({step.host: step.booted}, slice_s)
        self.look()
        return bool(back) or self._is_unconnected(step)

    def _is_unconnected(self, step: HostTask) -> bool:
        host = self.host(step)
        return host is None or host.connected is not True

    def _since_s(self, step: RebootHost) -> float:
        """How long ago the reboot was asked for, by vCenter's clock; 0 = it is asked for just now."""
        asked = self.history().asked.get(step.host)
        return (self.inventory.taken_at - asked).total_seconds() if asked is not None else 0.0

    def _wait(self, tasks: Sequence[TaskRef], limit_s: float) -> dict[TaskRef, TaskEnd]:
        ends: dict[TaskRef, TaskEnd] = {}
        left = list(tasks)

        def ended(slice_s: float) -> bool:
            for end in self.vcenter.wait(list(left), slice_s):
                ends[end.task] = end
                left.remove(end.task)
            return not left

        if left:
            self._slices(limit_s, ended)
        return ends

    def _wait_for_boot(self, tasks: Mapping[str, HostTask]) -> None:
        """Until all are back; an hour from when the reboot was asked for, however often somebody goes on with it."""
        reboots = [step for step in tasks.values() if isinstance(step, RebootHost)]
        left = {step.host: step.booted for step in reboots}
        limit_s = max((BACK_S - self._since_s(step) for step in reboots), default=0.0)

        def back(slice_s: float) -> bool:
            for ref in self.hosts.wait_for_boot(left, slice_s):
                del left[ref]
            return not left

        if left:
            self._slices(limit_s, back)

    def _slices(self, limit_s: float, ready: Callable[[float], object]) -> None:
        """Waits until it is ready, a slice at a time, and keeps the lease meanwhile."""
        left_s = limit_s
        while left_s > 0:
            began_s, slice_s = self.passed_s(), min(SLICE_S, left_s)
            if ready(slice_s):
                return
            left_s -= max(slice_s, self.passed_s() - began_s)
            if self.lease is not None:
                self.lease.keep()


def _goes_on(sent: StepInFlight[HostTask], ends: Mapping[TaskRef, TaskEnd]) -> bool:
    """Whether the step may still come about: nothing said for certain that it does not."""
    end = ends.get(sent.task) if sent.task is not None else None
    return end is None or end.error is None or isinstance(end.error, OutcomeUnknown)


def _limit_s(steps: Sequence[HostTask]) -> float:
    return max([TASK_S, *(step.limit_s + GRACE_S for step in steps if isinstance(step, EnterMaintenance))])
