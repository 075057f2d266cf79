"""Beside: the cores and the memory of a NUMA node that a VM can have next to the GPUs there.

A VM with a passthrough device reserves all of its memory at power-on (VMware vSphere docs). Which node the memory of a
running VM is on vCenter tells only where `numa.nodeAffinity` binds it, so what is free on a node is a range.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.numa import NumaNode
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.placement.nodes import free_cores, free_memory_mib, surely_free_memory_mib

_NOBODY = Vm(ref="", name="")


@dataclass(frozen=True, slots=True)
class Beside:
    """What one VM can have beside the GPUs of a node."""

    cores: int | None
    """Physical cores: more vCPUs would not all be local. None = not known, as is the node."""
    memory_at_least_mib: int
    """However the memory of running VMs lies."""
    memory_at_most_mib: int | None
    """None = not known."""

    @property
    def possible(self) -> bool:
        """Whether a VM could be there at all."""
        return self.cores != 0 and self.memory_at_most_mib != 0

    @property
    def certain(self) -> bool:
        """Whether there surely are cores and memory for a VM, if a small one."""
        return bool(self.cores) and self.memory_at_least_mib > 0


UNKNOWN = Beside(None, 0, None)


def beside(node: NumaNode, host: Host, inventory: Inventory) -> Beside:
    """Cores and memory of a node of the host."""
    least = surely_free_memory_mib(node, _NOBODY, host, inventory)
    on_host = free_on(host, inventory)
    most = free_memory_mib(node, _NOBODY, host, inventory)
    if on_host.memory_at_most_mib is not None:
        most = min(most, on_host.memory_at_most_mib)
        least = min(least, on_host.memory_at_least_mib)
    return Beside(free_cores(node, _NOBODY, host, inventory), max(0, least), max(0, most))


def free_on(host: Host, inventory: Inventory) -> Beside:
    """Cores and memory of the whole host, beside what running VMs reserve."""
    if host.memory_mib is None:
        return Beside(host.cpu_cores, 0, None)
    running = [vm for vm in inventory.vms_on(host) if _may_run(vm)]
    claims = [_claim_mib(vm) for vm in running]
    least = 0 if None in claims else host.memory_mib - sum(claim for claim in claims if claim is not None)
    reserved = sum(vm.memory_reservation_mib or 0 for vm in running if vm.power is PowerState.ON)
    return Beside(host.cpu_cores, max(0, least), max(0, host.memory_mib - reserved))


def _may_run(vm: Vm) -> bool:
    return vm.power not in (PowerState.OFF, PowerState.SUSPENDED)


def _claim_mib(vm: Vm) -> int | None:
    """Memory that the VM reserves, at the most; None = not even its size can be read."""
    return vm.memory_mib if vm.memory_reservation_mib is None else vm.memory_reservation_mib
