"""Finds the VMs of clusters by their markers, and the reasons to refuse their removal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.advise.managed_vms import managed_elsewhere
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.model.workloads.cluster import MARKER_KEY, ClusterMarker, parse_cluster_marker
from gpuops.plan.core.rejection import Rejection


@dataclass(frozen=True, slots=True)
class MarkedVm:
    """A VM with the marker of a cluster."""

    vm: Vm
    marker: ClusterMarker


def marker_of(vm: Vm) -> ClusterMarker | None:
    """Return the marker of the VM's cluster, or None if it has none or is a copy under another name."""
    marker = parse_cluster_marker((vm.extra_config or {}).get(MARKER_KEY, ""))
    return marker if marker is not None and vm.name == f"{marker.cluster}-{marker.rank:02}" else None


def marked_vms(inventory: Inventory, cluster: str | None = None, id: str | None = None) -> tuple[MarkedVm, ...]:
    """Return the VMs of all clusters, or only those with this name and this id, sorted by cluster and rank."""
    members = [
        MarkedVm(vm, marker)
        for vm in inventory.vms.values()
        if vm.template is False and (marker := marker_of(vm)) is not None
        if cluster in (None, marker.cluster) and id in (None, marker.id)
    ]
    return tuple(sorted(members, key=lambda member: (member.marker.cluster, member.marker.rank, member.vm.ref)))


REMOVE_PRIVILEGES: Final = (
    "VirtualMachine.Interact.PowerOff",
    "VirtualMachine.Inventory.Delete",
    "VirtualMachine.Config.AdvancedConfig",
)
"""vSphere API reference, PowerOffVM_Task, Destroy_Task, and ReconfigVM_Task for the lease that keeps runs away."""


def removal_refusals(members: Sequence[MarkedVm]) -> tuple[Rejection, ...]:
    """Return the reasons to refuse the removal of these VMs.

    Two VMs with the same marker are refused, because one of them is a copy that somebody made; and VMs that another
    product manages.
    """
    ranks = [(member.marker.id, member.marker.rank) for member in members]
    doubled = [member for member in members if ranks.count((member.marker.id, member.marker.rank)) > 1]
    copies = tuple(
        Rejection(
            member.vm.path or member.vm.ref,
            f"has the same marker as another VM (rank {member.marker.rank} of cluster {member.marker.cluster})",
            hint="rename the copy: gpuops never removes a VM with another name",
        )
        for member in doubled
    )
    managed_vms = ((member, managed_elsewhere(member.vm)) for member in members)
    return (*copies, *(Rejection(member.vm.name, reason) for member, reason in managed_vms if reason is not None))
