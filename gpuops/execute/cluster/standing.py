"""The cluster that runs now, by the markers of its VMs: what `gpuops cluster run` starts programs in."""

from __future__ import annotations

from gpuops.errors import UsageError
from gpuops.execute.site import Site
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.cluster import Member, RdmaKind, TrainingCluster
from gpuops.plan.cluster.members import MarkedVm, marked_vms


def standing(name: str, site: Site) -> TrainingCluster:
    """The cluster of this name, all of its VMs running, each with the address that it tells now.

    Raises UsageError where there is none, where a VM of it is missing or does not run, or where there are two.
    """
    inventory = site.vcenter.inventory()
    found = marked_vms(inventory, name)
    if not found:
        known = ", ".join(sorted({each.marker.cluster for each in marked_vms(inventory)}))
        hint = f"clusters there: {known}" if known else "gpuops cluster create --file cluster.yaml makes one"
        raise UsageError(f"there is no cluster {name!r}", hint=hint)
    _require_whole(name, found)
    return TrainingCluster(name, tuple(_member(each, inventory, site) for each in found))


def _require_whole(name: str, found: tuple[MarkedVm, ...]) -> None:
    again = "gpuops cluster create with its file makes it whole, gpuops cluster delete removes it"
    if len({each.marker.id for each in found}) > 1:
        raise UsageError(f"there are two clusters {name!r}, made apart", hint="gpuops cluster show tells their VMs")
    nodes = found[0].marker.nodes
    missing = sorted(set(range(nodes)) - {each.marker.rank for each in found})
    if missing:
        ranks = ", ".join(map(str, missing))
        raise UsageError(f"cluster {name} is not whole: of its {nodes} VMs rank {ranks} is missing", hint=again)
    stopped = [each.vm.name for each in found if each.vm.power is not PowerState.ON]
    if stopped:
        raise UsageError(f"cluster {name}: {', '.join(stopped)} does not run", hint=again)


def _member(each: MarkedVm, inventory: Inventory, site: Site) -> Member:
    host = inventory.host_of(each.vm)
    guest = site.vcenter.wait_for_guest(each.vm.ref, 0.0, address=True)
    rdma = each.marker.rdma.value if each.marker.rdma is not RdmaKind.NONE else None
    return Member(
        each.vm.ref, each.vm.name, host.name if host is not None else "", each.marker.gpus, guest.address, rdma
    )
