"""Leaves counters out that contradict each other: at least one of them would mislead the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.extras.diagnosis.case import DiagnosisCase
from gpuops.model.measurements.measurement import GPU_USE

TOLERANCE: Final = 1_000
"""A tenth of a GPU in hundredths of a percent: counters of a VM and of its GPU are sampled at other moments."""
MOST_STEPS: Final = 0.25
"""The share of the steps in which counters may contradict each other by chance: their windows differ by a sample."""
_WHOLE: Final = 10_000
_VM, _GPU, _OTHERS = (f"{of}:{GPU_USE}" for of in ("vm", "gpu", "neighbours"))


def without_contradictions(case: DiagnosisCase) -> tuple[DiagnosisCase, tuple[str, ...]]:
    """Return the case without series that contradict each other, and a note on each that was left out.

    A VM that uses 60 % of a GPU whose own use is 0 %: neither is believed, nor is what its neighbours use. Where VMs
    together use more than there is, what its neighbours use is unknown.
    """
    series = dict(case.series)
    vm, gpu, neighbours = (series.get(name) for name in (_VM, _GPU, _OTHERS))
    notes = []
    if vm is not None and gpu is not None and _contradict(vm, gpu):
        notes.append(
            f"the VM uses {_mean(vm)} of a GPU whose own counter shows {_mean(gpu)}: the use of both is unknown"
        )
        for name in (_VM, _GPU, _OTHERS):
            series.pop(name, None)
    elif vm is not None and neighbours is not None and _contradict(vm + neighbours, np.full(len(vm), float(_WHOLE))):
        notes.append(
            f"the VMs on its GPU together use {_mean(vm + neighbours)} of it: what its neighbours use is unknown"
        )
        del series[_OTHERS]
    return (replace(case, series=series), tuple(notes)) if notes else (case, ())


def _contradict(part: NDArray[np.float64], whole: NDArray[np.float64]) -> bool:
    comparable = ~(np.isnan(part) | np.isnan(whole))
    return bool(comparable.any() and (part[comparable] > whole[comparable] + TOLERANCE).mean() > MOST_STEPS)


def _mean(samples: NDArray[np.float64]) -> str:
    return f"{np.nanmean(samples) / _WHOLE:.0%}"
