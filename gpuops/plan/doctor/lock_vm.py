"""Findings of the VMs that carry the lease of a rotation."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpuops.model.inventory import Inventory
from gpuops.plan.doctor.finding import Finding, Severity
from gpuops.plan.rotation.lease import KEY
from gpuops.plan.rotation.setup import NO_SNAPSHOTS, may_be_reverted


def of_lock_vms(names: Collection[str], inventory: Inventory) -> Iterator[Finding]:
    """A warning for each that has snapshots. `names`: of lock VMs that are known; what carries a lease is one too."""
    for vm in sorted(inventory.vms.values(), key=lambda vm: vm.name):
        if vm.name not in names and KEY not in (vm.extra_config or {}):
            continue
        wrong = may_be_reverted(vm.snapshots)
        if wrong:
            severity = Severity.NOTE if vm.snapshots is None else Severity.WARNING
            yield Finding(severity, vm.name, f"lock VM: {wrong}", NO_SNAPSHOTS)
