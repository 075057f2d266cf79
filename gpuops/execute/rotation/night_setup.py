"""Create what a policy needs in vCenter for `rotate init`, and check before a run that everything it needs is there."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Final

from gpuops.errors import PartlyDone, Refused, StepFailed, UsageError
from gpuops.execute.lease.lock_vm import LockVm, highest_number, owner
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site
from gpuops.execute.site.ports import Vcenter
from gpuops.execute.steps.vm_runs import (
    creation_error,
    end_cut_off_creations,
    make_settings,
    request_vms,
    settle_steps,
    settled_run,
)
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.steps import CreateVm, DefineAttribute
from gpuops.plan.rotation.lease_rules import Lease
from gpuops.plan.rotation.prerequisites import CHOOSE_LOCK_VM, Setup, check_setup, lock_vm_in_use, missing_for_a_night

INIT: Final = "rotate init"
"""The kind of run that creates the lock VM, in journals."""


def set_up(policy: Policy, site: Site, *, apply: bool = True) -> Setup:
    """Return what the policy needs in vCenter (custom attributes, the lock VM), and create what is missing if `apply`.

    Needs a login with the privileges for it; the login of the nights does not need them. The result also names the
    desktops whose owner has not consented. Raises NoPermission and Refused if nothing was changed, and PartlyDone, with
    what was created, after a later failure.
    """
    vcenter = site.vcenter
    if apply:
        end_cut_off_creations(INIT, socket.gethostname(), site)
    inventory = _read_inventory(policy, vcenter)
    setup = check_setup(policy, inventory, vcenter.defined_attributes())
    if setup.undefined:
        vcenter.check_attribute_names(setup.undefined)
    if apply and setup.lock_vm_missing is None:
        _write_lease_number(policy, inventory, site)
    if not apply or setup.complete:
        return setup
    created: list[str] = []
    try:
        for name in setup.undefined:
            _define_attribute(name, inventory, site)
            created.append(f"custom attribute {name}")
        if setup.lock_vm_missing is not None:
            _create_vm(setup.lock_vm_missing, site)
            created.append(f"VM {setup.lock_vm_missing.name}")
            _write_lease_number(policy, _read_inventory(policy, vcenter), site)
    except (Refused, PartlyDone) as error:
        if not created:
            raise
        raise PartlyDone(
            f"{error.message}; created before that: {', '.join(created)}",
            hint="run the same command again: it creates the rest",
        ) from error
    remaining = check_setup(policy, vcenter.inventory(), vcenter.defined_attributes())
    if not remaining.complete:
        raise StepFailed(
            "vCenter does not show everything that was created yet",
            hint="run the same command again: it creates the rest",
        )
    return replace(setup, made=True)


def require_setup(policy: Policy, vcenter: Vcenter) -> None:
    """Raise Refused if anything that `rotate init` creates for this policy is missing, naming all of it.

    Also raises Refused if the lock VM is a desktop or an ML VM of the policy.
    """
    if policy.lock_vm is None:
        return
    inventory = vcenter.inventory()
    in_use = lock_vm_in_use(policy, inventory)
    if in_use is not None:
        raise Refused(in_use, hint=CHOOSE_LOCK_VM)
    missing = missing_for_a_night(policy, inventory, vcenter.defined_attributes())
    if missing:
        raise Refused(
            f"this vCenter is not set up for policy {policy.name}: {'; '.join(missing)}",
            hint="gpuops rotate init --policy FILE creates what is missing; use a login that may create it",
        )


def _read_inventory(policy: Policy, vcenter: Vcenter) -> Inventory:
    inventory = vcenter.inventory()
    return vcenter.with_tags(inventory) if policy.needs_tags else inventory


def _define_attribute(name: str, inventory: Inventory, site: Site) -> None:
    """Define the attribute. Raises the error of vCenter; the caller reads back whether the attribute exists."""
    _, error = make_settings(INIT, [DefineAttribute(name)], inventory, site)
    if error is not None:
        raise error


def _create_vm(step: CreateVm, site: Site) -> None:
    """Create the VM. Raises the error of vCenter's task; the caller reads back whether the VM exists."""
    inventory = site.vcenter.inventory()
    with site.unlocked_journal() as journal, settled_run(INIT, inventory, journal, site) as run:
        ended, inventory = request_vms([step], inventory, journal, run, site)
        outcomes, _ = settle_steps(inventory, journal, run, site)
    outcome = (ended | outcomes).get(step.vm)
    if outcome is not None and outcome.verdict in (Verdict.FAILED, Verdict.SKIPPED):
        raise creation_error(step.name, outcome)


def _write_lease_number(policy: Policy, inventory: Inventory, site: Site) -> None:
    """Write the highest known lease number to a lock VM that has none, because it replaces a deleted one."""
    if policy.lock_vm is None:
        return
    with site.journal_to_read(site.vcenter.uuid, returning=True) as journal:
        highest = highest_number(policy.lock_vm, (policy,), journal, inventory)
    if highest.number:
        vm = LockVm(site.vcenter, policy.lock_vm, inventory)
        if vm.look() is None and not vm.write(Lease(owner(), "", highest.number, vm.seen.taken_at)):
            raise Refused(
                f"gpuops could not write lease number {highest.number} to the lock VM {vm.name}: {vm.why}",
                hint="run the same command again",
            )


def require_mode(kind: RunKind, policy: Policy) -> None:
    """Raise UsageError for a night under a policy of spare capacity, and for a watch under a policy of nights."""
    if (kind is RunKind.WATCH) is (policy.spare is not None):
        return
    other_kind = RunKind.WATCH if kind is RunKind.NIGHT else RunKind.NIGHT
    hint = f"gpuops {other_kind} --policy FILE --dry-run, or another policy (gpuops help watch)"
    raise UsageError(f"policy {policy.name} has `mode: {policy.mode}`: {kind} cannot use it", hint=hint)


def require_broker(policy: Policy, site: Site) -> None:
    """Raise UsageError if the policy needs a connection broker and none is configured."""
    if policy.gates and site.gates is None:
        raise UsageError(
            f"policy {policy.name} has `broker: {policy.broker}`, and no connection broker is configured",
            hint="put [targets.NAME.broker] into the configuration file (gpuops help broker)",
        )


def require_readable_markers(policy: Policy, site: Site) -> None:
    """Raise Refused if the marker's custom attribute is not visible: then no marked VM could be found."""
    if policy.marker not in site.vcenter.defined_attributes():
        raise Refused(
            f"no custom attribute is called {policy.marker}, or this login cannot read it: the VMs that a night marked "
            "cannot be found",
            hint="use the policy (--policy FILE) and the login with which the night was run",
        )
