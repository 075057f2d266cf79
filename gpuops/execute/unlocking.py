"""Unlocking: the lease of a run that is dead, given back in its place.

A lock of this machine needs none of it: the kernel drops it when its process ends, however it ends.
"""

from __future__ import annotations

from gpuops.errors import Locked, Refused, UsageError
from gpuops.execute.lease import LockVm
from gpuops.execute.rotation import remembered_policy
from gpuops.execute.site import Site
from gpuops.model.rotation import Policy
from gpuops.plan.command import command
from gpuops.plan.rotation.lease import Lease, given_back, is_fresh, told


def unlock(policy: Policy | None, site: Site, nonce: str | None, *, force: bool = False) -> Lease:
    """The lease that was given back in its holder's place: that of this nonce and no other.

    Raises Refused where nobody holds one, or somebody else does, who is then named; Locked while it is fresh, unless
    by `force`: whoever renewed it just now is alive, and may act without looking at it again.
    """
    again_by = " --policy FILE" if policy is not None else ""
    if policy is None:
        with site.remembering(site.vcenter.uuid) as journal:
            policy = remembered_policy(journal)
    if policy.lock_vm is None:
        raise UsageError(
            f"{policy.name}: the policy has no lock_vm, so there is no lease",
            hint="a lock of this machine needs no unlocking: it ends with its process (gpuops rotate status)",
        )
    vm = LockVm(site.vcenter, policy.lock_vm)
    there = vm.look()
    if there is None or not there.nonce:
        raise Refused(f"nobody holds the lease on {policy.lock_vm}", hint="nothing is in the way of the next run")
    again = command("rotate unlock", id=there.nonce)
    if there.nonce != nonce:
        raise Refused(told(there), hint=f"when that run is dead for certain: {again}{again_by}")
    if is_fresh(there, vm.seen.taken_at) and not force:
        raise Locked(
            f"{told(there)}, and renewed it a moment ago: its run is alive, or died just now",
            hint=f"it runs out by itself; when that run is dead for certain: {again} --force{again_by}",
        )
    if not vm.write(given_back(there, vm.seen.taken_at)):
        raise Locked(
            f"the lease on {policy.lock_vm} could not be given back: {vm.why}",
            hint="gpuops rotate status shows who holds it; try again",
        )
    return there
