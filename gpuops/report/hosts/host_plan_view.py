"""Text and documents of commands that change host settings: their plan and its outcomes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Self, assert_never

from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Outcome, Report, Verdict
from gpuops.plan.core.steps import (
    ConfigureGraphics,
    ConfigureMig,
    ConfigureModes,
    ConfigureModule,
    ConfigurePassthrough,
    HostStep,
)
from gpuops.plan.hosts.graphics.mig_mode import SetMig
from gpuops.plan.hosts.graphics.mode import SetMode
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.plan.hosts.scheduler.scheduler_change import SetScheduler
from gpuops.report.document import DOCUMENTS, DocumentRecord, NamedRecord, PrintedDocument, SiteDocument, printed
from gpuops.report.layout import Text
from gpuops.report.plan_json import BeforeAfterRecord, RejectionRecord, to_json_types
from gpuops.report.plan_text import STYLES, change_table, note_lines, rejection_lines, summary
from gpuops.report.step_changes import Change


def host_report_text(report: Report[HostStep]) -> Iterator[Text]:
    """Yield one run: refusals, or each host with its changes and, after an apply, its outcome."""
    plan = report.plan
    yield from rejection_lines("refused", plan.rejections, "bold red")
    outcomes = {outcome.step: outcome for outcome in report.outcomes}
    for step in plan.steps:
        yield _step_line(step, outcomes.get(step), report.before)
        yield from change_table(changes(step), longest=sys.maxsize)  # uncut: the admin must see all module options
    yield from note_lines(plan)
    if plan.steps and (not report.applied or report.changed):
        yield from (Text(f"next: {text}", "yellow") for text in plan.afterwards)
    yield Text(summary(report), "bold")


class HostStepRecord(DocumentRecord, frozen=True):
    """One change of the settings of a host."""

    kind: Annotated[
        str, "configure_module, configure_graphics, configure_passthrough, configure_modes or configure_mig"
    ]
    title: str
    host: NamedRecord
    changes: list[BeforeAfterRecord]


class HostOutcomeRecord(DocumentRecord, frozen=True):
    """The outcome of one step."""

    kind: str
    title: str
    host: NamedRecord
    verdict: Verdict
    reason: Annotated[str, "empty = there is nothing to say"]


class HostRunDocument(SiteDocument, frozen=True):
    """A change of hosts, and its outcomes. `request` holds the options, as `to_json_types` renders their class."""

    request: Any
    feasible: Annotated[bool, "whether it can be done"]
    applied: Annotated[bool, "whether something was done; never true of a dry run or a refusal"]
    changed: Annotated[bool, "whether hosts were changed, or in a dry run would be"]
    exit_code: int
    steps: list[HostStepRecord]
    rejections: Annotated[list[RejectionRecord], "why it cannot be done"]
    warnings: list[str]
    because: Annotated[list[str], "why nothing is to be done, and other notes"]
    afterwards: Annotated[list[str], "what is left to do, in order"]
    outcomes: Annotated[list[HostOutcomeRecord], "one for each step that was done"]

    @classmethod
    def made_of(cls, report: Report[HostStep]) -> Self:
        plan, before = report.plan, report.before
        return cls.from_attributes(
            report,
            plan,
            before,
            read_at=before.taken_at,
            request=to_json_types(report.request),
            applied=report.applied and report.changed,
            steps=[host_step_record(step, before) for step in plan.steps],
            outcomes=[host_outcome_record(outcome, before) for outcome in report.outcomes],
        )


def host_step_record(step: HostStep, before: Inventory) -> HostStepRecord:
    return HostStepRecord.from_attributes(**_step_fields(step, before), changes=changes(step))


def host_outcome_record(outcome: Outcome[HostStep], before: Inventory) -> HostOutcomeRecord:
    return HostOutcomeRecord.from_attributes(outcome, **_step_fields(outcome.step, before))


def host_report_document(report: Report[HostStep], kind: str) -> PrintedDocument:
    """Return one run as a document. `kind` is the verb: `scheduler-set`."""
    return DOCUMENTS[kind].made_of(report)


@printed("scheduler-set", by="gpuops host scheduler set")
class SchedulerSetDocument(HostRunDocument, frozen=True):
    """The vGPU scheduler that hosts get, and what became of it."""

    request: Annotated[SetScheduler, "the options as they were understood"]


@printed("mode-set", by="gpuops host mode set")
class ModeSetDocument(HostRunDocument, frozen=True):
    """The graphics configuration that hosts get, and what became of it."""

    request: Annotated[SetMode, "the options as they were understood"]


@printed("passthrough-on", by="gpuops host passthrough on")
class PassthroughOnDocument(HostRunDocument, frozen=True):
    """The GPUs that are given to VMs whole, by DirectPath I/O, and what became of it."""

    request: Annotated[SetPassthrough, "the options as they were understood"]


@printed("passthrough-off", by="gpuops host passthrough off")
class PassthroughOffDocument(HostRunDocument, frozen=True):
    """The GPUs that are taken out of DirectPath I/O, and what became of it."""

    request: Annotated[SetPassthrough, "the options as they were understood"]


@printed("mig-set-on", by="gpuops host mig on")
class MigSetOnDocument(HostRunDocument, frozen=True):
    """The GPUs whose MIG mode is switched on, and what became of it."""

    request: Annotated[SetMig, "the options as they were understood"]


@printed("mig-set-off", by="gpuops host mig off")
class MigSetOffDocument(HostRunDocument, frozen=True):
    """The GPUs whose MIG mode is switched off, and what became of it."""

    request: Annotated[SetMig, "the options as they were understood"]


def title(step: HostStep, inventory: Inventory) -> str:
    """Return a short description of the step."""
    host = inventory.hosts[step.host].name
    match step:
        case ConfigureModule():
            return f"set the options of module nvidia on {host}"
        case ConfigureGraphics():
            return f"set the graphics configuration of {host}"
        case ConfigurePassthrough():
            return f"set DirectPath I/O on {host}"
        case ConfigureModes():
            return f"set the mode of GPUs on {host}"
        case ConfigureMig(on=on):
            return f"switch MIG mode {'on' if on else 'off'} on {host}"
        case _:
            assert_never(step)


def changes(step: HostStep) -> tuple[Change, ...]:
    """Return what the step changes, for each GPU and for the host."""
    gpus = tuple(Change(str(gpu_change.gpu), gpu_change.before, gpu_change.after) for gpu_change in step.gpus)
    match step:
        case ConfigureModule(before=before, after=after):
            return (*gpus, Change("module options", before or None, after or None))
        case ConfigureGraphics(before=old, after=new):
            host_changes = (
                Change("default type", old.default_type, new.default_type),
                Change("assignment policy", old.assignment_policy, new.assignment_policy),
            )
            return (*(change for change in host_changes if change.before != change.after), *gpus)
        case ConfigurePassthrough() | ConfigureModes() | ConfigureMig():
            return gpus
        case _:
            assert_never(step)


_KINDS: Final[Mapping[type[HostStep], str]] = {
    ConfigureModule: "configure_module",
    ConfigureGraphics: "configure_graphics",
    ConfigurePassthrough: "configure_passthrough",
    ConfigureModes: "configure_modes",
    ConfigureMig: "configure_mig",
}


def _step_fields(step: HostStep, before: Inventory) -> dict[str, Any]:
    return {"kind": _KINDS[type(step)], "title": title(step, before), "host": before.hosts[step.host]}


def _step_line(step: HostStep, outcome: Outcome[HostStep] | None, before: Inventory) -> Text:
    line = Text("  ")
    if outcome is not None:
        line.append(f"{outcome.verdict:<8} ", STYLES[outcome.verdict])
    line.append(title(step, before))
    if outcome is not None and outcome.reason:
        line.append(f"  {outcome.reason}")
    return line
