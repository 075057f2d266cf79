"""NUMA nodes of a host: which have the cores and the memory for a VM beside their GPUs.

Sources: vSphere API, HostNumaNode (logical CPUs, memory, PCI devices beside it); VMware vSphere Resource Management:
`numa.nodeAffinity` binds vCPUs hard and memory as far as the node has any.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.numa import NumaNode
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.plan import Rejection

AFFINITY_KEY = "numa.nodeAffinity"


def short_beside(vm: Vm, node: NumaNode, host: Host, inventory: Inventory) -> tuple[Rejection, ...]:
    """What the node lacks for the VM: cores, memory or both."""
    subject = f"{host.name} numa{node.id}"
    cores, memory_mib = cores_of(node, host), free_memory_mib(node, vm, host, inventory)
    found = []
    if vm.vcpus is None:
        found.append(Rejection(vm.name, "its number of vCPUs cannot be read"))
    elif vm.vcpus > cores:
        found.append(Rejection(subject, "cores beside the GPU", vm.vcpus, cores, "cores"))
    if vm.memory_mib is None:
        found.append(Rejection(vm.name, "its memory size cannot be read"))
    elif vm.memory_mib > memory_mib:
        found.append(Rejection(subject, "memory beside the GPU", vm.memory_mib, memory_mib, "MiB"))
    return tuple(found)


def cores_of(node: NumaNode, host: Host) -> int:
    """Physical cores of a node: its logical CPUs, without the second thread of each core where the host has them."""
    if not host.cpu_cores or not host.cpu_threads:
        return node.logical_cpus
    return node.logical_cpus * host.cpu_cores // host.cpu_threads


def free_memory_mib(node: NumaNode, vm: Vm, host: Host, inventory: Inventory) -> int:
    """Memory of a node beside what running VMs bound to it reserve; what unbound VMs use there is not told."""
    bound = sum(
        other.memory_reservation_mib or 0
        for other in inventory.vms_on(host)
        if other.ref != vm.ref and other.power is PowerState.ON and _bound_to(other) == str(node.id)
    )
    return node.memory_mib - bound


def unreserved(host: Host, vm: Vm, inventory: Inventory) -> int | None:
    """Memory of the host, in MiB, that running VMs other than this one do not reserve; None = unknown."""
    if host.memory_mib is None:
        return None
    running = (other for other in inventory.vms_on(host) if other.power is PowerState.ON and other.ref != vm.ref)
    return host.memory_mib - sum(other.memory_reservation_mib or 0 for other in running)


def node_of(seats: Iterable[int | None]) -> int | None:
    """The one NUMA node of all these GPUs; None = several, unknown, or no GPU."""
    nodes = set(seats)
    return nodes.pop() if len(nodes) == 1 else None


def _bound_to(vm: Vm) -> str | None:
    return (vm.extra_config or {}).get(AFFINITY_KEY)
