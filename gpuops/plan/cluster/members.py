"""Which VMs of a snapshot are of a cluster, by the marker that each carries."""

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
    """The marker of the cluster that the VM is of; None = of none, or a copy of such a VM under another name."""
    found = parse_cluster_marker((vm.extra_config or {}).get(MARKER_KEY, ""))
    return found if found is not None and vm.name == f"{found.cluster}-{found.rank:02}" else None


def marked_vms(inventory: Inventory, cluster: str | None = None, id: str | None = None) -> tuple[MarkedVm, ...]:
    """The VMs of all clusters, of one by name, or of one that was made under this id; by name and rank."""
    found = [each for each in _marked(inventory) if cluster in (None, each.marker.cluster)]
    found = [each for each in found if id in (None, each.marker.id)]
    return tuple(sorted(found, key=lambda each: (each.marker.cluster, each.marker.rank, each.vm.ref)))


def _marked(inventory: Inventory) -> Iterator[MarkedVm]:
    for vm in inventory.vms.values():
        marker = marker_of(vm) if vm.extra_config else None
        if marker is not None and vm.template is False:
            yield MarkedVm(vm, marker)
