"""Diagnoses a case: names the component at fault, by a rule if one counter or fact proves it, otherwise by a model.

Counters that contradict each other are left out first, because at least one of them would mislead the model.

A component is judged only if the case has its own counters (`NEEDS`). Without them the model would go by habits of the
cases that it learned from: "less use of the GPU" is a sign of nearly every fault. The diagnosis then names the missing
counters in place of a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.extras.diagnosis.case import COMPONENTS, FAULTS, CaseFacts, Component, DiagnosisCase, LabelledCase
from gpuops.extras.diagnosis.channels import channels, states
from gpuops.extras.diagnosis.features import features
from gpuops.extras.diagnosis.model import Forest
from gpuops.model.devices.scheduler import SchedulerPolicy
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
    """What a verdict about a component needs: one each of `series`, `other_series` and `facts`, where these are set."""

    sources: tuple[CounterSource, ...]
    """Each of these alone is enough."""
    words: str
    """The need in words, for messages."""
    series: tuple[str, ...] = ()
    other_series: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()

    def is_met(self, measured_series: frozenset[str], facts: CaseFacts) -> bool:
        return (
            (not self.series or not measured_series.isdisjoint(self.series))
            and (not self.other_series or not measured_series.isdisjoint(self.other_series))
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
"""What a verdict about each component needs."""


def untellable(case: DiagnosisCase) -> frozenset[Component]:
    """Return the components that this case allows no verdict about: their own counters or facts are missing."""
    measured_series = frozenset(name for name, samples in case.series.items() if not np.isnan(samples).all())
    if measured_series >= _GPU_WITHOUT_VM:
        measured_series |= {f"vm:{GPU_USE}"}  # `channels` computes it: the use of the GPU without the neighbours
    return frozenset(component for component in FAULTS if not NEEDS[component].is_met(measured_series, case.facts))


def tellable_by(*sources: CounterSource) -> frozenset[Component]:
    """Return the components that at least one of these sources has the counters for."""
    return frozenset(component for component, need in NEEDS.items() if not set(sources).isdisjoint(need.sources))


REMOTE: Final = 0.2
"""Remote memory is a cause if at least this share of it is at another NUMA node than the GPU."""
SLOWED: Final = 0.1
"""The share of the readings in which a GPU must be slowed: one that only touches its limit is not at fault."""
LEAST_SLOWED: Final = 3
"""The least number of such readings: two hours have six, so that a single one would be more than a tenth."""
NEARLY_FULL: Final = 0.8
"""A frame buffer that is never used to this share is not full; averages of five minutes hide short peaks."""


def certain(case: DiagnosisCase) -> Mapping[Component, str]:
    """Return each component that is certainly at fault, with the number that proves it; missing counters prove none."""
    state, facts = states(case), case.facts
    causes: dict[Component, str] = {}
    licensed, width = (
        _without_gaps(state["licensed"]),
        _without_gaps(case.series.get("gpu:smi.gpu.pcieWidth.latest", np.zeros(0))),
    )
    errors = _without_gaps(state["new ECC errors"])
    if len(licensed) and (licensed == 0).any():
        causes[Component.LICENCE] = f"without a licence in {(licensed == 0).mean():.0%} of the readings"
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
    slowed = {word: _without_gaps(state[f"slowed by {word}"]) for word in ("heat", "power")}
    for word, readings in slowed.items():
        if readings.sum() >= LEAST_SLOWED and readings.mean() >= SLOWED:
            causes[Component.THROTTLING] = f"slowed by {word} in {readings.mean():.0%} of the readings"
    return causes


def ruled_out(case: DiagnosisCase) -> frozenset[Component]:
    """Return the components that are certainly not at fault: every reading shows the intended state."""
    state, facts = states(case), case.facts
    excluded = set()
    least_allowed = (
        (Component.LICENCE, _without_gaps(state["licensed"]), 1.0),
        (Component.PCIE_LINK, _without_gaps(state["link"]), 1.0),
        # negated, so that its least allowed number is 0, as that of the others is 1
        (Component.ECC, -_without_gaps(state["new ECC errors"]), 0.0),
    )
    # one or two readings are too few to exclude a component
    excluded |= {
        component for component, samples, least in least_allowed if len(samples) > 2 and samples.min() >= least
    }
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


TOLERANCE: Final = 1_000
"""A tenth of a GPU in hundredths of a percent: counters of a VM and of its GPU are sampled at other moments."""
MOST_STEPS: Final = 0.25
"""The share of the steps in which counters may contradict each other by chance: their windows differ by a sample."""
_FULL_USE: Final = 10_000
_VM, _GPU, _OTHERS = (f"{of}:{GPU_USE}" for of in ("vm", "gpu", "neighbours"))


def without_contradictions(case: DiagnosisCase) -> tuple[DiagnosisCase, tuple[str, ...]]:
    """Return the case without series that contradict each other, and a note on each contradiction.

    If the VM uses more of the GPU than the GPU's own counter shows (60 % and 0 %), the use of the VM, of the GPU and of
    the neighbours is left out. If the VM and its neighbours together use more than a GPU, that of the neighbours is.
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
    elif vm is not None and neighbours is not None and _contradict(vm + neighbours, np.full(len(vm), float(_FULL_USE))):
        notes.append(
            f"the VMs on its GPU together use {_mean(vm + neighbours)} of it: what its neighbours use is unknown"
        )
        del series[_OTHERS]
    return (replace(case, series=series), tuple(notes)) if notes else (case, ())


