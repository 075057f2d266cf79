"""Gives back the lease of a run that is dead, or sets right a lock VM that was reverted, for `rotate unlock`.

A lock of this machine needs none of it: the kernel drops it when its process ends, however it ends.
"""

from __future__ import annotations

from gpuops.errors import LeaseReverted, Locked, Refused, UsageError
from gpuops.execute.lease.lease import when_reverted
from gpuops.execute.lease.lock_vm import LockVm, highest_number, owner
from gpuops.execute.runs.nights import remembered_policy
from gpuops.execute.site import Site
from gpuops.model.nights.rotation import Policy
from gpuops.plan.core.command_line import command
from gpuops.plan.rotation.lease import (
    Lease,
    Numbered,
    holder_of,
    is_fresh,
    lease_holder_text,
    release_lease,
    reverted_lock_vm,
)


def unlock(policy: Policy | None, site: Site, nonce: str | None, *, force: bool = False) -> Lease:
    """The lease on the policy's lock VM that was given back in its holder's place: that of this nonce and no other.

    For a run on another machine that is dead for certain; nobody has to, since a lease runs out by itself. Raises
    Refused where nobody holds one, or somebody else does, who is then named; Locked while it is fresh, unless by
    `force`: whoever renewed it just now is alive, and may act without looking at it again.

    Of a lock VM that was reverted to a snapshot the id is the highest lease number that was seen: the VM then carries
    it, given back.
    """
    again_by = " --policy FILE" if policy is not None else ""
    vm, highest = _lock_vm(policy, site)
    there = vm.look()
    wrong = reverted_lock_vm(vm.name, there, highest)
    if wrong is not None and holder_of(there, vm.seen.taken_at, ()) is None:
        if nonce != str(highest.number):
            raise LeaseReverted(wrong, hint=when_reverted(highest))
        right = Lease(owner(), "", highest.number, vm.seen.taken_at)
        _write(vm, right)
        return right
    if there is None or not there.nonce:
        raise Refused(f"nobody holds the lease on {vm.name}", hint="nothing is in the way of the next run")
    again = command("rotate unlock", id=there.nonce)
    if there.nonce != nonce:
        raise Refused(lease_holder_text(there), hint=f"when that run is dead for certain: {again}{again_by}")
    if is_fresh(there, vm.seen.taken_at) and not force:
        raise Locked(
            f"{lease_holder_text(there)}, and renewed it a moment ago: its run is alive, or died just now",
            hint=f"it runs out by itself; when that run is dead for certain: {again} --force{again_by}",
        )
    _write(vm, release_lease(there, vm.seen.taken_at))
    return there


def _lock_vm(policy: Policy | None, site: Site) -> tuple[LockVm, Numbered]:
    """The lock VM of the policy, or of the last night's, and the highest lease number that was seen."""
    with site.journal_to_read(site.vcenter.uuid, returning=policy is not None) as journal:
        policy = policy or remembered_policy(journal)
        if policy.lock_vm is None:
            raise UsageError(
                f"{policy.name}: the policy has no lock_vm, so there is no lease",
                hint="a lock of this machine needs no unlocking: it ends with its process (gpuops rotate status)",
            )
        vm = LockVm(site.vcenter, policy.lock_vm)
        return vm, highest_number(vm.name, (policy,), journal, vm.seen)


def _write(vm: LockVm, lease: Lease) -> None:
    if not vm.write(lease):
        raise Locked(
            f"the lease on {vm.name} could not be given back: {vm.why}",
            hint="gpuops rotate status shows who holds it; try again",
        )
