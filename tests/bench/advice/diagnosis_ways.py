"""How much `gpuops diagnose` has right in each way of running it: by vCenter alone, with nvidia-smi, with guests.

A component that `tellable.NEEDS` makes tellable in that way counts as missed where it is not named, also if the answer
is that it is unknown for this VM. A case of which all components are beyond the table is left out: the answer names
what is needed. Among those that are left out, a fault that is named first is counted by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.extras.diagnosis.answer import CounterSource, scores, tellable_by, untellable
from gpuops.extras.diagnosis.case import FAULTS, Component, LabelledCase
from gpuops.extras.diagnosis.learning import components_right, false_alarms, most_probable
from gpuops.extras.diagnosis.model import Forest
from tests.bench.advice.diagnosis_fleets import FLEETS, Way, fleet_cases
from tests.bench.verdict import Figure, Result

SOURCES: Final = {
    Way.VCENTER: (CounterSource.VCENTER,),
    Way.NVIDIA_SMI: (CounterSource.VCENTER, CounterSource.NVIDIA_SMI),
    Way.GUESTS: (CounterSource.VCENTER, CounterSource.GUEST),
}
AIMED_AT: Final = {Way.VCENTER: 85, Way.NVIDIA_SMI: 91, Way.GUESTS: 85}
LEAST_RECALL: Final = 80
MOST_FALSE_ALARMS: Final = 5.0
PREALLOCATED: Final = 0.94
SEEDS: Final = (1, 11, 12, 13)
"""Seeds of the test fleets; the cases of all are judged together."""
MOSTLY_TELLABLE: Final = 90.0
"""Percentage of tellable cases of a component below which the recall of those gets its own figure."""


def results(model: Forest, of_a_fleet: int) -> Iterator[Result]:
    for way in Way:
        cases = [case for seed in SEEDS for fleet in FLEETS for case in fleet_cases(fleet, seed, of_a_fleet, way)]
        yield Result(f"diagnosis: {way.value}", tuple(_figures(model, way, cases)))


def _figures(model: Forest, way: Way, cases: Sequence[LabelledCase]) -> Iterator[Figure]:
    tellable = tellable_by(*SOURCES[way])
    rows = scores([case.case for case in cases], model)
    expected = [case.at_fault & tellable for case in cases]
    judged = [at for at, case in enumerate(cases) if expected[at] or not case.at_fault]
    hidden = [at for at, case in enumerate(cases) if case.at_fault and not expected[at]]
    right = 100 * components_right(rows[judged], [expected[at] for at in judged])
    yield Figure(f"of what is tellable right, {AIMED_AT[way]} % are aimed at", right, "%")
    healthy = [at for at, case in enumerate(cases) if not case.at_fault]
    alarms = 100 * false_alarms(rows[healthy], [frozenset()] * len(healthy))
    yield Figure("a fault first where nothing is at fault", alarms, "%", MOST_FALSE_ALARMS)
    full = [at for at in healthy if _preallocates(cases[at])]
    yield Figure(
        "... of VMs whose framework fills the frame buffer", 100 * false_alarms(rows[full], [()] * len(full)), "%"
    )
    if hidden:
        yield Figure("a fault first where none is tellable", 100 * false_alarms(rows[hidden], [()] * len(hidden)), "%")
    for fault in FAULTS:
        cannot = 100 * sum(fault in untellable(case.case) for case in cases) / len(cases)
        if fault in tellable:
            yield Figure(f"{fault.value}: recall, {LEAST_RECALL} % are aimed at", _recall(rows, expected, fault), "%")
            able = [at for at, case in enumerate(cases) if fault in expected[at] and fault not in untellable(case.case)]
            most = 100 * len(able) / max(1, sum(fault in components for components in expected))
            if most < MOSTLY_TELLABLE:
                yield Figure("... of its cases have the counters or facts that it needs", most, "%")
                of_these = _recall(rows[able], [expected[at] for at in able], fault)
                yield Figure("... recall of these", of_these, "%")
        yield Figure(f"{fault.value}: not tellable", cannot, "% of the VMs")


def _recall(rows: NDArray[np.float64], expected: Sequence[frozenset[Component]], fault: Component) -> float:
    """The share of its cases in which it is among as many most probable components as are at fault, in percent."""
    named = [
        fault in most_probable(row, len(components))
        for row, components in zip(rows, expected, strict=True)
        if fault in components
    ]
    return 100 * sum(named) / max(1, len(named))


def _preallocates(case: LabelledCase) -> bool:
    used, mib = case.case.series.get("vm:gpu.mem.used.average"), case.case.facts.vgpu_mib
    return used is not None and mib is not None and float(np.nanmedian(used)) > PREALLOCATED * mib * 1024
