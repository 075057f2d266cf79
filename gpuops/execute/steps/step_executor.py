"""Executes one step, from the last look to the read-back: the part that is the same for every kind of step.

look -> already done? -> anything against it? -> intent on disk -> send -> (wait) -> look again -> outcome on disk.

`VmExecutor` (steps of VMs), `SettingExecutor` (settings of hosts), `HostTaskExecutor` (maintenance mode and reboots)
and `VcenterSettingExecutor` (custom attributes and roles) define how their steps are read, judged and sent. The order,
and the meaning of a reply, are decided here alone.

A request whose reply was lost is never simply sent again: first gpuops looks for its task, then it reads the state.
Only when vCenter shows neither is the request sent once more, and only if two requests have the same effect as one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, TypeVar

from gpuops import clock
from gpuops.errors import GpuopsError, LoginRefused, NotConnected, OutcomeUnknown, Trouble
from gpuops.execute.journal import IntentState, Journal, Run
from gpuops.execute.site.ports import Vcenter
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.steps import AnyStep, HostStep, HostTask, RunClusterProgram, Step, VcenterSetting

SLICE_S: Final = 20.0
"""The longest wait without an update: how often the lease and the time limits of steps in flight are checked."""

STARTED_BY_OTHERS: Final = "another user started it just before"

FOUND_DONE: Final = "found done after the run was cut off"
NOT_REACHED: Final = "it did not reach vCenter before the run was cut off"

STATES: Final = {
    Verdict.DONE: IntentState.DONE,
    Verdict.ALREADY: IntentState.FAILED,  # another user did it: gpuops must not undo it
    Verdict.FAILED: IntentState.FAILED,
    Verdict.SKIPPED: IntentState.FAILED,
    Verdict.UNKNOWN: IntentState.UNKNOWN,
}
"""The state of an intent in the journal for each verdict."""

Kind = TypeVar("Kind", bound=Step | HostStep | HostTask | VcenterSetting | RunClusterProgram)


@dataclass(frozen=True, slots=True)
class StepInFlight(Generic[AnyStep]):
    """A step that was sent and has not ended as far as gpuops knows. `task` is None for a step without a task."""

    op_id: str
    step: AnyStep
    task: TaskRef | None
    since: datetime
    """vCenter's time of the last look before the step was sent."""
    answered: bool = False
    """Whether vCenter has answered that it is done, and only the look at the result is missing."""


