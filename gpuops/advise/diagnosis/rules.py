"""Rules for causes that one counter or one fact proves, whatever the other counters show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.advise.diagnosis.channels import states
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.measurements.case import DiagnosisCase
from gpuops.model.measurements.component import Component

REMOTE: Final = 0.2
"""From this share of its memory at another NUMA node than its GPU on, remote memory is a cause."""
SLOWED: Final = 0.1
"""In so large a share of the looks a GPU is slowed before that is a cause: one that touches its limit is not."""
LEAST_SLOWED: Final = 3
"""And in so many looks: of the six of two hours one alone is a tenth."""


def certain(case: DiagnosisCase) -> Mapping[Component, str]:
    """Return each component that is certainly at fault, with the number that proves it; unknown ones prove nothing."""
    of, facts = states(case), case.facts
    found: dict[Component, str] = {}
    licensed, width = _known(of["licensed"]), _known(case.series.get("gpu:smi.gpu.pcieWidth.latest", np.zeros(0)))
    errors = _known(of["new ECC errors"])
    if len(licensed) and (licensed == 0).any():
        found[Component.LICENCE] = f"without a licence in {(licensed == 0).mean():.0%} of the looks"
    if facts.pcie_width and len(width) and width.min() < facts.pcie_width:
        found[Component.PCIE_LINK] = f"{width.min():.0f} lanes, it should have {facts.pcie_width}"
    if len(errors) and errors.max() > 0:
        found[Component.ECC] = f"{np.expm1(errors).sum():.0f} new errors that were not corrected"
    if facts.host_driver and facts.guest_driver and facts.guest_driver > facts.host_driver:
        found[Component.DRIVER] = (
            f"guest R{facts.guest_driver}, host R{facts.host_driver}: no newer one than the host's"
        )
    if facts.remote_memory is not None and facts.remote_memory >= REMOTE:
        found[Component.REMOTE_NUMA] = f"{facts.remote_memory:.0%} of its memory is at another NUMA node than its GPU"
    slowed = {word: _known(of[f"slowed by {word}"]) for word in ("heat", "power")}
    for word, looks in slowed.items():
        if looks.sum() >= LEAST_SLOWED and looks.mean() >= SLOWED:
            found[Component.THROTTLING] = f"slowed by {word} in {looks.mean():.0%} of the looks"
    return found


def ruled_out(case: DiagnosisCase) -> frozenset[Component]:
    """Return the components that are certainly not at fault: every look shows the intended state."""
    of, facts = states(case), case.facts
    found = set()
    looks = (
        (Component.LICENCE, _known(of["licensed"]), 1.0),
        (Component.PCIE_LINK, _known(of["link"]), 1.0),
        (Component.ECC, -_known(of["new ECC errors"]), 0.0),
    )
    found |= {component for component, values, least in looks if len(values) > 2 and values.min() >= least}
    if facts.host_driver and facts.guest_driver and facts.guest_driver <= facts.host_driver:
        found.add(Component.DRIVER)
    if facts.remote_memory is not None and facts.remote_memory < REMOTE:
        found.add(Component.REMOTE_NUMA)
    # best effort limits no VM, and the other policies give each VM its share (NVIDIA vGPU docs, scheduling policies)
    is_best_effort = facts.scheduler is SchedulerPolicy.BEST_EFFORT
    if is_best_effort:
        found.add(Component.SCHEDULER)
    if facts.sharers == 1 or (facts.scheduler is not None and not is_best_effort):
        found.add(Component.NOISY_NEIGHBOUR)
    return frozenset(found)


def _known(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[~np.isnan(values)]
