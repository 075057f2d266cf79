"""Rules for causes that one counter or one fact proves, whatever the other counters show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.extras.diagnosis.case import Component, DiagnosisCase
from gpuops.extras.diagnosis.channels import states
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.measurements.measurement import GPU_MEMORY

REMOTE: Final = 0.2
"""From this share of its memory at another NUMA node than its GPU on, remote memory is a cause."""
SLOWED: Final = 0.1
"""The share of the looks in which a GPU must be slowed: one that only touches its limit is not at fault."""
LEAST_SLOWED: Final = 3
"""The least number of such looks: two hours have six, so that a single one would be more than a tenth."""
NEARLY_FULL: Final = 0.8
"""A frame buffer that is never used to this share is not full; averages of five minutes hide short peaks."""


def certain(case: DiagnosisCase) -> Mapping[Component, str]:
    """Return each component that is certainly at fault, with the number that proves it; missing counters prove none."""
    of, facts = states(case), case.facts
    causes: dict[Component, str] = {}
    licensed, width = (
        _without_gaps(of["licensed"]),
        _without_gaps(case.series.get("gpu:smi.gpu.pcieWidth.latest", np.zeros(0))),
    )
    errors = _without_gaps(of["new ECC errors"])
    if len(licensed) and (licensed == 0).any():
        causes[Component.LICENCE] = f"without a licence in {(licensed == 0).mean():.0%} of the looks"
    if facts.pcie_width and len(width) and width.min() < facts.pcie_width:
        causes[Component.PCIE_LINK] = f"{width.min():.0f} lanes, it should have {facts.pcie_width}"
    if len(errors) and errors.max() > 0:
        causes[Component.ECC] = f"{np.expm1(errors).sum():.0f} new errors that were not corrected"
    if facts.host_driver and facts.guest_driver and facts.guest_driver > facts.host_driver:
        causes[Component.DRIVER] = (
            f"guest R{facts.guest_driver} is newer than the host's R{facts.host_driver}, which is not supported"
        )
    if facts.remote_memory is not None and facts.remote_memory >= REMOTE:
        causes[Component.REMOTE_NUMA] = f"{facts.remote_memory:.0%} of its memory is at another NUMA node than its GPU"
    slowed = {word: _without_gaps(of[f"slowed by {word}"]) for word in ("heat", "power")}
    for word, looks in slowed.items():
        if looks.sum() >= LEAST_SLOWED and looks.mean() >= SLOWED:
            causes[Component.THROTTLING] = f"slowed by {word} in {looks.mean():.0%} of the looks"
    return causes


def ruled_out(case: DiagnosisCase) -> frozenset[Component]:
    """Return the components that are certainly not at fault: every look shows the intended state."""
    of, facts = states(case), case.facts
    excluded = set()
    looks = (
        (Component.LICENCE, _without_gaps(of["licensed"]), 1.0),
        (Component.PCIE_LINK, _without_gaps(of["link"]), 1.0),
        # negated, so that its least allowed number is 0, as that of the others is 1
        (Component.ECC, -_without_gaps(of["new ECC errors"]), 0.0),
    )
    # one or two looks are too few to exclude a component
    excluded |= {component for component, samples, least in looks if len(samples) > 2 and samples.min() >= least}
    if facts.host_driver and facts.guest_driver and facts.guest_driver <= facts.host_driver:
        excluded.add(Component.DRIVER)
    memory = _without_gaps(case.series.get(f"vm:{GPU_MEMORY}", np.zeros(0)))
    if facts.vgpu_mib and len(memory) and memory.max() < NEARLY_FULL * facts.vgpu_mib * 1024:
        excluded.add(Component.FRAME_BUFFER)
    if facts.remote_memory is not None and facts.remote_memory < REMOTE:
        excluded.add(Component.REMOTE_NUMA)
    # best effort limits no VM, and the other policies give each VM its share (NVIDIA vGPU docs, scheduling policies)
    is_best_effort = facts.scheduler is SchedulerPolicy.BEST_EFFORT
    if is_best_effort:
        excluded.add(Component.SCHEDULER)
    if facts.sharers == 1 or (facts.scheduler is not None and not is_best_effort):
        excluded.add(Component.NOISY_NEIGHBOUR)
    return frozenset(excluded)


def _without_gaps(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    return samples[~np.isnan(samples)]
