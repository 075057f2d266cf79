"""Plans and their outcomes as the versioned JSON document: the contract for programs. YAML is the same document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, ClassVar, Self

from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Outcome, Report, Verdict
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import Step
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach
from gpuops.report.document import DOCUMENTS, DocumentRecord, NamedRecord, PrintedDocument, SiteDocument, printed
from gpuops.report.step_changes import changes, host_name, title, vm_name, waves_with_snapshots


class RejectionRecord(DocumentRecord, frozen=True):
    """One reason why something is refused or left out, with its numbers."""

    subject: Annotated[str, "what is refused, such as a VM, a host, a GPU or a NUMA node"]
    rule: Annotated[str, "which rule speaks against it"]
    needed: float | str | None
    available: float | str | None
    unit: Annotated[str, "of the two before; empty = none"]
    hint: Annotated[str, "what to do about it; empty = nothing is known"]
    text: Annotated[str, "all of it in one line"]

    @classmethod
    def made_of(cls, rejection: Rejection) -> Self:
        return cls.from_attributes(rejection, text=str(rejection))


class RefusalRecord(DocumentRecord, frozen=True):
    """One reason against it."""

    subject: str
    reason: str
    next: Annotated[str, "what to do about it; may be empty"]

    @classmethod
    def made_of(cls, rejection: Rejection) -> Self:
        return cls(rejection.subject, rejection.reason, rejection.hint)


class BeforeAfterRecord(DocumentRecord, frozen=True):
    """One thing before and after; null = it was not there, or will not be."""

    what: str
    before: str | None
    after: str | None


class StepRecord(DocumentRecord, frozen=True):
    """One change of one VM."""

    kind: Annotated[str, "such as reconfigure, relocate, power_on, resume, suspend, power_off or set_attribute"]
    title: str
    vm: NamedRecord
    host: Annotated[str | None, "the host that it goes to or starts on; null = its own, or vCenter's choice"]
    changes: list[BeforeAfterRecord]


class WaveRecord(DocumentRecord, frozen=True):
    """Steps that do not wait for each other."""

    title: str
    steps: list[StepRecord]


class ChoiceRecord(DocumentRecord, frozen=True):
    """Where something goes and why, one for each host or GPU that was looked at."""

    subject: str
    chosen: bool
    reason: str


class OutcomeRecord(DocumentRecord, frozen=True):
    """What became of one step."""

    kind: str
    title: str
    vm: NamedRecord
    verdict: Verdict
    reason: Annotated[str, "empty = there is nothing to say"]
    duration_s: float | None


def outcome_document(outcome: Outcome, before: Inventory) -> OutcomeRecord:
    return OutcomeRecord.from_attributes(outcome, **_step_keys(outcome.step, before))


def _step_keys(step: Step, before: Inventory) -> dict[str, Any]:
    vm = NamedRecord(step.vm, vm_name(step.vm, before))
    return {"kind": step.kind, "title": title(step, before), "vm": vm}


def step_document(step: Step, before: Inventory) -> StepRecord:
    host = host_name(getattr(step, "host", None), before)
    return StepRecord.from_attributes(**_step_keys(step, before), host=host, changes=list(changes(step, before)))


class VmRunDocument(SiteDocument, frozen=True):
    """A plan of changes of VMs, and its outcomes. `request` holds its request, by `to_json_types`."""

    request: Any
    feasible: Annotated[bool, "whether it can be done"]
    applied: Annotated[bool, "whether something was done; never true of a dry run, a refusal or a saved inventory"]
    changed: Annotated[bool, "whether vCenter was changed, or in a dry run would be"]
    exit_code: int
    disruptive: Annotated[bool, "whether something is stopped or moved"]
    waves: Annotated[list[WaveRecord], "the steps in their order"]
    rejections: Annotated[list[RejectionRecord], "why it cannot be done"]
    unmet: Annotated[list[RejectionRecord], "what is left out while the rest is done"]
    warnings: list[str]
    because: Annotated[list[str], "why nothing is to be done, and other notes"]
    choices: Annotated[list[ChoiceRecord], "what --explain prints"]
    outcomes: Annotated[list[OutcomeRecord], "one for each step that was done"]

    @classmethod
    def made_of(cls, report: Report) -> Self:
        plan, before = report.plan, report.before
        waves = [
            WaveRecord(wave.title, [step_document(step, world) for step in wave.steps])
            for wave, world in waves_with_snapshots(plan, before)
        ]
        return cls.from_attributes(
            report,
            plan,
            before,
            read_at=before.taken_at,
            request=to_json_types(report.request),
            applied=report.applied and report.changed,
            waves=waves,
            outcomes=[outcome_document(outcome, before) for outcome in report.outcomes],
        )


class TogetherDocument(VmRunDocument, frozen=True):
    """The changes of several VMs by one Ansible task; no command prints it."""

    kind_name: ClassVar[str] = "together"


def report_document(report: Report, kind: str) -> PrintedDocument:
    """Return the document of a run. `kind` is the verb: `attach`, `detach`, `rotate-night`, `rotate-day`,
    `rotate-resume`."""
    return DOCUMENTS[kind].made_of(report)


@printed("attach", by="gpuops attach")
class AttachDocument(VmRunDocument, frozen=True):
    """What attach changes of a VM, or would change, and what became of it."""

    request: Annotated[Attach, "the options as they were understood"]


@printed("detach", by="gpuops detach")
class DetachDocument(VmRunDocument, frozen=True):
    """What detach changes of a VM, or would change, and what became of it."""

    request: Annotated[Detach, "the options as they were understood"]


@printed("defrag-execute", by="gpuops defrag --yes, gpuops change resume and gpuops change abort of such moves")
class DefragExecuteDocument(VmRunDocument, frozen=True):
    """The moves of VMs that free GPUs, and what became of them."""

    request: Annotated[dict[str, Any] | None, "what was asked for; null = nothing was under way"]


class NightRunDocument(VmRunDocument, frozen=True):
    """A run that changes VMs of a night."""

    request: Annotated[dict[str, Any] | None, "the policy, and what the journal knew"]


@printed("rotate-night", by="gpuops rotate night")
class RotateNightDocument(NightRunDocument, frozen=True):
    """Which desktops a night suspends and which ML VMs it starts, and what became of it."""


@printed("rotate-day", by="gpuops rotate day")
class RotateDayDocument(NightRunDocument, frozen=True):
    """How VMs of a night come back to what they were, and what became of it."""


@printed("rotate-restore", by="gpuops rotate restore")
class RotateRestoreDocument(NightRunDocument, frozen=True):
    """How one VM of a night comes back to what it was, and what became of it."""


@printed("rotate-clear-marker", by="gpuops rotate clear-marker")
class RotateClearMarkerDocument(NightRunDocument, frozen=True):
    """Which markers are cleared of VMs that no open night holds, and what became of it."""


@printed("rotate-resume", by="gpuops rotate resume")
class RotateResumeDocument(NightRunDocument, frozen=True):
    """What is left of a run that was cut off, and what became of it."""


@printed("rotate-mark", by="gpuops rotate mark")
class RotateMarkDocument(VmRunDocument, frozen=True):
    """Which desktops get or lose the mark of their owners or the opt-out, and what became of it."""

    request: Annotated[dict[str, Any], "the policy, which mark, and which desktops"]


def to_json_types(option: object) -> Any:
    """Return a request, or a part of it, in JSON's own types."""
    match option:
        case None | bool() | int() | float():
            return option
        case Enum():
            return option.value
        case str():
            return option
        case datetime():
            return option.isoformat()
        case Mapping():
            return {str(key): to_json_types(element) for key, element in option.items()}
        case list() | tuple() | set() | frozenset():
            return [to_json_types(element) for element in option]
        case _ if is_dataclass(option):
            return {field.name: to_json_types(getattr(option, field.name)) for field in fields(option) if field.repr}
        case _:
            return str(option)
