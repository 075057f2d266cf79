"""What HA of a cluster keeps free for the failure of a host, and refuses a power-on over.

Sources: VMware vSphere Availability, "vSphere HA Admission Control"; vSphere API, ClusterDasAdmissionControlPolicy and
InsufficientFailoverResourcesFault. HA counts reserved memory and CPU, not GPUs. It does not check whether another host
has GPUs for the VMs of a failed host, and neither does this module. A VM with a vGPU or a DirectPath device reserves
all of its memory and, by default, no CPU. What VMs need in addition to their reservations (overhead memory, the 32 MHz
that HA counts for a VM that reserves no CPU) is not counted: vCenter also refuses whatever is refused here, and may
refuse what only just passes.
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
    """Whether HA admission control would let one VM start, by cluster, in one snapshot."""

    vm: Vm
    inventory: Inventory
    _refusals: dict[str, Rejection | None] = field(default_factory=dict)

    def refusal(self, host: Host) -> Rejection | None:
        """Return why HA would not let the VM start on the host; None if no reason is known."""
        cluster = self.inventory.clusters.get(host.cluster) if host.cluster else None
        if cluster is None or cluster.admission is None:
            return None
        if host.ref in cluster.admission.failover_hosts:
            hint = "it starts no VM until another host fails; choose another host"
            return Rejection(host.name, f"is a failover host of HA in cluster {cluster.name}", hint=hint)
        if cluster.ref not in self._refusals:
            short = (_short(resource, self.vm, cluster, self.inventory) for resource in _RESOURCES)
            self._refusals[cluster.ref] = next((rejection for rejection in short if rejection is not None), None)
        return self._refusals[cluster.ref]


@dataclass(frozen=True, slots=True)
class _Resource:
    """A resource that HA counts."""

    name: str
    unit: str
    amount_of: Callable[[Host], int | None]
    """Of a host; None = unknown."""
    reserved_by: Callable[[Vm], int | None]
    """By a running VM. Unknown counts as 0, so that HA is only said to refuse what it surely refuses."""
    requested_by: Callable[[Vm], int | None]
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
    """Return why the cluster is short of the resource, counting the reservations of running VMs, of this VM, and what
    HA keeps free.

    With slots (a failover level without percentages) vCenter is stricter: it refuses at least what is refused here.
    """
    hosts = [host for host in inventory.hosts.values() if host.cluster == cluster.ref]
    sizes = [resource.amount_of(host) for host in hosts if host.connected is True and host.in_maintenance is False]
    known_sizes, requested = sorted(size for size in sizes if size is not None), resource.requested_by(vm)
    if not requested or len(known_sizes) < len(sizes):
        return None
    kept_free = _kept_free(resource, cluster, known_sizes)
    if kept_free == 0:
        return None
    powered_on = (other_vm for host in hosts for other_vm in inventory.vms_on(host) if other_vm.power is PowerState.ON)
    running = [other_vm for other_vm in powered_on if other_vm.ref != vm.ref]
    free = max(0, sum(known_sizes) - kept_free - sum(resource.reserved_by(other_vm) or 0 for other_vm in running))
    if requested <= free:
        return None
    counted = {other_vm.awaited for other_vm in running}
    also_counted = "".join(f", and {awaited.value}" for awaited in Awaited if awaited in counted)
    reserve = f"the {kept_free} {resource.unit} that HA keeps free for the failure of a host"
    rule = f"{resource.name} beside {reserve}{also_counted}"
    hint = "free reservations in the cluster, or change its admission control"
    cluster_name = f"cluster {cluster.name}"
    return Rejection(cluster_name, rule, requested, free, resource.unit, hint=hint, short_of=resource.shortage)


def _kept_free(resource: _Resource, cluster: Cluster, sizes: Sequence[int]) -> int:
    admission = cluster.admission
    assert admission is not None, "asked only where HA admits"
    by_percent = sum(sizes) * (resource.percent(admission) or 0) // 100
    by_hosts = sum(sizes[-admission.failover_level :]) if admission.failover_level else 0
    return max(by_percent, by_hosts)
