"""Which NUMA nodes of a host have the cores and the memory for a VM beside their GPUs.

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
from gpuops.plan.core.rejection import READ_VM, some_names

AFFINITY_KEY: Final = "numa.nodeAffinity"


def short_beside(vm: Vm, node: NumaNode, host: Host, inventory: Inventory) -> tuple[Rejection, ...]:
    """Return what the node lacks for the VM: cores, memory or both."""
    subject = f"{host.name} numa{node.id}"
    cores, memory_mib = free_cores(node, vm, host, inventory), free_memory_mib(node, vm, host, inventory)
    rejections = []
    if vm.vcpus is None:
        rejections.append(Rejection(vm.name, "its number of vCPUs cannot be read", hint=READ_VM))
    elif vm.vcpus > cores:
        reserved = ", without those that VMs bound there reserve" if cores < cores_of(node, host) else ""
        rule = f"cores beside the GPU{reserved}"
        rejections.append(Rejection(subject, rule, vm.vcpus, cores, "cores", short_of=Shortage.VCPUS))
    if vm.memory_mib is None:
        rejections.append(Rejection(vm.name, "its memory size cannot be read", hint=READ_VM))
    elif vm.memory_mib > memory_mib:
        bound = {neighbour.awaited for neighbour in inventory.vms_on(host) if _holds_memory_of(node, neighbour, vm)}
        holders_text = " and ".join(awaited.value for awaited in Awaited if awaited in bound)
        rule = "memory beside the GPU" + (f", without that of {holders_text}" if holders_text else "")
        rejections.append(Rejection(subject, rule, vm.memory_mib, memory_mib, "MiB", short_of=Shortage.MEMORY))
    return tuple(rejections)


def cores_of(node: NumaNode, host: Host) -> int:
    """Physical cores of a node: its logical CPUs, without the second thread of each core where the host has them."""
    if not host.cpu_cores or not host.cpu_threads:
        return node.logical_cpus
    return node.logical_cpus * host.cpu_cores // host.cpu_threads


def free_cores(node: NumaNode, vm: Vm, host: Host, inventory: Inventory) -> int:
    """Return the cores of a node less the CPU reservations of VMs that are bound to it and not surely powered off. ESXi
    shares the other cores among its VMs.

    Example: a node of 32 cores at 2,000 MHz, and a VM that is bound to it and another node and reserves 8,000 MHz. Half
    of that, 4,000 MHz, counts here as two cores: 30 are free.
    """
    cores = cores_of(node, host)
    reserved_mhz = 0
    for neighbour in inventory.vms_on(host):
        nodes = _bound_to(neighbour)
        if neighbour.ref != vm.ref and neighbour.may_run and str(node.id) in nodes:
            reserved_mhz += -(-(neighbour.cpu_reservation_mhz or 0) // len(nodes))
    if not reserved_mhz or not host.cpu_mhz:
        return cores
    return max(0, cores - -(-reserved_mhz // host.cpu_mhz))


def free_memory_mib(node: NumaNode, vm: Vm, host: Host, inventory: Inventory) -> int:
    """Return the memory of a node less the reservations of VMs that are bound to it and not surely powered off. vCenter
    does not show what unbound VMs use of the node."""
    bound = sum(
        -(-(neighbour.most_reserved_mib or 0) // len(nodes))
        for neighbour in inventory.vms_on(host)
        if _holds_memory_of(node, neighbour, vm) and (nodes := _bound_to(neighbour))
    )
    return node.memory_mib - bound


def _holds_memory_of(node: NumaNode, neighbour: Vm, vm: Vm) -> bool:
    """Whether another VM of the host is bound to the node, possibly among others, and not surely powered off."""
    return neighbour.ref != vm.ref and neighbour.may_run and str(node.id) in _bound_to(neighbour)


def surely_free_memory_mib(node: NumaNode, vm: Vm, host: Host, inventory: Inventory) -> int:
    """Return the memory of a node that is free even if all VMs that may use the node have all their memory on it."""
    claims = [
        neighbour.most_reserved_mib
        for neighbour in inventory.vms_on(host)
        if neighbour.ref != vm.ref and neighbour.may_run and str(node.id) in (_bound_to(neighbour) or (str(node.id),))
    ]
    return 0 if None in claims else max(0, node.memory_mib - sum(claim for claim in claims if claim is not None))


def unreserved_mhz(host: Host, vm: Vm, inventory: Inventory) -> int | None:
    """Return the CPU of the host, in MHz, less the known reservations of other running VMs; None = unknown."""
    if host.cpu_mhz is None or host.cpu_cores is None:
        return None
    running = (
        neighbour
        for neighbour in inventory.vms_on(host)
        if neighbour.power is PowerState.ON and neighbour.ref != vm.ref
    )
    return host.cpu_mhz * host.cpu_cores - sum(neighbour.cpu_reservation_mhz or 0 for neighbour in running)


def unreserved_mib(host: Host, vm: Vm, inventory: Inventory) -> int | None:
    """Return the memory of the host, in MiB, less the reservations of other running VMs; None = unknown. A suspended VM
    reserves no memory (assumption: suspended-vm-memory)."""
    if host.memory_mib is None:
        return None
    running = (
        neighbour
        for neighbour in inventory.vms_on(host)
        if neighbour.power is PowerState.ON and neighbour.ref != vm.ref
    )
    return host.memory_mib - sum(neighbour.memory_reservation_mib or 0 for neighbour in running)


def surely_unreserved_mib(host: Host, vm: Vm, inventory: Inventory) -> int | None:
    """Return the memory of the host, in MiB, that no other VM can have reserved; None = unknown. A VM reserves at most
    its memory size."""
    free_mib = unreserved_mib(host, vm, inventory)
    claims = [neighbour.most_reserved_mib for neighbour in _with_unknown_claim(host, vm, inventory)]
    if free_mib is None or None in claims:
        return None
    return free_mib - sum(claim for claim in claims if claim is not None)


def memory_doubt(vm: Vm, host: Host, inventory: Inventory) -> str:
    """Return why it is uncertain whether the host can reserve the VM's memory; empty if it surely can or cannot."""
    free_mib = unreserved_mib(host, vm, inventory)
    unknown_claims = _with_unknown_claim(host, vm, inventory)
    if not unknown_claims or free_mib is None or vm.memory_mib is None:
        return ""
    sure_mib = surely_unreserved_mib(host, vm, inventory)
    if sure_mib is not None and vm.memory_mib <= sure_mib:
        return ""
    names = some_names(sorted(neighbour.name for neighbour in unknown_claims))
    return f"{host.name}: what {names} may reserve cannot be read: the memory may not be there"


