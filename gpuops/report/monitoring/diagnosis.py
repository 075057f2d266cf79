"""What `gpuops diagnose` prints: what is at fault of each VM, by which numbers, and the next command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from gpuops.advise.diagnosis.tellable import NEEDS
from gpuops.model.measurements.component import WORDS, Component
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text
from gpuops.report.text import count, visible

if TYPE_CHECKING:
    from gpuops.advise.diagnosis.answer import Diagnosed, Diagnosis, JudgedCases, StoredDiagnosis, Suspect
    from gpuops.advise.diagnosis.learning import Trained
    from gpuops.advise.diagnosis.model import Forest
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.vm import Vm

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
    parts: list[Shown] = [Text(f"{of} with a vGPU and a history, read {inventory.taken_at:%Y-%m-%d %H:%M %Z}", "bold")]
    for vm in found.vms:
        parts.append(Text(f"{visible(vm.vm)} ({vm.id}), {vm.hours:.0f} h of history:"))
        parts += _suspects(vm.diagnosis)
    parts += [Text(note, "dim") for note in (*_notes(found.model), SETTLE)]
    parts += [Text(f"left out: {visible(name)}: {reason}", "dim") for name, reason in sorted(found.left_out.items())]
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


def diagnosed_document(found: Diagnosed, inventory: Inventory) -> Document:
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "diagnose",
        "vcenter": inventory.vcenter,
        "read_at": inventory.taken_at.isoformat(),
        "model": _model(found.model),
        "vms": [
            {
                "id": vm.id,
                "vm": vm.vm,
                "host": vm.host,
                "hours": vm.hours,
                "suspects": [_suspect(each) for each in vm.diagnosis.suspects],
                "cannot_be_told": _cannot_be_told(vm.diagnosis),
                "contradictions": list(vm.diagnosis.contradictions),
            }
            for vm in found.vms
        ],
        "left_out": dict(found.left_out),
    }


def _cannot_be_told(diagnosis: Diagnosis) -> Document:
    return {component.value: NEEDS[component].words for component in diagnosis.untellable}


def _suspect(suspect: Suspect) -> Document:
    return {
        "component": suspect.component.value,
        "probability": suspect.probability,
        "by_rule": suspect.by_rule,
        "evidence": list(suspect.evidence),
        "next": NEXT[suspect.component],
    }


def stored_document(found: StoredDiagnosis, vm: Vm, inventory: Inventory) -> Document:
    """What was last said of a VM, as a report shows it."""
    host = inventory.host_of(vm)
    return {
        "id": found.id,
        "ref": vm.ref,
        "vm": vm.name,
        "host": host.name if host is not None else None,
        "at": found.at.isoformat(),
        "suspects": [_suspect(each) for each in found.suspects],
        "found": None if found.found is None else [each.value for each in found.found],
    }


def _model(model: Forest) -> Document:
    return {"cases": model.cases, "confirmed": len(model.corrections), "right": model.right}


def cases_text(found: JudgedCases) -> Shown:
    """How much is right, and the cases of which something else was said."""
    parts: list[Shown] = [Text(f"{count(len(found.cases), 'case')}: {found.right:.1%} of the components right", "bold")]
    wrong = [(case, told) for case, told in found.cases if _first(told) not in (case.at_fault or {Component.NONE})]
    for case, told in wrong[:_MOST_CASES]:
        was = " and ".join(WORDS[each] for each in sorted(case.at_fault)) or WORDS[Component.NONE]
        said = _first(told)
        parts.append(Text(f"{visible(case.name)}: was {was}; said {WORDS[said] if said else 'nothing'}", "yellow"))
    if len(wrong) > _MOST_CASES:
        parts.append(Text(f"and {len(wrong) - _MOST_CASES} more, which --output json has", "dim"))
    return [*parts, *(Text(note, "dim") for note in _notes(found.model))]


def _first(told: Diagnosis) -> Component | None:
    return told.suspects[0].component if told.suspects else None


def cases_document(found: JudgedCases) -> Document:
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "diagnose-cases",
        "right": found.right,
        "model": _model(found.model),
        "cases": [
            {
                "name": case.name,
                "at_fault": sorted(each.value for each in case.at_fault),
                "suspects": [_suspect(each) for each in told.suspects],
                "cannot_be_told": _cannot_be_told(told),
            }
            for case, told in found.cases
        ],
    }


def settled_text(name: str, found: Sequence[Component]) -> Shown:
    return [
        Text(f"{name}: noted: {' and '.join(WORDS[each] for each in found)}"),
        Text("the next model learns from it: gpuops diagnose train", "dim"),
    ]


def settled_document(name: str, found: Sequence[Component]) -> Document:
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "diagnose-settled",
        "id": name,
        "at_fault": [each.value for each in found],
    }


def trained_text(found: Trained) -> Shown:
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


def trained_document(found: Trained) -> Document:
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "diagnose-train",
        "replaced": found.replaced,
        "right": found.after,
        "right_before": found.before,
        "model": _model(found.model),
        "candidates": [
            {
                "trees": settings.trees,
                "features_tried": settings.features_tried,
                "least_in_leaf": settings.least_in_leaf,
                "right": right,
            }
            for settings, right in found.tried
        ],
    }
