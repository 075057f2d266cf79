"""Text and documents of `gpuops diagnose`: the suspected component of each VM, the evidence, and the next command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Self

from gpuops.extras.diagnosis.answer import NEEDS
from gpuops.extras.diagnosis.case import WORDS, Component
from gpuops.model.time_text import format_zoned_minute
from gpuops.report.document import DocumentRecord, PrintedDocument, SiteDocument, printed
from gpuops.report.layout import Shown, Text
from gpuops.report.text import count

if TYPE_CHECKING:
    from gpuops.extras.diagnosis.answer import Diagnosed, DiagnosedVm, Diagnosis, JudgedCases, Suspect
    from gpuops.extras.diagnosis.learning import TrainingOutcome
    from gpuops.extras.diagnosis.model import Forest
    from gpuops.model.vcenter.inventory import Inventory

_SHOWN_SUSPECTS: Final = 3
_SHOWN_CASES: Final = 20
NEXT: Final = {
    Component.NONE: "look in its guest: no counter shows what it waits for",
    Component.NOISY_NEIGHBOUR: "gpuops size shows which VMs should not share a GPU; gpuops inventory shows its VMs",
    Component.SCHEDULER: "gpuops host scheduler show",
    Component.LICENCE: "check the licence server: nvidia-smi -q in its guest shows the licence",
    Component.THROTTLING: "gpuops top --show gpus shows temperature and power; check cooling and the power limit",
    Component.PCIE_LINK: "reseat the GPU; gpuops readiness shows whether its host can be emptied first",
    Component.ECC: "nvidia-smi -q -d ECC,ROW_REMAPPER on the host; have the GPU replaced if errors come back",
    Component.FRAME_BUFFER: "give it a larger profile: gpuops capacity shows what fits",
    Component.REMOTE_NUMA: "gpuops doctor shows whether CPU, memory and GPU are on different NUMA nodes",
    Component.CPU_READY: "too many vCPUs run on its host: move VMs, or give it fewer vCPUs",
    Component.MEMORY_RECLAIMED: "its host has too little memory: reserve the VM's memory, or move VMs",
    Component.DATASTORE: "look at the latency of its datastore in vCenter, and at other VMs that write to it",
    Component.NETWORK: "look at dropped packets of its port and of the host's uplinks in vCenter",
    Component.DRIVER: "give its guest a driver of the host's branch: gpuops doctor shows the host's",
}
"""The next step for each component."""
SETTLE: Final = (
    "when the cause is known, confirm or correct the diagnosis by its id: the next model learns from it"
    " (gpuops help diagnose)"
)


def diagnosed_text(diagnoses: Diagnosed, inventory: Inventory) -> Shown:
    """Return, for each VM, the most probable components with their evidence, and the next step for the first one."""
    vm_count = count(len(diagnoses.vms), "VM")
    parts: list[Shown] = [
        Text(f"{vm_count} with a vGPU and a history, read {format_zoned_minute(inventory.taken_at)}", "bold")
    ]
    for vm in diagnoses.vms:
        parts.append(Text(f"{vm.vm} ({vm.id}), {vm.hours:.0f} h of history:"))
        parts += _suspects(vm.diagnosis)
    parts += [Text(note, "dim") for note in (*_notes(diagnoses.model), SETTLE)]
    parts += [Text(f"not diagnosed: {name}: {reason}", "dim") for name, reason in sorted(diagnoses.left_out.items())]
    return parts


def _suspects(diagnosis: Diagnosis) -> Iterator[Text]:
    """Yield the suspects of one VM, contradictions between its counters, and components that cannot be judged here."""
    if not diagnosis.suspects:
        yield Text("  no counter names a component by itself")
    for rank, suspect in enumerate(diagnosis.suspects[:_SHOWN_SUSPECTS]):
        style = "" if suspect.component is Component.NONE else "yellow"
        yield Text(f"  {suspect.probability:>4.0%}  {WORDS[suspect.component]}{_evidence_text(suspect)}", style)
        if rank == 0:
            yield Text(f"        {NEXT[suspect.component]}", "dim")
    for note in diagnosis.contradictions:
        yield Text(f"  counters contradict each other: {note}", "yellow")
    for words, components in _components_by_need(diagnosis).items():
        names = ", ".join(WORDS[component] for component in components)
        yield Text(f"  cannot be judged here: {names} (needs {words})", "dim")


def _components_by_need(diagnosis: Diagnosis) -> dict[str, list[Component]]:
    """Return the components that cannot be judged here, by the missing data source."""
    by_need: dict[str, list[Component]] = {}
    for component in diagnosis.untellable:
        by_need.setdefault(NEEDS[component].words, []).append(component)
    return by_need


def _evidence_text(suspect: Suspect) -> str:
    """Return the evidence as the end of a line: `: ready 12 %; swapped 1 GiB`."""
    return f": {'; '.join(suspect.evidence)}" if suspect.evidence else ""


def _notes(model: Forest) -> Iterator[str]:
    """Yield how the model was trained and how often it is right."""
    learned = f", {count(len(model.corrections), 'confirmed case')} among them" if model.corrections else ""
    rated = f"{model.right:.0%} right in generated cases outside its training"
    yield f"by rules and by a model of {model.cases} cases{learned}; {rated}"


class SuspectRecord(DocumentRecord, frozen=True):
    """A component that may be at fault."""

    component: Component
    probability: Annotated[float, "0 to 1"]
    by_rule: Annotated[bool, "whether a rule identified it with certainty"]
    evidence: Annotated[list[str], "the measured figures that support it"]
    next: Annotated[str, "what to do about it"]

    @classmethod
    def made_of(cls, suspect: Suspect) -> Self:
        return cls.from_attributes(suspect, next=NEXT[suspect.component])


class DiagnosisModelRecord(DocumentRecord, frozen=True):
    """The model that judged the VMs."""

    cases: Annotated[int, "number of cases in its training"]
    confirmed: Annotated[int, "how many of them a person confirmed or corrected"]
    right: Annotated[float, "share of correct components in generated cases outside its training"]

    @classmethod
    def made_of(cls, model: Forest) -> Self:
        return cls(model.cases, len(model.corrections), model.right)


class DiagnosedVmRecord(DocumentRecord, frozen=True):
    """The diagnosis of one VM."""

    id: Annotated[str, "of the diagnosis, for `gpuops diagnose confirm`"]
    vm: str
    host: str | None
    hours: Annotated[float, "length of its history"]
    suspects: Annotated[list[SuspectRecord], "the most probable first; empty without a model or a certain rule"]
    cannot_be_told: Annotated[dict[str, str], "by component without a counter of its own, what is needed to tell it"]
    contradictions: Annotated[list[str], "counters that contradict each other and were treated as unknown"]

    @classmethod
    def made_of(cls, vm: DiagnosedVm) -> Self:
        return cls.from_attributes(vm, vm.diagnosis, cannot_be_told=_cannot_be_told(vm.diagnosis))


def _cannot_be_told(diagnosis: Diagnosis) -> dict[str, str]:
    return {component.value: NEEDS[component].words for component in diagnosis.untellable}


@printed("diagnose", by="gpuops diagnose")
class DiagnoseDocument(SiteDocument, frozen=True):
    """Which component slows each VM down."""

    model: DiagnosisModelRecord
    vms: list[DiagnosedVmRecord]
    left_out: Annotated[dict[str, str], "reason by VM, for each VM without a diagnosis"]


def diagnosed_document(diagnoses: Diagnosed, inventory: Inventory) -> DiagnoseDocument:
    """Return the diagnoses as a document."""
    return DiagnoseDocument.from_attributes(diagnoses, inventory, read_at=inventory.taken_at)


def cases_text(judged: JudgedCases) -> Shown:
    """Return the share of right answers, and the cases that were judged wrongly."""
    parts: list[Shown] = [
        Text(f"{count(len(judged.cases), 'case')}: {judged.right:.1%} of the components right", "bold")
    ]
    wrong = [
        (case, diagnosis)
        for case, diagnosis in judged.cases
        if _first_suspect(diagnosis) not in (case.at_fault or {Component.NONE})
    ]
    for case, diagnosis in wrong[:_SHOWN_CASES]:
        real_cause = " and ".join(WORDS[component] for component in sorted(case.at_fault)) or WORDS[Component.NONE]
        suspect = _first_suspect(diagnosis)
        suspect_text = WORDS[suspect] if suspect is not None else "nothing"
        parts.append(Text(f"{case.name}: the cause was {real_cause}; diagnosed: {suspect_text}", "yellow"))
    if len(wrong) > _SHOWN_CASES:
        parts.append(Text(f"and {len(wrong) - _SHOWN_CASES} more: --output json has all cases", "dim"))
    return [*parts, *(Text(note, "dim") for note in _notes(judged.model))]


def _first_suspect(diagnosis: Diagnosis) -> Component | None:
    """Return the most probable component, or None."""
    return diagnosis.suspects[0].component if diagnosis.suspects else None


class DiagnosedCaseRecord(DocumentRecord, frozen=True):
    """A case and its diagnosis."""

    name: str
    at_fault: Annotated[list[Component], "the known cause; empty = none"]
    suspects: list[SuspectRecord]
    cannot_be_told: Annotated[dict[str, str], "by component without a counter of its own, what is needed to tell it"]


@printed("diagnose-cases", by="gpuops diagnose --cases")
class DiagnoseCasesDocument(PrintedDocument, frozen=True):
    """Diagnoses of cases with a known cause, and how many were right."""

    right: Annotated[float, "share of causes that are among as many most probable components as there are causes"]
    model: DiagnosisModelRecord
    cases: list[DiagnosedCaseRecord]

    @classmethod
    def made_of(cls, judged: JudgedCases) -> Self:
        cases = [
            DiagnosedCaseRecord.from_attributes(
                case, diagnosis, at_fault=sorted(case.at_fault), cannot_be_told=_cannot_be_told(diagnosis)
            )
            for case, diagnosis in judged.cases
        ]
        return cls.from_attributes(judged, cases=cases)


def settled_text(name: str, components: Sequence[Component]) -> Shown:
    """Return a text that confirms the stored cause of a diagnosis."""
    return [
        Text(f"{name}: stored as the cause: {' and '.join(WORDS[component] for component in components)}"),
        Text("the next model learns from it: gpuops diagnose train", "dim"),
    ]


@printed("diagnose-settled", by="gpuops diagnose confirm")
class DiagnoseSettledDocument(PrintedDocument, frozen=True):
    """A diagnosis that a person confirmed or corrected."""

    id: Annotated[str, "of the diagnosis"]
    at_fault: list[Component]


def trained_text(training: TrainingOutcome) -> Shown:
    """Return whether the new model replaces the previous one, and how both were rated."""
    comparison = "" if training.before is None else f"; the previous one {training.before:.1%}"
    verdict = "the new model is used" if training.replaced else "the previous model is better, and stays in use"
    settings = training.model.settings
    return [
        Text(
            f"{verdict}; of cases outside its training the new model had {training.after:.1%} right{comparison}",
            "bold",
        ),
        Text(
            f"{len(training.tried)} candidates; the model has {settings.trees} trees, each split looks at "
            f"{settings.features_tried:.0%} of the numbers of a case"
        ),
        Text(
            f"trained with {training.model.cases} cases, {len(training.model.corrections)} of them confirmed by people",
            "dim",
        ),
    ]


class DiagnosisCandidateRecord(DocumentRecord, frozen=True):
    """The settings of one trained candidate, and how often it was right."""

    trees: int
    features_tried: Annotated[float, "the share of a case's numbers that a split looks at"]
    least_in_leaf: int
    right: Annotated[float, "share of correct components in cases outside its training"]


@printed("diagnose-train", by="gpuops diagnose train")
class DiagnoseTrainDocument(PrintedDocument, frozen=True):
    """The result of training a model."""

    replaced: Annotated[bool, "whether the new model is used from now on; false = the previous one is better"]
    right: Annotated[float, "share of correct components of the new model, in cases outside its training"]
    right_before: Annotated[float | None, "the same of the previous model; null = there was none"]
    model: Annotated[DiagnosisModelRecord, "the model in use"]
    candidates: list[DiagnosisCandidateRecord]

    @classmethod
    def made_of(cls, training: TrainingOutcome) -> Self:
        candidates = [
            DiagnosisCandidateRecord.from_attributes(settings, right=right) for settings, right in training.tried
        ]
        return cls.from_attributes(training, right=training.after, right_before=training.before, candidates=candidates)
