"""Settles what a killed run left in flight, by what vCenter shows. Each rotation begins with it.

A run that was killed left at most intents whose end nobody saw. Each is settled before anything new is decided: its
task is waited for if there is one, and then the VM says what happened. What remains to be done is planned afresh.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuops.errors import Trouble
from gpuops.execute.journal import Intent
from gpuops.execute.site.ports import Vcenter
from gpuops.execute.steps.plan_executor import NOT_LATER
from gpuops.execute.steps.step_executor import SLICE_S, StepInFlight
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.night_record import Role, parse_marker
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.given_up import vm_now
from gpuops.plan.core.outcome import Outcome, Verdict
from gpuops.plan.core.step_checks import satisfied
from gpuops.plan.core.steps import (
    CloseGate,
    GateStep,
    PowerOnVm,
    RunInGuest,
    ShutDownGuest,
    Step,
    SuspendVm,
)
from gpuops.plan.placement.project import project

_BEFORE: Final[dict[type[Step], PowerState]] = {
    SuspendVm: PowerState.ON,
    PowerOnVm: PowerState.OFF,
    ShutDownGuest: PowerState.ON,
}
"""The power that a night finds where it takes."""


def settle_open(executor: VmExecutor, *, timeout_s: float) -> tuple[Outcome, ...]:
    """What became of each effect of the run that nobody saw end. Sends nothing."""
    intents = [as_now(intent, executor.inventory) for intent in executor.journal.open_intents(executor.run)]
    if not intents:
        return ()
    executor.former_logins = {intent.op_id: former_login(intent, executor.inventory) for intent in intents}
    # A hook is not waited for: desktops are. The plan that follows runs it again, if its VM still runs.
    tasks = {intent.op_id: _task_of(executor, intent) for intent in intents}
    settled: dict[str, Outcome] = {}
    # What has no task is judged before the others are waited for: by then somebody else may have done the same.
    without = [intent for intent in intents if tasks[intent.op_id] is None]
    if without:
        executor.look_before([intent.step for intent in without])
        settled = {intent.op_id: _by_state(executor, intent) for intent in without}
    running = [task for task in tasks.values() if task is not None]
    not_later = {tasks[intent.op_id] for intent in intents if isinstance(intent.step, NOT_LATER)}
    ends = _ends(executor.vcenter, running, not_later, timeout_s)
    if running:
        executor.share_no_look()
        executor.look_before([intent.step for intent in intents if intent not in without])
    for intent in intents:
        task = tasks[intent.op_id]
        if task is not None and task not in ends:
            late = Outcome(intent.step, Verdict.UNKNOWN, f"{task.ref} still runs after {timeout_s:.0f} s")
            settled[intent.op_id] = executor.settle(intent.op_id, late)
        elif task is not None:
            in_flight = StepInFlight(intent.op_id, intent.step, task, intent.seen)
            settled[intent.op_id] = executor.finish(in_flight, ends[task])
    return tuple(settled[intent.op_id] for intent in intents)


def _ends(
    vcenter: Vcenter, tasks: Sequence[TaskRef], not_later: Collection[TaskRef | None], timeout_s: float
) -> dict[TaskRef, TaskEnd]:
    """How these tasks ended within the time; those of `not_later` that are still queued after a slice are taken back:
    whoever sent them is gone, and nobody would know when they begin."""
    ends = {end.task: end for end in vcenter.wait(tasks, min(SLICE_S, timeout_s))} if tasks else {}
    left = [task for task in tasks if task not in ends]
    if left and timeout_s > SLICE_S:
        vcenter.withdraw([task for task in left if task in not_later])
        ends |= {end.task: end for end in vcenter.wait(left, timeout_s - SLICE_S)}
    return ends


def as_now(intent: Intent, inventory: Inventory) -> Intent:
    """The effect, of its VM under the id that it has now: one that was registered anew since has another."""
    vm = vm_now(intent.step.vm, intent.uuid, inventory)
    return intent if vm is None else replace(intent, step=replace(intent.step, vm=vm.ref))


def former_login(intent: Intent, inventory: Inventory) -> str:
    """The user as whom gpuops sent the effect, where that is another than now; else empty."""
    return intent.login if intent.login != inventory.user else ""


@dataclass(frozen=True, slots=True)
class SettledSnapshot:
    """What settling would come to, known by looking alone."""

    inventory: Inventory
    """With what is still in flight as done: resume waits for it."""
    undone: frozenset[str]
    """VMs that were to be taken, and were not."""
    notes: tuple[str, ...]


def settle_in_snapshot(
    vcenter: Vcenter, intents: Sequence[Intent], inventory: Inventory, catalog: Catalog
) -> SettledSnapshot:
    """Settles a run's open effects in a snapshot, and nowhere else."""
    undone: set[str] = set()
    notes: list[str] = []
    for intent in (as_now(intent, inventory) for intent in intents):
        step, vm = intent.step, inventory.vms.get(intent.step.vm)
        if vm is None:
            continue
        if satisfied(step, inventory):
            login = former_login(intent, inventory)
            if isinstance(step, PowerOnVm) and not vcenter.started_by_this_login(step.vm, intent.seen, login):
                undone.add(step.vm)
                notes.append(f"{vm.name}: somebody else started it")
            continue
        task = TaskRef(intent.task) if intent.task is not None else None
        if task is None and not isinstance(step, GateStep):
            task = vcenter.find_task(step, intent.seen, former_login(intent, inventory))
        if task is not None and any(each.ref == task.ref for each in vm.tasks):
            alone = tuple(each for each in vm.tasks if each.ref != task.ref)
            inventory = project(step, inventory.with_vm(replace(vm, tasks=alone)), catalog)
            notes.append(f"{vm.name}: its {step.noun} is in flight ({task.ref}): waited for first, planned as done")
        elif isinstance(step, RunInGuest | GateStep) or _may_have_happened(step, vm):
            notes.append(f"{vm.name}: its {step.noun} was not seen to end before the run was cut off")
        else:
            undone |= {step.vm} if _takes(step, vm) else set()
            notes.append(f"{vm.name}: its {step.noun} did not happen before the run was cut off")
    return SettledSnapshot(inventory, frozenset(undone), tuple(notes))


