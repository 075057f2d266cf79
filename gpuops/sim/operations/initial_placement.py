"""Where a VM is powered on: the host that was asked for, its own host, or one that DRS chooses.

In a cluster whose DRS places VMs by itself the VM's own host is tried first, then the host with the fewest running VMs
(the order is from memory: real DRS scores hosts by load). Rules that bind (VM-host rules with `mandatory`) hold in any
case. When every host refuses for the same kind of reason, that reason is the fault; otherwise it is NoCompatibleHost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyVmomi import vim, vmodl

from gpuops.sim.operations import faults
from gpuops.sim.operations.failover import refuse_over_failover
from gpuops.sim.operations.host_admission import Admission, admission

if TYPE_CHECKING:
    from gpuops.sim.entities import HostEntity, VmEntity


def place(vm: VmEntity, asked: HostEntity | None) -> tuple[HostEntity, Admission]:
    """The host the VM starts on and what it will hold there. Raises the fault of the refusal."""
    own = vm.host()
    if asked is not None and asked.compute_resource() is not own.compute_resource():
        raise faults.wrong_argument("host")
    candidates = [asked or own]
    cluster = own.compute_resource()
    if asked is None and cluster.places(vm.moid):
        candidates += sorted((host for host in cluster.hosts() if host is not own), key=_load)
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


def _load(host: HostEntity) -> tuple[int, str]:
    return len(host.running_vms()), host.name


def refuse_against_rules(vm: VmEntity, host: HostEntity) -> None:
    """Raises VmHostAffinityRuleViolation when a binding rule keeps the VM off the host."""
    if not host.compute_resource().rules_allow(vm.moid, host.moid):
        raise vim.fault.VmHostAffinityRuleViolation(
            msg=f"Virtual machine {vm.name} on host {host.name} violates a VM-Host affinity rule.",
            vmName=vm.name,
            hostName=host.name,
        )
