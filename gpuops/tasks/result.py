"""What a module of Ansible returns: changed, diff, every reason, and the plan as the JSON document shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final

from gpuops.api import catalog_of
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Report, Verdict
from gpuops.plan.core.steps import HostStep
from gpuops.plan.hosts.change.rolling_plan import ChangeReport
from gpuops.plan.placement.project import project
from gpuops.report.document import Document, PrintedDocument, as_values
from gpuops.report.vms.vm_state import differences
from gpuops.tasks.connection import NO_SHELL, ConnectionArguments, HostShellArguments, open_site, policy_of

REFUSED: Final = "refused, nothing changed"
PARTLY: Final = "partly done"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """`result` is made of JSON's own types: documents among its values become dicts."""

    result: Document
    exit_code: int = 0
    """As of the command line: anything but 0 fails the task."""
    message: str = ""
    """The error of a failed task, in one line."""
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "result", {key: as_values(field) for key, field in self.result.items()})


def task_result(
    fields: Document, exit_code: int, reasons: list[str], warnings: Iterable[str], headline: str, *reasons_told: str
) -> TaskResult:
    """Return the result with every reason; the error of a failed task joins them: `refused, nothing changed: A; B`.

    `reasons_told`: the reasons for that error, if they differ from `reasons`.
    """
    line = "; ".join(reasons_told or reasons)
    message = f"{headline}: {line}" if line else headline
    return TaskResult({**fields, "reasons": reasons}, exit_code, message if exit_code else "", tuple(warnings))


def reading(read: Callable[..., Document]) -> Callable[..., TaskResult]:
    """Turn `read(site, **options)`, which returns a document, into a task that returns this document as its result.

    The task changes nothing. It reads the file in the option `policy`, and raises PolicyError for it before the login.
    """

    @wraps(read)
    def task(connection: ConnectionArguments, *, shell: HostShellArguments = NO_SHELL, **options: Any) -> TaskResult:
        if "policy" in options:
            options["policy"] = policy_of(options["policy"])
        site, warnings = open_site(connection, shell=shell)
        with site:
            document = read(site, **options)
        return unchanged_result(document, warnings)

    return task


def unchanged_result(document: Document, warnings: Iterable[str] = ()) -> TaskResult:
    return TaskResult({"changed": False, **document}, warnings=tuple(warnings))


def difference(name: str, before: Document | str, after: Document | str) -> Document:
    """Return the difference of one object, as Ansible shows it with --diff."""
    return {"before_header": name, "after_header": name, "before": before, "after": after}


BAD: Final = frozenset({Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED})


def inventory_after(report: Report) -> Inventory:
    """Return the inventory after the change: as read back or, in check mode, as predicted."""
    if report.applied:
        return report.after or report.before
    world, catalog = report.before, catalog_of(report.before)
    for step in report.plan.steps if report.plan.feasible else ():
        world = project(step, world, catalog) if step.vm in world.vms else world
    return world


def result_of(report: Report, document: PrintedDocument, after: Inventory, warnings: list[str]) -> TaskResult:
    """Return the result of a change of VMs; `document`: the plan, as the command line prints it."""
    fields: Document = {
        "changed": report.changed,
        "diff": differences([step.vm for step in report.plan.steps], report.before, after),
        "because": list(report.plan.because),
        "plan": document,
    }
    reasons = reasons_of(report, *(unmet_row.line for unmet_row in report.plan.unmet))
    headline = PARTLY if report.plan.feasible else REFUSED  # printed only if the task fails
    headline = "done without its journal" if report.journal_lost else headline
    return task_result(fields, report.exit_code, reasons, (*warnings, *report.plan.warnings), headline)


def reasons_of(report: Report | Report[HostStep] | ChangeReport, *unmet: str) -> list[str]:
    """Return every reason why something was not done, each with its next step."""
    failed = [outcome.reason for outcome in report.outcomes if outcome.verdict in BAD and outcome.reason]
    return [*(rejection.line for rejection in report.plan.rejections), *unmet, *failed]
