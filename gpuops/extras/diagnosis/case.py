"""A case: the series of counters and the facts of one VM over some hours, and the component at fault if it is known.

The name of a series has an entity and a counter, such as `vm:cpu.ready.summation`. Entities:

    vm          the VM itself
    host        the host that it runs on
    gpu         the GPU that has its vGPU; there is none if the VM has several vGPUs
    neighbours  the other VMs on that GPU together

Units are those of the counters (`gpuops.model.measurements.measurement`): percentages in hundredths, kB, kB/s, ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta

from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.measurements.measurement import (
    CPU_MHZ,
    GPU_MEMORY,
    GPU_USE,
    MEMORY_BALLOONED,
    MEMORY_SWAPPED,
    SMI_GPU_COUNTERS,
    SMI_VM_COUNTERS,
)
from gpuops.model.stored import stored_as, to_stored

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Component(StrEnum):
    """The component at fault."""

    NONE = "none"
    NOISY_NEIGHBOUR = "noisy-neighbour"
    """Other VMs on its GPU take the time that it needs."""
    SCHEDULER = "scheduler"
    """Equal or fixed share limits the VM, although the other vGPUs leave time of the GPU unused."""
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
    """Its datastore has a high latency."""
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
"""The name of each component in messages."""


Count = Annotated[int, Meta(ge=1, le=10**9)]
OF_VM: Final = (
    CPU_MHZ,
    "cpu.ready.summation",
    "mem.active.average",
    "mem.consumed.average",
    MEMORY_BALLOONED,
    MEMORY_SWAPPED,
    "disk.usage.average",
    "disk.maxTotalLatency.latest",
    "net.usage.average",
    "net.droppedRx.summation",
    "net.droppedTx.summation",
    GPU_USE,
    GPU_MEMORY,
    *SMI_VM_COUNTERS,
)
OF_HOST: Final = (CPU_MHZ, "mem.consumed.average", "disk.maxTotalLatency.latest", "net.usage.average")
OF_GPU: Final = (GPU_USE, GPU_MEMORY, "gpu.temperature.average", "gpu.power.used.latest", *SMI_GPU_COUNTERS)
OF_NEIGHBOURS: Final = (GPU_USE,)
SERIES: Final = tuple(
    f"{of}:{counter}"
    for of, counters in (("vm", OF_VM), ("host", OF_HOST), ("gpu", OF_GPU), ("neighbours", OF_NEIGHBOURS))
    for counter in counters
)
"""The names of all series that a case may have."""


@stored_as(
    "CaseFacts",
    vcpus="vcpus",
    memory_mib="memory_mib",
    cpu_mhz="cpu_mhz",
    host_cores="host_cores",
    host_memory_mib="host_memory_mib",
    vgpu_mib="vgpu_mib",
    gpu_mib="gpu_mib",
    most_per_gpu="most_per_gpu",
    sharers="sharers",
    scheduler="scheduler",
    pcie_width="pcie_width",
    clock_mhz="clock_mhz",
    power_limit_w="power_limit_w",
    remote_memory="remote_memory",
    host_driver="host_driver",
    guest_driver="guest_driver",
)
@dataclass(frozen=True, slots=True)
class CaseFacts:
    """Facts about the VM, its host and its GPU in addition to counters; None = unknown."""

    vcpus: Count | None = None
    memory_mib: Count | None = None
    cpu_mhz: Count | None = None
    """The speed of one core of its host."""
    host_cores: Count | None = None
    host_memory_mib: Count | None = None
    vgpu_mib: Count | None = None
    """The frame buffer of its vGPU."""
    gpu_mib: Count | None = None
    most_per_gpu: Count | None = None
    """How many vGPUs of its profile a GPU holds."""
    sharers: Count | None = None
    """How many VMs run on its GPU, itself included."""
    scheduler: SchedulerPolicy | None = None
    pcie_width: Count | None = None
    """How many lanes the link of the GPU should have."""
    clock_mhz: Count | None = None
    """The clock that the GPU reaches under load."""
    power_limit_w: Count | None = None
    remote_memory: Annotated[float, Meta(ge=0, le=1)] | None = None
    """The share of the VM's memory that is at another NUMA node than its GPU, 0 to 1."""
    host_driver: Count | None = None
    """The branch of the vGPU manager: 550."""
    guest_driver: Count | None = None


@dataclass(frozen=True, slots=True)
class DiagnosisCase:
    """The series and facts of one VM in a period."""

    step_s: int
    series: Mapping[str, NDArray[np.float64]]
    """The samples by name of the series (SERIES), all equally long, oldest first; NaN = missing."""
    facts: CaseFacts = field(default_factory=CaseFacts)


@dataclass(frozen=True, slots=True)
class LabelledCase:
    """A case with the components that were at fault."""

    name: str
    case: DiagnosisCase
    at_fault: frozenset[Component]
    """Empty = nothing."""


def case_line(case: LabelledCase) -> dict[str, Any]:
    """Return the case as a JSON object: a line of a file of cases, which `case_file` reads."""
    facts = to_stored(case.case.facts)
    return {
        "name": case.name,
        "at_fault": sorted(case.at_fault),
        "step_s": case.case.step_s,
        "facts": {name: value for name, value in facts.items() if value is not None},
        "series": {
            name: [None if value != value else value for value in samples.tolist()]  # NaN alone is not itself
            for name, samples in case.case.series.items()
        },
    }
