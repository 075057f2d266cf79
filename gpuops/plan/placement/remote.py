"""Remote: what a VM must fetch from another NUMA node than its GPU's, and what it may have to."""

from __future__ import annotations

from collections.abc import Iterator

from gpuops.model.inventory import Inventory
from gpuops.model.numa import NumaPolicy
from gpuops.model.vm import Vm
from gpuops.plan.placement.nodes import free_memory_mib, short_beside, surely_free_memory_mib
from gpuops.plan.placement.wanted import Placement


def remote(vm: Vm, numa: NumaPolicy, placement: Placement, inventory: Inventory) -> Iterator[str]:
    """What is short beside the GPUs, where locality is only preferred."""
    if numa is not NumaPolicy.PREFERRED or placement.bound_to:
        return
    gpus = [gpu for address in placement.seats.values() if (gpu := placement.host.gpu(address)) is not None]
    nodes = {gpu.numa_node for gpu in gpus} - {None}
    if not nodes:
        yield f"on which NUMA node of {placement.host.name} the GPU is cannot be read: its memory may be remote"
        return
    if len(nodes) > 1:
        yield f"the GPUs of {vm.name} are on NUMA nodes {', '.join(map(str, sorted(nodes, key=str)))}"
    for node in placement.host.numa_nodes:
        if node.id in nodes:
            short = short_beside(vm, node, placement.host, inventory)
            yield from (f"{rejection}: the rest is remote" for rejection in short)


def may_be_remote(vm: Vm, numa: NumaPolicy, placement: Placement, inventory: Inventory) -> Iterator[str]:
    """Memory beside the GPUs that is only there if ESXi keeps other VMs elsewhere: most are bound to no node, and on
    which of them their memory lies vCenter does not tell. Said where locality is required: a VM that only prefers it is
    not bound itself, and lies where ESXi balances it."""
    if numa is not NumaPolicy.REQUIRED or vm.memory_mib is None:
        return
    host, needed_mib = placement.host, -(-vm.memory_mib // len(placement.bound_to))
    for node in (node for node in host.numa_nodes if node.id in placement.bound_to):
        least = surely_free_memory_mib(node, vm, host, inventory)
        if needed_mib > least:
            most = free_memory_mib(node, vm, host, inventory)
            yield (
                f"{host.name} numa{node.id}: memory beside the GPU: needs {needed_mib} MiB, {least} to {most} there: "
                "VMs that run on this host are bound to no node and may have the rest"
            )
