"""What is at fault, by the rules where one is certain, and by a model where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.advise.diagnosis.channels import channels
from gpuops.advise.diagnosis.contradictions import without_contradictions
from gpuops.advise.diagnosis.features import features
from gpuops.advise.diagnosis.model import Forest
from gpuops.advise.diagnosis.rules import certain, ruled_out
from gpuops.advise.diagnosis.tellable import untellable
from gpuops.model.measurements.case import DiagnosisCase, LabelledCase
from gpuops.model.measurements.component import COMPONENTS, Component

Floats = NDArray[np.float64]

CERTAIN: Final = 0.99
"""What a rule names has that probability: counters may be wrong."""
WEIGHT_OF_NONE: Final = 0.6
"""Half of the cases that models learn from are without a fault; of VMs that somebody asks about fewer are."""
LEAST: Final = 0.1
"""What is less probable is not told."""
LOOKED_AT: Final[dict[Component, tuple[str, ...]]] = {
    Component.NONE: ("gpu use", "GPU total", "ready", "frame buffer"),
    Component.NOISY_NEIGHBOUR: ("gpu use", "neighbours' use", "GPU total"),
    Component.SCHEDULER: ("gpu use", "use of its part", "GPU total"),
    Component.LICENCE: ("licensed", "gpu use", "GPU total"),
    Component.THROTTLING: ("clock under load", "slowed by heat", "slowed by power", "temperature", "power"),
    Component.PCIE_LINK: ("link", "gpu use", "CPU"),
    Component.ECC: ("gpu use",),
    Component.FRAME_BUFFER: ("frame buffer", "gpu use"),
    Component.REMOTE_NUMA: ("CPU to GPU", "gpu use", "CPU"),
    Component.CPU_READY: ("ready", "host CPU"),
    Component.MEMORY_RECLAIMED: ("ballooned", "swapped", "host memory"),
    Component.DATASTORE: ("disk latency", "disk"),
    Component.NETWORK: ("dropped", "packets lost", "network"),
    Component.DRIVER: ("gpu use", "frame buffer", "CPU"),
}
"""Which channels are shown as evidence of each."""
_LOGARITHMS: Final = frozenset({"disk latency", "disk", "network", "dropped", "packets lost"})


@dataclass(frozen=True, slots=True)
class Suspect:
    """A component that may be at fault."""

    component: Component
    probability: float
    evidence: tuple[str, ...]
    """Numbers that speak for it, each with what it is."""
    by_rule: bool


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is at fault in one case, the most probable first."""

    suspects: tuple[Suspect, ...]
    """Empty = without a model nothing is certain."""
    untellable: tuple[Component, ...] = ()
    """Components without a counter of their own in this case: no verdict about them (`tellable.NEEDS`)."""
    contradictions: tuple[str, ...] = ()
    """Counters that contradict each other, in words: they were treated as unknown."""


@dataclass(frozen=True, slots=True)
class StoredDiagnosis:
    """What was last said of a VM, as it is kept, and what people found since."""

    id: str
    vm: str
    """Its managed object id."""
    at: datetime
    """When that was said, by vCenter's clock."""
    suspects: tuple[Suspect, ...]
    """The most probable first."""
    found: tuple[Component, ...] | None
    """None = nobody has confirmed or corrected it."""

    @property
    def probable(self) -> tuple[tuple[Component, float], ...]:
        """Each component that may be at fault and how probable it is, 0 to 1; what a person found is certain."""
        if self.found is not None:
            return tuple((component, 1.0) for component in self.found)
        return tuple((suspect.component, suspect.probability) for suspect in self.suspects)


@dataclass(frozen=True, slots=True)
class DiagnosedVm:
    """What was said of one VM."""

    id: str
    """By which it is confirmed or corrected."""
    vm: str
    host: str | None
    hours: float
    """Of its history."""
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """What was said of all VMs that were asked about."""

    vms: tuple[DiagnosedVm, ...]
    left_out: dict[str, str]
    """By name of a VM that is not in it: why not."""
    model: Forest


@dataclass(frozen=True, slots=True)
class JudgedCases:
    """What was said of cases of which it is known what was at fault."""

    cases: tuple[tuple[LabelledCase, Diagnosis], ...]
    right: float
    """The share of components that are right, 0 to 1 (`advise.diagnosis.judging`)."""
    model: Forest


def scores(cases: Sequence[DiagnosisCase], model: Forest | None) -> Floats:
    """How probable each component is: a row for each case, a column for each of COMPONENTS.

    What a rule names is certain, what a rule excludes is 0. What cannot be told of the case is 0, too; where nothing
    else is probable, what the model thinks of it counts for `none`: nothing that the counters here show. `none` has no
    probability beside one that has more: after a fault, that there is no other one is no answer.
    """
    none = COMPONENTS.index(Component.NONE)
    cases = [without_contradictions(case)[0] for case in cases]
    found = np.zeros((len(cases), len(COMPONENTS))) if model is None else model.probabilities(features(cases))
    found[:, none] *= WEIGHT_OF_NONE
    for row, case in zip(found, cases, strict=True):
        hidden = [COMPONENTS.index(component) for component in untellable(case)]
        unseen = row[hidden].sum()
        row[hidden] = 0.0
        if row.argmax() == none:
            row[none] = min(1.0, row[none] + unseen)
        for component in ruled_out(case):
            row[COMPONENTS.index(component)] = 0.0
        for component in certain(case):
            row[COMPONENTS.index(component)] = CERTAIN
        if row.argmax() != none:
            row[none] = 0.0
    return found


def diagnosed(cases: Sequence[DiagnosisCase], model: Forest | None) -> tuple[Diagnosis, ...]:
    """What is at fault in each case. Without a model by the rules alone."""
    found = []
    for told, row in zip(cases, scores(cases, model), strict=True):
        case, contradictions = without_contradictions(told)
        named = certain(case)
        order = [COMPONENTS[at] for at in np.argsort(-row, kind="stable") if row[at] >= LEAST]
        suspects = (
            Suspect(
                component,
                round(float(row[COMPONENTS.index(component)]), 3),
                (*((named[component],) if component in named else ()), *_evidence(case, component)),
                component in named,
            )
            for component in order
        )
        found.append(Diagnosis(tuple(suspects), tuple(sorted(untellable(case))), contradictions))
    return tuple(found)


def _evidence(case: DiagnosisCase, component: Component) -> tuple[str, ...]:
    """The mean and the highest of the channels that tell of it, as far as they are known."""
    of, found = channels(case), []
    for channel in LOOKED_AT[component]:
        known = of[channel][~np.isnan(of[channel])]
        if len(known):
            mean, highest = (_said(channel, float(value)) for value in (known.mean(), known.max()))
            found.append(f"{channel} {mean}, at most {highest}")
    return tuple(found)


def _said(channel: str, value: float) -> str:
    if channel in _LOGARITHMS:
        unit = {"disk latency": " ms", "disk": " kB/s", "network": " kB/s"}.get(channel, "")
        return f"{np.expm1(value):.0f}{unit}"
    if channel == "temperature":
        return f"{value:.0f} °C"
    return f"{value:.1f}" if channel == "CPU to GPU" else f"{value:.0%}"
