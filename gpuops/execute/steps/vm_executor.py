"""Executes steps of VMs: when a step must not be sent, and when twice. `vm_looks` decides when a VM is read.

A reconfiguration whose reply was lost may be sent twice, because it carries the changeVersion of the configuration that
it was made for: the first request that arrives changes the configuration, and vCenter refuses the other (vSphere API
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
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.step_checks import as_it_is_now, is_satisfied, objection, pins_without_device
from gpuops.plan.core.steps import (
    CloseGate,
    CreationStep,
    GateStep,
    OpenGate,
    PowerOffForRemoval,
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    RemoveVm,
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
from gpuops.plan.rotation.nights.night_refusals import is_refusal
from gpuops.plan.rotation.power_moments import was_restarted_since

MOST_LOOKS: Final = 2
"""How often a desktop is read again at most if too much time passes between look and request."""

STARTED_SINCE: Final = "was stopped, and another user started it again since the plan was made: it is left running"

POWER_STATE_LAG_S = 30
"""How long a power state may lag behind the task that changed it. After that the outcome is unknown."""


class VmExecutor(VmLooks):
    """Sends the steps of one run and returns their outcomes. `inventory` is the latest look."""

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
        """See `VmLooks`."""
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
        """By op id, the user that an effect was sent as, if it differs from the current user; else ""."""
        self.vms_being_stopped: set[str] = set()
        """Refs of VMs that are already being suspended or shut down, whatever the last look showed."""
        self._starting: dict[str, PowerOnVm] = {}
        """By VM ref, the start that was sent, whatever the last look showed."""

    def refreshed(self, step: Step) -> Step:
        """Return the step, with the present host of a VM that is to be resumed.

        If the last look is too old, or no look has confirmed the lease since the last change, a step that takes a VM is
        judged by a new look. A step that takes a desktop also gets a new look if anything was sent since.
        """
        lease = self._leases.of(step.vm)
        is_lease_unconfirmed = lease is not None and not lease.is_confirmed
        needs_look = is_lease_unconfirmed or (isinstance(step, TAKING_STEPS) and self._sent_since_look)
        if self._is_old(step) or (self._guard is not None and needs_look):
            self.forget_earlier_looks()
            self.look_before([step])
        return as_it_is_now(step, self.inventory)

    def already_done(self, step: Step) -> Outcome:
        if isinstance(step, CloseGate):
            # a gate that is already closed is an admin's: as SKIPPED it is not noted as ours, and no return opens it
            return Outcome(step, Verdict.SKIPPED, IN_MAINTENANCE)
        return super().already_done(step)

    def in_use_again(self, steps: Collection[Step]) -> Mapping[str, str]:
        """Read the gates, and return VM ref -> why a desktop that was suspended behind its gate must be resumed."""
        self.inventory, reasons = self.step_gates.in_use_again(steps, self.inventory)
        return reasons

    def is_done(self, step: Step) -> bool:
        """Return whether the latest look shows the effect of the step.

        Steps that create or remove a VM are judged without the VM too; any other step is not done if it is missing.
        """
        may_lack_vm = isinstance(step, CreationStep | RemoveVm)
        return (may_lack_vm or step.vm in self.inventory.vms) and is_satisfied(step, self.inventory)

    def objection(self, step: Step) -> str | None:
        """Return why the step must not be sent, by the latest look or by the lease that covers its VM, or None."""
        return self._objection_to_step(step) or self._lease_objection(step)

    def _objection_to_step(self, step: Step) -> str | None:
        """Return why the step must not be sent, apart from the lease, or None."""
        guard = self._guard
        rule = guard.idle_rule(step, self.inventory) if guard is not None else None
        reason = objection(step, self.planned, self.inventory, rule)
        if reason is None and guard is not None:
            now = self.journal.clock()
            reason = guard.objection(
                step,
                self.inventory,
                now,
                self._ended,
                self.vms_being_stopped,
                self._ahead,
                tuple(self._starting.values()),
            )
        stops = isinstance(step, PowerOffVm | ShutDownGuest | RunInGuest)
        if reason is None and (stops or (isinstance(step, SuspendVm) and step.gives_way)):
            reason = self._restarted_by_user(step)
        return reason

    def _restarted_by_user(self, step: Step) -> str | None:
        """Return why the VM must not be stopped, or None.

        A VM that powered off after the plan, and that a user then started again, belongs to that user. A VM that
        vSphere HA restarted is stopped.
        """
        planned_vm, vm = self.planned.vms.get(step.vm), self.inventory.vms.get(step.vm)
        if planned_vm is None or vm is None or planned_vm.started_at is None:
            return None
        if not was_restarted_since(planned_vm.started_at, vm):
            return None
        return STARTED_SINCE if self.vcenter.started_by_others(step.vm, planned_vm.started_at) else None

    def last_objection(self, step: Step, judged: Inventory) -> str | None:
        """Return why the step must not be sent, or None: judged again, because the journal was written meanwhile."""
        if isinstance(step, GateStep):
            self.inventory, reason = self.step_gates.objection(step, self.inventory)
            if reason is not None:
                return reason
        for _ in range(MOST_LOOKS):
            if self._is_old(step):
                self.forget_earlier_looks()
                self.look_before([step])
            reason = self._lease_objection(step)
            if reason is None and self.inventory is not judged:
                reason = self._objection_to_step(step)
            if reason is not None or not self._is_old(step):
                return reason
        if self._guard is not None and isinstance(step, TAKING_STEPS):
            age = f"more than {LOOK_S:.0f} s old"
            return f"the last look at the VM was {age} before the step could be sent, {MOST_LOOKS} times"
        return None

    def keep_lease(self) -> None:
        """Renew the leases while the run waits for steps, and tell other processes that the run is alive."""
        self.journal.alive()
        self._leases.renew_if_due()

    def _lease_objection(self, step: Step) -> str | None:
        lease = self._leases.of(step.vm)
        return lease.objection() if lease is not None else None

    def keep_refusal(self, op_id: str, step: Step, refused: GpuopsError) -> None:
        """Write to the journal that a start was refused, when the VM cannot be read.

        If a user starts the VM before the next look, it is theirs, and the VM's state alone would not show that.
        """
        if isinstance(step, PowerOnVm) and self.is_the_only_request(op_id, step):
            outcome = Outcome(step, Verdict.FAILED, refused.line, trouble=refused.trouble)
            self.settle(op_id, outcome, counts=not isinstance(refused, LoginRefused))

    def is_the_only_request(self, op_id: str, step: Step) -> bool:
        """Return whether no earlier request of ours for this start may have arrived."""
        return isinstance(step, PowerOnVm | CloseGate) and op_id in self._sent_once

    def started_by_others(self, op_id: str, step: Step) -> Outcome:
        """Settle the step. A gate that another user closed just before is theirs, and its desktop is not taken."""
        if isinstance(step, CloseGate):
            return self.settle(op_id, Outcome(step, Verdict.SKIPPED, IN_MAINTENANCE), counts=False)
        return super().started_by_others(op_id, step)

    def send(self, step: Step, op_id: str) -> TaskRef | None:
        """Send the request and return its task, or None if it has no task."""
        self._sent_since_look, self.just_read = True, frozenset()
        self.forget_earlier_looks()
        lease = self._leases.of(step.vm)
        if lease is not None:
            lease.note_change_sent()
        now = as_it_is_now(step, self.inventory)
        if isinstance(now, PowerOnVm):
            self._starting[now.vm] = now
        if isinstance(now, GateStep):
            self.step_gates.change(now, self.inventory)
            return None
        return self.vcenter.submit(now, self.inventory, op_id)

    def find_task(self, step: Step, since: datetime, login: str = "") -> TaskRef | None:
        """Return the step's own task, or another user's of the same kind; None for steps at the broker.

        `login`: the user that the step was sent as, if it differs from the current user.
        """
        if isinstance(step, GateStep):
            return None
        known = self.journal.tasks_of(self.run) if isinstance(step, CreationStep) else ()
        return self.vcenter.find_task(step, since, login, known)

    def ends_later(self, step: Step) -> bool:
        """Return whether the guest was asked to shut down, which takes a while."""
        return isinstance(step, ShutDownGuest)

    def is_judged_later(self, step: Step) -> bool:
        """Return whether the step is a marker or a gate: these are changed for many VMs in turn, then read together."""
        return isinstance(step, SetAttribute | GateStep)

    def not_shown_reason(self, step: Step) -> str:
        """Return the reason for a step that was reported as done and whose effect is not shown."""
        if isinstance(step, GateStep):
            return "the broker reported success, and does not show the effect"
        if isinstance(step, ReconfigureVm) and step.vm in self.inventory.vms:
            loose_pins = pins_without_device(step.change, self.inventory.vms[step.vm])
            if loose_pins:
                pins = ", ".join(loose_pins)
                return f"vCenter gave its devices other keys than expected: {pins} binds no device of it"
        return super().not_shown_reason(step)

    def too_late_reason(self, step: Step, sent: Inventory) -> str | None:
        """Return why a reconfiguration that is not done can no longer take effect, or None if it still may."""
        before, now = self._change_versions(step, sent)
        if not isinstance(step, ReconfigureVm) or before is None or now is None or before == now:
            return None
        return "the reply was lost, and another user has changed its configuration since (run the command again)"

    def may_be_repeated(self, step: Step, sent: Inventory) -> bool:
        """Return whether a second request and a late arrival of the first have the same effect as one request."""
        if isinstance(step, ReconfigureVm):
            before, now = self._change_versions(step, sent)
            return before is not None and before == now
        if isinstance(step, RelocateVm):
            # a move to the VM's own host does nothing; if the VM is on another host by now, it was moved
            vm_before, vm_now = sent.vms.get(step.vm), self.inventory.vms.get(step.vm)
            return vm_before is not None and vm_now is not None and vm_before.host == vm_now.host
        # a power state is the same after two requests; vCenter refuses a second VM of the same name in a folder;
        # CloseGate is not listed: a late request would close the gate when no run expects that any more
        return power_afterwards(step) is not None or isinstance(
            step, SetAttribute | SetVmDrs | RunInGuest | OpenGate | CreationStep | RemoveVm
        )

    def _change_versions(self, step: Step, sent: Inventory) -> tuple[str | None, str | None]:
        """Return the changeVersion of the VM that a request was based on, and the current one."""
        before, now = sent.vms.get(step.vm), self.inventory.vms.get(step.vm)
        return before.change_version if before else None, now.change_version if now else None

    def is_by_others(self, in_flight: StepInFlight, error: GpuopsError | None) -> bool:
        """Return whether another user started the VM: its task is theirs, or our task found the VM running."""
        step, task = in_flight.step, in_flight.task
        if not isinstance(step, PowerOnVm):
            return False
        is_foreign_task = task is not None and task.foreign
        return is_foreign_task or self._was_running_before(in_flight.op_id, step, error)

    def found_done(
        self, op_id: str, step: Step, since: datetime, reason: str, duration_s: float | None = None
    ) -> Outcome:
        """Settle a step that is known to be done only from its effect. A start that gpuops is not known to have
        requested is another user's."""
        login = self.former_logins.get(op_id, "")
        if isinstance(step, PowerOnVm) and not self.vcenter.started_by_this_login(step.vm, since, login):
            return self.started_by_others(op_id, step)
        return super().found_done(op_id, step, since, reason, duration_s)

    def _was_running_before(self, op_id: str, step: Step, error: GpuopsError | None) -> bool:
        """Return whether another user had started the VM: our only request found it running."""
        refused = error is not None and error.trouble is Trouble.STATE
        return refused and self.is_the_only_request(op_id, step)

    def has_taken_effect(self, step: Step, *, lagging: bool) -> bool:
        """Return whether the VM is as the step leaves it.

        `lagging`: vCenter reported success, so a power state that does not show it yet is waited for.
        """
        if isinstance(step, RunInGuest):
            return lagging and step.vm in self.inventory.vms  # only the end of the program shows it
        if self.is_done(step):
            return True
        power = power_afterwards(step) if step.vm in self.inventory.vms else None
        if not lagging or power is None:
            return False
        self.forget_earlier_looks()
        if not self.vcenter.wait_for_power([step.vm], power, POWER_STATE_LAG_S):
            return False
        self.look([step.vm])
        return self.is_done(step)

    def settle(self, op_id: str, outcome: Outcome, *, counts: bool = True) -> Outcome:
        """Write the outcome to the journal and return it.

        For a suspend or a start that is done, the journal also gets the moment that the latest look shows. `counts` is
        False if the step was never sent to vCenter.
        """
        vm_after = self.inventory.vms.get(outcome.step.vm) if outcome.verdict is Verdict.DONE else None
        self.journal.record_outcome(
            op_id,
            STATES[outcome.verdict],
            outcome.reason,
            outcome.duration_s,
            refused=is_refusal(outcome),
            counts=counts,
            suspended_at=vm_after.suspended_at
            if vm_after is not None and isinstance(outcome.step, SuspendVm)
            else None,
            started_at=vm_after.started_at if vm_after is not None and isinstance(outcome.step, PowerOnVm) else None,
        )
        self.step_gates.note_outcome(outcome)
        self._ended.append(outcome)
        return outcome


def power_afterwards(step: Step) -> PowerState | None:
    """Return the power state that a step leads to, or None if the step does not change the power state."""
    match step:
        case PowerOnVm() | ResumeVm():
            return PowerState.ON
        case SuspendVm():
            return PowerState.SUSPENDED
        case PowerOffVm() | PowerOffForRemoval() | ShutDownGuest():
            return PowerState.OFF
        case _:
            return None
