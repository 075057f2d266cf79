"""Doer: one step, from the last look to the read-back.

look -> already done? -> anything against it? -> intent on disk -> submit -> (wait) -> look again -> outcome on disk.

What makes a desktop give up its GPUs goes by a look of its own, made when everything before it had been sent. So a
machine that stands still, its clocks with it, sends at most one such request on what it saw before; and where the lease
or the journal took long after the look, the desktop is looked at, and judged, once more.

A request whose reply was lost is never sent again blind: first its task is looked for, then the VM is read. Only when
vCenter shows neither is it sent once more, and only if twice would be the same as once. Of a reconfiguration vCenter
itself sees to that: it carries the changeVersion of the configuration it was made for, the first of the two to arrive
changes it, and the other is refused (vSphere API reference, VirtualMachineConfigSpec.changeVersion).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpuops import clock
from gpuops.errors import GpuopsError, LoginRefused, NotConnected, OutcomeUnknown, Trouble
from gpuops.execute.journal import IntentState, Journal, Run
from gpuops.execute.leases import NO_LEASE, Under
from gpuops.execute.port import Vcenter
from gpuops.model.inventory import Inventory
from gpuops.model.task import TaskEnd, TaskRef
from gpuops.model.vm import PowerState
from gpuops.plan.core.outcome import Outcome, Verdict
from gpuops.plan.core.step_checks import as_it_is_now, objection, satisfied
from gpuops.plan.core.steps import (
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
)
from gpuops.plan.rotation.breaker import is_refusal
from gpuops.plan.rotation.clocks import ahead_by
from gpuops.plan.rotation.guard import TAKING, Guard

FRESH: Final = timedelta(seconds=60)
"""How old what is known of a step's company may be: of VMs that are not touched, but counted."""

LOOK_S: Final = 30.0
"""How old the look may be that a step of a night goes by, when it is sent."""

LOOKS: Final = 2
"""So often a desktop is looked at anew, where what comes between look and request takes too long."""

STATE_LAG_S = 30
"""A power state may lag behind the task that changed it; after so long it is called unknown."""

STARTED_BY_OTHERS: Final = "somebody else started it just before"

