"""Makes VMs as steps of the executor: each intent is in the journal before it is sent, and a step that a killed run
left in flight is settled before the same VM is requested again.

Requests are sent under the lock of rotations. vCenter copies disks for hours after that: this is waited for without the
lock, so that `rotate day` does not wait. A new VM is recognised by its inventory path and its settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuops.errors import GpuopsError, NoPermission, OutcomeUnknown, Refused, StepFailed
from gpuops.execute.journal import Journal, Run
from gpuops.execute.site import Site
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.execute.steps.vm_runs import end_cut_off_runs
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.steps import CreationStep

CREATION_S: Final = 4 * 3600.0
"""Limit for new VMs: copying the disks of a large template takes hours."""

_ERRORS: Final = {error.code: error for error in (NoPermission, Refused)}


def request_vms(
    steps: Sequence[CreationStep], inventory: Inventory, journal: Journal, run: Run, site: Site
) -> tuple[dict[str, Outcome], Inventory]:
    """Request these VMs, and return the outcomes of the requests that ended at once, by VM ref, and the latest look.

    `settle_steps` waits for the others. `inventory`: the snapshot that they were planned on. Raises NotConnected and
    StateDamaged; the run then stays open.
    """
    executor = VmExecutor(site.vcenter, journal, run, inventory, passed_s=site.passed_s)
    started = [executor.begin(step) for step in steps]
    return {outcome.step.vm: outcome for outcome in started if isinstance(outcome, Outcome)}, executor.inventory


def end_cut_off_creations(kind: str, order: str, inventory: Inventory, site: Site) -> bool:
    """Settle and end the runs of this kind and order that killed calls left open; return whether there were any.

    Waits for what vCenter still makes, without the lock of rotations.
    """
    with site.journal_to_read(inventory.vcenter) as journal:
        if journal is None or all(run.order != order for run in journal.open_runs((kind,))):
            return False
    with site.unlocked_journal() as journal:
        end_cut_off_runs(kind, order, inventory, journal, site, timeout_s=CREATION_S)
    return True


def creation_error(name: str, outcome: Outcome | None) -> GpuopsError:
    """Return the error for a VM that vCenter does not show. `outcome` None: another call has settled the run."""
    if outcome is not None and outcome.verdict is Verdict.SKIPPED:
        return Refused(f"{name}: {outcome.reason}")
    if outcome is not None and outcome.verdict is Verdict.FAILED:
        return _ERRORS.get(outcome.fault, StepFailed)(outcome.reason)
    reason = outcome.reason if outcome is not None and outcome.reason else "vCenter does not show it yet"
    return OutcomeUnknown(f"{name}: {reason}", hint="run the same command again: it makes no second VM")
