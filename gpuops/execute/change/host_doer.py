"""Host doer: steps of hosts, from the last look to the read-back, several hosts at once.

look -> already done? -> is it ours? -> intent on disk -> send -> wait -> look again -> outcome on disk. The state
decides, not the reply. A reboot is over when the host shows another boot time, and is never asked for twice while a
first one may still be on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.errors import GpuopsError, Locked, NotConnected, OutcomeUnknown
from gpuops.execute.host_port import Hosts
from gpuops.execute.journal import IntentState, Journal, Run
from gpuops.execute.lease import Held
from gpuops.execute.port import Vcenter
from gpuops.execute.step_json import dump_step
from gpuops.model.inventory import Inventory
from gpuops.model.task import TaskEnd, TaskRef
from gpuops.plan.change.in_force import task_satisfied
from gpuops.plan.host_state import host_hindrance, host_satisfied
from gpuops.plan.steps import EnterMaintenance, HostStep, HostTask, RebootHost

SLICE_S: Final = 20.0
"""How often the lease is looked after while something is waited for."""

GRACE_S: Final = 60.0
"""A task ends by itself within the time it was given, and so much."""

TASK_S: Final = 900.0
GOING_DOWN_S: Final = 300.0
"""A host that was asked to reboot, as far as anybody knows, goes down within so long, or was not asked."""

BACK_S: Final = 3600.0
"""A server with much memory and many GPUs boots for a quarter of an hour or more; after an hour it does not."""

Failures = Mapping[str, str]
"""By host, why its step was not done."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """A step that was sent, or was found in flight."""

    op_id: str
    step: HostTask
    task: TaskRef | None
    error: GpuopsError | None = None


class HostDoer:
    """Does steps of hosts in one run. `inventory` is the latest look."""

    def __init__(
        self,
        vcenter: Vcenter,
        hosts: Hosts,
        journal: Journal,
        run: Run,
        lease: Held | None,
        passed_s: Callable[[], float],
    ) -> None:
        self.vcenter = vcenter
        self.hosts = hosts
        self.journal = journal
        self.run = run
        self.lease = lease
        self._passed_s = passed_s
        self.inventory = vcenter.inventory()

    def look(self) -> Inventory:
        """Reads everything anew: hosts, their GPUs and all VMs."""
        self.inventory = self.vcenter.inventory()
        return self.inventory

    def objection(self) -> str | None:
        """Why nothing more may be begun; None = it is ours."""
        return self.lease.objection() if self.lease is not None else None

    def tasks(self, steps: Sequence[HostTask]) -> Failures:
        """Has vCenter do these, one for each host, all at once. Raises NotConnected (the intents stay open)."""
        self.look()
        missing = [step for step in steps if not task_satisfied(step, self.inventory.hosts[step.host])]
        sent = [self._sent(step) for step in missing]
        ends = self._wait([each.task for each in sent if each.task is not None], _limit_s(missing))
        self._wait_for_boot({each.step.host: each.step for each in sent if _goes_on(each, ends)})
        self.look()
        found = [self._judged(each, ends) for each in sent]
        return {step.host: reason for step, reason in zip(missing, found, strict=True) if reason is not None}

    def set(self, step: HostStep) -> str | None:
        """Why the host is not set to this now; None = it is. Raises NotConnected, StateDamaged."""
        self.inventory = self.hosts.with_settings(self.inventory, [step.host])
        host = self.inventory.hosts[step.host]
        if host_satisfied(step, host):
            return None
        reason = host_hindrance(step, host) or self.objection()
        if reason is not None:
            return reason
        op_id, error = self.journal.intend(self.run, step, self.inventory), None
        try:
            self.hosts.configure(step, self.inventory, op_id)
        except NotConnected:
            raise
        except GpuopsError as raised:
            error = raised
        self.inventory = self.hosts.with_settings(self.inventory, [step.host])
        done = host_satisfied(step, self.inventory.hosts[step.host])
        reason = None if done else error.line if error is not None else "the host called it done, and does not show it"
        return self._settled(op_id, reason, error)

    def rest(self, host: str, seconds: float) -> None:
        """Lets time pass, until the host boots once more at the most."""
        self._slices(seconds, lambda slice_s: self.hosts.wait_for_boot(
            {host: self.inventory.hosts[host].booted}, slice_s
        ))  # fmt: skip

    def _sent(self, step: HostTask) -> _Sent:
        """The step under way: as a run that was cut off left it, or sent now."""
        before = self._open(step)
        if before is not None:
            task = self.hosts.adopt(step)
            if task is not None or self._comes_about(step):
                return _Sent(before, step, task)
        op_id = before or self.journal.intend(self.run, step, self.inventory)
        return self._submitted(op_id, step, may_repeat=True)

    def _submitted(self, op_id: str, step: HostTask, *, may_repeat: bool) -> _Sent:
        """Sent; once more where the reply was lost and nothing comes about: for a host without VMs twice is once."""
        reason = self.objection()
        if reason is not None:
            return _Sent(op_id, step, None, Locked(reason))
        try:
            task = self.hosts.submit(step, self.inventory, op_id)
        except OutcomeUnknown as lost:
            found = self.hosts.adopt(step)
            if found is not None or self._comes_about(step) or not may_repeat:
                return _Sent(op_id, step, found, lost)
            return self._submitted(op_id, step, may_repeat=False)
        except NotConnected:
            raise
        except GpuopsError as error:
            return _Sent(op_id, step, None, error)
        self.journal.submitted(op_id, task.ref)
        return _Sent(op_id, step, task)

    def _open(self, step: HostTask) -> str | None:
        """The op id of this very step, if a run that was cut off intended it and nobody saw its end."""
        mine, body = self.journal.book.runs[self.run.id], dump_step(step)
        intents = [each for each in mine.intents.values() if each.step == body]
        return intents[-1].op_id if intents and intents[-1].state in _OPEN else None

    def _comes_about(self, step: HostTask) -> bool:
        """Whether a step that may have been asked for, and has no task, is seen: a reboot within a few minutes."""
        host = self.look().hosts[step.host]
        if task_satisfied(step, host):
            return True
        if not isinstance(step, RebootHost) or host.connected is not True:
            return isinstance(step, RebootHost)
        self._slices(GOING_DOWN_S, lambda slice_s: self._is_down(step, slice_s))
        host = self.look().hosts[step.host]
        return host.connected is not True or task_satisfied(step, host)

    def _is_down(self, step: RebootHost, slice_s: float) -> bool:
        back = self.hosts.wait_for_boot({step.host: step.booted}, slice_s)
        return bool(back) or self.look().hosts[step.host].connected is not True

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
        left = {ref: step.booted for ref, step in tasks.items() if isinstance(step, RebootHost)}

        def back(slice_s: float) -> bool:
            for ref in self.hosts.wait_for_boot(left, slice_s):
                del left[ref]
            return not left

        if left:
            self._slices(BACK_S, back)

    def _slices(self, limit_s: float, ready: Callable[[float], object]) -> None:
        """Waits until it is ready, a slice at a time, and keeps the lease meanwhile."""
        left_s = limit_s
        while left_s > 0:
            began_s, slice_s = self._passed_s(), min(SLICE_S, left_s)
            if ready(slice_s):
                return
            left_s -= max(slice_s, self._passed_s() - began_s)
            if self.lease is not None:
                self.lease.keep()

    def _judged(self, sent: _Sent, ends: Mapping[TaskRef, TaskEnd]) -> str | None:
        end = ends.get(sent.task) if sent.task is not None else None
        if task_satisfied(sent.step, self.inventory.hosts[sent.step.host]):
            return self._settled(sent.op_id, None, None)
        error = end.error if end is not None else sent.error
        reason = error.line if error is not None else next(_why(sent.step))
        return self._settled(sent.op_id, reason, error)

    def _settled(self, op_id: str, reason: str | None, error: GpuopsError | None) -> str | None:
        """The reason, once it is in the journal."""
        unknown = reason is not None and (error is None or isinstance(error, OutcomeUnknown))
        state = IntentState.DONE if reason is None else IntentState.UNKNOWN if unknown else IntentState.FAILED
        self.journal.settled(op_id, state, reason or "")
        return reason


_OPEN: Final = (IntentState.INTENT, IntentState.SUBMITTED, IntentState.UNKNOWN)


def _goes_on(sent: _Sent, ends: Mapping[TaskRef, TaskEnd]) -> bool:
    """Whether the step may still come about: nothing said for certain that it does not."""
    end = ends.get(sent.task) if sent.task is not None else None
    error = end.error if end is not None else sent.error
    return error is None or isinstance(error, OutcomeUnknown)


def _limit_s(steps: Sequence[HostTask]) -> float:
    return max([TASK_S, *(step.limit_s + GRACE_S for step in steps if isinstance(step, EnterMaintenance))])


def _why(step: HostTask) -> Iterator[str]:
    if isinstance(step, RebootHost):
        yield f"it did not come back within {BACK_S / 60:.0f} min of its reboot"
    yield "vCenter called it done, and does not show it"
