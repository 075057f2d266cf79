"""Executes a plan: each step is sent as soon as the steps that it needs are done. Hosts do not wait for each other.

The waves of a plan are an order within a host and within a VM: a desktop resumes when the ML VMs of its own host have
stopped. A step that failed takes along what depends on it, and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from gpuops.errors import Trouble
from gpuops.execute.steps.step_executor import SLICE_S, StepInFlight
from gpuops.execute.steps.step_queue import SentStep, StepQueue, WaitingStep
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.nights.rotation import Limits
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.outcome import Outcome, Verdict
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import (
    OpenGate,
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    ResumeVm,
    RunInGuest,
    ShutDownGuest,
    Step,
    SuspendVm,
)

BUSY_RESTS_S: Final = (20.0, 60.0, 120.0)
"""Before each new try of a step whose VM somebody else is at."""

NOT_LATER: Final = (SuspendVm, PowerOnVm, PowerOffVm, RelocateVm)
"""Steps that must not happen long after the look that they went by: vCenter queues a task behind somebody else's of the
same VM, and the desktop may be in use, the VM suspended or the window shut when that one ends. A resume is wanted
whenever it comes, and vCenter refuses a reconfiguration of a configuration that changed meanwhile."""

RESUME_RESTS_S: Final = (60.0,)
"""A resume that failed is tried once more: what was in its way may have been freed meanwhile."""


def _untold(steps: Sequence[Step]) -> None:
    """Of a caller that does not ask what is in flight."""


def execute(
    plan: Plan,
    executor: VmExecutor,
    limits: Limits,
    progress: Callable[[Outcome], None],
    *,
    returning: bool = False,
    in_flight: Callable[[Sequence[Step]], None] = _untold,
) -> tuple[Outcome, ...]:
    """What became of each step of the plan. `returning`: it only brings back, and no step that hangs holds others up.
    `in_flight` is told of the steps in flight each time before the plan waits.

    Raises NotConnected when vCenter is lost on the way and StateDamaged when the journal cannot be written; the run
    then stays open, and nothing was sent that is not in the journal.
    """
    outcomes: list[Outcome] = []
    for outcome in _Run(plan, executor, limits, in_flight, returning=returning).outcomes():
        outcomes.append(outcome)
        progress(outcome)
    return tuple(outcomes)


class _Run:
    """One plan on its way."""

    def __init__(
        self,
        plan: Plan,
        executor: VmExecutor,
        limits: Limits,
        in_flight: Callable[[Sequence[Step]], None],
        *,
        returning: bool,
    ) -> None:
        self._executor = executor
        self._in_flight = in_flight
        self._limits = limits
        self._queue = StepQueue(plan, limits, returning=returning)
        self._bad: list[Outcome] = []

    def outcomes(self) -> Iterator[Outcome]:
        while self._queue.unended:
            self._executor.keep_lease()
            yield from self._send()
            self._in_flight([sent.in_flight.step for sent in self._queue.sent])
            if self._queue.sent:
                yield from self._wait()
            elif self._queue.rest_s:
                self._rest(self._queue.rest_s)

    def _send(self) -> Iterator[Outcome]:
        """Sends what may be sent now; steps that end at once are yielded."""
        batch = []
        for waiting in self._ready():
            reason = None if waiting.whatever_failed else self._depends_on(waiting.step)
            if reason is None:
                batch.append(waiting)
            else:
                self._queue.end(waiting)
                yield self._ended(Outcome(waiting.step, Verdict.SKIPPED, reason))
        if batch:
            self._executor.look_before([waiting.step for waiting in batch])
        leaving = {sent.step.vm for sent in self._queue.sent if isinstance(sent.step, SuspendVm | ShutDownGuest)}
        answered: list[tuple[WaitingStep, StepInFlight]] = []
        for waiting in batch:
            result = self._executor.begin(waiting.step, leaving)
            if isinstance(result, StepInFlight) and result.answered:
                answered.append((waiting, result))
            elif isinstance(result, StepInFlight):
                self._queue.add_sent(waiting, result)
                leaving |= {waiting.step.vm} if isinstance(waiting.step, SuspendVm | ShutDownGuest) else set()
            else:
                yield from self._handle_end(waiting, result)
        for waiting, _ in answered:
            self._queue.end(waiting)
        self._look_after([waiting.step.vm for waiting, _ in answered])
        for waiting, sent in answered:
            yield from self._handle_end(waiting, self._executor.judge(sent.op_id, sent.step, sent.since))

    def _ready(self) -> list[WaitingStep]:
        return self._queue.ready(self._executor.inventory, broker_fails=self._executor.step_gates.fails)

    def _look_after(self, ended: Collection[str]) -> None:
        """Reads the VMs whose steps have ended, and in the same look those of the steps that may follow at once."""
        following = [waiting.step for waiting in self._ready()] if ended else []
        if following:
            self._executor.look_before(following, ended)
        elif ended:
            self._executor.look(ended)

    def _handle_end(self, waiting: WaitingStep, outcome: Outcome) -> Iterator[Outcome]:
        """A step that came to an end, unless it is tried again or by other means."""
        step = waiting.step
        if isinstance(step, ShutDownGuest) and isinstance(outcome.step, PowerOffVm):
            outcome = _powered_off(step, waiting.reason, outcome)
        elif isinstance(step, SuspendVm) and isinstance(outcome.step, ResumeVm):
            outcome = _given_back(step, waiting.reason, outcome)
        elif isinstance(step, ShutDownGuest) and step.then_off and outcome.verdict in (Verdict.FAILED, Verdict.UNKNOWN):
            yield from self._power_off(waiting, outcome.reason)
            return
        rests_s = () if self._overtaken(step) else _rests_s(outcome)
        if outcome.verdict is Verdict.FAILED and waiting.tries < len(rests_s):
            self._queue.again(waiting, rests_s[waiting.tries])
            return
        self._queue.end(waiting)
        yield self._ended(outcome)

    def _power_off(self, waiting: WaitingStep, reason: str) -> Iterator[Outcome]:
        """The guest did not shut down, and the plan says what then."""
        waiting.reason = reason
        self._executor.look([waiting.step.vm])
        yield from self._instead(waiting, PowerOffVm(waiting.step.vm))

    def _give_back(self, waiting: WaitingStep, reason: str) -> Iterator[Outcome]:
        """Somebody came, or may have, while the desktop was being suspended: it is resumed at once."""
        waiting.reason = reason
        vm = self._executor.inventory.vms.get(waiting.step.vm)
        yield from self._instead(waiting, ResumeVm(waiting.step.vm, vm.host if vm is not None else None))

    def _instead(self, waiting: WaitingStep, step: Step) -> Iterator[Outcome]:
        """Sends another step in the place of the one that ended."""
        result = self._executor.begin(step)
        if isinstance(result, StepInFlight):
            self._queue.add_sent(waiting, result)
        else:
            yield from self._handle_end(waiting, result)

    def _let_in(self, outcome: Outcome) -> None:
        """Has the gate opened of a desktop that is not taken after all. Where a suspend or a guest's shutdown may still
        come, it stays closed until a return has seen what became of it."""
        never_taken = (Verdict.FAILED, Verdict.SKIPPED) if isinstance(outcome.step, SuspendVm) else (Verdict.SKIPPED,)
        machine = self._executor.step_gates.held(outcome.step.vm)
        takes = isinstance(outcome.step, SuspendVm | ShutDownGuest)
        if takes and outcome.verdict in never_taken and machine is not None:
            self._queue.add(OpenGate(outcome.step.vm, machine))

    def _ended(self, outcome: Outcome) -> Outcome:
        self._let_in(outcome)
        # work that a guest did not keep is named, and keeps no desktop from coming back
        if outcome.verdict not in (Verdict.DONE, Verdict.ALREADY) and not isinstance(outcome.step, RunInGuest):
            self._bad.append(outcome)
        return outcome

    # waiting

    def _wait(self) -> Iterator[Outcome]:
        """Lets time pass until a step ends, at most a slice; what ended, or has outlived its time, is handled."""
        tasks = {sent.in_flight.task: sent for sent in self._queue.sent if sent.in_flight.task is not None}
        guests = [sent for sent in self._queue.sent if sent.in_flight.task is None]
        slice_s, began_s = min(SLICE_S, self._queue.next_due_s), self._executor.passed_s()
        self._executor.share_no_look()
        ends: list[TaskEnd] = []
        if tasks:
            for end in self._executor.vcenter.wait(list(tasks), slice_s):
                ends.append(end)
                if self._queue.waiting:
                    break  # its end may be what the next step waits for
        off = self._off(guests, 0.0 if tasks else slice_s)
        silent = not ends and len(off) < max(1, len(guests))
        self._queue.spend(max(slice_s if silent else 0.0, self._executor.passed_s() - began_s))
        finished: list[tuple[SentStep, TaskEnd | None]] = [(tasks[end.task], end) for end in ends]
        finished += [(sent, None) for sent in off]
        for sent, _ in finished:
            self._queue.remove_sent(sent)
        self._look_after([sent.step.vm for sent, _ in finished])
        in_use = self._executor.in_use_again([sent.in_flight.step for sent, _ in finished])
        for sent, ended in finished:
            if ended is not None:
                outcome = self._executor.finish(sent.in_flight, ended)
                if outcome.verdict is Verdict.DONE and sent.step.vm in in_use:
                    yield from self._give_back(sent.waiting, in_use[sent.step.vm])
                    continue
            else:
                outcome = self._executor.settle(sent.in_flight.op_id, Outcome(sent.step, Verdict.DONE))
            yield from self._handle_end(sent.waiting, outcome)
        self._withdraw()
        yield from self._overdue()

    def _withdraw(self) -> None:
        """Takes steps back that are still queued after a slice: they are tried again as those of a busy VM are."""
        sent = (each.in_flight for each in self._queue.sent if each.waited_s >= SLICE_S)
        tasks = [each.task for each in sent if isinstance(each.step, NOT_LATER) and each.task is not None]
        if tasks:
            self._executor.vcenter.withdraw(tasks)

    def _off(self, guests: list[SentStep], wait_s: float) -> list[SentStep]:
        """The guests that have shut down."""
        if not guests:
            return []
        off = self._executor.vcenter.wait_for_power([guest.step.vm for guest in guests], PowerState.OFF, wait_s)
        return [guest for guest in guests if guest.step.vm in off]

    def _overdue(self) -> Iterator[Outcome]:
        for sent in self._queue.overdue():
            waiting, step = self._queue.remove_sent(sent), sent.in_flight.step
            late: Outcome
            if isinstance(step, ShutDownGuest):
                late = Outcome(step, Verdict.FAILED, f"the guest still runs after {step.grace_s} s")
            elif isinstance(step, RunInGuest):
                late = Outcome(step, Verdict.FAILED, f"its program still runs after {step.limit_s} s: not waited for")
            else:
                task = sent.in_flight.task.ref if sent.in_flight.task else "its task"
                late = Outcome(step, Verdict.UNKNOWN, f"{task} still runs after {self._limits.step_timeout_s:.0f} s")
            yield from self._handle_end(waiting, self._executor.settle(sent.in_flight.op_id, late))

    def _rest(self, seconds: float) -> None:
        """Nothing is in flight, and what is left rests before its next try: until then, or until it need not."""
        vms = [waiting.step.vm for waiting in self._queue.waiting if waiting.rest_s]
        self._executor.share_no_look()
        self._executor.look(vms)
        found = [vm for ref in vms if (vm := self._executor.inventory.vms.get(ref)) is not None]
        tasks = [TaskRef(task.ref) for vm in found for task in vm.tasks]
        if tasks:
            deque(self._executor.vcenter.wait(tasks, seconds), maxlen=0)
        else:
            self._executor.vcenter.wait_for_power(vms, PowerState.ON, seconds)
        self._queue.spend(seconds)

    # dependencies

    def _depends_on(self, step: Step) -> str | None:
        """Why a step is not tried: an earlier step of its VM failed, or one that was to free the GPU it starts on.

        Only a start (taking) waits for the GPUs of its host to be freed as planned. A resume (returning) is always
        tried: vCenter refuses it if there is no room, and nothing is lost by asking.
        """
        for outcome in self._bad:
            if outcome.step.vm == step.vm:
                return f"an earlier step failed: {outcome.reason}"
            if isinstance(step, PowerOnVm) and isinstance(outcome.step, SuspendVm) and not outcome.step.gives_way:
                desktop = self._executor.planned.vms.get(outcome.step.vm)
                if desktop is not None and desktop.host is not None and desktop.host == self._start_host(step):
                    return f"{desktop.name} was not suspended on its host: {outcome.reason}"
        return None

    def _overtaken(self, step: Step) -> bool:
        """Whether a change was planned for a configuration that is not there any more: it is not asked for again."""
        if not isinstance(step, ReconfigureVm):
            return False
        before, now = self._executor.planned.vms.get(step.vm), self._executor.inventory.vms.get(step.vm)
        return before is None or now is None or before.change_version != now.change_version

    def _start_host(self, step: PowerOnVm) -> str | None:
        if step.host is not None:
            return step.host
        vm = self._executor.inventory.vms.get(step.vm)
        return vm.host if vm else None


def _rests_s(outcome: Outcome) -> tuple[float, ...]:
    """How long a step rests before each further try; empty = it is not tried again."""
    if isinstance(outcome.step, RunInGuest):
        return ()  # desktops wait for it
    if outcome.trouble is Trouble.BUSY:  # assumption: busy-vm-fault
        return BUSY_RESTS_S
    if isinstance(outcome.step, ResumeVm) and outcome.trouble is not None:
        return RESUME_RESTS_S
    return ()


def _given_back(step: SuspendVm, reason: str, outcome: Outcome) -> Outcome:
    """The suspend of a desktop that came to be used: what is planned in its place is not begun."""
    if outcome.verdict in (Verdict.DONE, Verdict.ALREADY):
        return Outcome(step, Verdict.FAILED, f"{reason}: resumed at once", outcome.duration_s)
    return Outcome(step, Verdict.UNKNOWN, f"{reason}, and it is not resumed: {outcome.reason}", outcome.duration_s)


def _powered_off(step: ShutDownGuest, reason: str, outcome: Outcome) -> Outcome:
    """The shutdown that ended in a power-off."""
    if outcome.verdict in (Verdict.DONE, Verdict.ALREADY):
        return Outcome(step, Verdict.DONE, f"{reason}; powered off", outcome.duration_s)
    return Outcome(step, outcome.verdict, f"{reason}; {outcome.reason}", outcome.duration_s, outcome.trouble)
