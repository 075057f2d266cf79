"""Waste: the GPU memory that a VM on its seats makes useless to the other VMs that the site knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from typing import Final

from gpuops.advise.fragmentation import Fragmentation
from gpuops.advise.occupancy import GpuState, Tenant, gpu_states
from gpuops.model.gpu import PciAddress
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.vm import Vm
from gpuops.plan.placement.nodes import free_memory_mib, unreserved
from gpuops.plan.placement.wanted import Wanted, WantsVgpu

STEP: Final = 0.04
"""Of a GPU. What differs by less is equal: an order of equals that follows chance costs more than the measure gains
(measured on replayed traces)."""


@dataclass(frozen=True, slots=True)
class Waste:
    """More useless memory after than before; negative = the VM fills memory that was useless to most."""

    mib: float
    steps: int


def made_useless(
    wanted: Wanted, seats: Mapping[int, PciAddress], host: Host, inventory: Inventory, measure: Fragmentation
) -> Waste:
    """What the VM on these seats takes from the NUMA nodes it is on, beyond its own GPUs and memory."""
    states = [state.without(wanted.vm.ref) for state in gpu_states(host, inventory, measure.catalog)]
    mib, largest_mib = 0.0, 1
    for number in sorted({state.gpu.numa_node for state in states if state.gpu.address in seats.values()}, key=str):
        there = [state for state in states if state.gpu.numa_node == number]
        free_mib = _free_mib(number, wanted.vm, host, inventory)
        left_mib = None if free_mib is None else free_mib - (wanted.vm.memory_mib or 0)
        after = [_with(wanted, seats, state) for state in there]
        mib += measure.useless_mib(after, left_mib) - measure.useless_mib(there, free_mib)
        largest_mib = max(largest_mib, *(state.gpu.memory_mib or 0 for state in there))
    return Waste(mib, steps(mib, largest_mib))


def steps(mib: float, largest_mib: int) -> int:
    """In steps of the largest GPU's memory. The last digit of a sum is chance, and decides nothing: halves go up."""
    return floor(mib / (largest_mib * STEP) + 0.5 + 1e-6)


def _with(wanted: Wanted, seats: Mapping[int, PciAddress], state: GpuState) -> GpuState:
    mine = (
        demand.profile
        for demand in wanted.demands
        if isinstance(demand, WantsVgpu) and seats.get(demand.ordinal) == state.gpu.address
    )
    return state.with_tenants(*(Tenant(wanted.vm.ref, wanted.vm.name, profile) for profile in mine))


def _free_mib(number: int | None, vm: Vm, host: Host, inventory: Inventory) -> int | None:
    """Memory beside the GPUs: what the node has left, as far as the host has it too."""
    unreserved_mib = unreserved(host, vm, inventory)
    node = next((node for node in host.numa_nodes if node.id == number), None)
    if node is None or unreserved_mib is None:
        return unreserved_mib
    return min(unreserved_mib, free_memory_mib(node, vm, host, inventory))
