"""Headroom: what HA of a cluster keeps free for the failure of a host, and refuses a power-on over.

Sources: VMware vSphere Availability, "vSphere HA Admission Control"; vSphere API, ClusterDasAdmissionControlPolicy and
InsufficientFailoverResourcesFault. HA counts reserved memory and CPU, not GPUs: whether another host had GPUs for
the VMs of a failed one it never asks, and so neither does this. A VM with a vGPU or a DirectPath device reserves all of
its memory and, unless somebody sets it, no CPU; CPU reservations and overheads are not read, so what is refused here
vCenter refuses too, and what passes it may still refuse, where other VMs reserve most of the cluster's CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuops.model.host import Cluster, Host
from gpuops.model.inventory import Inventory
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.plan import Rejection


@dataclass(frozen=True, slots=True)
class Headroom:
    """What HA says to one VM on one snapshot, cluster by cluster."""

    vm: Vm
    inventory: Inventory
    _known: dict[str, Rejection | None] = field(default_factory=dict)

    def refusal(self, host: Host) -> Rejection | None:
        """Why HA would not let the VM start on the host; None = nothing is known to speak against it."""
        cluster = self.inventory.clusters.get(host.cluster) if host.cluster else None
        if cluster is None or cluster.admission is None:
            return None
        if host.ref in cluster.admission.failover_hosts:
            hint = "it starts no VM until another host fails; choose another host"
            return Rejection(host.name, f"is a failover host of HA in cluster {cluster.name}", hint=hint)
        if cluster.ref not in self._known:
            self._known[cluster.ref] = _memory(self.vm, cluster, self.inventory)
        return self._known[cluster.ref]


def _memory(vm: Vm, cluster: Cluster, inventory: Inventory) -> Rejection | None:
    """The memory that running VMs of the cluster reserve, and this one, beside what is kept free.

    With slots (a failover level without percentages) vCenter is stricter still: this much it refuses in any case.
    """
    hosts = [host for host in inventory.hosts.values() if host.cluster == cluster.ref]
    counted = [host for host in hosts if host.connected is True and host.in_maintenance is False]
    if vm.memory_mib is None or any(host.memory_mib is None for host in counted):
        return None
    sizes_mib = sorted(host.memory_mib or 0 for host in counted)
    kept_mib = _kept_mib(cluster, sizes_mib)
    if kept_mib == 0:
        return None
    reserved_mib = sum(
        other.memory_reservation_mib or 0
        for host in hosts
        for other in inventory.vms_on(host)
        if other.power is PowerState.ON and other.ref != vm.ref
    )
    free_mib = max(0, sum(sizes_mib) - kept_mib - reserved_mib)
    if vm.memory_mib <= free_mib:
        return None
    rule = f"memory beside the {kept_mib} MiB that HA keeps free for the failure of a host"
    hint = "free reservations in the cluster, or change its admission control"
    return Rejection(f"cluster {cluster.name}", rule, vm.memory_mib, free_mib, "MiB", hint=hint)


def _kept_mib(cluster: Cluster, sizes_mib: Sequence[int]) -> int:
    admission = cluster.admission
    assert admission is not None, "asked only where HA admits"
    by_percent = sum(sizes_mib) * (admission.memory_percent or 0) // 100
    by_hosts = sum(sizes_mib[-admission.failover_level :]) if admission.failover_level else 0
    return max(by_percent, by_hosts)
