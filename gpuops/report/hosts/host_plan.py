"""What commands that set something on hosts print: their plan and its outcomes, as text and as the JSON document."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import assert_never

from gpuops.model.vcenter.host_settings import GraphicsSettings
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.host_steps import (
    ConfigureGraphics,
    ConfigureMig,
    ConfigureModes,
    ConfigureModule,
    ConfigurePassthrough,
    HostStep,
)
from gpuops.plan.core.outcome import Outcome, Report
from gpuops.report.changes import Change
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text
from gpuops.report.plan_json import RejectionRecord, plain
from gpuops.report.plan_text import STYLES, rejection_lines, summary, table
from gpuops.report.text import visible


def host_report_text(report: Report[HostStep]) -> Shown:
    """One run: refusals, or each host with its changes and, once applied, its outcome; and one closing line."""
    return (*_lines(report), Text(summary(report), "bold"))


def host_report_document(report: Report[HostStep], kind: str) -> Document:
    """One run. `kind` is the verb: `scheduler-set`."""
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
        "steps": [_step(step, before) for step in plan.steps],
        "rejections": [RejectionRecord.made_of(rejection) for rejection in plan.rejections],
        "warnings": list(plan.warnings),
        "because": list(plan.because),
        "afterwards": list(plan.afterwards),
        "outcomes": [
            {
                "kind": _kind(outcome.step),
                "title": title(outcome.step, before),
                "host": _host(outcome.step, before),
                "verdict": outcome.verdict.value,
                "reason": outcome.reason,
            }
            for outcome in report.outcomes
        ],
    }


def title(step: HostStep, inventory: Inventory) -> str:
    """What the step does, in a few words."""
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
    """What the step alters, GPU by GPU, and as the host keeps it."""
    gpus = tuple(Change(str(each.gpu), each.before, each.after) for each in step.gpus)
    match step:
        case ConfigureModule(before=before, after=after):
            return (*gpus, Change("module options", before or None, after or None))
        case ConfigureGraphics(before=was, after=will):
            return (*_of_host(was, will), *gpus)
        case ConfigurePassthrough() | ConfigureModes() | ConfigureMig():
            return gpus
        case _:
            assert_never(step)


def _of_host(before: GraphicsSettings, after: GraphicsSettings) -> Iterator[Change]:
    if before.default_type != after.default_type:
        yield Change("default type", before.default_type, after.default_type)
    if before.assignment_policy != after.assignment_policy:
        yield Change("assignment policy", before.assignment_policy, after.assignment_policy)


def _kind(step: HostStep) -> str:
    match step:
        case ConfigureModule():
            return "configure_module"
        case ConfigureGraphics():
            return "configure_graphics"
        case ConfigurePassthrough():
            return "configure_passthrough"
        case ConfigureModes():
            return "configure_modes"
        case ConfigureMig():
            return "configure_mig"
        case _:
            assert_never(step)


def _step(step: HostStep, before: Inventory) -> Document:
    return {
        "kind": _kind(step),
        "title": title(step, before),
        "host": _host(step, before),
        "changes": [{"what": each.what, "before": each.before, "after": each.after} for each in changes(step)],
    }


def _host(step: HostStep, inventory: Inventory) -> Document:
    return {"ref": step.host, "name": inventory.hosts[step.host].name}


def _lines(report: Report[HostStep]) -> Iterator[Text]:
    plan = report.plan
    yield from rejection_lines("refused", plan.rejections, "bold red")
    outcomes = {outcome.step: outcome for outcome in report.outcomes}
    for step in plan.steps:
        yield _head(step, outcomes.get(step), report.before)
        yield from table(changes(step), longest=sys.maxsize)  # options are read whole before they are agreed to
    yield from (Text(f"warning: {visible(text)}", "yellow") for text in plan.warnings)
    if plan.steps:
        yield from (Text(f"note: {visible(text)}", "dim") for text in plan.because)
    if plan.steps and (not report.applied or report.changed):
        yield from (Text(f"next: {visible(text)}", "yellow") for text in plan.afterwards)


def _head(step: HostStep, outcome: Outcome[HostStep] | None, before: Inventory) -> Text:
    line = Text("  ")
    if outcome is not None:
        line.append(f"{outcome.verdict:<8} ", STYLES[outcome.verdict])
    line.append(visible(title(step, before)))
    if outcome is not None and outcome.reason:
        line.append(f"  {visible(outcome.reason)}")
    return line
