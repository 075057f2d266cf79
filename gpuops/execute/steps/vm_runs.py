"""Runs outside rotations: single changes of VMs and hosts, clones and other new VMs, removals, settings of vCenter.

A run stays open if its call is killed or cut off. The next call of the same kind and order settles and ends it. After a
lost reply, a clone is looked for by its name.

New VMs are requested under the lock of rotations. vCenter then copies disks for hours: this is waited for without the
lock, so that `rotate day` does not wait. A new VM is recognised by its inventory path and its settings.

A VM that is removed is recognised by the instance UUID that the plan saw, and by the name and notes that gpuops gave
it. Name and notes are read once more directly before each request.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from gpuops.errors import GpuopsError, NoPermission, OutcomeUnknown, Refused, StepFailed, VmNotFound
from gpuops.execute.journal import Journal, Run
from gpuops.execute.site import Site, catalog_of
from gpuops.execute.state.lock import LockedBy, locked
from gpuops.execute.steps.host_executor import SettingExecutor
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.settle import settle_open
from gpuops.execute.steps.vcenter_settings import VcenterSettingExecutor
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.nights.rotation_policy import Limits
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.plan import Outcome, Plan, Report, Request, Verdict, Wave
from gpuops.plan.core.privileges import privilege_rejection, too_old
from gpuops.plan.core.steps import (
    CloneVm,
    CreationStep,
    PowerOffForRemoval,
    RemovalStep,
    RemoveVm,
    Step,
    VcenterSetting,
)
from gpuops.plan.placement.project import project
from gpuops.plan.vm.clone import PRIVILEGES, Clone, Cloning

STEP_TIMEOUT_S: Final = float(Limits().step_timeout_s)
"""How long a step that a killed call left in flight is waited for."""


def execute_steps(
    steps: Sequence[Step], inventory: Inventory, journal: Journal, run: Run, site: Site
) -> dict[str, Outcome]:
    """Execute one step for each VM, and return the outcomes by VM ref.

    `inventory`: the snapshot that the steps were planned on. Raises NotConnected and StateDamaged; the run then stays
    open.
    """
    plan = Plan((Wave("steps", tuple(steps)),))
    executor = VmExecutor(site.vcenter, journal, run, inventory, passed_s=site.passed_s)
    return {outcome.step.vm: outcome for outcome in execute(plan, executor, Limits(), lambda outcome: None)}


def step_failure(outcome: Outcome[Any]) -> str:
    """Return why the step has not been done; empty if it has."""
    return "" if outcome.verdict in (Verdict.DONE, Verdict.ALREADY) else outcome.reason or str(outcome.verdict)


def settle_steps(
    inventory: Inventory, journal: Journal, run: Run, site: Site, *, timeout_s: float = STEP_TIMEOUT_S
) -> tuple[dict[str, Outcome], Inventory]:
    """Wait for the steps that are in flight in this run, and return their outcomes by VM ref, and the latest look.

    Sends nothing. Raises NotConnected and StateDamaged; the run then stays open.
    """
    executor = VmExecutor(site.vcenter, journal, run, inventory, passed_s=site.passed_s)
    outcomes = settle_open(executor, timeout_s=timeout_s)
    return {outcome.step.vm: outcome for outcome in outcomes}, executor.inventory


def _end_cut_off_run(
    inventory: Inventory, journal: Journal, run: Run, site: Site, timeout_s: float = STEP_TIMEOUT_S
) -> None:
    """Settle all that a killed call left open in this run, and end it. Raises NotConnected and StateDamaged."""
    _, inventory = settle_steps(inventory, journal, run, site, timeout_s=timeout_s)
    for op_id, step in journal.open_settings(run):
        if isinstance(step, VcenterSetting):
            VcenterSettingExecutor(site.vcenter, journal, run, inventory).settle_cut_off(op_id, step)
        else:
            SettingExecutor(site.vcenter, site.hosts, journal, run, inventory).settle_cut_off(op_id, step)
    journal.end(run, cut_off=True)


def end_killed_calls(kind: str, site: Site) -> None:
    """Settle and end the runs of this kind that killed calls on this machine left open. Sends nothing.

    Such a call shares the lock of rotations from its first record to its last. So if this call gets the lock alone, the
    runs that were open before were cut off. While another call or a rotation is at work, they are left to the next
    call.
    """
    with site.journal_to_read(site.vcenter.uuid) as journal:
        open_runs = journal.open_runs((kind,)) if journal is not None else ()
    cut_off_runs = [run for run in open_runs if run.order == socket.gethostname()]
    if not cut_off_runs:
        return
    with suppress(LockedBy):
        with locked(site.state_dir, site.vcenter.uuid, site.clock(), alone=True):
            pass  # no other call holds the lock: the runs were cut off
        inventory = site.vcenter.inventory()
        with site.locked_journal(site.vcenter.uuid, alone=False) as journal:
            for run in cut_off_runs:
                _end_cut_off_run(inventory, journal, run, site)


@contextmanager
def settled_run(
    kind: str, inventory: Inventory, journal: Journal, site: Site, *, begun_before: datetime | None = None
) -> Iterator[Run]:
    """Yield a run of this kind. Runs of the kind that calls on this machine left open are settled and ended first.

    `begun_before`: only runs that began before then are ended; later ones may belong to calls that still run.

    A run stays open if the call ends with an error. A call of this kind on this machine that is still alive sends
    nothing more, because its run is ended here.
    """
    machine = socket.gethostname()
    end_cut_off_runs(kind, machine, inventory, journal, site, begun_before=begun_before)
    run = journal.begin(kind, order=machine)
    yield run
    journal.end(run)


def end_cut_off_runs(
    kind: str,
    order: str,
    inventory: Inventory,
    journal: Journal,
    site: Site,
    *,
    timeout_s: float = STEP_TIMEOUT_S,
    begun_before: datetime | None = None,
) -> None:
    """Settle and end the runs of this kind and order that killed calls left open. Sends nothing.

    Waits for tasks that are still in flight. `begun_before`: only runs that began before then are ended; later ones may
    belong to calls that still run.
    """
    for cut_off in journal.open_runs((kind,)):
        if cut_off.order == order and (begun_before is None or cut_off.started < begun_before):
            _end_cut_off_run(inventory, journal, cut_off, site, timeout_s)


CREATION_S: Final = 4 * 3600.0
"""Limit for new VMs: copying the disks of a large template takes hours."""

_ERROR_BY_CODE: Final = {error.code: error for error in (NoPermission, Refused)}
"""The errors of a failed creation that are raised as they are; any other becomes StepFailed."""


def request_vms(
    steps: Sequence[CreationStep], inventory: Inventory, journal: Journal, run: Run, site: Site
) -> tuple[dict[str, Outcome], Inventory]:
    """Request these VMs, and return the outcomes of the requests that ended at once, by VM ref, and the latest look.

    `settle_steps` waits for the others. `inventory`: the snapshot that they were planned on. Raises NotConnected and
    StateDamaged; the run then stays open.
    """
    executor = VmExecutor(site.vcenter, journal, run, inventory, passed_s=site.passed_s)
    begun = [executor.begin(step) for step in steps]
    return {outcome.step.vm: outcome for outcome in begun if isinstance(outcome, Outcome)}, executor.inventory


def end_cut_off_creations(kind: str, order: str, site: Site) -> None:
    """Settle and end the runs of this kind and order that killed calls left open.

    Waits for what vCenter still makes, without the lock of rotations.
    """
    with site.journal_to_read(site.vcenter.uuid) as journal:
        if journal is None or all(run.order != order for run in journal.open_runs((kind,))):
            return
    inventory = site.vcenter.inventory()
    with site.unlocked_journal() as journal:
        end_cut_off_runs(kind, order, inventory, journal, site, timeout_s=CREATION_S)


def make_settings(
    kind: str, steps: Sequence[VcenterSetting], inventory: Inventory, site: Site
) -> tuple[list[Outcome[VcenterSetting]], GpuopsError | None]:
    """Make these settings of vCenter in a run of this kind, until one fails.

    `steps` has at least one. Return the outcomes, and vCenter's error if the last one failed.
    """
    outcomes: list[Outcome[VcenterSetting]] = []
    with site.unlocked_journal() as journal, settled_run(kind, inventory, journal, site) as run:
        executor = VcenterSettingExecutor(site.vcenter, journal, run, inventory)
        for step in steps:
            outcomes.append(executor.set(step))
            if step_failure(outcomes[-1]):
                break
    return outcomes, executor.error if outcomes[-1].verdict is Verdict.FAILED else None


def creation_error(name: str, outcome: Outcome | None) -> GpuopsError:
    """Return the error for a VM that vCenter does not show. `outcome` None: another call has settled the run."""
    if outcome is not None and outcome.verdict is Verdict.SKIPPED:
        return Refused(f"{name}: {outcome.reason}")
    if outcome is not None and outcome.verdict is Verdict.FAILED:
        return _ERROR_BY_CODE.get(outcome.fault, StepFailed)(outcome.reason)
    reason = outcome.reason if outcome is not None and outcome.reason else "vCenter does not show it yet"
    return OutcomeUnknown(f"{name}: {reason}", hint="run the same command again: it makes no second VM")


def next_removal_step(vm: Vm, notes: str) -> RemovalStep:
    """Return the next step of the VM's removal: a power-off if it runs, else the removal."""
    if vm.power is PowerState.OFF:
        return RemoveVm(vm.ref, vm.name, notes)
    return PowerOffForRemoval(vm.ref, vm.name, notes)


