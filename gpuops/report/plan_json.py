"""Plans and their outcomes as the versioned JSON document: the contract for programs. YAML is the same document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Self

from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.outcome import Outcome, Report, Verdict
from gpuops.plan.core.plan import Rejection, Wave
from gpuops.plan.core.steps import (
    Step,
)
from gpuops.report.changes import changes, host_name, stages, title, vm_name
from gpuops.report.document import SCHEMA_VERSION, Document, DocumentRecord, NamedRecord


def report_document(report: Report, kind: str) -> Document:
    """One run. `kind` is the verb: `attach`, `detach`, `rotate-night`, `rotate-day`, `rotate-resume`."""
    plan, before = report.plan, report.before
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "vcenter": before.vcenter,
        "read_at": before.taken_at.isoformat(),
        "request": plain(report.request),
        "feasible": plan.feasible,
        "applied": report.applied and report.changed,
        "changed": report.changed,
        "exit_code": report.exit_code,
        "disruptive": plan.disruptive,
        "waves": [_wave(wave, world) for wave, world in stages(plan, before)],
        "rejections": list(map(RejectionRecord.made_of, plan.rejections)),
        "unmet": list(map(RejectionRecord.made_of, plan.unmet)),
        "warnings": list(plan.warnings),
        "because": list(plan.because),
        "choices": [ChoiceRecord.made_of(choice) for choice in plan.choices],
        "outcomes": [outcome_document(outcome, before) for outcome in report.outcomes],
    }


def _wave(wave: Wave, before: Inventory) -> Document:
    return {"title": wave.title, "steps": [_step(step, before) for step in wave.steps]}


def _step(step: Step, before: Inventory) -> Document:
    return {
        "kind": step.kind,
        "title": title(step, before),
        "vm": {"ref": step.vm, "name": vm_name(step.vm, before)},
        "host": host_name(getattr(step, "host", None), before),
        "changes": [BeforeAfterRecord.made_of(change) for change in changes(step, before)],
    }


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


class BeforeAfterRecord(DocumentRecord, frozen=True):
    """One thing before and after; null = it was not there, or will not be."""

    what: str
    before: str | None
    after: str | None


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
    step = outcome.step
    vm = NamedRecord(step.vm, vm_name(step.vm, before))
    return OutcomeRecord.from_attributes(outcome, kind=step.kind, title=title(step, before), vm=vm)


def plain(value: object) -> Any:
    """A request as its options: what it is made of, in JSON's own types."""
    match value:
        case None | bool() | int() | float():
            return value
        case Enum():
            return value.value
        case str():
            return value
        case datetime():
            return value.isoformat()
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case _ if is_dataclass(value):
            return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.repr}
        case _:
            return str(value)
