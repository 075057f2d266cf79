"""Executes a plan: each step is sent as soon as the steps that it needs are done. Hosts do not wait for each other.

The waves of a plan are an order within a host and within a VM: a desktop resumes when the ML VMs on its own host have
stopped. If a step fails, only the steps that depend on it are skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final

from gpuops.errors import Trouble
from gpuops.execute.steps.step_executor import SLICE_S, StepInFlight
from gpuops.execute.steps.step_queue import SentStep, StepQueue, WaitingStep
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.nights.rotation_policy import Limits
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Outcome, Plan, Verdict
from gpuops.plan.core.steps import (
    OpenGate,
    PowerOffForRemoval,
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    RemoveVm,
    ResumeVm,
    RunInGuest,
    ShutDownGuest,
    Step,
    SuspendVm,
)

BUSY_RETRY_DELAYS_S: Final = (20.0, 60.0, 120.0)
"""Seconds to wait before each new try of a step whose VM is busy with a task of another user."""

NOT_LATER: Final = (SuspendVm, PowerOnVm, PowerOffVm, RelocateVm, PowerOffForRemoval, RemoveVm)
"""Steps that must not happen long after the look that they were judged by. vCenter queues a task behind another user's
task on the same VM; when that one ends, the desktop may be in use, the VM suspended or the window closed. A late resume
does no harm, and vCenter refuses a reconfiguration if the configuration has changed since."""

RESUME_RETRY_DELAYS_S: Final = (60.0,)
"""A resume that failed is tried once more: the memory or GPU that it needs may have been freed since."""


def execute(
    plan: Plan,
    executor: VmExecutor,
    limits: Limits,
    progress: Callable[[Outcome], None],
    *,
    returning: bool = False,
    in_flight: Callable[[Sequence[Step]], None] = lambda steps: None,
) -> tuple[Outcome, ...]:
    """Execute the plan and return the outcome of each step.

    `returning`: the plan only brings desktops back, and a step that hangs does not delay the others. `in_flight` is
    called with the steps in flight each time before the plan waits.

    Raises NotConnected when vCenter is lost on the way and StateDamaged when the journal cannot be written. The run
    then stays open, and every request that was sent is in the journal.
    """
    run = _Run(plan, executor, limits, progress, returning=returning)
    while run.queue.has_steps:
        executor.keep_lease()
        if run.send():
            continue  # other steps may have waited for those that ended at once
        in_flight([sent.in_flight.step for sent in run.queue.sent])
        if run.queue.sent:
            run.wait()
        elif run.queue.rest_s:
            run.wait_for_retry(run.queue.rest_s)
    return tuple(run.outcomes)


class _Run:
    """One plan while it is executed."""

    def __init__(
        self,
        plan: Plan,
        executor: VmExecutor,
        limits: Limits,
        progress: Callable[[Outcome], None],
        *,
        returning: bool,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self.queue = StepQueue(plan, limits, returning=returning)
        self._executor = executor
        self._limits = limits
        self._progress = progress
        self._returning = returning
        self._vms = {step.vm for step in plan.steps}
        self._failed: list[Outcome] = []
        self._answered: list[tuple[WaitingStep, StepInFlight]] = []
        """Steps that vCenter answered at once, and that no look has shown as done yet."""

    def send(self) -> bool:
        """Send the steps that may be sent now, and handle those that end at once.

        Return whether steps that vCenter answered at once were judged: then others may be ready.
        """
        batch: list[WaitingStep] = []
        for waiting in self._ready():
            reason = None if waiting.ignores_failures else self._failed_dependency(waiting.step)
            if reason is None:
                batch.append(waiting)
            else:
                self.queue.end(waiting)
                self._note_end(Outcome(waiting.step, Verdict.SKIPPED, reason))
        if batch:
            self._executor.look_before([waiting.step for waiting in batch])
        stops = (sent.step for sent in self.queue.sent if isinstance(sent.step, SuspendVm | ShutDownGuest))
        self._executor.vms_being_stopped = {step.vm for step in stops}
        for waiting in batch:
            started = self._executor.begin(waiting.step)
            if isinstance(started, StepInFlight) and started.answered:
                self.queue.end(waiting)
                self._answered.append((waiting, started))
            elif isinstance(started, StepInFlight):
                self.queue.add_sent(waiting, started)
                if isinstance(waiting.step, SuspendVm | ShutDownGuest):
                    self._executor.vms_being_stopped.add(waiting.step.vm)
            else:
                self._handle_end(waiting, started)
        # Steps that vCenter answered at once are judged by the look after the next wait. Look now only if there is no
        # wait, or if a step is ready that may need their outcome.
        judge_now = bool(self._answered) and (not self.queue.sent or bool(self._ready()))
        if judge_now:
            self._look_after()
            self._judge_answered()
        return judge_now

    def _judge_answered(self) -> None:
        """Handle the steps that vCenter answered at once, by the latest look."""
        answered, self._answered = self._answered, []
        for waiting, sent in answered:
            self._handle_end(waiting, self._executor.judge(sent.op_id, sent.step, sent.since))

    def _ready(self) -> list[WaitingStep]:
        return self.queue.ready(self._executor.inventory, broker_fails=self._executor.step_gates.fails)

    def _look_after(self, finished: Collection[str] = ()) -> None:
        """Read the VMs whose steps have finished or were answered at once.

        The same look reads the VMs of the steps that may follow at once.
        """
        ended = {*finished, *(waiting.step.vm for waiting, _ in self._answered)}
        following = [waiting.step for waiting in self._ready()] if ended else []
        if following:
            self._executor.look_before(following, ended)
        elif ended and self._returning and not self.queue.has_steps:
            self._executor.look(self._vms)  # the last look: the return judges by it which VMs are back
        elif ended:
            self._executor.look(ended)

    def _handle_end(self, waiting: WaitingStep, outcome: Outcome) -> None:
        """Note the outcome of a step that ended, unless the step is retried or done in another way."""
        step = waiting.step
        # the step that ended may replace the planned one: a power-off after a shutdown, a resume after a suspend
        if isinstance(step, ShutDownGuest) and isinstance(outcome.step, PowerOffVm):
            outcome = _shutdown_by_power_off(step, waiting.reason, outcome)
        elif isinstance(step, SuspendVm) and isinstance(outcome.step, ResumeVm):
            outcome = _suspend_undone(step, waiting.reason, outcome)
        elif isinstance(step, ShutDownGuest) and step.then_off and outcome.verdict in (Verdict.FAILED, Verdict.UNKNOWN):
            self._power_off(waiting, outcome.reason)
            return
        delays_s = () if self._is_plan_outdated(step) else _retry_delays_s(outcome)
        if outcome.verdict is Verdict.FAILED and waiting.tries < len(delays_s):
            self.queue.retry_later(waiting, delays_s[waiting.tries])
            return
        self.queue.end(waiting)
        self._note_end(outcome)

    def _power_off(self, waiting: WaitingStep, reason: str) -> None:
        """Power the VM off, as the plan says, because its guest did not shut down."""
        waiting.reason = reason
        self._executor.look([waiting.step.vm])
        self._send_instead(waiting, PowerOffVm(waiting.step.vm))

    def _resume_at_once(self, waiting: WaitingStep, reason: str) -> None:
        """Resume a desktop at once, because a user connected while it was being suspended, or may have."""
        waiting.reason = reason
        vm = self._executor.inventory.vms.get(waiting.step.vm)
        self._send_instead(waiting, ResumeVm(waiting.step.vm, vm.host if vm is not None else None))

    def _send_instead(self, waiting: WaitingStep, step: Step) -> None:
        """Send another step in place of the one that ended."""
        started = self._executor.begin(step)
        if isinstance(started, StepInFlight):
            self.queue.add_sent(waiting, started)
        else:
            self._handle_end(waiting, started)

    def _reopen_gate(self, outcome: Outcome) -> None:
        """Queue the opening of a desktop's gate if the desktop is not taken after all.

        If a suspend or a guest shutdown may still happen, the gate stays closed until a return has seen the result.
        """
        never_taken = (Verdict.FAILED, Verdict.SKIPPED) if isinstance(outcome.step, SuspendVm) else (Verdict.SKIPPED,)
        machine = self._executor.step_gates.held_machine(outcome.step.vm)
        takes = isinstance(outcome.step, SuspendVm | ShutDownGuest)
        if takes and outcome.verdict in never_taken and machine is not None:
            self.queue.add(OpenGate(outcome.step.vm, machine))

    def _note_end(self, outcome: Outcome) -> None:
        self._reopen_gate(outcome)
        # a guest program that failed is reported, but must not keep a desktop from coming back
        if outcome.verdict not in (Verdict.DONE, Verdict.ALREADY) and not isinstance(outcome.step, RunInGuest):
            self._failed.append(outcome)
        self.outcomes.append(outcome)
        self._progress(outcome)

    # waiting

    def wait(self) -> None:
        """Wait until a step ends, at most one slice, and handle the steps that ended or exceeded their time limit."""
        tasks = {sent.in_flight.task: sent for sent in self.queue.sent if sent.in_flight.task is not None}
        guests = [sent for sent in self.queue.sent if sent.in_flight.task is None]
        slice_s, began_s = min(SLICE_S, self.queue.next_due_s), self._executor.passed_s()
        self._executor.forget_earlier_looks()  # looks from before this wait are too old for the steps after it
        ends: list[TaskEnd] = []
        if tasks:
            for end in self._executor.vcenter.wait(list(tasks), slice_s):
                ends.append(end)
                if self.queue.waiting:
                    break  # its end may be what the next step waits for
        shut_down = self._wait_for_shutdowns(guests, 0.0 if tasks else slice_s)
        # If no task ended and not all guests are off, the wait took the complete slice. It counts in full, because the
        # clock may have stood still meanwhile (a paused machine), and that must not prolong the time limits.
        took_complete_slice = not ends and len(shut_down) < max(1, len(guests))
        self.queue.count_time(max(slice_s if took_complete_slice else 0.0, self._executor.passed_s() - began_s))
        finished: list[tuple[SentStep, TaskEnd | None]] = [(tasks[end.task], end) for end in ends]
        finished += [(sent, None) for sent in shut_down]  # a guest's shutdown has no task
        for sent, _ in finished:
            self.queue.remove_sent(sent)
        # one look for all of them, before any outcome is decided
        self._look_after([sent.step.vm for sent, _ in finished])
        in_use = self._executor.in_use_again([sent.in_flight.step for sent, _ in finished])
        for sent, task_end in finished:
            if task_end is not None:
                outcome = self._executor.finish(sent.in_flight, task_end)
                if outcome.verdict is Verdict.DONE and sent.step.vm in in_use:
                    # a user came while the desktop was being suspended: it is resumed at once
                    self._resume_at_once(sent.waiting, in_use[sent.step.vm])
                    continue
            else:
                outcome = self._executor.settle(sent.in_flight.op_id, Outcome(sent.step, Verdict.DONE))
            self._handle_end(sent.waiting, outcome)
        self._judge_answered()  # answered when they were sent; the look above shows their effect
        self._cancel_queued_tasks()
        self._end_overdue()

    def _cancel_queued_tasks(self) -> None:
        """Cancel tasks that are still queued after a slice. Their steps are retried like those of a busy VM."""
        queued_long = (sent.in_flight for sent in self.queue.sent if sent.waited_s >= SLICE_S)
        tasks = [
            in_flight.task
            for in_flight in queued_long
            if isinstance(in_flight.step, NOT_LATER) and in_flight.task is not None
        ]
        if tasks:
            self._executor.vcenter.withdraw(tasks)

    def _wait_for_shutdowns(self, guests: list[SentStep], wait_s: float) -> list[SentStep]:
        """Wait for these shutdowns of guests, at most `wait_s` seconds, and return those that are done."""
        if not guests:
            return []
        off_vms = self._executor.vcenter.wait_for_power([guest.step.vm for guest in guests], PowerState.OFF, wait_s)
        return [guest for guest in guests if guest.step.vm in off_vms]

    def _end_overdue(self) -> None:
        """Stop waiting for the steps that exceeded their time limit, and note those that are not retried."""
        for sent in self.queue.overdue():
            waiting, step = self.queue.remove_sent(sent), sent.in_flight.step
            overdue: Outcome
            # a guest's shutdown and program have no task: they failed; a task may still end, so its outcome is unknown
            if isinstance(step, ShutDownGuest):
                overdue = Outcome(step, Verdict.FAILED, f"the guest still runs after {step.grace_s} s")
            elif isinstance(step, RunInGuest):
                overdue = Outcome(
                    step, Verdict.FAILED, f"its program still runs after {step.limit_s} s: not waited for"
                )
            else:
                task = sent.in_flight.task.ref if sent.in_flight.task else "its task"
                overdue = Outcome(step, Verdict.UNKNOWN, f"{task} still runs after {self._limits.step_timeout_s:.0f} s")
            self._handle_end(waiting, self._executor.settle(sent.in_flight.op_id, overdue))

    def wait_for_retry(self, seconds: float) -> None:
        """Wait until a step may be retried. Nothing is in flight; the wait ends early when the VM is no longer busy."""
        vms = [waiting.step.vm for waiting in self.queue.waiting if waiting.rest_s]
        self._executor.forget_earlier_looks()
        self._executor.look(vms)
        busy_vms = [vm for ref in vms if (vm := self._executor.inventory.vms.get(ref)) is not None]
        tasks = [TaskRef(task.ref) for vm in busy_vms for task in vm.tasks]
        if tasks:
            deque(self._executor.vcenter.wait(tasks, seconds), maxlen=0)  # only waits: the ends do not matter
        else:
            self._executor.vcenter.wait_for_power(vms, PowerState.ON, seconds)
        self.queue.count_time(seconds)  # in full, so that the step is tried at once if the wait ended early

    # dependencies

    def _failed_dependency(self, step: Step) -> str | None:
        """Return why a step is not tried, or None.

        It is not tried if an earlier step of its VM failed. A start is not tried either if a suspend that was to free
        GPUs on its host failed. A resume is tried in any case: vCenter refuses it if there is no room, and a refused
        try does no harm.
        """
        for outcome in self._failed:
            if outcome.step.vm == step.vm:
                return f"an earlier step failed: {outcome.reason}"
            if isinstance(step, PowerOnVm) and isinstance(outcome.step, SuspendVm) and not outcome.step.gives_way:
                desktop = self._executor.planned.vms.get(outcome.step.vm)
                if desktop is not None and desktop.host is not None and desktop.host == self._start_host(step):
                    return f"{desktop.name}, whose GPUs it needs, was not suspended: {outcome.reason}"
        return None

    def _is_plan_outdated(self, step: Step) -> bool:
        """Return whether the configuration that a change was planned for has changed since: then it is not retried."""
        if not isinstance(step, ReconfigureVm):
            return False
        planned_vm, vm = self._executor.planned.vms.get(step.vm), self._executor.inventory.vms.get(step.vm)
        return planned_vm is None or vm is None or planned_vm.change_version != vm.change_version

    def _start_host(self, step: PowerOnVm) -> str | None:
        if step.host is not None:
            return step.host
        vm = self._executor.inventory.vms.get(step.vm)
        return vm.host if vm else None


def _retry_delays_s(outcome: Outcome) -> tuple[float, ...]:
    """Return the seconds to wait before each retry of a step; empty if it is not retried."""
    if isinstance(outcome.step, RunInGuest):
        return ()  # a program in a guest is not retried: desktops wait for it
    if outcome.trouble is Trouble.BUSY:  # assumption: busy-vm-fault
        return BUSY_RETRY_DELAYS_S
    if isinstance(outcome.step, ResumeVm) and outcome.trouble is not None:
        return RESUME_RETRY_DELAYS_S
    return ()


def _suspend_undone(step: SuspendVm, reason: str, outcome: Outcome) -> Outcome:
    """Return the outcome of a suspend whose desktop was resumed: the steps that needed its GPU are not begun."""
    if outcome.verdict in (Verdict.DONE, Verdict.ALREADY):
        return Outcome(step, Verdict.FAILED, f"{reason}: resumed at once", outcome.duration_s)
    return Outcome(
        step, Verdict.UNKNOWN, f"{reason}, and gpuops could not resume it: {outcome.reason}", outcome.duration_s
    )


def _shutdown_by_power_off(step: ShutDownGuest, reason: str, outcome: Outcome) -> Outcome:
    """Return the outcome of a shutdown that ended with a power-off."""
    if outcome.verdict in (Verdict.DONE, Verdict.ALREADY):
        return Outcome(step, Verdict.DONE, f"{reason}; powered off", outcome.duration_s)
    return Outcome(step, outcome.verdict, f"{reason}; {outcome.reason}", outcome.duration_s, outcome.trouble)
