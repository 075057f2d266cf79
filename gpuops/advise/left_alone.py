"""Finds the desktops that `rotate night` must not take, idle or not: by their marks and by the policy. Pure.

Nights ask it of the VMs of a snapshot, and so do replays of past nights, of the marks that desktops carry today.
"""

from __future__ import annotations

from gpuops.advise.lending_servers import lends
from gpuops.advise.managed_vms import left_to_manager
from gpuops.model.nights.rotation import DirectPath, Policy, Pool
from gpuops.model.vcenter.vm import Vm


def kept_by_marks(policy: Policy, pool: Pool, vm: Vm) -> str | None:
    """Return why `rotate night` must not take this desktop of the pool, idle or not; None = no mark is against it.

    A mark that cannot be read counts as a refusal.
    """
    manager_reason = left_to_manager(vm) or lends(vm)
    if manager_reason is not None:
        return manager_reason
    opted_out = policy.opt_out.on(vm)
    if opted_out is not False:
        return f"opted out ({policy.opt_out})" if opted_out else f"{policy.opt_out} cannot be read"
    if pool.owner is not None and pool.owner.on(vm) is not True:
        return f"its owner has not agreed ({pool.owner})"
    if any(queued.names_vm(vm) for queued in policy.ml):
        return "is in the ML queue of the same policy"
    return None


def never_taken(policy: Policy, pool: Pool, vm: Vm) -> bool:
    """Whether no night takes this desktop of the pool: by its marks, or because it is a template or cannot be suspended
    in a pool whose guests are not shut down."""
    return (
        vm.template is True
        or kept_by_marks(policy, pool, vm) is not None
        or (vm.has_passthrough is not False and pool.directpath is DirectPath.LEAVE)
    )
