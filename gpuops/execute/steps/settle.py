"""Settles the steps that a killed run left in flight, by what vCenter shows. Each rotation begins with it.

A killed run leaves intents without a known outcome. Each is settled before anything new is decided: gpuops waits for
its task if there is one, and then reads the VM. The remaining work is planned again from there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuops.errors import Trouble
from gpuops.execute.journal import Intent
from gpuops.execute.site.ports import Vcenter
from gpuops.execute.steps.plan_executor import NOT_LATER
from gpuops.execute.steps.step_executor import FOUND_DONE, NOT_REACHED, SLICE_S, StepInFlight
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.night_record import Role, parse_marker
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.abandonment import vm_now
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.step_checks import is_satisfied
from gpuops.plan.core.steps import CloseGate, GateStep, PowerOnVm, RunInGuest, ShutDownGuest, Step, SuspendVm
from gpuops.plan.placement.project import project

_POWER_BEFORE: Final[dict[type[Step], PowerState]] = {
    SuspendVm: PowerState.ON,
    PowerOnVm: PowerState.OFF,
    ShutDownGuest: PowerState.ON,
}
"""The power state of a VM before a night takes it."""


def settle_open(executor: VmExecutor, *, timeout_s: float) -> tuple[Outcome, ...]:
    """Return the outcome of each effect of the run that has none yet. Sends nothing."""
    intents = [with_current_id(intent, executor.inventory) for intent in executor.journal.open_intents(executor.run)]
    if not intents:
        return ()
    executor.former_logins = {intent.op_id: former_login(intent, executor.inventory) for intent in intents}
    # Do not wait for a hook: desktops must come back. The next plan runs it again if its VM still runs.
    tasks = {intent.op_id: _task_of(executor, intent) for intent in intents}
    settled: dict[str, Outcome] = {}
    # Judge effects without a task before waiting for the others: later, another user may have done the same.
    without_task = [intent for intent in intents if tasks[intent.op_id] is None]
    if without_task:
        executor.look_before([intent.step for intent in without_task])
        settled = {intent.op_id: _settle_by_state(executor, intent) for intent in without_task}
    running = {task for task in tasks.values() if task is not None}
    not_later = {tasks[intent.op_id] for intent in intents if isinstance(intent.step, NOT_LATER)}
    ends = _wait_for_ends(executor, running, not_later, timeout_s)
    if running:
        executor.forget_earlier_looks()
        executor.look_before([intent.step for intent in intents if intent not in without_task])
    for intent in intents:
        task = tasks[intent.op_id]
        if task is not None and task not in ends:
            overdue = Outcome(intent.step, Verdict.UNKNOWN, f"{task.ref} still runs after {timeout_s:.0f} s")
            settled[intent.op_id] = executor.settle(intent.op_id, overdue)
        elif task is not None:
            in_flight = StepInFlight(intent.op_id, intent.step, task, intent.seen)
            settled[intent.op_id] = executor.finish(in_flight, ends[task])
    return tuple(settled[intent.op_id] for intent in intents)


def _wait_for_ends(
    executor: VmExecutor, tasks: Collection[TaskRef], not_later: Collection[TaskRef | None], timeout_s: float
) -> dict[TaskRef, TaskEnd]:
    """Return how these tasks ended, waiting at most `timeout_s`.

    Tasks of `not_later` that are still queued after a slice are cancelled: the run that sent them has ended, and no run
    would notice when they begin.
    """
    ends = executor.wait_for_tasks(tasks, min(SLICE_S, timeout_s))
    unfinished = [task for task in tasks if task not in ends]
    if unfinished and timeout_s > SLICE_S:
        executor.vcenter.withdraw([task for task in unfinished if task in not_later])
        ends |= executor.wait_for_tasks(unfinished, timeout_s - SLICE_S)
    return ends


def with_current_id(intent: Intent, inventory: Inventory) -> Intent:
    """Return the effect with the current id of its VM: a VM that was registered again has a new one."""
    vm = vm_now(intent.step.vm, intent.uuid, inventory)
    return intent if vm is None else replace(intent, step=replace(intent.step, vm=vm.ref))


def former_login(intent: Intent, inventory: Inventory) -> str:
    """Return the user that gpuops sent the effect as, if it differs from the current user; else ""."""
    return intent.login if intent.login != inventory.user else ""


@dataclass(frozen=True, slots=True)
class SettledSnapshot:
    """What settling would result in, found by reading alone."""

    inventory: Inventory
    """Effects that are still in flight are shown as done: resume waits for them."""
    undone: frozenset[str]
    """VMs that the run was to take and did not take."""
    notes: tuple[str, ...]


def settle_in_snapshot(
    vcenter: Vcenter, intents: Sequence[Intent], inventory: Inventory, catalog: Catalog
) -> SettledSnapshot:
    """Return the snapshot as it will be once these open effects of a run are settled. Sends and records nothing."""
    undone: set[str] = set()
    notes: list[str] = []
    for intent in (with_current_id(intent, inventory) for intent in intents):
        step, vm = intent.step, inventory.vms.get(intent.step.vm)
        if vm is None:
            continue
        if is_satisfied(step, inventory):
            login = former_login(intent, inventory)
            # the VM runs, but not because of this run
            if isinstance(step, PowerOnVm) and not vcenter.started_by_this_login(step.vm, intent.seen, login):
                undone.add(step.vm)
                notes.append(f"{vm.name}: another user started it")
            continue
        task = TaskRef(intent.task) if intent.task is not None else None
        if task is None and not isinstance(step, GateStep):
            task = vcenter.find_task(step, intent.seen, former_login(intent, inventory))
        if task is not None and any(vm_task.ref == task.ref for vm_task in vm.tasks):
            other_tasks = tuple(vm_task for vm_task in vm.tasks if vm_task.ref != task.ref)
            inventory = project(step, inventory.with_vm(replace(vm, tasks=other_tasks)), catalog)
            notes.append(f"{vm.name}: its {step.noun} is in flight ({task.ref}): waited for first, planned as done")
        elif isinstance(step, RunInGuest | GateStep) or _may_have_happened(step, vm):
            notes.append(f"{vm.name}: its {step.noun} was not seen to end before the run was cut off")
        else:
            undone |= {step.vm} if _takes(step, vm) else set()
            notes.append(f"{vm.name}: its {step.noun} did not happen before the run was cut off")
    return SettledSnapshot(inventory, frozenset(undone), tuple(notes))


def _takes(step: Step, vm: Vm) -> bool:
    """Return whether it is a step that takes a VM for a night. A guest shutdown is one if the VM's marker says that a
    night shut it down: ML VMs have another marker."""
    if isinstance(step, ShutDownGuest):
        marks = (parse_marker(text) for text in vm.attributes.values())
        return any(mark is not None and mark.role is Role.SHUT_DOWN for mark in marks)
    return isinstance(step, PowerOnVm) or (isinstance(step, SuspendVm) and not step.gives_way)


def _may_have_happened(step: Step, vm: Vm | None) -> bool:
    """Return whether a step that takes a VM may have happened, even if another user has changed the VM again since.

    Only an unchanged power state proves that it did not happen. A gate may still be closed by a request that arrives
    late.
    """
    if isinstance(step, CloseGate):
        return True
    resumes = isinstance(step, PowerOnVm) and step.resumes
    power_before = PowerState.SUSPENDED if resumes else _POWER_BEFORE.get(type(step))
    return power_before is not None and (vm is None or vm.power is not power_before)


def _task_of(executor: VmExecutor, intent: Intent) -> TaskRef | None:
    """Return the task of an open effect by the journal or else by vCenter; None if there is none to wait for."""
    if isinstance(intent.step, RunInGuest):
        return None
    if intent.task is not None:
        return TaskRef(intent.task)
    return executor.find_task(intent.step, intent.seen, executor.former_logins[intent.op_id])


def _settle_by_state(executor: VmExecutor, intent: Intent) -> Outcome:
    """Settle an open effect without a task by what the latest look shows."""
    if executor.is_done(intent.step):
        return executor.found_done(intent.op_id, intent.step, intent.seen, FOUND_DONE)
    not_seen_to_end = "the run was cut off before it was seen to end"
    if _may_have_happened(intent.step, executor.inventory.vms.get(intent.step.vm)):
        lost = Outcome(
            intent.step, Verdict.UNKNOWN, f"{not_seen_to_end}; vCenter shows no task of it", trouble=Trouble.LOST
        )
        return executor.settle(intent.op_id, lost, counts=False)
    # these steps never have a task, so its absence does not show that vCenter did not get the request
    never_has_task = isinstance(intent.step, RunInGuest | ShutDownGuest)
    reason = not_seen_to_end if never_has_task else NOT_REACHED
    return executor.settle(intent.op_id, Outcome(intent.step, Verdict.FAILED, reason), counts=False)
