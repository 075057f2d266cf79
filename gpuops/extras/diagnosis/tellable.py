"""Lists the counters that each component needs, and the components that a case allows no verdict about.

Where a component has no counter of its own, the model would go by habits of the cases that it learned from: "less use
of the GPU" is a sign of nearly everything. The answer then names what is needed in place of a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from gpuops.extras.diagnosis.case import FAULTS, CaseFacts, Component, DiagnosisCase
from gpuops.model.measurements.measurement import GPU_MEMORY, GPU_USE, MEMORY_BALLOONED, MEMORY_SWAPPED, VGPU_USE


class CounterSource(StrEnum):
    """A source of counters."""

    VCENTER = "vcenter"
    NVIDIA_SMI = "nvidia-smi"
    """On the host: `observe --host-shell ssh`."""
    GUEST = "guest"
    """nvidia-smi in the guest; only cases of files have its answers."""


@dataclass(frozen=True, slots=True)
class CounterNeed:
    """What makes a component tellable: one of `series`, one of `beside` and one of `facts`, as far as they are set."""

    sources: tuple[CounterSource, ...]
    """Each of these alone is enough."""
    words: str
    """What is needed, in words for people."""
    series: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()

    def is_met(self, measured_series: frozenset[str], facts: CaseFacts) -> bool:
        return (
            (not self.series or not measured_series.isdisjoint(self.series))
            and (not self.beside or not measured_series.isdisjoint(self.beside))
            and (not self.facts or any(getattr(facts, name) is not None for name in self.facts))
        )


_VM_USE: Final = (f"vm:{GPU_USE}", f"vm:{VGPU_USE}")
_GPU_USE: Final = (f"gpu:{GPU_USE}", f"neighbours:{GPU_USE}", "gpu:smi.gpu.utilization.latest")
_GPU_WITHOUT_VM: Final = frozenset({f"gpu:{GPU_USE}", f"neighbours:{GPU_USE}"})
_SMI: Final = "nvidia-smi on the host (observe --host-shell ssh)"
_BOTH: Final = (CounterSource.VCENTER, CounterSource.NVIDIA_SMI)

NEEDS: Final[Mapping[Component, CounterNeed]] = {
    Component.NOISY_NEIGHBOUR: CounterNeed(_BOTH, "the use of the VM and of its GPU", _VM_USE, _GPU_USE),
    Component.SCHEDULER: CounterNeed(_BOTH, "the use of the VM's vGPU", _VM_USE, facts=("sharers", "most_per_gpu")),
    Component.LICENCE: CounterNeed(
        (CounterSource.NVIDIA_SMI, CounterSource.GUEST), f"{_SMI} or in the guest", ("vm:smi.vgpu.licensed.latest",)
    ),
    Component.THROTTLING: CounterNeed(
        (CounterSource.NVIDIA_SMI,), _SMI, ("gpu:smi.gpu.slowedByHeat.latest", "gpu:smi.gpu.slowedByPower.latest")
    ),
    Component.PCIE_LINK: CounterNeed(
        (CounterSource.NVIDIA_SMI,), _SMI, ("gpu:smi.gpu.pcieWidth.latest",), facts=("pcie_width",)
    ),
    Component.ECC: CounterNeed((CounterSource.NVIDIA_SMI,), _SMI, ("gpu:smi.gpu.eccUncorrected.latest",)),
    Component.FRAME_BUFFER: CounterNeed((CounterSource.VCENTER,), "the vGPU's memory in use", (f"vm:{GPU_MEMORY}",)),
    Component.REMOTE_NUMA: CounterNeed(
        (CounterSource.VCENTER,), "the NUMA nodes of VM (numa.nodeAffinity) and GPU", facts=("remote_memory",)
    ),
    Component.CPU_READY: CounterNeed((CounterSource.VCENTER,), "CPU ready", ("vm:cpu.ready.summation",)),
    Component.MEMORY_RECLAIMED: CounterNeed(
        (CounterSource.VCENTER,), "memory ballooned or swapped", (f"vm:{MEMORY_BALLOONED}", f"vm:{MEMORY_SWAPPED}")
    ),
    Component.DATASTORE: CounterNeed(
        (CounterSource.VCENTER,), "the latency of its disks", ("vm:disk.maxTotalLatency.latest",)
    ),
    Component.NETWORK: CounterNeed(
        (CounterSource.VCENTER,), "dropped packets", ("vm:net.droppedRx.summation", "vm:net.droppedTx.summation")
    ),
    Component.DRIVER: CounterNeed(_BOTH, "the use of the VM's vGPU", _VM_USE),
}
"""By component. A component that one of the asked sources makes tellable counts as missed where it is not named."""


def untellable(case: DiagnosisCase) -> frozenset[Component]:
    """Return the components that this case allows no verdict about: their own counters or facts are missing."""
    measured_series = frozenset(name for name, samples in case.series.items() if not np.isnan(samples).all())
    if measured_series >= _GPU_WITHOUT_VM:
        measured_series |= {f"vm:{GPU_USE}"}  # `channels` subtracts
    return frozenset(component for component in FAULTS if not NEEDS[component].is_met(measured_series, case.facts))


def tellable_by(*sources: CounterSource) -> frozenset[Component]:
    """Return the components that at least one of these sources has the counters for."""
    return frozenset(component for component, need in NEEDS.items() if not set(sources).isdisjoint(need.sources))
