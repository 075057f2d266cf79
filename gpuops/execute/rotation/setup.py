"""Makes what a policy needs in vCenter (lock VM, custom attributes) for `rotate init`; a second run changes nothing."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from gpuops.errors import OutcomeUnknown, PartlyDone, Refused, StepFailed
from gpuops.execute.lease.lock_vm import LockVm, highest_number, owner
from gpuops.execute.site import Site
from gpuops.execute.site.ports import Vcenter
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.rotation.lease import Lease
from gpuops.plan.rotation.setup import CHOOSE_LOCK_VM, NewVm, Setup, lock_vm_in_use, missing_for_a_night, setup_of

TIMEOUT_S: Final = 300.0


def set_up(policy: Policy, site: Site, *, apply: bool = True) -> Setup:
    """What the policy wants of the vCenter: custom attributes and the lock VM, made if `apply` where they are missing.

    For a login that may; the nights' own need not. Names the desktops that no owner has agreed to. Raises NoPermission
    and Refused where nothing was changed, PartlyDone with what was made before something failed.
    """
    vcenter = site.vcenter
    wanted = setup_of(policy, _seen(policy, vcenter), vcenter.defined_attributes())
    if wanted.undefined:
        vcenter.check_attribute_names(wanted.undefined)
    if not apply or wanted.complete:
        return wanted
    made: list[str] = []
    op_id = f"gpuops-init-{secrets.token_hex(8)}"
    try:
        for name in wanted.undefined:
            _made_sure(partial(vcenter.define_attribute, name, op_id))
            made.append(f"custom attribute {name}")
        if wanted.lock_vm_missing is not None:
            _make(wanted.lock_vm_missing, vcenter, op_id)
            made.append(f"VM {wanted.lock_vm_missing.name}")
            _number(policy, wanted.lock_vm_missing.name, site)
    except (Refused, PartlyDone) as error:
        if not made:
            raise
        raise PartlyDone(
            f"{error.message}; made before that: {', '.join(made)}", hint="the same command again makes the rest"
        ) from error
    left = setup_of(policy, vcenter.inventory(), vcenter.defined_attributes())
    if not left.complete:
        raise StepFailed("vCenter does not show yet what was made", hint="the same command again makes what is missing")
    return replace(wanted, made=True)


def require_setup(policy: Policy, vcenter: Vcenter) -> None:
    """Raises Refused, naming all that `rotate init` was to make for this policy and is not there, or a lock VM that is
    a desktop or an ML VM of it."""
    if policy.lock_vm is None:
        return
    seen = vcenter.inventory()
    in_use = lock_vm_in_use(policy, seen)
    if in_use is not None:
        raise Refused(in_use, hint=CHOOSE_LOCK_VM)
    missing = missing_for_a_night(policy, seen, vcenter.defined_attributes())
    if missing:
        raise Refused(
            f"this vCenter is not set up for policy {policy.name}: {'; '.join(missing)}",
            hint="gpuops rotate init --policy FILE makes what is missing, by a login that may",
        )


def _seen(policy: Policy, vcenter: Vcenter) -> Inventory:
    seen = vcenter.inventory()
    return vcenter.with_tags(seen) if policy.needs_tags else seen


def _make(new: NewVm, vcenter: Vcenter, op_id: str) -> None:
    """What became of it is looked at afterwards: a lost reply and a name that is taken meanwhile tell nothing."""

    def make() -> None:
        task = vcenter.create_vm(new, op_id)
        ended = list(vcenter.wait([task], TIMEOUT_S))
        error = next((end.error for end in ended if end.error is not None), None)
        if error is not None:
            raise error

    _made_sure(make)


def _number(policy: Policy, name: str, site: Site) -> None:
    """A lock VM made anew, after one was deleted, carries the highest lease number that was seen."""
    seen = _seen(policy, site.vcenter)
    with site.journal_to_read(site.vcenter.uuid, returning=True) as journal:
        highest = highest_number(name, (policy,), journal, seen)
    if highest.number:
        vm = LockVm(site.vcenter, name, seen)
        vm.look()
        if not vm.write(Lease(owner(), "", highest.number, vm.seen.taken_at)):
            raise Refused(f"lease number {highest.number} could not be written to {name}: {vm.why}")


def _made_sure(make: Callable[[], None]) -> None:
    with suppress(OutcomeUnknown):  # looked at when all is done
        make()
