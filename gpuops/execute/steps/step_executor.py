"""Executes one step, from the last look to the read-back: what is the same for every kind of step.

look -> already done? -> anything against it? -> intent on disk -> send -> (wait) -> look again -> outcome on disk.

`VmExecutor` (steps of VMs), `SettingExecutor` (settings of hosts) and `HostTaskExecutor` (maintenance mode and reboots)
say how a step of theirs is looked at, judged and sent; the order of it, and what a reply means, is decided here alone.

A request whose reply was lost is never sent again blind: first its task is looked for, then the state is read. Only
when vCenter shows neither is it sent once more, and only if twice would be the same as once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, TypeVar

from gpuops import clock
from gpuops.errors import GpuopsError, LoginRefused, NotConnected, OutcomeUnknown, Trouble
from gpuops.execute.journal import IntentState, Journal, Run
from gpuops.execute.site.ports import Vcenter
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.plan.core.host_steps import HostStep, HostTask
from gpuops.plan.core.outcome import Outcome, Verdict
from gpuops.plan.core.steps import AnyStep, Step

SLICE_S: Final = 20.0
"""The longest silent wait: how often the lease, and the time of steps in flight, are looked at."""

STARTED_BY_OTHERS: Final = "somebody else started it just before"

STATES: Final = {
    Verdict.DONE: IntentState.DONE,
    Verdict.ALREADY: IntentState.FAILED,  # somebody else did it: nothing of it is to be undone
    Verdict.FAILED: IntentState.FAILED,
    Verdict.SKIPPED: IntentState.FAILED,
    Verdict.UNKNOWN: IntentState.UNKNOWN,
}
"""What the journal calls an outcome."""

Kind = TypeVar("Kind", bound=Step | HostStep | HostTask)


@dataclass(frozen=True, slots=True)
class StepInFlight(Generic[AnyStep]):
    """A step that was sent and whose end is not known yet; `task` None for one that has no task."""

    op_id: str
    step: AnyStep
    task: TaskRef | None
    since: datetime
    """When vCenter was last looked at before it was sent, by vCenter's clock."""
    answered: bool = False
    """Whether vCenter has answered that it is done: what is missing is the look at it."""


