"""Where a VM is powered on, and what keeps it off a host.

It starts on the host that was asked for, on its own host, or on one that DRS chooses. In a cluster whose DRS places
VMs by itself the VM's own host is tried first, then the host with the fewest running VMs (the order is from memory:
real DRS scores hosts by load). Rules that bind (VM-host rules with `mandatory`) hold in any case. When every host
refuses for the same kind of reason, that reason is the fault; otherwise it is NoCompatibleHost.

HA's admission control: VMware vSphere Availability, "vSphere HA Admission Control" (percentages of the cluster's
resources; slots of the largest reservation of a running VM, without those of the largest hosts; dedicated failover
hosts). A VM that reserves no CPU counts with 32 MHz (there too). From memory: which fault a power-on or vMotion to a
dedicated failover host ends in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim, vmodl

from gpuops.sim.inventory import faults
from gpuops.sim.operations.host_admission import Admission, admission

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import ComputeEntity, HostEntity, VmEntity
    from gpuops.sim.state.drs import HaAdmission
    from gpuops.sim.state.host_state import HostModel
    from gpuops.sim.state.vm_state import VmState

_LEAST_MHZ: Final = 32


def refuse_over_failover(vm: VmEntity, host: HostEntity) -> None:
    """Raises InsufficientFailoverResourcesFault if vSphere HA's admission control forbids the VM on the host."""
    refuse_failover_host(vm, host)
    cluster = host.compute_resource()
    ha_admission = _active_ha_admission(cluster)
    if ha_admission is None or ha_admission.failover_hosts is not None:
        return  # with failover hosts, `refuse_failover_host` is the complete check
    up = [
        candidate
        for candidate in cluster.hosts()
        if candidate.state.connection == "connected" and not candidate.state.in_maintenance
    ]
    running = [
        vm.state,
        *(running_vm.state for up_host in up for running_vm in up_host.running_vms() if running_vm is not vm),
    ]
    if not _admits(ha_admission, [up_host.state.model for up_host in up], running):
        raise faults.no_failover_resources(vm.name)


def refuse_failover_host(vm: VmEntity, host: HostEntity) -> None:
    """Raises InsufficientFailoverResourcesFault for a host that HA keeps empty: it takes no power-on and no vMotion."""
    ha_admission = _active_ha_admission(host.compute_resource())
    if (
        ha_admission is not None
        and ha_admission.failover_hosts is not None
        and host.moid in ha_admission.failover_hosts
    ):
        raise faults.no_failover_resources(vm.name)


def _active_ha_admission(cluster: ComputeEntity) -> HaAdmission | None:
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


def place(vm: VmEntity, requested_host: HostEntity | None) -> tuple[HostEntity, Admission]:
    """Return the host that the VM starts on, and its devices and slots there.

    Raises the fault of the refusal, or NoCompatibleHost if hosts refuse for different reasons.
    """
    current_host = vm.host()
    if requested_host is not None and requested_host.compute_resource() is not current_host.compute_resource():
        raise faults.wrong_argument("host")
    candidates = [requested_host or current_host]
    cluster = current_host.compute_resource()
    if requested_host is None and cluster.places(vm.moid):  # DRS may choose another host
        candidates += sorted((host for host in cluster.hosts() if host is not current_host), key=load_of)
    refusals: list[tuple[Any, Any]] = []
    for host in candidates:
        try:
            refuse_against_rules(vm, host)
            refuse_over_failover(vm, host)
            return host, admission(vm, host)
        except vmodl.MethodFault as refusal:
            refusals.append((host.ref, refusal))
    if len({type(refusal) for _, refusal in refusals}) > 1:
        raise faults.no_compatible_host(refusals)
    raise refusals[0][1]


def load_of(host: HostEntity) -> tuple[int, str]:
    """Return by what hosts are ordered: the number of VMs that run there, then the name."""
    return len(host.running_vms()), host.name


def refuse_against_rules(vm: VmEntity, host: HostEntity) -> None:
    """Raises VmHostAffinityRuleViolation when a binding rule keeps the VM off the host."""
    if not host.compute_resource().rules_allow(vm.moid, host.moid):
        raise vim.fault.VmHostAffinityRuleViolation(
            msg=f"Virtual machine {vm.name} on host {host.name} violates a VM-Host affinity rule.",
            vmName=vm.name,
            hostName=host.name,
        )
