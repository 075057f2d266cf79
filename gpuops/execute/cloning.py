"""Clone a VM from a template, once: after a lost reply, the clone is looked for by its name."""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import replace
from typing import Final

from gpuops.errors import OutcomeUnknown, Refused, VmNotFound
from gpuops.execute.site import Site, catalog_of
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskRef
from gpuops.plan.core.plan import Rejection, Report, Request
from gpuops.plan.core.privileges import too_old
from gpuops.plan.vm.clone import PRIVILEGES, Clone, Cloning, NewClone

TIMEOUT_S: Final = 4 * 3600.0
"""Cloning copies disks, which takes long for a large template."""


def clone(request: Clone, site: Site, *, apply: bool) -> tuple[Cloning, Inventory]:
    """Return the plan and the inventory afterwards: read if `apply`, otherwise predicted with the VM in it.

    Raises UsageError for unknown names, Locked while a rotation runs, the error of vCenter's task, and OutcomeUnknown
    if the VM neither exists nor was refused.
    """
    vcenter = site.vcenter
    before = vcenter.inventory()
    folder = vcenter.folder_at(request.folder) if request.folder is not None else None
    planned = request.planned(before, folder)
    if planned.new is not None:
        planned = _check_privileges(planned, planned.new, site, before)
    if planned.new is None:
        return planned, before
    if not apply:
        return planned, planned.new.made_in(_with_devices(planned.new.source, before, site))
    with site.locked_journal(before.vcenter, alone=False):
        task = start_clone(planned.new, site)
    wait_for_clone(task, site)  # without the lock, so that no return waits for the copy of disks
    after = vcenter.inventory()
    try:
        new_vm = request.planned(after, folder).there
    except VmNotFound:
        new_vm = None
    if new_vm is None:
        raise OutcomeUnknown(
            f"{request.vm}: vCenter does not show it yet", hint="run the same command again: it makes no second VM"
        )
    after = _with_devices(new_vm.ref, after, site)
    return replace(planned, there=after.vm(new_vm.ref)), after


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


def _check_privileges(planned: Cloning, new: NewClone, site: Site, before: Inventory) -> Cloning:
    reasons = list(too_old(before))
    if lacking := site.vcenter.lacking({new.source: PRIVILEGES}).get(new.source):
        reasons.append(
            Rejection(
                before.vm(new.source).name,
                f"this login lacks {', '.join(sorted(lacking))}",
                hint="ask for a role with it on the template",
            )
        )
    return Cloning(rejections=(*planned.rejections, *reasons)) if reasons else planned


def make(new: NewClone, site: Site) -> None:
    """Clone the VM and wait for the task, ignoring lost replies. Raises the error of vCenter's task."""
    wait_for_clone(start_clone(new, site), site)


def start_clone(new: NewClone, site: Site) -> TaskRef | None:
    """Start the clone task and return it; None if the reply was lost, so that the clone is looked for by its name."""
    try:
        return site.vcenter.clone_vm(new, f"gpuops-clone-{secrets.token_hex(8)}")
    except OutcomeUnknown:
        return None


def wait_for_clone(task: TaskRef | None, site: Site) -> None:
    """Wait for the task. Raises the error with which it ended."""
    if task is None:
        return
    with suppress(OutcomeUnknown):  # the caller looks for the clone by its name
        for end in site.vcenter.wait([task], TIMEOUT_S):
            if end.error is not None:
                raise end.error