class StepExecutor(ABC, Generic[Kind]):
    """Sends steps of one run and says what became of them. `inventory` is the latest look."""

    def __init__(
        self,
        vcenter: Vcenter,
        journal: Journal,
        run: Run,
        inventory: Inventory,
        *,
        passed_s: Callable[[], float] = clock.passed_s,
    ) -> None:
        """`passed_s` counts seconds since some moment, whatever is done to the clock."""
        self.vcenter = vcenter
        self.journal = journal
        self.run = run
        self.inventory = inventory
        self.passed_s = passed_s
        self._sent_once: set[str] = set()
        """Requests that this run sent, and did not repeat: what they met was there before them."""

    # what each kind of step says

    @abstractmethod
    def read_back(self, step: Kind) -> None:
        """Reads anew what the step is about."""

    @abstractmethod
    def is_done(self, step: Kind) -> bool:
        """Whether the latest look shows what the step would bring about."""

    @abstractmethod
    def objection(self, step: Kind) -> str | None:
        """Why the step must not be sent, on the latest look; None = nothing speaks against it."""

    @abstractmethod
    def last_objection(self, step: Kind, judged: Inventory) -> str | None:
        """The same just before it is sent, when the intent is on disk: that may have taken its time.

        `judged` is the look on which nothing spoke against it.
        """

    @abstractmethod
    def send(self, step: Kind, op_id: str) -> TaskRef | None:
        """The task of the request; None = it has none. Raises OutcomeUnknown when the reply was lost."""

    @abstractmethod
    def find_task(self, step: Kind, since: datetime) -> TaskRef | None:
        """The task of a request whose reply was lost; None = none is found."""

    @abstractmethod
    def twice_is_once(self, step: Kind, sent: Inventory) -> bool:
        """Whether a second request and a late arrival of the first change nothing more than one of them.

        `sent` is the snapshot that the first went by.
        """

    def overtaken(self, step: Kind, sent: Inventory) -> str | None:
        """Why a step that is not seen done cannot take effect any more; None = it still may."""
        return None

    def ends_later(self, step: Kind) -> bool:
        """Whether a request without a task goes on when its reply is there."""
        return False

    def looked_at_later(self, step: Kind) -> bool:
        """Whether a request without a task, once it is answered, is judged by the caller's next look."""
        return False

    def comes_about(self, step: Kind, *, repeated: bool) -> bool:
        """Whether a step whose reply was lost is seen to go on, though it has no task."""
        return False

    def reached(self, step: Kind, *, lagging: bool) -> bool:
        """Whether what the step leads to is there. `lagging`: vCenter called it done, and may show it a while later."""
        return self.is_done(step)

    def is_the_only_request(self, op_id: str, step: Kind) -> bool:
        """Whether no earlier request may have arrived, for a step that somebody else may ask for just before."""
        return False

    def is_by_others(self, in_flight: StepInFlight[Kind], error: GpuopsError | None) -> bool:
        """Whether what came about is not what was asked for here, by the end of its task."""
        return False

    def keep_refusal(self, op_id: str, step: Kind, refused: GpuopsError) -> None:
        """Journals a refusal that the state alone would not tell of, when what it was about cannot be read."""

    def not_shown(self, step: Kind) -> str:
        """What is said of a step that succeeded and shows no effect."""
        return "vCenter called it done, and does not show it"

    # one step

    def begin(self, step: Kind) -> Outcome[Kind] | StepInFlight[Kind]:
        """Sends the step unless it is done already or must not be done now. Needs a look just before.

        Raises NotConnected (the intent stays open) and StateDamaged (nothing was sent).
        """
        if self.is_done(step):
            return Outcome(step, Verdict.ALREADY)
        judged, reason = self.inventory, self.objection(step)
        if reason is not None:
            return Outcome(step, Verdict.SKIPPED, reason)
        op_id = self.intend(step)
        self._sent_once.add(op_id)
        return self.submit(op_id, step, judged)

    def intend(self, step: Kind) -> str:
        """The op id of the step, whose intent is on disk from here on."""
        return self.journal.intend(self.run, step, self.inventory)

    def submit(
        self, op_id: str, step: Kind, judged: Inventory, *, first: Inventory | None = None, logged_in: bool = False
    ) -> Outcome[Kind] | StepInFlight[Kind]:
        """Sends a step whose intent is on disk. `judged` is the look on which nothing spoke against it; `first` is what
        the first request went by, when this is the second."""
        reason = self.last_objection(step, judged)
        if reason is not None:
            return self._withheld(op_id, step, reason, sent_before=first is not None)
        since = (first or self.inventory).taken_at
        try:
            task = self.send(step, op_id)
        except OutcomeUnknown as lost:
            return self._find(op_id, step, first or self.inventory, str(lost), may_repeat=first is None)
        except LoginRefused as ended:
            # The session ended: vCenter says so before it does anything, and the next read logs in again.
            if logged_in:
                self.keep_refusal(op_id, step, ended)
                raise
            self._look_after_refusal(op_id, step, ended)
            return self.submit(op_id, step, judged, first=first, logged_in=True)
        except NotConnected:
            raise
        except GpuopsError as refused:
            # a second request may be refused because the first arrived after all, and is at work
            late = self.find_task(step, since) if first is not None else None
            if late is None:
                self._look_after_refusal(op_id, step, refused)
                return self.judge(op_id, step, since, refused, by_others=self.is_the_only_request(op_id, step))
            task = late
        if task is not None:
            return self._in_flight(op_id, step, task, since)
        return self._answered(op_id, step, since)

    def _answered(self, op_id: str, step: Kind, since: datetime) -> Outcome[Kind] | StepInFlight[Kind]:
        """What became of a request that was answered without a task."""
        if self.ends_later(step):
            return StepInFlight(op_id, step, None, since)
        if self.looked_at_later(step):
            return StepInFlight(op_id, step, None, since, answered=True)
        self.read_back(step)
        return self.judge(op_id, step, since)

    def _in_flight(self, op_id: str, step: Kind, task: TaskRef, since: datetime) -> StepInFlight[Kind]:
        """The step, now that its task is known; of one that somebody else asked for the journal does not call it its
        own."""
        if not task.foreign:
            self.journal.submitted(op_id, task.ref)
        return StepInFlight(op_id, step, task, since)

    def _look_after_refusal(self, op_id: str, step: Kind, refused: GpuopsError) -> None:
        """Looks at what vCenter has just refused a request about. Raises NotConnected."""
        try:
            self.read_back(step)
        except NotConnected:
            self.keep_refusal(op_id, step, refused)
            raise

    def _find(
        self, op_id: str, step: Kind, sent: Inventory, why: str, *, may_repeat: bool
    ) -> Outcome[Kind] | StepInFlight[Kind]:
        """What became of a request whose reply was lost: its task, or its effect, or once more, or unknown.

        `sent` is the snapshot that the request went by.
        """
        task = self.find_task(step, sent.taken_at)
        if task is not None:
            return self._in_flight(op_id, step, task, sent.taken_at)
        self.read_back(step)
        if self.is_done(step):
            return self.found_done(op_id, step, sent.taken_at, "the reply was lost; found done")
        if self.comes_about(step, repeated=not may_repeat):
            return StepInFlight(op_id, step, None, sent.taken_at)
        reason = self.overtaken(step, sent)
        if reason is not None:
            return self.settle(op_id, Outcome(step, Verdict.FAILED, reason))
        if may_repeat and self.twice_is_once(step, sent):
            self._sent_once.discard(op_id)
            return self.submit(op_id, step, sent, first=sent)
        return self._lost(op_id, step, f"{why}; vCenter shows neither task nor effect")

    def _withheld(self, op_id: str, step: Kind, reason: str, *, sent_before: bool) -> Outcome[Kind]:
        """The end of a step that is not sent, or not once more."""
        if sent_before:
            return self._lost(op_id, step, f"the reply was lost; not sent again: {reason}")
        return self.settle(op_id, Outcome(step, Verdict.FAILED, reason), counts=False)

    def _lost(self, op_id: str, step: Kind, reason: str) -> Outcome[Kind]:
        """The end of a step whose reply was lost, and whose request may still arrive."""
        return self.settle(op_id, Outcome(step, Verdict.UNKNOWN, reason, trouble=Trouble.LOST))

    def finish(self, in_flight: StepInFlight[Kind], end: TaskEnd) -> Outcome[Kind]:
        """What became of a step whose task ended. Needs a look after the end."""
        by_others = self.is_by_others(in_flight, end.error)
        return self.judge(
            in_flight.op_id, in_flight.step, in_flight.since, end.error, end.duration_s, by_others=by_others
        )

    def found_done(
        self, op_id: str, step: Kind, since: datetime, reason: str, duration_s: float | None = None
    ) -> Outcome[Kind]:
        """The end of a step of which nothing is seen but its effect."""
        return self.settle(op_id, Outcome(step, Verdict.DONE, reason, duration_s))

    def started_by_others(self, op_id: str, step: Kind) -> Outcome[Kind]:
        """The end of a step that somebody else asked for just before."""
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
        """The state decides, not the reply: reached is done, whatever was said; success without it proves nothing.

        `by_others`: what started it is not what was asked for here, whether or not that is seen yet.
        """
        reached = self.reached(step, lagging=error is None)
        if by_others and (reached or error is None):
            return self.started_by_others(op_id, step)
        if reached and error is not None:
            return self.found_done(op_id, step, since, "", duration_s)
        if reached:
            return self.settle(op_id, Outcome(step, Verdict.DONE, "", duration_s))
        if error is not None:
            verdict = Verdict.UNKNOWN if isinstance(error, OutcomeUnknown) else Verdict.FAILED
            return self.settle(op_id, Outcome(step, verdict, error.line, duration_s, error.trouble, error.code))
        return self.settle(op_id, Outcome(step, Verdict.UNKNOWN, self.not_shown(step), duration_s))

    @abstractmethod
    def settle(self, op_id: str, outcome: Outcome[Kind], *, counts: bool = True) -> Outcome[Kind]:
        """The outcome, once it is in the journal. Not `counts`: it was never asked of vCenter."""
