"""Host doer: steps of hosts, from the last look to the read-back, several hosts at once.

look -> already done? -> is it ours? -> intent on disk -> send -> wait -> look again -> outcome on disk. The state
decides, not the reply. A reboot is over when the host shows another boot time, and is never asked for twice while a
first one may still be on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.errors import GpuopsError, Locked, NotConnected, OutcomeUnknown, Refused
from gpuops.execute.change.history import History, history_of
from gpuops.execute.change.present import ids_now, intents_now
from gpuops.execute.host_port import Hosts
from gpuops.execute.journal import IntentState, Journal, Run
from gpuops.execute.lease import Held
from gpuops.execute.port import Vcenter
from gpuops.execute.step_json import dump_step
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.task import TaskEnd, TaskRef
from gpuops.plan.core.step_checks import host_objection, host_satisfied
from gpuops.plan.core.steps import EnterMaintenance, HostStep, HostTask, RebootHost
from gpuops.plan.hosts.change.in_force import task_satisfied

SLICE_S: Final = 20.0
"""How often the lease is looked after while something is waited for."""

GRACE_S: Final = 60.0
"""A task ends by itself within the time it was given, and so much."""

TASK_S: Final = 900.0
GOING_DOWN_S: Final = 300.0
"""A host that was asked to reboot, as far as anybody knows, goes down within so long, or was not asked."""

BACK_S: Final = 3600.0
"""A server with much memory and many GPUs boots for a quarter of an hour or more; after an hour it does not."""

GONE: Final = "is gone from vCenter"
UNCONNECTED: Final = "is not connected"

Failures = dict[str, str]
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
        uuids: Mapping[str, str] | None = None,
    ) -> None:
        self.vcenter = vcenter
        self.hosts = hosts
        self.journal = journal
        self.run = run
        self.lease = lease
        self._passed_s = passed_s
        self.inventory = vcenter.inventory()
        mine = journal.book.runs[run.id]
        self.ids = ids_now(uuids or {}, mine.intents.values(), self.inventory)
        """The ids that hosts and VMs of the change have now, where the journal knows them by others."""

    def history(self) -> History:
        """What the journal says has happened so far in this run."""
        mine = self.journal.book.runs[self.run.id]
        given_up = frozenset(self.ids.get(ref, ref) for ref in mine.given_up)
        return history_of(intents_now(mine.intents.values(), self.ids), given_up)

    def look(self) -> Inventory:
        """Reads everything anew: hosts, their GPUs and all VMs."""
        self.inventory = self.vcenter.inventory()
        return self.inventory

    def objection(self) -> str | None:
        """Why nothing more may be begun; None = it is ours."""
        return self.lease.objection() if self.lease is not None else None

    def _sends(self) -> None:
        if self.lease is not None:
            self.lease.sends()

    def tasks(self, steps: Sequence[HostTask]) -> Failures:
        """Has vCenter do these, one for each host, all at once. Raises NotConnected (the intents stay open).

        Only a reboot that was asked for before is waited for on a host that does not respond; nothing is asked of it.
        """
        self.look()
        against = {step.host: reason for step in steps if (reason := self._unreachable(step)) is not None}
        missing = [step for step in steps if step.host not in against and not self._is_satisfied(step)]
        return against | self._ended([self._sent(step) for step in missing])

    def asked_before(self, reboots: Iterable[RebootHost]) -> Failures:
        """Waits for reboots that were asked for before, and asks for none.

        One that vCenter shows nothing of did not come about: no failure. Raises NotConnected.
        """
        self.look()
        sent = []
        for step in reboots:
            op_id = self._open(step)
            if op_id is None or self._host(step) is None:
                continue
            task = self.hosts.adopt(step)
            if task is not None or self._comes_about(step):
                sent.append(_Sent(op_id, step, task))
            else:
                self.journal.settled(op_id, IntentState.FAILED, "it did not reach the host")
        return self._ended(sent)

    def _ended(self, sent: Sequence[_Sent]) -> Failures:
        """These waited for, and what vCenter shows then."""
        ends = self._wait([each.task for each in sent if each.task is not None], _limit_s([s.step for s in sent]))
        self._wait_for_boot({each.step.host: each.step for each in sent if _goes_on(each, ends)})
        self.look()
        found = {each.step.host: self._judged(each, ends) for each in sent}
        return {host: reason for host, reason in found.items() if reason is not None}

    def _host(self, step: HostStep | HostTask) -> Host | None:
        """The step's host at the latest look; None = it is gone from vCenter."""
        return self.inventory.hosts.get(step.host)

    def _is_satisfied(self, step: HostTask) -> bool:
        host = self._host(step)
        return host is not None and task_satisfied(step, host)

    def _unreachable(self, step: HostTask) -> str | None:
        """Why nothing can be asked of the step's host, nor waited for on it; None = it can."""
        host = self._host(step)
        if host is None:
            return GONE
        if host.connected is True or (isinstance(step, RebootHost) and self._open(step) is not None):
            return None
        return UNCONNECTED

    def set(self, step: HostStep) -> str | None:
        """Why the host is not set to this now; None = it is. Raises NotConnected, StateDamaged."""
        self.inventory = self.hosts.with_settings(self.inventory, [step.host])
        host = self._host(step)
        if host is None:
            return GONE
        if host_satisfied(step, host):
            return None
        reason = host_objection(step, host) or self.objection()
        if reason is not None:
            return reason
        op_id, error = self.journal.intend(self.run, step, self.inventory), None
        self._sends()
        try:
            self.hosts.configure(step, self.inventory, op_id)
        except NotConnected:
            raise
        except GpuopsError as raised:
            error = raised
        self.inventory = self.hosts.with_settings(self.inventory, [step.host])
        now = self._host(step)
        done = now is not None and host_satisfied(step, now)
        reason = None if done else error.line if error is not None else "the host called it done, and does not show it"
        return self._settled(op_id, reason, error)

    def rest(self, host: str, seconds: float) -> None:
        """Lets time pass, until the host boots once more at the most."""
        there = self.inventory.hosts.get(host)
        if there is not None:
            self._slices(seconds, lambda slice_s: self.hosts.wait_for_boot({host: there.booted}, slice_s))

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
        if self._host(step) is None:
            return _Sent(op_id, step, None, Refused(GONE))
        reason = self.objection()
        if reason is not None:
            return _Sent(op_id, step, None, Locked(reason))
        self._sends()
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
        intents = [each for each in intents_now(mine.intents.values(), self.ids) if each.step == body]
        return intents[-1].op_id if intents and intents[-1].state in _OPEN else None

    def _comes_about(self, step: HostTask) -> bool:
        """Whether a step that may have been asked for, and has no task, is seen: a reboot within a few minutes."""
        self.look()
        if self._is_satisfied(step):
            return True
        if not isinstance(step, RebootHost) or self._is_unconnected(step):
            return isinstance(step, RebootHost)
        left_s = GOING_DOWN_S - self._since_s(step)
        self._slices(left_s, lambda slice_s: self._is_down(step, slice_s))
        self.look()
        return self._is_unconnected(step) or self._is_satisfied(step)

    def _is_down(self, step: RebootHost, slice_s: float) -> bool:
        back = self.hosts.wait_for_boot({step.host: step.booted}, slice_s)
        self.look()
        return bool(back) or self._is_unconnected(step)

    def _is_unconnected(self, step: HostTask) -> bool:
        host = self._host(step)
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
            began_s, slice_s = self._passed_s(), min(SLICE_S, left_s)
            if ready(slice_s):
                return
            left_s -= max(slice_s, self._passed_s() - began_s)
            if self.lease is not None:
                self.lease.keep()

    def _judged(self, sent: _Sent, ends: Mapping[TaskRef, TaskEnd]) -> str | None:
        end = ends.get(sent.task) if sent.task is not None else None
        if self._is_satisfied(sent.step):
            return self._settled(sent.op_id, None, None)
        if self._host(sent.step) is None:
            return self._settled(sent.op_id, GONE, None)
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