def _contradict(part: NDArray[np.float64], whole: NDArray[np.float64]) -> bool:
    """Return whether a part is larger than the whole in more than `MOST_STEPS` of the steps."""
    comparable = ~(np.isnan(part) | np.isnan(whole))
    return bool(comparable.any() and (part[comparable] > whole[comparable] + TOLERANCE).mean() > MOST_STEPS)


def _mean(samples: NDArray[np.float64]) -> str:
    return f"{np.nanmean(samples) / _FULL_USE:.0%}"


Floats = NDArray[np.float64]

CERTAIN: Final = 0.99
"""The probability of a component that a rule names: counters may be wrong."""
WEIGHT_OF_NONE: Final = 0.8
"""Half of the training cases have no fault, but VMs that a user asks about have one more often."""
LEAST: Final = 0.1
"""Components below this probability are not shown."""
SHOWN_CHANNELS: Final[dict[Component, tuple[str, ...]]] = {
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
"""The channels that are shown as evidence of each component."""
_LOGARITHMS: Final = frozenset({"disk latency", "disk", "network", "dropped", "packets lost"})


@dataclass(frozen=True, slots=True)
class Suspect:
    """A component that may be at fault."""

    component: Component
    probability: float
    evidence: tuple[str, ...]
    """Numbers that speak for it, each with its name."""
    by_rule: bool


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The suspects of one case, the most probable first."""

    suspects: tuple[Suspect, ...]
    """Empty = no rule is certain, and there is no model."""
    untellable: tuple[Component, ...] = ()
    """Components without a counter of their own in this case: no verdict about them (`NEEDS`)."""
    contradictions: tuple[str, ...] = ()
    """Counters that contradict each other, in words: they were treated as unknown."""


@dataclass(frozen=True, slots=True)
class StoredDiagnosis:
    """The last diagnosis of a VM as it is stored, and what people found since."""

    id: str
    vm: str
    """Its managed object id."""
    at: datetime
    """When it was made, by vCenter's clock."""
    suspects: tuple[Suspect, ...]
    """The most probable first."""
    found: tuple[Component, ...] | None
    """None = it was neither confirmed nor corrected."""

    @property
    def probable(self) -> tuple[tuple[Component, float], ...]:
        """Return each suspect and its probability, 0 to 1; what a person found is certain."""
        if self.found is not None:
            return tuple((component, 1.0) for component in self.found)
        return tuple((suspect.component, suspect.probability) for suspect in self.suspects)


@dataclass(frozen=True, slots=True)
class DiagnosedVm:
    """The diagnosis of one VM."""

    id: str
    """By which it is confirmed or corrected."""
    vm: str
    host: str | None
    hours: float
    """Of its history."""
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """The diagnoses of all requested VMs."""

    vms: tuple[DiagnosedVm, ...]
    left_out: dict[str, str]
    """Why a VM has no diagnosis, by its name."""
    model: Forest


@dataclass(frozen=True, slots=True)
class JudgedCases:
    """The diagnoses of labelled cases."""

    cases: tuple[tuple[LabelledCase, Diagnosis], ...]
    right: float
    """The share of components that are right, 0 to 1 (`learning.components_right`)."""
    model: Forest


def scores(cases: Sequence[DiagnosisCase], model: Forest | None) -> Floats:
    """Return the probability of each component: a row for each case, a column for each of COMPONENTS.

    A component that a rule names has `CERTAIN`. A component that a rule excludes, or that has no counters of its own,
    has 0. If `none` is the most probable component, it gets the shares that the model gave to these. If a fault is the
    most probable one, `none` has 0, so that only faults are shown.
    """
    none = COMPONENTS.index(Component.NONE)  # its column
    cases = [without_contradictions(case)[0] for case in cases]
    rows = np.zeros((len(cases), len(COMPONENTS))) if model is None else model.probabilities(features(cases))
    rows[:, none] *= WEIGHT_OF_NONE
    for row, case in zip(rows, cases, strict=True):
        excluded = [COMPONENTS.index(component) for component in untellable(case) | ruled_out(case)]
        excluded_share = row[excluded].sum()
        row[excluded] = 0.0
        if row.argmax() == none:
            row[none] = min(1.0, row[none] + excluded_share)
        for component in certain(case):
            row[COMPONENTS.index(component)] = CERTAIN
        if row.argmax() != none:
            row[none] = 0.0
    return rows


def diagnose_cases(cases: Sequence[DiagnosisCase], model: Forest | None) -> tuple[Diagnosis, ...]:
    """Return the diagnosis of each case by the rules and the model; None = by the rules alone."""
    diagnoses = []
    for original, row in zip(cases, scores(cases, model), strict=True):
        case, contradictions = without_contradictions(original)
        reasons = certain(case)  # the components that a rule names, each with its reason
        order = [COMPONENTS[at] for at in np.argsort(-row, kind="stable") if row[at] >= LEAST]
        suspects = (
            Suspect(
                component,
                round(float(row[COMPONENTS.index(component)]), 3),
                (*((reasons[component],) if component in reasons else ()), *_evidence(case, component)),
                component in reasons,
            )
            for component in order
        )
        diagnoses.append(Diagnosis(tuple(suspects), tuple(sorted(untellable(case))), contradictions))
    return tuple(diagnoses)


def _evidence(case: DiagnosisCase, component: Component) -> tuple[str, ...]:
    """Return the mean and the highest value of the channels shown for a component, as far as they are known."""
    samples_by_channel, texts = channels(case), []
    for channel in SHOWN_CHANNELS[component]:
        samples = _without_gaps(samples_by_channel[channel])
        if len(samples):
            mean, highest = (_format(channel, float(number)) for number in (samples.mean(), samples.max()))
            texts.append(f"{channel} {mean}, at most {highest}")
    return tuple(texts)


def _format(channel: str, sample: float) -> str:
    if channel in _LOGARITHMS:
        unit = {"disk latency": " ms", "disk": " kB/s", "network": " kB/s"}.get(channel, "")
        return f"{np.expm1(sample):.0f}{unit}"
    if channel == "temperature":
        return f"{sample:.0f} °C"
    return f"{sample:.1f}" if channel == "CPU to GPU" else f"{sample:.0%}"