CLONE: Final = "clone"
"""The kind of run that clones one VM, in journals."""


def clone(request: Clone, site: Site, *, apply: bool) -> tuple[Cloning, Inventory]:
    """Return the plan and the inventory afterwards: read if `apply`, otherwise predicted with the VM in it.

    Raises UsageError for unknown names, Locked while a rotation runs, the error of vCenter's task, and OutcomeUnknown
    if the VM neither exists nor was refused.
    """
    vcenter = site.vcenter
    order = f"{request.folder or ''}/{request.vm}"
    if apply:
        end_cut_off_creations(CLONE, order, site)
    before = vcenter.inventory()
    folder = vcenter.folder_at(request.folder) if request.folder is not None else None
    planned = request.planned(before, folder)
    if planned.new is not None:
        planned = _check_privileges(planned, planned.new, site, before)
    if planned.new is None:
        return planned, before
    if not apply:
        return planned, project(planned.new, _with_devices(planned.new.source, before, site))
    outcome, after = _execute_clone(planned.new, order, before, site)
    # the inventory decides, not the outcome: after a lost reply, the clone may exist without a known task
    try:
        new_vm = request.planned(after, folder).existing_vm
    except VmNotFound:
        new_vm = None
    if new_vm is None:
        raise creation_error(request.vm, outcome)
    after = _with_devices(new_vm.ref, after, site)
    return replace(planned, existing_vm=after.vm(new_vm.ref)), after


