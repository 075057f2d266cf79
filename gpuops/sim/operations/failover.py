"""What HA keeps free for the failure of a host, and which power-on it refuses over that.

Sources: VMware vSphere Availability, "vSphere HA Admission Control" (percentages of the cluster's resources; slots of
the largest reservation of a running VM, without those of the largest hosts; dedicated failover hosts).
From memory, not documented: which fault a power-on or vMotion to a dedicated failover host ends in. CPU is not counted.
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
    refuse_failover_host(vm, host)
    cluster: Any = host.compute_resource()
    asked = _asked_of(cluster)
    if asked is None or asked.failover_hosts is not None:
        return
    up = [each for each in cluster.hosts() if each.state.connection == "connected" and not each.state.in_maintenance]
    reserved_mib = [each.state.reserved_mib for one in up for each in one.running_vms() if each is not vm]
    sizes_mib = sorted(each.state.model.memory_mib for each in up)
    if not _admits(asked, sizes_mib, [*reserved_mib, vm.state.reserved_mib]):
        raise faults.no_failover_resources(vm.name)


def refuse_failover_host(vm: VirtualMachine, host: HostSystem) -> None:
    """Raises InsufficientFailoverResourcesFault for a host that HA keeps empty: it takes no power-on and no vMotion."""
    asked = _asked_of(host.compute_resource())
    if asked is not None and asked.failover_hosts is not None and host.moid in asked.failover_hosts:
        raise faults.no_failover_resources(vm.name)


def _asked_of(cluster: Any) -> HaAdmission | None:
    drs = getattr(cluster, "drs", None)
    found: HaAdmission | None = drs.ha_admission if drs is not None and drs.ha_enabled else None
    return found


def _admits(admission: HaAdmission, sizes_mib: list[int], reserved_mib: list[int]) -> bool:
    if admission.memory_percent is not None:
        return sum(reserved_mib) <= sum(sizes_mib) * (100 - admission.memory_percent) // 100
    slot_mib = max(1, *reserved_mib)
    left = sizes_mib[: len(sizes_mib) - admission.failover_level]
    return len(reserved_mib) <= sum(size_mib // slot_mib for size_mib in left)
