"""Finds the reasons to refuse the removal of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuops.advise.managed_vms import managed_elsewhere
from gpuops.extras.clusters.members import MarkedVm
from gpuops.plan.core.plan import Rejection

REMOVE_PRIVILEGES: Final = (
    "VirtualMachine.Interact.PowerOff",
    "VirtualMachine.Inventory.Delete",
    "VirtualMachine.Config.AdvancedConfig",
)
"""vSphere API reference, PowerOffVM_Task, Destroy_Task, and ReconfigVM_Task for the lease that keeps runs away."""


def removal_refusals(members: Sequence[MarkedVm]) -> tuple[Rejection, ...]:
    """Return the reasons to refuse the removal, for example that a VM is a copy: a copy has the same marker."""
    ranks = [(member.marker.id, member.marker.rank) for member in members]
    doubled = [member for member in members if ranks.count((member.marker.id, member.marker.rank)) > 1]
    copies = tuple(
        Rejection(
            member.vm.path or member.vm.ref,
            f"claims rank {member.marker.rank} of cluster {member.marker.cluster} as another VM does",
            hint="rename the copy: a VM of another name is never removed",
        )
        for member in doubled
    )
    managed_vms = ((member, managed_elsewhere(member.vm)) for member in members)
    return (*copies, *(Rejection(member.vm.name, reason) for member, reason in managed_vms if reason is not None))
