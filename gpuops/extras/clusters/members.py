"""Finds the VMs of clusters in a snapshot by their markers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.model.workloads.cluster import MARKER_KEY, ClusterMarker, parse_cluster_marker


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
    """Return the VMs of all clusters, or of the cluster with this name or id, sorted by name and rank."""
    members = [member for member in _all_marked_vms(inventory) if cluster in (None, member.marker.cluster)]
    members = [member for member in members if id in (None, member.marker.id)]
    return tuple(sorted(members, key=lambda member: (member.marker.cluster, member.marker.rank, member.vm.ref)))


def _all_marked_vms(inventory: Inventory) -> Iterator[MarkedVm]:
    for vm in inventory.vms.values():
        marker = marker_of(vm) if vm.extra_config else None
        if marker is not None and vm.template is False:
            yield MarkedVm(vm, marker)
