"""Finds a running cluster by the markers of its VMs, for `gpuops cluster run`."""

from __future__ import annotations

from gpuops.errors import UsageError
from gpuops.execute.site import Site
from gpuops.extras.clusters.members import MarkedVm, marked_vms
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.cluster import Member, RdmaKind, TrainingCluster


def standing(name: str, site: Site) -> TrainingCluster:
    """Return the cluster of this name with the current addresses of its guests.

    Raises UsageError if it does not exist, if a VM is missing or does not run, or if two clusters have the name.
    """
    inventory = site.vcenter.inventory()
    members = marked_vms(inventory, name)
    if not members:
        cluster_names = ", ".join(sorted({member.marker.cluster for member in marked_vms(inventory)}))
        hint = (
            f"clusters there: {cluster_names}"
            if cluster_names
            else "gpuops cluster create --file cluster.yaml makes one"
        )
        raise UsageError(f"there is no cluster {name!r}", hint=hint)
    _require_complete(name, members)
    return TrainingCluster(name, tuple(_member(member, inventory, site) for member in members))


def _require_complete(name: str, members: tuple[MarkedVm, ...]) -> None:
    hint = "gpuops cluster create with its file makes it whole, gpuops cluster delete removes it"
    if len({member.marker.id for member in members}) > 1:
        raise UsageError(f"there are two clusters {name!r}", hint="gpuops cluster show shows their VMs")
    nodes = members[0].marker.nodes
    missing = sorted(set(range(nodes)) - {member.marker.rank for member in members})
    if missing:
        ranks = ", ".join(map(str, missing))
        raise UsageError(f"cluster {name} is not whole: of its {nodes} VMs rank {ranks} is missing", hint=hint)
    stopped = [member.vm.name for member in members if member.vm.power is not PowerState.ON]
    if stopped:
        raise UsageError(f"cluster {name}: {', '.join(stopped)} does not run", hint=hint)


def _member(marked: MarkedVm, inventory: Inventory, site: Site) -> Member:
    host = inventory.host_of(marked.vm)
    guest = site.vcenter.wait_for_guest(marked.vm.ref, 0.0, address=True)
    rdma = marked.marker.rdma.value if marked.marker.rdma is not RdmaKind.NONE else None
    return Member(
        marked.vm.ref, marked.vm.name, host.name if host is not None else "", marked.marker.gpus, guest.address, rdma
    )
