"""NUMA nodes of hosts, and what a request says about them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpuops.model.gpu import PciAddress


class NumaPolicy(StrEnum):
    """How much a request insists that CPU, memory and GPU share a NUMA node."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node of a host (vSphere API, HostNumaNode): logical CPUs, memory, and the PCI devices beside it."""

    id: int
    logical_cpus: int
    memory_mib: int
    devices: tuple[PciAddress, ...] = ()