class StepExecutor(ABC, Generic[Kind]):
    """Sends the steps of one run and returns their outcomes. `inventory` is the latest look."""

    def __init__(
        self,
        vcenter: Vcenter,
        journal: Journal,
        run: Run,
        inventory: Inventory,
        *,
        passed_s: Callable[[], float] = clock.passed_s,
    ) -> None:
        """`passed_s` is a monotonic clock: it returns seconds since some moment."""
        self.vcenter = vcenter
        self.journal = journal
        self.run = run
        self.inventory = inventory
        self.passed_s = passed_s
        self._sent_once: set[str] = set()
        """Op ids of requests that this run sent exactly once: the state that they met was there before them."""

    # what each kind of step defines

    def refreshed(self, step: Kind) -> Kind:
        """Read again what is too old to judge the step by. Return the step, adapted to the latest look."""
        return step

    @abstractmethod
    def read_back(self, step: Kind) -> None:
        """Read the step's VM or host again."""

    @abstractmethod
    def is_done(self, step: Kind) -> bool:
        """Return whether the latest look shows the effect of the step."""

    @abstractmethod
    def objection(self, step: Kind) -> str | None:
        """Return why the step must not be sent, by the latest look, or None."""

    @abstractmethod
    def last_objection(self, step: Kind, judged: Inventory) -> str | None:
        """Judge again just before sending, with the intent on disk: writing it may have taken a while.

        `judged` is the look that `objection` was judged by.
        """

    @abstractmethod
    def send(self, step: Kind, op_id: str) -> TaskRef | None:
        """Send the request and return its task, or None if it has no task. Raises OutcomeUnknown when the reply was
        lost."""

    @abstractmethod
    def find_task(self, step: Kind, since: datetime) -> TaskRef | None:
        """Return the task of a request whose reply was lost, or None if vCenter shows no such task."""

    @abstractmethod
    def may_be_repeated(self, step: Kind, sent: Inventory) -> bool:
        """Return whether a second request and a late arrival of the first have the same effect as one request.

        `sent` is the snapshot that the first request was based on.
        """

    def already_done(self, step: Kind) -> Outcome[Kind]:
        """Return the outcome of a step whose effect is there before it is sent."""
        return Outcome(step, Verdict.ALREADY)

    def too_late_reason(self, step: Kind, sent: Inventory) -> str | None:
        """Return why a step that is not done can no longer take effect, or None if it still may."""
        return None

    def ends_later(self, step: Kind) -> bool:
        """Return whether a request without a task is still at work when its reply arrives."""
        return False

    def is_judged_later(self, step: Kind) -> bool:
        """Return whether an answered request without a task is judged by the caller's next look, not at once."""
        return False

    def is_seen_at_work(self, step: Kind, *, repeated: bool) -> bool:
        """Return whether a step without a task, whose reply was lost, is in progress. `repeated`: it was sent twice."""
        return False

    def has_taken_effect(self, step: Kind, *, lagging: bool) -> bool:
        """Return whether the step's effect is there. `lagging`: vCenter called the step done, and may show it a while
        later."""
        return self.is_done(step)

    def is_the_only_request(self, op_id: str, step: Kind) -> bool:
        """Return whether no earlier request of ours may have arrived, for a step that another user may request too."""
        return False

    def is_by_others(self, in_flight: StepInFlight[Kind], error: GpuopsError | None) -> bool:
        """Return whether the effect is another user's, judged by the end of the step's task."""
        return False

    def keep_refusal(self, op_id: str, step: Kind, refused: GpuopsError) -> None:
        """Write a refusal to the journal when the VM or host cannot be read, and its state alone would not show it."""

    def not_shown_reason(self, step: Kind) -> str:
        """Return the reason for a step that vCenter reported as done and whose effect it does not show."""
        return "vCenter reported success, and does not show the effect"

    # one step

    def begin(self, step: Kind) -> Outcome[Kind] | StepInFlight[Kind]:
        """Send the step, unless it is already done or must not be done now, by the latest look.

        Raises NotConnected (the intent stays open, for `resume`) and StateDamaged (nothing was sent).
        """
        step = self.refreshed(step)
        if self.is_done(step):
            return self.already_done(step)
        judged, reason = self.inventory, self.objection(step)
        if reason is not None:
            return Outcome(step, Verdict.SKIPPED, reason)
        op_id = self.intend(step)
        self._sent_once.add(op_id)
        return self.submit(op_id, step, judged)

    def intend(self, step: Kind) -> str:
        """Write the intent to disk and return its op id."""
        return self.journal.intend(self.run, step, self.inventory)

    def submit(
        self,
        op_id: str,
        step: Kind,
        judged: Inventory,
        *,
        first_snapshot: Inventory | None = None,
        logged_in: bool = False,
    ) -> Outcome[Kind] | StepInFlight[Kind]:
        """Send a step whose intent is on disk.

        `judged` is the look that `objection` was judged by. `first_snapshot`: for a second request, the snapshot that
        the first one was based on. `logged_in`: gpuops has already logged in again for this request, and does so once.
        """
        reason = self.last_objection(step, judged)
        if reason is not None:
            return self._settle_withheld(op_id, step, reason, sent_before=first_snapshot is not None)
        since = (first_snapshot or self.inventory).taken_at
        try:
            task = self.send(step, op_id)
        except OutcomeUnknown as lost:
            return self._resolve_lost_reply(
                op_id, step, first_snapshot or self.inventory, str(lost), may_repeat=first_snapshot is None
            )
        except LoginRefused as ended:
            # The session ended. vCenter reports that before it does anything, and the next read logs in again.
            if logged_in:
                self.keep_refusal(op_id, step, ended)
                raise
            self._look_after_refusal(op_id, step, ended)
            return self.submit(op_id, step, judged, first_snapshot=first_snapshot, logged_in=True)
        except NotConnected:
            raise
        except GpuopsError as refused:
            # vCenter may refuse a second request because the first one arrived after all and is at work
            late_task = self.find_task(step, since) if first_snapshot is not None else None
            if late_task is None:
                self._look_after_refusal(op_id, step, refused)
                # vCenter refused this request: if it was our only one, an effect that is there is another user's
                return self.judge(op_id, step, since, refused, by_others=self.is_the_only_request(op_id, step))
            task = late_task
        if task is not None:
            return self._note_task(op_id, step, task, since)
        return self._handle_answer(op_id, step, since)

    def _handle_answer(self, op_id: str, step: Kind, since: datetime) -> Outcome[Kind] | StepInFlight[Kind]:
        """Return the outcome of a request that was answered without a task, or the step in flight."""
        if self.ends_later(step):
            return StepInFlight(op_id, step, None, since)
        if self.is_judged_later(step):
            return StepInFlight(op_id, step, None, since, answered=True)
        self.read_back(step)
        return self.judge(op_id, step, since)

    def _note_task(self, op_id: str, step: Kind, task: TaskRef, since: datetime) -> StepInFlight[Kind]:
        """Write the task to the journal, unless it is another user's, and return the step in flight."""
        if not task.foreign:
            self.journal.record_task(op_id, task.ref)
        return StepInFlight(op_id, step, task, since)

    def _look_after_refusal(self, op_id: str, step: Kind, refused: GpuopsError) -> None:
        """Read the VM or host again after vCenter refused a request. Raises NotConnected."""
        try:
            self.read_back(step)
        except NotConnected:
            self.keep_refusal(op_id, step, refused)
            raise

    def _resolve_lost_reply(
        self, op_id: str, step: Kind, sent: Inventory, why: str, *, may_repeat: bool
    ) -> Outcome[Kind] | StepInFlight[Kind]:
        """Return what happened to a request whose reply was lost.

        Looks for its task, then for its effect; else sends it once more if that is safe, or settles it as unknown.
        `sent` is the snapshot that the request was based on.
        """
        task = self.find_task(step, sent.taken_at)
        if task is not None:
            return self._note_task(op_id, step, task, sent.taken_at)
        self.read_back(step)
        if self.is_done(step):
            return self.found_done(op_id, step, sent.taken_at, "the reply was lost; found done")
        if self.is_seen_at_work(step, repeated=not may_repeat):
            return StepInFlight(op_id, step, None, sent.taken_at)
        reason = self.too_late_reason(step, sent)
        if reason is not None:
            return self.settle(op_id, Outcome(step, Verdict.FAILED, reason))
        if may_repeat and self.may_be_repeated(step, sent):
            self._sent_once.discard(op_id)
            return self.submit(op_id, step, sent, first_snapshot=sent)
        return self._settle_lost(op_id, step, f"{why}; vCenter shows neither task nor effect")

    def _settle_withheld(self, op_id: str, step: Kind, reason: str, *, sent_before: bool) -> Outcome[Kind]:
        """Settle a step that is not sent, or not sent a second time."""
        if sent_before:
            return self._settle_lost(op_id, step, f"the reply was lost; not sent again: {reason}")
        return self.settle(op_id, Outcome(step, Verdict.FAILED, reason), counts=False)

    def _settle_lost(self, op_id: str, step: Kind, reason: str) -> Outcome[Kind]:
        """Settle a step whose reply was lost and whose request may still arrive."""
        return self.settle(op_id, Outcome(step, Verdict.UNKNOWN, reason, trouble=Trouble.LOST))

    def finish(self, in_flight: StepInFlight[Kind], end: TaskEnd) -> Outcome[Kind]:
        """Return the outcome of a step whose task ended. Needs a look after the end."""
        by_others = self.is_by_others(in_flight, end.error)
        return self.judge(
            in_flight.op_id, in_flight.step, in_flight.since, end.error, end.duration_s, by_others=by_others
        )

    def found_done(
        self, op_id: str, step: Kind, since: datetime, reason: str, duration_s: float | None = None
    ) -> Outcome[Kind]:
        """Settle a step that is known to be done only from its effect."""
        return self.settle(op_id, Outcome(step, Verdict.DONE, reason, duration_s))

    def started_by_others(self, op_id: str, step: Kind) -> Outcome[Kind]:
        """Settle a step that another user requested just before."""
        return self.settle(op_id, Outcome(step, Verdict.ALREADY, STARTED_BY_OTHERS), counts=False)

    def judge(
        self,
        op_id: str,
        step: Kind,
        since: datetime,
        error: GpuopsError | None = None,
        duration_s: float | None = None,
        *,
        by_others: bool = False,
    ) -> Outcome[Kind]:
        """Judge the step by the state, not by the reply.

        If the effect is there, the step is done, whatever vCenter replied. A success without the effect proves nothing.
        `by_others`: another user caused the effect, whether or not it is visible yet.
        """
        in_effect = self.has_taken_effect(step, lagging=error is None)
        if by_others and (in_effect or error is None):
            return self.started_by_others(op_id, step)
        if in_effect and error is not None:
            return self.found_done(op_id, step, since, "", duration_s)
        if in_effect:
            return self.settle(op_id, Outcome(step, Verdict.DONE, "", duration_s))
        if error is not None:
            verdict = Verdict.UNKNOWN if isinstance(error, OutcomeUnknown) else Verdict.FAILED
            return self.settle(op_id, Outcome(step, verdict, error.line, duration_s, error.trouble, error.code))
        return self.settle(op_id, Outcome(step, Verdict.UNKNOWN, self.not_shown_reason(step), duration_s))

    def settle(self, op_id: str, outcome: Outcome[Kind], *, counts: bool = True) -> Outcome[Kind]:
        """Write the outcome to the journal and return it. `counts` is False if the step was never sent to vCenter.

        Only nights count steps, and they have only steps of VMs: see `VmExecutor`.
        """
        self.journal.record_outcome(op_id, STATES[outcome.verdict], outcome.reason)
        return outcome

    # waiting

    def keep_lease(self) -> None:
        """Renew the lease of the run while it waits. A run without a lease has nothing to do."""

    def wait_until(self, ready: Callable[[float], object], limit_s: float) -> None:
        """Wait until `ready` returns true, at most `limit_s`, a slice at a time, and renew the lease meanwhile.

        `ready` waits for the seconds that it is given. A slice without success counts at least in full: if the clock
        stands still meanwhile, the limit must not become longer.
        """
        remaining_s = limit_s
        while remaining_s > 0:
            began_s, slice_s = self.passed_s(), min(SLICE_S, remaining_s)
            if ready(slice_s):
                return
            remaining_s -= max(slice_s, self.passed_s() - began_s)
            self.keep_lease()

    def wait_for_tasks(self, tasks: Collection[TaskRef], limit_s: float) -> dict[TaskRef, TaskEnd]:
        """Return the ends of the tasks that end within the limit, by task."""
        ends: dict[TaskRef, TaskEnd] = {}

        def have_all_ended(slice_s: float) -> bool:
            for end in self.vcenter.wait([task for task in tasks if task not in ends], slice_s):
                ends[end.task] = end
            return len(ends) == len(tasks)

        if tasks:
            self.wait_until(have_all_ended, limit_s)
        return ends

    def settle_cut_off(self, op_id: str, step: Kind) -> Outcome[Kind]:
        """Settle a step without a task that a killed run left open, by what vCenter shows now. Sends nothing."""
        self.read_back(step)
        if self.is_done(step):
            return self.found_done(op_id, step, self.inventory.taken_at, FOUND_DONE)
        return self.settle(op_id, Outcome(step, Verdict.FAILED, NOT_REACHED), counts=False)
