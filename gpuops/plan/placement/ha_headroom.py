"""What HA of a cluster keeps free for the failure of a host, and refuses a power-on over.

Sources: VMware vSphere Availability, "vSphere HA Admission Control"; vSphere API, ClusterDasAdmissionControlPolicy and
InsufficientFailoverResourcesFault. HA counts reserved memory and CPU, not GPUs: whether another host had GPUs for
the VMs of a failed one it never asks, and so neither does this. A VM with a vGPU or a DirectPath device reserves all of
its memory and, unless somebody sets it, no CPU. What VMs need beside their reservations (overhead memory, the 32 MHz
that HA counts for a VM that reserves no CPU) is not counted: what is refused here vCenter refuses too, and what only
just passes it may still refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuops.model.vcenter.host import AdmissionControl, Cluster, Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Awaited, PowerState, Vm
from gpuops.plan.core.plan import Rejection, Shortage


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
            short = (_short(resource, self.vm, cluster, self.inventory) for resource in _RESOURCES)
            self._known[cluster.ref] = next((each for each in short if each is not None), None)
        return self._known[cluster.ref]


@dataclass(frozen=True, slots=True)
class _Resource:
    """What HA counts."""

    name: str
    unit: str
    there: Callable[[Host], int | None]
    """Of a host; None = unknown."""
    reserved: Callable[[Vm], int | None]
    """By a running VM; unknown is counted as none, for what is refused must be refused for certain."""
    asked: Callable[[Vm], int | None]
    """By the VM that is to start."""
    percent: Callable[[AdmissionControl], int | None]
    shortage: Shortage | None = None


_RESOURCES: Final = (
    _Resource(
        "memory",
        "MiB",
        lambda host: host.memory_mib,
        lambda vm: vm.memory_reservation_mib,
        lambda vm: vm.memory_mib,
        lambda admission: admission.memory_percent,
        Shortage.MEMORY,
    ),
    _Resource(
        "CPU",
        "MHz",
        lambda host: None if host.cpu_mhz is None or host.cpu_cores is None else host.cpu_mhz * host.cpu_cores,
        lambda vm: vm.cpu_reservation_mhz,
        lambda vm: vm.cpu_reservation_mhz,
        lambda admission: admission.cpu_percent,
    ),
)


def _short(resource: _Resource, vm: Vm, cluster: Cluster, inventory: Inventory) -> Rejection | None:
    """What running VMs of the cluster reserve, and this one, beside what is kept free.

    With slots (a failover level without percentages) vCenter is stricter still: this much it refuses in any case.
    """
    hosts = [host for host in inventory.hosts.values() if host.cluster == cluster.ref]
    sizes = [resource.there(host) for host in hosts if host.connected is True and host.in_maintenance is False]
    known, asked = sorted(size for size in sizes if size is not None), resource.asked(vm)
    if not asked or len(known) < len(sizes):
        return None
    kept = _kept(resource, cluster, known)
    if kept == 0:
        return None
    there = (other for host in hosts for other in inventory.vms_on(host) if other.power is PowerState.ON)
    running = [other for other in there if other.ref != vm.ref]
    free = max(0, sum(known) - kept - sum(resource.reserved(other) or 0 for other in running))
    if asked <= free:
        return None
    counted = {other.awaited for other in running}
    others = "".join(f", and {awaited.value}" for awaited in Awaited if awaited in counted)
    rule = f"{resource.name} beside the {kept} {resource.unit} that HA keeps free for the failure of a host{others}"
    hint = "free reservations in the cluster, or change its admission control"
    cluster_name = f"cluster {cluster.name}"
    return Rejection(cluster_name, rule, asked, free, resource.unit, hint=hint, short_of=resource.shortage)


def _kept(resource: _Resource, cluster: Cluster, sizes: Sequence[int]) -> int:
    admission = cluster.admission
    assert admission is not None, "asked only where HA admits"
    by_percent = sum(sizes) * (resource.percent(admission) or 0) // 100
    by_hosts = sum(sizes[-admission.failover_level :]) if admission.failover_level else 0
    return max(by_percent, by_hosts)
