"""What HA keeps free for the failure of a host, and which power-on it refuses over that.

Sources: VMware vSphere Availability, "vSphere HA Admission Control" (percentages of the cluster's resources; slots of
the largest reservation of a running VM, without those of the largest hosts; dedicated failover hosts).
A VM that reserves no CPU counts with 32 MHz (there too). From memory, not documented: which fault a power-on or vMotion
to a dedicated failover host ends in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuops.sim.operations import faults

if TYPE_CHECKING:
    from gpuops.sim.drs import HaAdmission
    from gpuops.sim.entities import ComputeEntity, HostEntity, VmEntity
    from gpuops.sim.host_state import HostModel
    from gpuops.sim.vm_state import VmState

_LEAST_MHZ: Final = 32


def refuse_over_failover(vm: VmEntity, host: HostEntity) -> None:
    """Raises InsufficientFailoverResourcesFault when the cluster's admission control is against it."""
    refuse_failover_host(vm, host)
    cluster = host.compute_resource()
    asked = _asked_of(cluster)
    if asked is None or asked.failover_hosts is not None:
        return
    up = [each for each in cluster.hosts() if each.state.connection == "connected" and not each.state.in_maintenance]
    running = [vm.state, *(each.state for one in up for each in one.running_vms() if each is not vm)]
    if not _admits(asked, [each.state.model for each in up], running):
        raise faults.no_failover_resources(vm.name)


def refuse_failover_host(vm: VmEntity, host: HostEntity) -> None:
    """Raises InsufficientFailoverResourcesFault for a host that HA keeps empty: it takes no power-on and no vMotion."""
    asked = _asked_of(host.compute_resource())
    if asked is not None and asked.failover_hosts is not None and host.moid in asked.failover_hosts:
        raise faults.no_failover_resources(vm.name)


def _asked_of(cluster: ComputeEntity) -> HaAdmission | None:
    return cluster.drs.ha_admission if cluster.drs.ha_enabled else None


def _admits(admission: HaAdmission, hosts: list[HostModel], running: list[VmState]) -> bool:
    reserved_mib = [vm.reserved_mib for vm in running]
    reserved_mhz = [max(_LEAST_MHZ, vm.cpu_reservation_mhz) for vm in running]
    if admission.memory_percent is not None:
        cpu_percent = admission.memory_percent if admission.cpu_percent is None else admission.cpu_percent
        left_mib = sum(host.memory_mib for host in hosts) * (100 - admission.memory_percent) // 100
        left_mhz = sum(host.capacity_mhz for host in hosts) * (100 - cpu_percent) // 100
        return sum(reserved_mib) <= left_mib and sum(reserved_mhz) <= left_mhz
    slot_mib, slot_mhz = max(1, *reserved_mib), max(reserved_mhz)
    slots = sorted(min(host.memory_mib // slot_mib, host.capacity_mhz // slot_mhz) for host in hosts)
    return len(running) <= sum(slots[: len(slots) - admission.failover_level])
