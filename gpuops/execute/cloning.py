"""Clones a VM from a template, once: whatever became of the reply, the clone is looked for by its name."""

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
"""Disks are copied: of a large template that takes its time."""


def clone(request: Clone, site: Site, *, apply: bool) -> tuple[Cloning, Inventory]:
    """What there was to do, and the vCenter as it is then: with `apply` read, else foreseen with the VM in it.

    Raises UsageError for names that mean nothing, Locked while a rotation runs, the error that vCenter ended the task
    with, and OutcomeUnknown where it is neither there nor refused.
    """
    vcenter = site.vcenter
    before = vcenter.inventory()
    folder = vcenter.folder_at(request.folder) if request.folder is not None else None
    wanted = request.planned(before, folder)
    if wanted.new is not None:
        wanted = _permitted(wanted, wanted.new, site, before)
    if wanted.new is None:
        return wanted, before
    if not apply:
        return wanted, wanted.new.made_in(_detailed(wanted.new.source, before, site))
    with site.locked_journal(before.vcenter, alone=False):
        task = begun(wanted.new, site)
    ended(task, site)  # without the lock: no return of desktops waits for disks to be copied
    after = vcenter.inventory()
    try:
        made = request.planned(after, folder).there
    except VmNotFound:
        made = None
    if made is None:
        raise OutcomeUnknown(
            f"{request.vm}: vCenter does not show it yet", hint="the same again: a VM of that name is not made twice"
        )
    after = _detailed(made.ref, after, site)
    return replace(wanted, there=after.vm(made.ref)), after


def foreseen(request: Request, after: Clone, site: Site) -> Report | None:
    """What the request would change of the VM once it is made; None = it is there, and need not be foreseen.

    What this login may do to a VM that is not there cannot be asked. Raises UsageError as the request and the clone do,
    Refused with every reason against the clone.
    """
    wanted, world = clone(after, site, apply=False)
    if wanted.rejections:
        raise Refused("; ".join(each.line for each in wanted.rejections))
    if wanted.new is None:
        return None
    hosts = request.config_targets(world)
    if hosts:
        world = site.vcenter.with_config_targets(world, hosts)
    world = site.with_vgpus(world)
    return Report(request, world, request.plan(world, catalog_of(world), site.clock()))


def _detailed(ref: str, seen: Inventory, site: Site) -> Inventory:
    """The snapshot with the VM's devices: the bulk read leaves out those on hosts without GPUs."""
    return seen if seen.vm(ref).devices is not None else site.vcenter.observe(seen, [ref])


def _permitted(wanted: Cloning, new: NewClone, site: Site, before: Inventory) -> Cloning:
    reasons = list(too_old(before))
    if lacking := site.vcenter.lacking({new.source: PRIVILEGES}).get(new.source):
        reasons.append(
            Rejection(
                before.vm(new.source).name,
                f"this login lacks {', '.join(sorted(lacking))}",
                hint="ask for a role with it on the template",
            )
        )
    return Cloning(rejections=(*wanted.rejections, *reasons)) if reasons else wanted


def make(new: NewClone, site: Site) -> None:
    """Make that VM, or find out by its name that it was made. Raises the error that vCenter ended the task with."""
    ended(begun(new, site), site)


def begun(new: NewClone, site: Site) -> TaskRef | None:
    """The task that makes it; None where no reply came: it is looked for by its name."""
    try:
        return site.vcenter.clone_vm(new, f"gpuops-clone-{secrets.token_hex(8)}")
    except OutcomeUnknown:
        return None


def ended(task: TaskRef | None, site: Site) -> None:
    """Waits for it. Raises the error that vCenter ended it with."""
    if task is None:
        return
    with suppress(OutcomeUnknown):  # it is looked for by its name
        for end in site.vcenter.wait([task], TIMEOUT_S):
            if end.error is not None:
                raise end.error