def _takes(step: Step, vm: Vm) -> bool:
    """Whether it is a night's step; a guest's shutdown is, for a desktop: its marker tells it from an ML VM."""
    if isinstance(step, ShutDownGuest):
        marks = (parse_marker(value) for value in vm.attributes.values())
        return any(mark is not None and mark.role is Role.SHUT_DOWN for mark in marks)
    return isinstance(step, PowerOnVm) or (isinstance(step, SuspendVm) and not step.gives_way)


def _may_have_happened(step: Step, vm: Vm | None) -> bool:
    """Whether what takes a VM may have been done, and changed again since by somebody else: only a VM whose power is
    seen to be what it was before proves that it was not. A gate may be closed by a request that comes late."""
    if isinstance(step, CloseGate):
        return True
    resumes = isinstance(step, PowerOnVm) and step.resumes
    was = PowerState.SUSPENDED if resumes else _BEFORE.get(type(step))
    return was is not None and (vm is None or vm.power is not was)


def _task_of(executor: VmExecutor, intent: Intent) -> TaskRef | None:
    if isinstance(intent.step, RunInGuest):
        return None
    if intent.task is not None:
        return TaskRef(intent.task)
    return executor.find_task(intent.step, intent.seen, executor.former_logins[intent.op_id])


def _by_state(executor: VmExecutor, intent: Intent) -> Outcome:
    if intent.step.vm in executor.inventory.vms and satisfied(intent.step, executor.inventory):
        return executor.found_done(intent.op_id, intent.step, intent.seen, "found done after the run was cut off")
    unseen = "the run was cut off before it was seen to end"
    if _may_have_happened(intent.step, executor.inventory.vms.get(intent.step.vm)):
        lost = Outcome(intent.step, Verdict.UNKNOWN, f"{unseen}; vCenter shows no task of it", trouble=Trouble.LOST)
        return executor.settle(intent.op_id, lost, counts=False)
    without_task = isinstance(intent.step, RunInGuest | ShutDownGuest)  # vCenter never shows whether it came
    reason = unseen if without_task else "it did not reach vCenter before the run was cut off"
    return executor.settle(intent.op_id, Outcome(intent.step, Verdict.FAILED, reason), counts=False)
