"""Powers off and removes VMs that gpuops made, as steps of the executor: each intent is in the journal before it is
sent, and a step that a killed run left in flight is settled before the next one is sent.

A VM is recognised by the instance UUID that the plan saw, and by the name and notes that gpuops gave it. Name and notes
are read once more directly before each request.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gpuops.execute.journal import Journal, Run
from gpuops.execute.site import Site
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.settle import settle_open
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.nights.rotation import Limits
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.plan import Outcome, Plan, Verdict, Wave
from gpuops.plan.core.steps import PowerOffForRemoval, RemovalStep, RemoveVm


def next_removal_step(vm: Vm, notes: str) -> RemovalStep:
    """Return the step that brings the VM closer to its removal: it is powered off first."""
    if vm.power is PowerState.OFF:
        return RemoveVm(vm.ref, vm.name, notes)
    return PowerOffForRemoval(vm.ref, vm.name, notes)


def execute_removals(
    steps: Sequence[RemovalStep], inventory: Inventory, journal: Journal, run: Run, site: Site
) -> dict[str, Outcome]:
    """Execute one step for each VM, and return the outcomes by VM ref.

    `inventory`: the snapshot that the steps were planned on. Raises NotConnected and StateDamaged; the run then stays
    open.
    """
    plan = Plan((Wave("remove", tuple(steps)),))
    executor = VmExecutor(site.vcenter, journal, run, inventory, passed_s=site.passed_s)
    return {outcome.step.vm: outcome for outcome in execute(plan, executor, Limits(), lambda outcome: None)}


def removal_failure(outcome: Outcome) -> str:
    """Return why the step has not been done; empty if it has."""
    return "" if outcome.verdict in (Verdict.DONE, Verdict.ALREADY) else outcome.reason or str(outcome.verdict)


def settle_removals(inventory: Inventory, journal: Journal, run: Run, site: Site) -> None:
    """Settle the steps that a killed call left in flight in this run. Sends nothing."""
    executor = VmExecutor(site.vcenter, journal, run, inventory, passed_s=site.passed_s)
    settle_open(executor, timeout_s=Limits().step_timeout_s)


@contextmanager
def removal_run(kind: str, inventory: Inventory, journal: Journal, site: Site) -> Iterator[Run]:
    """Yield a run that removes VMs. Runs of this kind that calls on this machine left open are settled and ended first.

    The caller holds a lock that only one such call on this machine can hold. A run stays open if the call ends with an
    error.
    """
    machine = socket.gethostname()
    for cut_off in journal.open_runs((kind,)):
        if cut_off.order == machine:
            settle_removals(inventory, journal, cut_off, site)
            journal.end(cut_off, cut_off=True)
    run = journal.begin(kind, order=machine)
    yield run
    journal.end(run)
