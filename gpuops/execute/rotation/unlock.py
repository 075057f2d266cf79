"""Release the lease of a dead run, or repair a lock VM that was reverted to a snapshot, for `rotate unlock`.

The lock file of this machine needs no unlocking: the kernel releases it when its process ends.
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
    """Release the lease with this nonce on the policy's lock VM in place of its holder, and return the lease.

    Use it if the run on the other machine is certainly dead; it is optional, since a lease expires by itself. Raises
    Refused if no run holds the lease or if its nonce differs, and names the holder. Raises Locked while the lease is
    fresh, unless `force` is set: a run that renewed it a moment ago is alive and may act without reading it again.

    For a lock VM that was reverted to a snapshot, `nonce` is the highest lease number that was seen. It is written to
    the VM as a released lease.
    """
    policy_option = " --policy FILE" if policy is not None else ""
    vm, highest = _lock_vm(policy, site)
    shown_lease = vm.look()
    reverted = reverted_lock_vm(vm.name, shown_lease, highest)
    if reverted is not None and holder_of(shown_lease, vm.seen.taken_at, ()) is None:
        if nonce != str(highest.number):
            raise LeaseReverted(reverted, hint=when_reverted(highest))
        new_lease = Lease(owner(), "", highest.number, vm.seen.taken_at)
        _write(vm, new_lease)
        return new_lease
    if shown_lease is None or not shown_lease.nonce:
        raise Refused(f"no run holds the lease on {vm.name}", hint="the next run can start")
    unlock_command = command("rotate unlock", id=shown_lease.nonce)
    if shown_lease.nonce != nonce:
        raise Refused(
            lease_holder_text(shown_lease), hint=f"if that run is certainly dead: {unlock_command}{policy_option}"
        )
    if is_fresh(shown_lease, vm.seen.taken_at) and not force:
        raise Locked(
            f"{lease_holder_text(shown_lease)}, and renewed it a moment ago: its run is alive, or died just now",
            hint=f"the lease expires by itself; if that run is certainly dead: {unlock_command} --force{policy_option}",
        )
    _write(vm, release_lease(shown_lease, vm.seen.taken_at))
    return shown_lease


def _lock_vm(policy: Policy | None, site: Site) -> tuple[LockVm, Numbered]:
    """Return the lock VM of the policy (None = of the last night's policy) and the highest lease number seen.

    Raises UsageError for a policy without a lock VM.
    """
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
            f"the lease on {vm.name} could not be released: {vm.why}",
            hint="gpuops rotate status shows who holds it; try again",
        )