def _with_unknown_claim(host: Host, vm: Vm, inventory: Inventory) -> list[Vm]:
    """Return the other VMs of the host that may reserve an unknown amount of memory."""
    other_vms = [neighbour for neighbour in inventory.vms_on(host) if neighbour.ref != vm.ref]
    return [
        neighbour
        for neighbour in other_vms
        if neighbour.power is None or (neighbour.power is PowerState.ON and neighbour.memory_reservation_mib is None)
    ]


def node_of(seats: Iterable[int | None]) -> int | None:
    """Return the NUMA node that all these GPUs are on; None = several nodes, unknown, or no GPU."""
    nodes = set(seats)
    return nodes.pop() if len(nodes) == 1 else None


def affinity(nodes: Iterable[int]) -> str:
    """The value of `numa.nodeAffinity` that names these nodes."""
    return ",".join(map(str, nodes))


def _bound_to(vm: Vm) -> tuple[str, ...]:
    """Return the nodes that the VM is bound to. It is assumed to use each of them in equal parts."""
    return _nodes_in((vm.extra_config or {}).get(AFFINITY_KEY, ""))


@cache
def _nodes_in(text: str) -> tuple[str, ...]:
    """Parse a value of `numa.nodeAffinity`. Cached, since a fleet has few such values and looks them up often."""
    return tuple(node.strip() for node in text.split(",") if node.strip())
