"""Variants of labelled cases that a model learns from beside the cases themselves: other levels, gaps, two faults.

The training cases are of one small set-up; VMs elsewhere have other disks, networks, rooms and gaps. What is at fault
does not depend on these, and a model that sees them vary does not go by them. Only cases that are learned from are
varied, never those by which a model is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.model.case import CaseFacts, DiagnosisCase, LabelledCase
from gpuops.model.component import Component

Floats = NDArray[np.float64]

LEVELS: Final = (
    (("vm:disk.maxTotalLatency.latest", "host:disk.maxTotalLatency.latest"), 0.3),
    (("vm:net.usage.average", "vm:net.droppedRx.summation", "vm:net.droppedTx.summation"), 1.0),
    (("vm:disk.usage.average",), 1.0),
    (("vm:cpu.usagemhz.average",), 0.3),
    (("vm:cpu.ready.summation",), 0.25),
    (("host:cpu.usagemhz.average",), 0.2),
    (("vm:mem.active.average",), 0.3),
)
"""Series whose levels are multiplied together, and the spread of the factor's logarithm."""
OWN: Final[Mapping[Component, tuple[str, ...]]] = {
    Component.LICENCE: ("vm:smi.vgpu.licensed.latest",),
    Component.FRAME_BUFFER: ("vm:gpu.mem.used.average",),
    Component.CPU_READY: ("vm:cpu.ready.summation",),
    Component.MEMORY_RECLAIMED: ("vm:mem.vmmemctl.average", "vm:mem.swapped.average"),
    Component.DATASTORE: ("vm:disk.maxTotalLatency.latest",),
    Component.NETWORK: ("vm:net.usage.average", "vm:net.droppedRx.summation", "vm:net.droppedTx.summation"),
    Component.THROTTLING: (
        "gpu:smi.gpu.slowedByHeat.latest",
        "gpu:smi.gpu.slowedByPower.latest",
        "gpu:smi.gpu.clock.latest",
        "gpu:gpu.temperature.average",
        "gpu:smi.gpu.temperature.latest",
        "gpu:gpu.power.used.latest",
    ),
}
"""Faults that another case can take over with the series that tell of them."""
_OF_TWO: Final = 0.25
"""The share of variants with a fault that are given a second one where they can be."""


def varied(cases: Sequence[LabelledCase], seed: int) -> Iterator[LabelledCase]:
    """One variant of each case; the same for the same seed."""
    rng = np.random.default_rng(seed)
    givers = [case for case in cases if len(case.at_fault) == 1 and next(iter(case.at_fault)) in OWN]
    for case in cases:
        if case.at_fault and givers and rng.random() < _OF_TWO:
            case = with_both(case, givers[rng.integers(len(givers))])
        yield replace(case, case=_elsewhere(case.case, rng))


def with_both(case: LabelledCase, giver: LabelledCase) -> LabelledCase:
    """The case with the fault of the giver, too; its own series are brought to the sizes of the case."""
    fault = next(iter(giver.at_fault))
    series, given = dict(case.case.series), giver.case.series
    if fault in case.at_fault or _steps(series) != _steps(given) or not set(OWN[fault]) & set(series):
        return case
    for name in OWN[fault]:
        if name in series and name in given:
            series[name] = given[name] * _size(name, case.case.facts) / _size(name, giver.case.facts)
    return LabelledCase(case.name, replace(case.case, series=series), case.at_fault | {fault})


def _size(name: str, facts: CaseFacts) -> float:
    """What there is of what the series counts; 1 where it is no part of anything."""
    whole = {
        "vm:gpu.mem.used.average": facts.vgpu_mib,
        "vm:cpu.ready.summation": facts.vcpus,
        "vm:mem.vmmemctl.average": facts.memory_mib,
        "vm:mem.swapped.average": facts.memory_mib,
        "gpu:smi.gpu.clock.latest": facts.clock_mhz,
        "gpu:gpu.power.used.latest": facts.power_limit_w,
    }.get(name)
    return float(whole) if whole else 1.0


def _elsewhere(case: DiagnosisCase, rng: np.random.Generator) -> DiagnosisCase:
    """The same at other levels, with more gaps, and of the last part of the while."""
    series = dict(case.series)
    for names, spread in LEVELS:
        factor = float(np.exp(rng.normal(0, spread)))
        series |= {name: series[name] * factor for name in names if name in series}
    warmer = rng.normal(0, 5)
    for name in ("gpu:gpu.temperature.average", "gpu:smi.gpu.temperature.latest"):
        if name in series:
            series[name] = series[name] + warmer
    if rng.random() < 0.15:
        series = {name: values for name, values in series.items() if ":smi." not in name}
    series = {name: values for name, values in series.items() if rng.random() >= 0.05}
    steps = _steps(series)
    there = rng.random(steps) >= rng.choice((0.0, 0.1, 0.3))
    first = int(rng.integers(0, max(1, steps // 3)))
    return replace(case, series={name: np.where(there, values, np.nan)[first:] for name, values in series.items()})


def _steps(series: Mapping[str, Floats]) -> int:
    return max((len(values) for values in series.values()), default=0)
