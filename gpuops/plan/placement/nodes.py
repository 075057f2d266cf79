"""Which NUMA nodes of a host have the cores and the memory for a VM beside their GPUs.

`candidates.py`, `multi_node.py`, `explain.py` and the fleet index call it.

Sources: vSphere API, HostNumaNode (logical CPUs, memory, PCI devices beside it); VMware vSphere Resource Management:
`numa.nodeAffinity` binds vCPUs hard and memory as far as the node has any.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

from gpuops.model.vcenter.host import Host, NumaNode
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Awaited, PowerState, Vm
from gpuops.plan.core.plan import Rejection, Shortage

AFFINITY_KEY: Final = "numa.nodeAffinity"
_FEW: Final = 3


def short_beside(vm: Vm, node: NumaNode, host: Host, inventory: Inventory) -> tuple[Rejection, ...]:
    """What the node lacks for the VM: cores, memory or both."""
    subject = f"{host.name} numa{node.id}"
    cores, memory_mib = free_cores(node, vm, host, inventory), free_memory_mib(node, vm, host, inventory)
    rejections = []
    if vm.vcpus is None:
        rejections.append(Rejection(vm.name, "its number of vCPUs cannot be read"))
    elif vm.vcpus > cores:
        reserved = ", without those that VMs bound there reserve" if cores < cores_of(node, host) else ""
        rule = f"cores beside the GPU{reserved}"
        rejections.append(Rejection(subject, rule, vm.vcpus, cores, "cores", short_of=Shortage.VCPUS))
    if vm.memory_mib is None:
        rejections.append(Rejection(vm.name, "its memory size cannot be read"))
    elif vm.memory_mib > memory_mib:
        bound = {other.awaited for other in inventory.vms_on(host) if _holds_memory_of(node, other, vm)}
        others = " and ".join(awaited.value for awaited in Awaited if awaited in bound)
        rule = "memory beside the GPU" + (f", without that of {others}" if others else "")
        rejections.append(Rejection(subject, rule, vm.memory_mib, memory_mib, "MiB", short_of=Shortage.MEMORY))
    return tuple(rejections)


def cores_of(node: NumaNode, host: Host) -> int:
    """Physical cores of a node: its logical CPUs, without the second thread of each core where the host has them."""
    if not host.cpu_cores or not host.cpu_threads:
        return node.logical_cpus
    return node.logical_cpus * host.cpu_cores // host.cpu_threads


def free_cores(node: NumaNode, vm: Vm, host: Host, inventory: Inventory) -> int:
    """Cores of a node beside those that VMs bound to it, and not surely off, reserve; sharing the others is ESXi's
    business."""
    cores = cores_of(node, host)
    reserved_mhz = sum(
        -(-other.cpu_reservation_mhz // len(nodes))
        for other in inventory.vms_on(host)
        if other.cpu_reservation_mhz
        and other.ref != vm.ref
        and other.may_run
        and str(node.id) in (nodes := _bound_to(other))
    )
    if not reserved_mhz or not host.cpu_mhz:
        return cores
    return max(0, cores - -(-reserved_mhz // host.cpu_mhz))


def free_memory_mib(node: NumaNode, vm: Vm, host: Host, inventory: Inventory) -> int:
    """Memory of a node beside what VMs bound to it, and not surely off, reserve; what unbound ones use is not told."""
    bound = sum(
        -(-(other.most_reserved_mib or 0) // len(nodes))
        for other in inventory.vms_on(host)
        if _holds_memory_of(node, other, vm) and (nodes := _bound_to(other))
    )
    return node.memory_mib - bound


def _holds_memory_of(node: NumaNode, other: Vm, vm: Vm) -> bool:
    """Whether the other VM is bound to the node, among others perhaps, and not surely off."""
    return other.ref != vm.ref and other.may_run and str(node.id) in _bound_to(other)


def surely_free_memory_mib(node: NumaNode, vm: Vm, host: Host, inventory: Inventory) -> int:
    """The same, however the memory of the VMs lies that are bound to no node, or to this one among others."""
    claims = [
        other.most_reserved_mib
        for other in inventory.vms_on(host)
        if other.ref != vm.ref and other.may_run and str(node.id) in (_bound_to(other) or (str(node.id),))
    ]
    return 0 if None in claims else max(0, node.memory_mib - sum(claim for claim in claims if claim is not None))


def unreserved_mhz(host: Host, vm: Vm, inventory: Inventory) -> int | None:
    """CPU of the host, in MHz, that running VMs other than this one are not known to reserve; None = unknown."""
    if host.cpu_mhz is None or host.cpu_cores is None:
        return None
    running = (other for other in inventory.vms_on(host) if other.power is PowerState.ON and other.ref != vm.ref)
    return host.cpu_mhz * host.cpu_cores - sum(other.cpu_reservation_mhz or 0 for other in running)


def unreserved(host: Host, vm: Vm, inventory: Inventory) -> int | None:
    """Memory of the host, in MiB, that running VMs other than this one do not reserve; None = unknown.

    A suspended VM reserves none (assumption: suspended-vm-memory).
    """
    if host.memory_mib is None:
        return None
    running = (other for other in inventory.vms_on(host) if other.power is PowerState.ON and other.ref != vm.ref)
    return host.memory_mib - sum(other.memory_reservation_mib or 0 for other in running)


def surely_unreserved(host: Host, vm: Vm, inventory: Inventory) -> int | None:
    """Memory of the host, in MiB, that no VM other than this one can have reserved; None = unknown.

    What a VM reserves is no more than its memory.
    """
    free_mib = unreserved(host, vm, inventory)
    claims = [other.most_reserved_mib for other in _with_unknown_claim(host, vm, inventory)]
    if free_mib is None or None in claims:
        return None
    return free_mib - sum(claim for claim in claims if claim is not None)


def memory_doubt(vm: Vm, host: Host, inventory: Inventory) -> str:
    """Why it is not certain that the host has the VM's memory left to reserve; empty = it is, or surely has not."""
    free_mib = unreserved(host, vm, inventory)
    untold = _with_unknown_claim(host, vm, inventory)
    if not untold or free_mib is None or vm.memory_mib is None:
        return ""
    sure_mib = surely_unreserved(host, vm, inventory)
    if sure_mib is not None and vm.memory_mib <= sure_mib:
        return ""
    names = ", ".join(sorted(other.name for other in untold)[:_FEW])
    more = f" and {len(untold) - _FEW} more" if len(untold) > _FEW else ""
    return f"{host.name}: what {names}{more} may reserve cannot be read: the memory may not be there"


def _with_unknown_claim(host: Host, vm: Vm, inventory: Inventory) -> list[Vm]:
    return [other for other in inventory.vms_on(host) if other.ref != vm.ref and _claim_is_unknown(other)]


def node_of(seats: Iterable[int | None]) -> int | None:
    """The one NUMA node of all these GPUs; None = several, unknown, or no GPU."""
    nodes = set(seats)
    return nodes.pop() if len(nodes) == 1 else None


def affinity(nodes: Iterable[int]) -> str:
    """The value of `numa.nodeAffinity` that names these nodes."""
    return ",".join(map(str, nodes))


def _bound_to(vm: Vm) -> tuple[str, ...]:
    """The nodes that the VM is bound to; it is taken to be on each of them in equal parts."""
    return _nodes_in((vm.extra_config or {}).get(AFFINITY_KEY, ""))


@cache
def _nodes_in(text: str) -> tuple[str, ...]:
    """The nodes that a value of `numa.nodeAffinity` names; a fleet has few such values and asks for them often."""
    return tuple(node.strip() for node in text.split(",") if node.strip())


def _claim_is_unknown(vm: Vm) -> bool:
    return vm.power is None or (vm.power is PowerState.ON and vm.memory_reservation_mib is None)