def _execute_clone(new: CloneVm, order: str, before: Inventory, site: Site) -> tuple[Outcome | None, Inventory]:
    """Make the VM and return the outcome, None if another call has settled it, and the inventory afterwards."""
    with site.locked_journal(before.vcenter, alone=False) as journal:
        run = journal.begin(CLONE, order=order)
        ended, after = request_vms([new], before, journal, run, site)
    with site.unlocked_journal() as journal:  # no return waits for the copy of disks
        outcomes, after = settle_steps(after, journal, run, site, timeout_s=CREATION_S)
        journal.end(run)
    return (ended | outcomes).get(new.vm), after


def foresee_report(request: Request, after: Clone, site: Site) -> Report | None:
    """Return what the request would change on the VM after it is cloned; None if the VM already exists.

    The privileges on a VM that does not exist cannot be read. Raises UsageError as the request and the clone do, and
    Refused with every reason against the clone.
    """
    planned, inventory = clone(after, site, apply=False)
    if planned.rejections:
        raise Refused("; ".join(rejection.line for rejection in planned.rejections))
    if planned.new is None:
        return None
    hosts = request.config_targets(inventory)
    if hosts:
        inventory = site.vcenter.with_config_targets(inventory, hosts)
    inventory = site.with_vgpus(inventory)
    return Report(request, inventory, request.plan(inventory, catalog_of(inventory), site.clock()))


def _with_devices(ref: str, inventory: Inventory, site: Site) -> Inventory:
    """Return the snapshot with the VM's devices: the bulk read omits them for VMs on hosts without GPUs."""
    return inventory if inventory.vm(ref).devices is not None else site.vcenter.observe(inventory, [ref])


def _check_privileges(planned: Cloning, new: CloneVm, site: Site, before: Inventory) -> Cloning:
    reasons = list(too_old(before))
    if lacking := site.vcenter.lacking({new.source: PRIVILEGES}).get(new.source):
        name = before.vm(new.source).name
        reasons.append(privilege_rejection(name, lacking, hint="ask for a role with it on the template"))
    return Cloning(rejections=(*planned.rejections, *reasons)) if reasons else planned
