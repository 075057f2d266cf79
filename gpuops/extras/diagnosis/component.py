"""What may be at fault when a VM with a vGPU is slow."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Component(StrEnum):
    """The component at fault."""

    NONE = "none"
    NOISY_NEIGHBOUR = "noisy-neighbour"
    """Others on its GPU take what it wants."""
    SCHEDULER = "scheduler"
    """Equal or fixed share keeps it from time of the GPU that no other vGPU uses."""
    LICENCE = "licence"
    """Its vGPU has no licence and runs at reduced speed."""
    THROTTLING = "throttling"
    """The GPU is clocked down by heat or by its limit of power."""
    PCIE_LINK = "pcie-link"
    """The link of the GPU has fewer lanes than it should."""
    ECC = "ecc"
    """The GPU's memory has errors that were not corrected; pages or rows are retired."""
    FRAME_BUFFER = "frame-buffer"
    """The frame buffer of its vGPU is full."""
    REMOTE_NUMA = "remote-numa"
    """Its memory is at another NUMA node than its GPU."""
    CPU_READY = "cpu-ready"
    """Its vCPUs wait for processors of the host."""
    MEMORY_RECLAIMED = "memory-reclaimed"
    """Its memory is swapped or ballooned."""
    DATASTORE = "datastore"
    """The latency of its datastore."""
    NETWORK = "network"
    """Packets are lost."""
    DRIVER = "driver"
    """The drivers of host and guest do not work together."""


COMPONENTS: Final[tuple[Component, ...]] = tuple(Component)
FAULTS: Final[tuple[Component, ...]] = tuple(component for component in Component if component is not Component.NONE)
WORDS: Final = {
    Component.NONE: "nothing that counters show",
    Component.NOISY_NEIGHBOUR: "noisy neighbour on the GPU",
    Component.SCHEDULER: "vGPU scheduler",
    Component.LICENCE: "vGPU without licence",
    Component.THROTTLING: "GPU slowed by heat or power",
    Component.PCIE_LINK: "PCIe link below its width",
    Component.ECC: "ECC errors of the GPU",
    Component.FRAME_BUFFER: "frame buffer full",
    Component.REMOTE_NUMA: "remote NUMA memory",
    Component.CPU_READY: "CPU ready",
    Component.MEMORY_RECLAIMED: "memory swapped or ballooned",
    Component.DATASTORE: "datastore latency",
    Component.NETWORK: "network loss",
    Component.DRIVER: "host and guest driver",
}
"""As people say them."""
