"""Remote: what a VM must fetch from another NUMA node than its GPU's, where locality is only preferred."""

from __future__ import annotations

from collections.abc import Iterator

from gpuops.model.inventory import Inventory
from gpuops.model.numa import NumaPolicy
from gpuops.model.vm import Vm
from gpuops.plan.placement.nodes import short_beside
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
