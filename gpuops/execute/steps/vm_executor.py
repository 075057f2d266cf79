"""Executes steps of VMs: what speaks against a step, and what may be sent twice; `vm_looks` has when a VM is looked at.

Of a reconfiguration whose reply was lost vCenter itself sees to it that twice is once: it carries the changeVersion of
the configuration it was made for, the first of the two to arrive changes it, and the other is refused (vSphere API
reference, VirtualMachineConfigSpec.changeVersion).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Final

from gpuops import clock
from gpuops.errors import GpuopsError, LoginRefused, Trouble
from gpuops.execute.journal import Journal, Run
from gpuops.execute.lease.lease_set import NO_LEASE, VmLeases
from gpuops.execute.site.policy_reads import NO_SOURCES
from gpuops.execute.site.ports import DesktopGates, SessionSource, Vcenter, VgpuUseSource
from gpuops.execute.steps.step_executor import STATES, StepInFlight
from gpuops.execute.steps.vm_looks import LOOK_S, VmLooks
from gpuops.model.desktops.evidence import Source
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskRef
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.outcome import Outcome, Verdict
from gpuops.plan.core.step_checks import as_it_is_now, objection, pins_without_device, satisfied
from gpuops.plan.core.steps import (
    CloseGate,
    GateStep,
    OpenGate,
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
from gpuops.plan.rotation.nights.desktops import IN_MAINTENANCE
from gpuops.plan.rotation.nights.guard import TAKING_STEPS, Guard
from gpuops.plan.rotation.nights.stop_conditions import is_refusal
from gpuops.plan.rotation.power_moments import runs_anew

LOOKS: Final = 2
"""So often a desktop is looked at anew, where what comes between look and request takes too long."""

STARTED_SINCE: Final = "was stopped, and somebody has started it again since the plan was made: it is theirs now"

STATE_LAG_S = 30
"""A power state may lag behind the task that changed it; after so long it is called unknown."""


class VmExecutor(VmLooks):
    """Sends steps of one run and says what became of them. `inventory` is the latest look."""

    def __init__(
        self,
        vcenter: Vcenter,
        journal: Journal,
        run: Run,
        planned: Inventory,
        *,
        guard: Guard | None = None,
        leases: VmLeases = NO_LEASE,
        passed_s: Callable[[], float] = clock.passed_s,
        same_time: bool = False,
        sources: Mapping[Source, SessionSource] = NO_SOURCES,
        gates: DesktopGates | None = None,
        vgpu_use: VgpuUseSource | None = None,
    ) -> None:
        """As `VmLooks`."""
        super().__init__(
            vcenter,
            journal,
            run,
            planned,
            guard=guard,
            leases=leases,
            passed_s=passed_s,
            same_time=same_time,
            sources=sources,
            gates=gates,
            vgpu_use=vgpu_use,
        )
        self.former_logins: Mapping[str, str] = {}
        """op id -> the user as whom gpuops sent an effect of the run, where that is another than now; else empty."""
        self._leaving: Collection[str] = ()
        """VMs that are being suspended already, whatever the last look showed of them."""
        self._starting: dict[str, PowerOnVm] = {}
        """VM -> its start that was sent, whatever the last look showed of it."""

    def begin(self, step: Step, leaving: Collection[str] = ()) -> Outcome | StepInFlight:
        """As any step is begun. What takes is looked at once more where the last look was a while ago, or where no look
        vouches for the lease any more; what takes a desktop, where anything was sent meanwhile.

        `leaving`: VMs that are being suspended already, whatever the last look showed of them.
        Raises NotConnected (the intent stays open, for `resume`) and StateDamaged (nothing was sent).
        """
        lease = self._leases.of(step.vm)
        unvouched = lease is not None and not lease.vouched
        overtaken = unvouched or (isinstance(step, TAKING_STEPS) and self._sent_since_look)
        if self._is_old(step) or (self._guard is not None and overtaken):
            self.share_no_look()
            self.look_before([step])
        self._leaving = leaving
        if isinstance(step, CloseGate) and self.is_done(step):
            return Outcome(step, Verdict.SKIPPED, IN_MAINTENANCE)  # or a morning would open what is not ours
        return super().begin(as_it_is_now(step, self.inventory))

    def in_use_again(self, steps: Collection[Step]) -> Mapping[str, str]:
        """By VM (ref), why a desktop that was suspended behind a gate is to be given back, by a look at the gates."""
        self.inventory, found = self.step_gates.in_use_again(steps, self.inventory)
        return found

    def is_done(self, step: Step) -> bool:
        """Whether the latest look shows the VM as the step leaves it; one that is gone is not."""
        return step.vm in self.inventory.vms and satisfied(step, self.inventory)

    def objection(self, step: Step) -> str | None:
        """What speaks against the step on the latest look, or of the lease its VM is under; None = nothing does."""
        return self._objection_to_step(step) or self._not_ours(step)

    def _objection_to_step(self, step: Step) -> str | None:
        """What speaks against the step, but for the lease."""
        guard = self._guard
        rule = guard.idle_rule(step, self.inventory) if guard is not None else None
        reason = objection(step, self.planned, self.inventory, rule)
        if reason is None and guard is not None:
            now = self.journal.clock()
            reason = guard.objection(
                step, self.inventory, now, self._ended, self._leaving, self._ahead, tuple(self._starting.values())
            )
        stops = isinstance(step, PowerOffVm | ShutDownGuest | RunInGuest)
        if reason is None and (stops or (isinstance(step, SuspendVm) and step.gives_way)):
            reason = self._of_another_start(step)
        return reason

    def _of_another_start(self, step: Step) -> str | None:
        """Why a VM is not stopped that stopped by itself since the plan and that somebody started again: what runs now
        is theirs. One that vSphere HA restarted is stopped all the same."""
        was, now = self.planned.vms.get(step.vm), self.inventory.vms.get(step.vm)
        if was is None or now is None or was.started_at is None or not runs_anew(was.started_at, now):
            return None
        return STARTED_SINCE if self.vcenter.started_by_others(step.vm, was.started_at) else None

    def last_objection(self, step: Step, judged: Inventory) -> str | None:
        """What speaks against the step when all that may take its time has been done: the lease, the journal's disk."""
        if isinstance(step, GateStep):
            self.inventory, reason = self.step_gates.objection(step, self.inventory)
            if reason is not None:
                return reason
        for _ in range(LOOKS):
            if self._is_old(step):
                self.share_no_look()
                self.look_before([step])
            reason = self._not_ours(step)
            if reason is None and self.inventory is not judged:
                reason = self._objection_to_step(step)
            if reason is not None or not self._is_old(step):
                return reason
        if self._guard is not None and isinstance(step, TAKING_STEPS):
            return f"what was read of it was more than {LOOK_S:.0f} s old before it could be sent, {LOOKS} times"
        return None

    def keep_lease(self) -> None:
        """Renews what is leased while steps are waited for, and says that the run goes on."""
        self.journal.alive()
        self._leases.keep()

    def _not_ours(self, step: Step) -> str | None:
        lease = self._leases.of(step.vm)
        return lease.objection() if lease is not None else None

    def keep_refusal(self, op_id: str, step: Step, refused: GpuopsError) -> None:
        """Journals that a start was refused, when the VM cannot be read: whoever starts it before the next look keeps
        it, and its state alone would not say so."""
        if isinstance(step, PowerOnVm) and self.is_the_only_request(op_id, step):
            outcome = Outcome(step, Verdict.FAILED, refused.line, trouble=refused.trouble)
            self.settle(op_id, outcome, counts=not isinstance(refused, LoginRefused))

    def is_the_only_request(self, op_id: str, step: Step) -> bool:
        """Whether no earlier request for this start may have arrived."""
        return isinstance(step, PowerOnVm | CloseGate) and op_id in self._sent_once

    def started_by_others(self, op_id: str, step: Step) -> Outcome:
        """As any step; a gate that somebody else has closed just before is theirs, and its desktop is not taken."""
        if isinstance(step, CloseGate):
            return self.settle(op_id, Outcome(step, Verdict.SKIPPED, IN_MAINTENANCE), counts=False)
        return super().started_by_others(op_id, step)

    def send(self, step: Step, op_id: str) -> TaskRef | None:
        """The task of the request; None = it has none."""
        self._sent_since_look = True
        self.share_no_look()
        lease = self._leases.of(step.vm)
        if lease is not None:
            lease.sends()
        now = as_it_is_now(step, self.inventory)
        if isinstance(now, PowerOnVm):
            self._starting[now.vm] = now
        if isinstance(now, GateStep):
            self.step_gates.change(now, self.inventory)
            return None
        return self.vcenter.submit(now, self.inventory, op_id)

    def find_task(self, step: Step, since: datetime, login: str = "") -> TaskRef | None:
        """The step's own task, or somebody else's of its kind; what the broker does has none. `login`: as which it was
        asked for, where that is another than now."""
        return None if isinstance(step, GateStep) else self.vcenter.find_task(step, since, login)

    def ends_later(self, step: Step) -> bool:
        """A guest is asked to shut down, and takes its time."""
        return isinstance(step, ShutDownGuest)

    def looked_at_later(self, step: Step) -> bool:
        """Markers and gates of many VMs are changed one after the other, and looked at together."""
        return isinstance(step, SetAttribute | GateStep)

    def not_shown(self, step: Step) -> str:
        """What is said of a step that succeeded and shows no effect."""
        if isinstance(step, GateStep):
            return "the broker called it done, and does not show it"
        if isinstance(step, ReconfigureVm) and step.vm in self.inventory.vms:
            loose_pins = pins_without_device(step.change, self.inventory.vms[step.vm])
            if loose_pins:
                return (
                    f"vCenter gave its devices other keys than expected: {', '.join(loose_pins)} binds no device of it"
                )
        return super().not_shown(step)

    def overtaken(self, step: Step, sent: Inventory) -> str | None:
        """Why a reconfiguration that is not seen done cannot take effect any more; None = it still may."""
        before, now = self._versions(step, sent)
        if not isinstance(step, ReconfigureVm) or before is None or now is None or before == now:
            return None
        return "the reply was lost, and its configuration was changed by somebody else since (run the command again)"

    def twice_is_once(self, step: Step, sent: Inventory) -> bool:
        """Whether a second request and a late arrival of the first change nothing more than one of them."""
        if isinstance(step, ReconfigureVm):
            before, now = self._versions(step, sent)
            return before is not None and before == now
        if isinstance(step, RelocateVm):  # a move to where it is moves nothing; one that is elsewhere was moved
            was, now_at = sent.vms.get(step.vm), self.inventory.vms.get(step.vm)
            return was is not None and now_at is not None and was.host == now_at.host
        # of two requests to close a gate the one that comes late would close it when nobody expects that any more
        return wanted_power(step) is not None or isinstance(step, SetAttribute | SetVmDrs | RunInGuest | OpenGate)

    def _versions(self, step: Step, sent: Inventory) -> tuple[str | None, str | None]:
        """The changeVersion of the VM that a request went by, and the one it has now."""
        before, now = sent.vms.get(step.vm), self.inventory.vms.get(step.vm)
        return before.change_version if before else None, now.change_version if now else None

    def is_by_others(self, in_flight: StepInFlight, error: GpuopsError | None) -> bool:
        """Whether a VM runs by a start that somebody else asked for: its task is theirs, or ours found it running."""
        step, task = in_flight.step, in_flight.task
        if not isinstance(step, PowerOnVm):
            return False
        foreign = task is not None and task.foreign
        return foreign or self._was_so_before(in_flight.op_id, step, error)

    def found_done(
        self, op_id: str, step: Step, since: datetime, reason: str, duration_s: float | None = None
    ) -> Outcome:
        """The end of a step of which nothing is seen but its effect: a start that is not known to be asked for here is
        somebody else's."""
        login = self.former_logins.get(op_id, "")
        if isinstance(step, PowerOnVm) and not self.vcenter.started_by_this_login(step.vm, since, login):
            return self.started_by_others(op_id, step)
        return super().found_done(op_id, step, since, reason, duration_s)

    def _was_so_before(self, op_id: str, step: Step, error: GpuopsError | None) -> bool:
        """Whether it runs by somebody else's doing: the one start that was asked for found it running."""
        refused = error is not None and error.trouble is Trouble.STATE
        return refused and self.is_the_only_request(op_id, step)

    def reached(self, step: Step, *, lagging: bool) -> bool:
        """Whether the VM is as the step leaves it; a power state that lags behind is waited for."""
        if isinstance(step, RunInGuest):
            return lagging and step.vm in self.inventory.vms  # only its end tells
        if self.is_done(step):
            return True
        power = wanted_power(step) if step.vm in self.inventory.vms else None
        if not lagging or power is None:
            return False
        self.share_no_look()
        if not self.vcenter.wait_for_power([step.vm], power, STATE_LAG_S):
            return False
        self.look([step.vm])
        return self.is_done(step)

    def settle(self, op_id: str, outcome: Outcome, *, counts: bool = True) -> Outcome:
        """The outcome, once it is in the journal, with the moment of a suspend or start that is done, as the look after
        it shows that. Not `counts`: it was never asked of vCenter."""
        shown = self.inventory.vms.get(outcome.step.vm) if outcome.verdict is Verdict.DONE else None
        self.journal.settled(
            op_id,
            STATES[outcome.verdict],
            outcome.reason,
            outcome.duration_s,
            refused=is_refusal(outcome),
            counts=counts,
            suspended_at=shown.suspended_at if shown is not None and isinstance(outcome.step, SuspendVm) else None,
            started_at=shown.started_at if shown is not None and isinstance(outcome.step, PowerOnVm) else None,
        )
        self.step_gates.ended(outcome)
        self._ended.append(outcome)
        return outcome


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
