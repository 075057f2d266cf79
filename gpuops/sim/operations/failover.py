"""What HA keeps free for the failure of a host, and which power-on it refuses over that.

Sources: VMware vSphere Availability, "vSphere HA Admission Control" (percentages of the cluster's resources; slots of
the largest reservation of a running VM, without those of the largest hosts; dedicated failover hosts).
From memory, not documented: which fault a power-on on a dedicated failover host ends in. CPU is not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.operations import faults

if TYPE_CHECKING:
    from gpuops.sim.drs import HaAdmission
    from gpuops.sim.objects.host_system import HostSystem
    from gpuops.sim.objects.virtual_machine import VirtualMachine


def refuse_over_failover(vm: VirtualMachine, host: HostSystem) -> None:
    """Raises InsufficientFailoverResourcesFault when the cluster's admission control is against it."""
    cluster: Any = host.compute_resource()
    drs = getattr(cluster, "drs", None)
    if drs is None or not drs.ha_enabled or drs.ha_admission is None:
        return
    if drs.ha_admission.failover_hosts is not None:
        if host.moid in drs.ha_admission.failover_hosts:
            raise faults.no_failover_resources(vm.name)
        return
    up = [each for each in cluster.hosts() if each.state.connection == "connected" and not each.state.in_maintenance]
    reserved_mib = [each.state.reserved_mib for one in up for each in one.running_vms() if each is not vm]
    sizes_mib = sorted(each.state.model.memory_mib for each in up)
    if not _admits(drs.ha_admission, sizes_mib, [*reserved_mib, vm.state.reserved_mib]):
        raise faults.no_failover_resources(vm.name)


def _admits(admission: HaAdmission, sizes_mib: list[int], reserved_mib: list[int]) -> bool:
    if admission.memory_percent is not None:
        return sum(reserved_mib) <= sum(sizes_mib) * (100 - admission.memory_percent) // 100
    slot_mib = max(1, *reserved_mib)
    left = sizes_mib[: len(sizes_mib) - admission.failover_level]
    return len(reserved_mib) <= sum(size_mib // slot_mib for size_mib in left)