_STATES = {
    Verdict.DONE: IntentState.DONE,
    Verdict.ALREADY: IntentState.FAILED,  # somebody else did it: nothing of it is to be undone
    Verdict.FAILED: IntentState.FAILED,
    Verdict.SKIPPED: IntentState.FAILED,
    Verdict.UNKNOWN: IntentState.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Underway:
    """A step that was sent and whose end is not known yet; `task` None for one that has no task."""

    op_id: str
    step: Step
    task: TaskRef | None
    since: datetime
    """When vCenter was last looked at before it was sent, by vCenter's clock."""


class Doer:
    """Sends steps of one run and says what became of them. `inventory` is the latest look."""

    def __init__(
        self,
        vcenter: Vcenter,
        journal: Journal,
        run: Run,
        planned: Inventory,
        *,
        guard: Guard | None = None,
        leases: Under = NO_LEASE,
        passed_s: Callable[[], float] = clock.passed_s,
        same_time: bool = False,
    ) -> None:
        """`guard` has a word before each step that takes something; None = nothing is taken.

        `leases`: that of a VM must be ours at each request about it; where there is none, this machine's lock alone
        keeps others away.

        `passed_s` counts seconds since some moment, whatever is done to the clock.

        `same_time`: vCenter's clock and the journal's should show the same.
        """
        self.vcenter = vcenter
        self.journal = journal
        self.run = run
        self.planned = planned
        self.inventory = planned
        self.passed_s = passed_s
        self._guard = guard
        self._leases = leases
        self._same_time = same_time
        self._looked_s = passed_s()
        self._sent_since_look = False
        self._ahead: timedelta | None = None
        """How far vCenter's clock was ahead of ours at the last look before steps; None = they do not compare."""
        self._company_at: dict[str, datetime] = {}
        self._steered: set[str] = set()
        self._ended: list[Outcome] = []
        self._sent_once: set[str] = set()
        """Requests that this run sent, and did not repeat: what they met was there before them."""

    def look(self, vms: Collection[str]) -> None:
        """Reads these VMs, and the GPUs of their hosts, anew; with them DRS of VMs that a step speaks to it about."""
        asked_s = self.passed_s()
        self.inventory = self.vcenter.observe(self.inventory, vms)
        self._leases.saw(self.inventory, vms, asked_s)
        steered = self._steered.intersection(vms)
        if steered:
            self.inventory = self.vcenter.with_drs(self.inventory, steered)

    def look_before(self, steps: Sequence[Step]) -> None:
        """Reads the VMs of steps that are about to be sent, and with them whoever the guard must know of and the lock
        VM."""
        vms = {step.vm for step in steps}
        vms |= self._leases.lock_vms(vms)
        self._steered |= {step.vm for step in steps if isinstance(step, SetVmDrs)}
        if self._guard is not None:
            vms |= self._company(self._guard, self._guard.pools(steps, self.inventory))
        asked, self._looked_s = self.journal.clock() if self._same_time else None, self.passed_s()
        self._sent_since_look = False
        self.look(vms)
        if self._guard is not None and self._guard.policy.needs_tags:
            self.inventory = self.vcenter.with_tags(self.inventory, vms)
        if asked is not None:
            self._ahead = ahead_by(self.inventory.taken_at, asked, self.journal.clock())

    def _company(self, guard: Guard, pools: Collection[str]) -> frozenset[str]:
        """Who counts in those of the pools that were not looked at for a while."""
        now = self.inventory.taken_at
        stale = [each for each in pools if now - self._company_at.get(each, self.planned.taken_at) > FRESH]
        if not stale:
            return frozenset()
        self._company_at |= dict.fromkeys(stale, now)
        return guard.company(stale, self.inventory, self._ended)

    def begin(self, step: Step, leaving: Collection[str] = ()) -> Outcome | Underway:
        """Sends the step unless it is done already or must not be done now. Needs a look at its VM just before; what
        takes is looked at once more where that was a while ago, or where no look vouches for the lease any more; what
        takes a desktop, where anything was sent meanwhile.

        `leaving`: VMs that are being suspended already, whatever the last look showed of them.
        Raises NotConnected (the intent stays open, for `resume`) and StateDamaged (nothing was sent).
        """
        lease = self._leases.of(step.vm)
        unvouched = lease is not None and not lease.vouched
        overtaken = unvouched or (isinstance(step, TAKING) and self._sent_since_look)
        if self._is_old() or (self._guard is not None and overtaken):
            self.look_before([step])
        step = as_it_is_now(step, self.inventory)
        if step.vm in self.inventory.vms and satisfied(step, self.inventory):
            return Outcome(step, Verdict.ALREADY)
        judged, reason = self.inventory, self._objection(step, leaving) or self._not_ours(step)
        if reason is not None:
            return Outcome(step, Verdict.SKIPPED, reason)
        op_id = self.journal.intend(self.run, step, self.inventory)
        self._sent_once.add(op_id)
        return self._submit(op_id, step, leaving, judged)

    def _is_old(self) -> bool:
        """Whether the look is older than what a night may go by."""
        return self._guard is not None and self.passed_s() - self._looked_s > LOOK_S

    def _objection(self, step: Step, leaving: Collection[str]) -> str | None:
        """What speaks against the step on the latest look; None = nothing does."""
        guard = self._guard
        rule = guard.idle_rule(step, self.inventory) if guard is not None else None
        reason = objection(step, self.planned, self.inventory, rule)
        if reason is None and guard is not None:
            reason = guard.against(step, self.inventory, self.journal.clock(), self._ended, leaving, self._ahead)
        return reason

    def _last_objection(self, step: Step, leaving: Collection[str], judged: Inventory) -> str | None:
        """What speaks against the step when all that may take its time has been done: the lease, the journal's disk.

        `judged` is the look on which nothing spoke against it.
        """
        for _ in range(LOOKS):
            if self._is_old():
                self.look_before([step])
            reason = self._not_ours(step)
            if reason is None and self.inventory is not judged:
                reason = self._objection(step, leaving)
            if reason is not None or not self._is_old():
                return reason
        if isinstance(step, TAKING):
            return f"what was read of it was more than {LOOK_S:.0f} s old before it could be sent, {LOOKS} times"
        return None

    def keep_lease(self) -> None:
        """Renews what is leased while steps are waited for, and says that the run goes on."""
        self.journal.alive()
        self._leases.keep()

    def _not_ours(self, step: Step) -> str | None:
        lease = self._leases.of(step.vm)
        return lease.objection() if lease is not None else None

    def _submit(
        self,
        op_id: str,
        step: Step,
        leaving: Collection[str],
        judged: Inventory,
        *,
        first: Inventory | None = None,
        logged_in: bool = False,
    ) -> Outcome | Underway:
        """`judged` is the look on which nothing spoke against the step; `first` is what the first request went by, when
        this is the second."""
        reason = self._last_objection(step, leaving, judged)
        if reason is not None:
            return self._withheld(op_id, step, reason, sent_before=first is not None)
        since = (first or self.inventory).taken_at
        try:
            task = self._send(op_id, step)
        except OutcomeUnknown as lost:
            return self._find(op_id, step, leaving, first or self.inventory, str(lost), may_repeat=first is None)
        except LoginRefused as ended:
            # The session ended: vCenter says so before it does anything, and the next read logs in again.
            if logged_in:
                self._keep_refusal(op_id, step, ended)
                raise
            self._look_after_refusal(op_id, step, ended)
            return self._submit(op_id, step, leaving, judged, first=first, logged_in=True)
        except NotConnected:
            raise
        except GpuopsError as refused:
            # a second request may be refused because the first arrived after all, and is at work
            late = self.vcenter.adopt(step, since) if first is not None else None
            if late is None:
                self._look_after_refusal(op_id, step, refused)
                return self._judge(op_id, step, since, refused, by_others=self._is_the_only_start(op_id, step))
            task = late
        if task is not None:
            return self._underway(op_id, step, task, since)
        if isinstance(step, ShutDownGuest):
            return Underway(op_id, step, None, since)
        self.look([step.vm])
        return self._judge(op_id, step, since)

    def _underway(self, op_id: str, step: Step, task: TaskRef, since: datetime) -> Underway:
        """The step, now that its task is known; of one that somebody else asked for the journal does not call it its
        own."""
        if not task.foreign:
            self.journal.submitted(op_id, task.ref)
        return Underway(op_id, step, task, since)

    def _look_after_refusal(self, op_id: str, step: Step, refused: GpuopsError) -> None:
        """Looks at a VM about which vCenter has just refused a request. Raises NotConnected."""
        try:
            self.look([step.vm])
        except NotConnected:
            self._keep_refusal(op_id, step, refused)
            raise

    def _keep_refusal(self, op_id: str, step: Step, refused: GpuopsError) -> None:
        """Journals that a start was refused, when the VM cannot be read: whoever starts it before the next look keeps
        it, and its state alone would not say so."""
        if self._is_the_only_start(op_id, step):
            outcome = Outcome(step, Verdict.FAILED, refused.line, trouble=refused.trouble)
            self.settle(op_id, outcome, counts=not isinstance(refused, LoginRefused))

    def _is_the_only_start(self, op_id: str, step: Step) -> bool:
        """Whether no earlier request for this start may have arrived."""
        return isinstance(step, PowerOnVm) and op_id in self._sent_once

    def _send(self, op_id: str, step: Step) -> TaskRef | None:
        self._sent_since_look = True
        lease = self._leases.of(step.vm)
        if lease is not None:
            lease.sends()
        return self.vcenter.submit(step, self.inventory, op_id)

    def _find(
        self, op_id: str, step: Step, leaving: Collection[str], sent: Inventory, why: str, *, may_repeat: bool
    ) -> Outcome | Underway:
        """What became of a request whose reply was lost: its task, or its effect, or once more, or unknown.

        `sent` is the snapshot that the request went by.
        """
        task = self.vcenter.adopt(step, sent.taken_at)
        if task is not None:
            return self._underway(op_id, step, task, sent.taken_at)
        self.look([step.vm])
        if step.vm in self.inventory.vms and satisfied(step, self.inventory):
            return self.found_done(op_id, step, sent.taken_at, "the reply was lost; found done")
        reason = self._overtaken(step, sent)
        if reason is not None:
            return self.settle(op_id, Outcome(step, Verdict.FAILED, reason))
        if may_repeat and self._twice_is_once(step, sent):
            self._sent_once.discard(op_id)
            return self._submit(op_id, step, leaving, sent, first=sent)
        return self._lost(op_id, step, f"{why}; vCenter shows neither task nor effect")

    def _withheld(self, op_id: str, step: Step, reason: str, *, sent_before: bool) -> Outcome:
        """The end of a step that is not sent, or not once more."""
        if sent_before:
            return self._lost(op_id, step, f"the reply was lost; not sent again: {reason}")
        return self.settle(op_id, Outcome(step, Verdict.FAILED, reason), counts=False)

    def _lost(self, op_id: str, step: Step, reason: str) -> Outcome:
        """The end of a step whose reply was lost, and whose request may still arrive."""
        return self.settle(op_id, Outcome(step, Verdict.UNKNOWN, reason, trouble=Trouble.LOST))

    def _overtaken(self, step: Step, sent: Inventory) -> str | None:
        """Why a reconfiguration that is not seen done cannot take effect any more; None = it still may."""
        before, now = self._versions(step, sent)
        if not isinstance(step, ReconfigureVm) or before is None or now is None or before == now:
            return None
        return "the reply was lost, and its configuration was changed by somebody else since (run the command again)"

    def _twice_is_once(self, step: Step, sent: Inventory) -> bool:
        """Whether a second request and a late arrival of the first change nothing more than one of them."""
        if isinstance(step, ReconfigureVm):
            before, now = self._versions(step, sent)
            return before is not None and before == now
        if isinstance(step, RelocateVm):  # a move to where it is moves nothing; one that is elsewhere was moved
            was, now_at = sent.vms.get(step.vm), self.inventory.vms.get(step.vm)
            return was is not None and now_at is not None and was.host == now_at.host
        return wanted_power(step) is not None or isinstance(step, SetAttribute | SetVmDrs | RunInGuest)

    def _versions(self, step: Step, sent: Inventory) -> tuple[str | None, str | None]:
        """The changeVersion of the VM that a request went by, and the one it has now."""
        before, now = sent.vms.get(step.vm), self.inventory.vms.get(step.vm)
        return before.change_version if before else None, now.change_version if now else None

    def finish(self, underway: Underway, end: TaskEnd) -> Outcome:
        """What became of a step whose task ended. Needs a look at its VM after the end."""
        foreign = underway.task is not None and underway.task.foreign
        by_others = foreign or self._was_so_before(underway.op_id, underway.step, end.error)
        return self._judge(
            underway.op_id, underway.step, underway.since, end.error, end.duration_s, by_others=by_others
        )

    def found_done(
        self, op_id: str, step: Step, since: datetime, reason: str, duration_s: float | None = None
    ) -> Outcome:
        """The end of a step of which nothing is seen but its effect: a start that is not known to be asked for here is
        somebody else's."""
        if isinstance(step, PowerOnVm) and not self.vcenter.started_by_this_login(step.vm, since):
            return self._started_by_others(op_id, step)
        return self.settle(op_id, Outcome(step, Verdict.DONE, reason, duration_s))

    def _started_by_others(self, op_id: str, step: PowerOnVm) -> Outcome:
        return self.settle(op_id, Outcome(step, Verdict.ALREADY, STARTED_BY_OTHERS), counts=False)

    def _judge(
        self,
        op_id: str,
        step: Step,
        since: datetime,
        error: GpuopsError | None = None,
        duration_s: float | None = None,
        *,
        by_others: bool = False,
    ) -> Outcome:
        """The state decides, not the reply: reached is done, whatever was said; success without it proves nothing.

        `by_others`: what started it is not what was asked for here, whether or not that is seen yet.
        """
        reached = self._reached(step, lagging=error is None)
        if by_others and isinstance(step, PowerOnVm) and (reached or error is None):
            return self._started_by_others(op_id, step)
        if reached and error is not None:
            return self.found_done(op_id, step, since, "", duration_s)
        if reached:
            return self.settle(op_id, Outcome(step, Verdict.DONE, "", duration_s))
        if error is not None:
            verdict = Verdict.UNKNOWN if isinstance(error, OutcomeUnknown) else Verdict.FAILED
            return self.settle(op_id, Outcome(step, verdict, error.line, duration_s, error.trouble))
        reason = "vCenter called it done, and does not show it"
        return self.settle(op_id, Outcome(step, Verdict.UNKNOWN, reason, duration_s))

    def _was_so_before(self, op_id: str, step: Step, error: GpuopsError | None) -> bool:
        """Whether it runs by somebody else's doing: the one start that was asked for found it running."""
        refused = error is not None and error.trouble is Trouble.STATE
        return refused and self._is_the_only_start(op_id, step)

    def _reached(self, step: Step, *, lagging: bool) -> bool:
        if step.vm not in self.inventory.vms:
            return False
        if isinstance(step, RunInGuest):
            return lagging  # only its end tells
        if satisfied(step, self.inventory):
            return True
        power = wanted_power(step)
        if not lagging or power is None:
            return False
        if not self.vcenter.wait_for_power([step.vm], power, STATE_LAG_S):
            return False
        self.look([step.vm])
        return step.vm in self.inventory.vms and satisfied(step, self.inventory)

    def settle(self, op_id: str, outcome: Outcome, *, counts: bool = True) -> Outcome:
        """The outcome, once it is in the journal. Not `counts`: it was never asked of vCenter."""
        self.journal.settled(
            op_id,
            _STATES[outcome.verdict],
            outcome.reason,
            outcome.duration_s,
            refused=is_refusal(outcome),
            counts=counts,
            suspended_at=self._suspended_at(outcome),
        )
        self._ended.append(outcome)
        return outcome

    def _suspended_at(self, outcome: Outcome) -> datetime | None:
        """When a suspend that is done was, as the look after it shows; None = it is none, or vCenter does not say."""
        done = isinstance(outcome.step, SuspendVm) and outcome.verdict is Verdict.DONE
        vm = self.inventory.vms.get(outcome.step.vm) if done else None
        return vm.suspended_at if vm is not None else None


def wanted_power(step: Step) -> PowerState | None:
    """The power state a step leads to; None for a step that is not about power."""
    match step:
        case PowerOnVm() | ResumeVm():
            return PowerState.ON
        case SuspendVm():
            return PowerState.SUSPENDED
        case PowerOffVm() | ShutDownGuest():
            return PowerState.OFF
        case _:
            return None
