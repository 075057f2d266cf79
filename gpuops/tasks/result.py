"""What a module of Ansible returns: changed, diff, every reason, and the plan as the JSON document shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpuops.plan.core.outcome import Report, Verdict
from gpuops.plan.placement.project import project
from gpuops.report.document import Document, as_values
from gpuops.report.plan_json import report_document
from gpuops.report.vms.vm_state import differences

if TYPE_CHECKING:
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.plan.core.steps import Step


@dataclass(frozen=True, slots=True)
class TaskResult:
    """`result` is made of JSON's own types."""

    result: Document
    exit_code: int = 0
    """As of the command line: anything but 0 fails the task."""
    message: str = ""
    """What a failed task says in one line."""
    warnings: tuple[str, ...] = field(default=())


def reasons_line(reasons: list[str], done: str) -> str:
    """Every reason in one line: `refused, nothing changed: A; B`."""
    return f"{done}: {'; '.join(reasons)}" if reasons else done


BAD: Final = frozenset({Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED})


def inventory_after(report: Report) -> Inventory:
    """How the VMs are afterwards: as they were read back, foreseen in check mode."""
    if not report.applied:
        return _foreseen(report.plan.steps if report.plan.feasible else (), report.before)
    return report.after or report.before


def result_of(report: Report, kind: str, after: Inventory, warnings: list[str]) -> TaskResult:
    """`kind` names the plan's document, as for the command line."""
    reasons = _reasons(report)
    result: Document = {
        "changed": report.changed,
        "diff": differences([step.vm for step in report.plan.steps], report.before, after),
        "because": list(report.plan.because),
        "reasons": reasons,
        "plan": as_values(report_document(report, kind)),
    }
    message = reasons_line(reasons, _headline(report)) if report.exit_code else ""
    return TaskResult(result, report.exit_code, message, (*warnings, *report.plan.warnings))


def _foreseen(steps: list[Step] | tuple[Step, ...], before: Inventory) -> Inventory:
    from gpuops.api import catalog_of

    world, catalog = before, catalog_of(before)
    for step in steps:
        if step.vm in world.vms:
            world = project(step, world, catalog)
    return world


def _reasons(report: Report) -> list[str]:
    """Every reason why something is not done, each with its next move."""
    against = [*report.plan.rejections, *report.plan.unmet]
    told = [each.line for each in against]
    return [*told, *(outcome.reason for outcome in report.outcomes if outcome.verdict in BAD and outcome.reason)]


def _headline(report: Report) -> str:
    if report.journal_lost:
        return "done without its journal"
    return "partly done" if report.plan.feasible else "refused, nothing changed"
