"""Runs of steps on VMs that no rotation meets: new VMs, removals, marks.

A run stays open if its call is killed or cut off. The next call of the same kind and order settles and ends it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from gpuops.execute.journal import Journal, Run
from gpuops.execute.site import Site
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.settle import settle_open
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.nights.rotation import Limits
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Outcome, Plan, Verdict, Wave
from gpuops.plan.core.steps import Step

STEP_S: Final = float(Limits().step_timeout_s)
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


def step_failure(outcome: Outcome) -> str:
    """Return why the step has not been done; empty if it has."""
    return "" if outcome.verdict in (Verdict.DONE, Verdict.ALREADY) else outcome.reason or str(outcome.verdict)


def settle_steps(
    inventory: Inventory, journal: Journal, run: Run, site: Site, *, timeout_s: float = STEP_S
) -> tuple[dict[str, Outcome], Inventory]:
    """Wait for the steps that are in flight in this run, and return their outcomes by VM ref, and the latest look.

    Sends nothing. Raises NotConnected and StateDamaged; the run then stays open.
    """
    executor = VmExecutor(site.vcenter, journal, run, inventory, passed_s=site.passed_s)
    outcomes = settle_open(executor, timeout_s=timeout_s)
    return {outcome.step.vm: outcome for outcome in outcomes}, executor.inventory


@contextmanager
def settled_run(kind: str, inventory: Inventory, journal: Journal, site: Site) -> Iterator[Run]:
    """Yield a run of this kind. Runs of the kind that calls on this machine left open are settled and ended first.

    A run stays open if the call ends with an error. If another call of this kind on this machine is still alive, it
    sends nothing more.
    """
    machine = socket.gethostname()
    end_cut_off_runs(kind, machine, inventory, journal, site)
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
    timeout_s: float = STEP_S,
    begun_before: datetime | None = None,
) -> None:
    """Settle and end the runs of this kind and order that killed calls left open. Sends nothing.

    Waits for tasks that are still in flight. `begun_before`: runs that began later may be of calls that still run.
    """
    for cut_off in journal.open_runs((kind,)):
        if cut_off.order == order and (begun_before is None or cut_off.started < begun_before):
            settle_steps(inventory, journal, cut_off, site, timeout_s=timeout_s)
            journal.end(cut_off, cut_off=True)
