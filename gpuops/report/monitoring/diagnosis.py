"""What `gpuops diagnose` prints: what is at fault of each VM, by which numbers, and the next command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Self

from gpuops.advise.diagnosis.tellable import NEEDS
from gpuops.model.measurements.component import WORDS, Component
from gpuops.model.time_text import format_zoned_minute
from gpuops.report.document import DocumentRecord, PrintedDocument, SiteDocument, printed
from gpuops.report.layout import Shown, Text
from gpuops.report.text import count

if TYPE_CHECKING:
    from gpuops.advise.diagnosis.answer import Diagnosed, DiagnosedVm, Diagnosis, JudgedCases, Suspect
    from gpuops.advise.diagnosis.learning import TrainingOutcome
    from gpuops.advise.diagnosis.model import Forest
    from gpuops.model.vcenter.inventory import Inventory

_MOST_SHOWN: Final = 3
_MOST_CASES: Final = 20
NEXT: Final = {
    Component.NONE: "look in its guest: what it waits for, no counter shows",
    Component.NOISY_NEIGHBOUR: "gpuops size says who should not share a GPU; gpuops inventory shows who is on it",
    Component.SCHEDULER: "gpuops scheduler show",
    Component.LICENCE: "see to the licence server in its guest: nvidia-smi -q there shows the licence",
    Component.THROTTLING: "gpuops top --show gpus shows heat and power; see to cooling and to the power limit",
    Component.PCIE_LINK: "reseat the GPU; gpuops readiness says whether its host can be emptied for that",
    Component.ECC: "nvidia-smi -q -d ECC,ROW_REMAPPER on the host; have the GPU replaced if errors come back",
    Component.FRAME_BUFFER: "give it a larger profile: gpuops capacity says what fits",
    Component.REMOTE_NUMA: "gpuops doctor says where CPU, memory and GPU are apart",
    Component.CPU_READY: "its host has too many vCPUs at work: move VMs, or give it fewer",
    Component.MEMORY_RECLAIMED: "reserve its memory, or move VMs: its host has too little",
    Component.DATASTORE: "look at the latency of its datastore in vCenter, and who else writes there",
    Component.NETWORK: "look at dropped packets of its port and of the host's uplinks in vCenter",
    Component.DRIVER: "give its guest a driver of the host's branch: gpuops doctor shows the host's",
}
"""What to do about each."""
SETTLE: Final = (
    "when it is found, confirm or correct it by its id, and the next model learns from it: gpuops help diagnose"
)


def diagnosed_text(found: Diagnosed, inventory: Inventory) -> Shown:
    """Of each VM the most probable components with their numbers, and the next move of the first."""
    of = count(len(found.vms), "VM")
    parts: list[Shown] = [
        Text(f"{of} with a vGPU and a history, read {format_zoned_minute(inventory.taken_at)}", "bold")
    ]
    for vm in found.vms:
        parts.append(Text(f"{vm.vm} ({vm.id}), {vm.hours:.0f} h of history:"))
        parts += _suspects(vm.diagnosis)
    parts += [Text(note, "dim") for note in (*_notes(found.model), SETTLE)]
    parts += [Text(f"left out: {name}: {reason}", "dim") for name, reason in sorted(found.left_out.items())]
    return parts


def _suspects(diagnosis: Diagnosis) -> Iterator[Text]:
    if not diagnosis.suspects:
        yield Text("  no counter names a component by itself")
    for at, each in enumerate(diagnosis.suspects[:_MOST_SHOWN]):
        style = "" if each.component is Component.NONE else "yellow"
        yield Text(f"  {each.probability:>4.0%}  {WORDS[each.component]}{_by(each)}", style)
        if at == 0:
            yield Text(f"        {NEXT[each.component]}", "dim")
    for note in diagnosis.contradictions:
        yield Text(f"  counters contradict each other: {note}", "yellow")
    for words, components in _needs(diagnosis).items():
        names = ", ".join(WORDS[component] for component in components)
        yield Text(f"  cannot be told here: {names}: needs {words}", "dim")


def _needs(diagnosis: Diagnosis) -> dict[str, list[Component]]:
    """By what is needed, the components that cannot be told without it."""
    by_need: dict[str, list[Component]] = {}
    for component in diagnosis.untellable:
        by_need.setdefault(NEEDS[component].words, []).append(component)
    return by_need


def _by(suspect: Suspect) -> str:
    return f": {'; '.join(suspect.evidence)}" if suspect.evidence else ""


def _notes(model: Forest) -> Iterator[str]:
    learned = f", {count(len(model.corrections), 'confirmed case')} among them" if model.corrections else ""
    yield f"by rules and by a model of {model.cases} cases{learned}; {model.right:.0%} right of made ones never seen"


class SuspectRecord(DocumentRecord, frozen=True):
    """A component that may be at fault."""

    component: Component
    probability: Annotated[float, "0 to 1"]
    by_rule: Annotated[bool, "whether a rule is certain of it"]
    evidence: Annotated[list[str], "numbers that speak for it"]
    next: Annotated[str, "what to do about it"]

    @classmethod
    def made_of(cls, suspect: Suspect) -> Self:
        return cls.from_attributes(suspect, next=NEXT[suspect.component])


class DiagnosisModelRecord(DocumentRecord, frozen=True):
    """The model that was asked."""

    cases: Annotated[int, "of how many it was made"]
    confirmed: Annotated[int, "how many of these people confirmed or corrected"]
    right: Annotated[float, "the share of components that it had right in made cases never seen"]

    @classmethod
    def made_of(cls, model: Forest) -> Self:
        return cls(model.cases, len(model.corrections), model.right)


class DiagnosedVmRecord(DocumentRecord, frozen=True):
    """What was said of one VM."""

    id: Annotated[str, "by which it is confirmed or corrected"]
    vm: str
    host: str | None
    hours: Annotated[float, "of its history"]
    suspects: Annotated[list[SuspectRecord], "the most probable first; without a model and a certain rule none"]
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
    left_out: Annotated[dict[str, str], "by VM of which nothing is said, why"]


def diagnosed_document(found: Diagnosed, inventory: Inventory) -> DiagnoseDocument:
    return DiagnoseDocument.from_attributes(found, inventory, read_at=inventory.taken_at)


def cases_text(found: JudgedCases) -> Shown:
    """How much is right, and the cases of which something else was said."""
    parts: list[Shown] = [Text(f"{count(len(found.cases), 'case')}: {found.right:.1%} of the components right", "bold")]
    wrong = [(case, told) for case, told in found.cases if _first(told) not in (case.at_fault or {Component.NONE})]
    for case, told in wrong[:_MOST_CASES]:
        was = " and ".join(WORDS[each] for each in sorted(case.at_fault)) or WORDS[Component.NONE]
        said = _first(told)
        parts.append(Text(f"{case.name}: was {was}; said {WORDS[said] if said else 'nothing'}", "yellow"))
    if len(wrong) > _MOST_CASES:
        parts.append(Text(f"and {len(wrong) - _MOST_CASES} more, which --output json has", "dim"))
    return [*parts, *(Text(note, "dim") for note in _notes(found.model))]


def _first(told: Diagnosis) -> Component | None:
    return told.suspects[0].component if told.suspects else None


class DiagnosedCaseRecord(DocumentRecord, frozen=True):
    """A case, and what was said of it."""

    name: str
    at_fault: Annotated[list[Component], "what was; empty = nothing"]
    suspects: list[SuspectRecord]
    cannot_be_told: Annotated[dict[str, str], "by component without a counter of its own, what is needed to tell it"]


@printed("diagnose-cases", by="gpuops diagnose --cases")
class DiagnoseCasesDocument(PrintedDocument, frozen=True):
    """What is said of cases of which it is known what was at fault."""

    right: Annotated[float, "the share of components that are among as many most probable ones as were at fault"]
    model: DiagnosisModelRecord
    cases: list[DiagnosedCaseRecord]

    @classmethod
    def made_of(cls, found: JudgedCases) -> Self:
        cases = [
            DiagnosedCaseRecord.from_attributes(
                case, told, at_fault=sorted(case.at_fault), cannot_be_told=_cannot_be_told(told)
            )
            for case, told in found.cases
        ]
        return cls.from_attributes(found, cases=cases)


def settled_text(name: str, found: Sequence[Component]) -> Shown:
    return [
        Text(f"{name}: noted: {' and '.join(WORDS[each] for each in found)}"),
        Text("the next model learns from it: gpuops diagnose train", "dim"),
    ]


@printed("diagnose-settled", by="gpuops diagnose confirm")
class DiagnoseSettledDocument(PrintedDocument, frozen=True):
    """What a person found was noted."""

    id: Annotated[str, "of the diagnosis"]
    at_fault: list[Component]


def trained_text(found: TrainingOutcome) -> Shown:
    was = "" if found.before is None else f"; the one before had {found.before:.1%}"
    verdict = "the new model stands" if found.replaced else "the one before is better, and stands"
    settings = found.model.settings
    return [
        Text(f"{verdict}: of cases never seen the new one had {found.after:.1%} of the components right{was}", "bold"),
        Text(
            f"{len(found.tried)} candidates; the model is of {settings.trees} trees, each split looks at "
            f"{settings.features_tried:.0%} of the numbers of a case"
        ),
        Text(f"made of {found.model.cases} cases, {len(found.model.corrections)} of them confirmed by people", "dim"),
    ]


class DiagnosisCandidateRecord(DocumentRecord, frozen=True):
    """How a candidate's forest was grown, and what it had right."""

    trees: int
    features_tried: Annotated[float, "the share of a case's numbers that a split looks at"]
    least_in_leaf: int
    right: Annotated[float, "the share of components in cases that it was not made of"]


@printed("diagnose-train", by="gpuops diagnose train")
class DiagnoseTrainDocument(PrintedDocument, frozen=True):
    """A model was trained."""

    replaced: Annotated[bool, "whether it stands from now on; otherwise the one before was better"]
    right: Annotated[float, "the share of components that the new one had right in cases never seen"]
    right_before: Annotated[float | None, "what the one before had right of these; null = there was none"]
    model: Annotated[DiagnosisModelRecord, "the one that stands"]
    candidates: list[DiagnosisCandidateRecord]

    @classmethod
    def made_of(cls, found: TrainingOutcome) -> Self:
        candidates = [
            DiagnosisCandidateRecord.from_attributes(settings, right=right) for settings, right in found.tried
        ]
        return cls.from_attributes(found, right=found.after, right_before=found.before, candidates=candidates)
