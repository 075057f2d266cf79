"""Which counters make each component tellable, and which components cannot be told of a case.

Where a component has no counter of its own, the model would go by habits of the cases that it learned from: "less use
of the GPU" is a sign of nearly everything. The answer then names what is needed in place of a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from gpuops.model.measurements.case import CaseFacts, DiagnosisCase
from gpuops.model.measurements.component import FAULTS, Component
from gpuops.model.measurements.measurement import GPU_MEMORY, GPU_USE, MEMORY_BALLOONED, MEMORY_SWAPPED, VGPU_USE


class Source(StrEnum):
    """Who can be asked."""

    VCENTER = "vcenter"
    NVIDIA_SMI = "nvidia-smi"
    """On the host: `observe --host-shell ssh`."""
    GUEST = "guest"
    """nvidia-smi in the guest; only cases of files have its answers."""


@dataclass(frozen=True, slots=True)
class Need:
    """What makes a component tellable: one of `series`, and one of `beside` where there is any, and one of `facts`."""

    sources: tuple[Source, ...]
    """Each of these alone is enough."""
    words: str
    """What is needed, in words for people."""
    series: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()

    def is_met(self, known: frozenset[str], facts: CaseFacts) -> bool:
        return (
            (not self.series or not known.isdisjoint(self.series))
            and (not self.beside or not known.isdisjoint(self.beside))
            and (not self.facts or any(getattr(facts, name) is not None for name in self.facts))
        )


_VM_USE: Final = (f"vm:{GPU_USE}", f"vm:{VGPU_USE}")
_GPU_USE: Final = (f"gpu:{GPU_USE}", f"neighbours:{GPU_USE}", "gpu:smi.gpu.utilization.latest")
_SMI: Final = "nvidia-smi on the host (observe --host-shell ssh)"
_BOTH: Final = (Source.VCENTER, Source.NVIDIA_SMI)

NEEDS: Final[Mapping[Component, Need]] = {
    Component.NOISY_NEIGHBOUR: Need(_BOTH, "the use of the VM and of its GPU", _VM_USE, _GPU_USE),
    Component.SCHEDULER: Need(_BOTH, "the use of the VM's vGPU", _VM_USE, facts=("sharers", "most_per_gpu")),
    Component.LICENCE: Need(
        (Source.NVIDIA_SMI, Source.GUEST), f"{_SMI} or in the guest", ("vm:smi.vgpu.licensed.latest",)
    ),
    Component.THROTTLING: Need(
        (Source.NVIDIA_SMI,), _SMI, ("gpu:smi.gpu.slowedByHeat.latest", "gpu:smi.gpu.slowedByPower.latest")
    ),
    Component.PCIE_LINK: Need((Source.NVIDIA_SMI,), _SMI, ("gpu:smi.gpu.pcieWidth.latest",), facts=("pcie_width",)),
    Component.ECC: Need((Source.NVIDIA_SMI,), _SMI, ("gpu:smi.gpu.eccUncorrected.latest",)),
    Component.FRAME_BUFFER: Need((Source.VCENTER,), "the vGPU's memory in use", (f"vm:{GPU_MEMORY}",)),
    Component.REMOTE_NUMA: Need(
        (Source.VCENTER,), "the NUMA nodes of VM (numa.nodeAffinity) and GPU", facts=("remote_memory",)
    ),
    Component.CPU_READY: Need((Source.VCENTER,), "CPU ready", ("vm:cpu.ready.summation",)),
    Component.MEMORY_RECLAIMED: Need(
        (Source.VCENTER,), "memory ballooned or swapped", (f"vm:{MEMORY_BALLOONED}", f"vm:{MEMORY_SWAPPED}")
    ),
    Component.DATASTORE: Need((Source.VCENTER,), "the latency of its disks", ("vm:disk.maxTotalLatency.latest",)),
    Component.NETWORK: Need(
        (Source.VCENTER,), "dropped packets", ("vm:net.droppedRx.summation", "vm:net.droppedTx.summation")
    ),
    Component.DRIVER: Need(_BOTH, "the use of the VM's vGPU", _VM_USE),
}
"""By component. A component that one of the asked sources makes tellable counts as missed where it is not named."""


def untellable(case: DiagnosisCase) -> frozenset[Component]:
    """The components that cannot be told of this case, because their own counters or facts are missing."""
    known = frozenset(name for name, values in case.series.items() if not np.isnan(values).all())
    return frozenset(each for each in FAULTS if not NEEDS[each].is_met(known, case.facts))


def tellable_by(*sources: Source) -> frozenset[Component]:
    """The components that the table makes tellable where these sources are asked."""
    return frozenset(component for component, need in NEEDS.items() if not set(sources).isdisjoint(need.sources))
