"""Clone a VM from a template, once: after a lost reply, the clone is looked for by its name."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpuops.errors import Refused, VmNotFound
from gpuops.execute.site import Site, catalog_of
from gpuops.execute.steps.vm_runs import CREATION_S, creation_error, end_cut_off_creations, request_vms, settle_steps
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Outcome, Report, Request
from gpuops.plan.core.privileges import privilege_rejection, too_old
from gpuops.plan.core.steps import CloneVm
from gpuops.plan.placement.project import project
from gpuops.plan.vm.clone import PRIVILEGES, Clone, Cloning

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
        new_vm = request.planned(after, folder).there
    except VmNotFound:
        new_vm = None
    if new_vm is None:
        raise creation_error(request.vm, outcome)
    after = _with_devices(new_vm.ref, after, site)
    return replace(planned, there=after.vm(new_vm.ref)), after


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
