"""Hosts: tasks that set what hosts do with their GPUs. What waits for a reboot is said; nothing here reboots a host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from gpuops.plan.outcome import Verdict
from gpuops.tasks.answer import Answer, reasons_line
from gpuops.tasks.connection import Said, open_site

if TYPE_CHECKING:
    from gpuops.model.inventory import Inventory
    from gpuops.plan.host_plan import HostReport, HostRequest
    from gpuops.plan.steps import HostStep
    from gpuops.report.plan_json import Document

_BAD: Final = frozenset({Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED})


def host_gpu_scheduler(said: Said, options: Mapping[str, Any], *, apply: bool) -> Answer:
    """`options` are the fields of `SetScheduler`; None = not given. Raises GpuopsError."""
    from gpuops.model.scheduler import SchedulerPolicy
    from gpuops.plan.scheduler.change import SetScheduler

    given = _given(options)
    request = SetScheduler(**{**given, "policy": SchedulerPolicy(given["policy"])})
    return _configured(request, "scheduler-set", said, apply=apply)


def host_graphics_mode(said: Said, options: Mapping[str, Any], *, apply: bool) -> Answer:
    """`options` are the fields of `SetMode`; None = not given. Raises GpuopsError."""
    from gpuops.model.gpu import AssignmentPolicy
    from gpuops.model.host_settings import SharedType, SizeMode
    from gpuops.plan.graphics.mode import SetMode

    words = {"default_type": SharedType, "type": SharedType, "vgpu_mode": SizeMode, "assignment": AssignmentPolicy}
    given = _given(options)
    chosen: dict[str, Any] = {name: kind(given[name]) for name, kind in words.items() if name in given}
    request = SetMode(**{**given, **chosen})
    return _configured(request, "mode-set", said, apply=apply)


def host_passthrough(said: Said, options: Mapping[str, Any], *, apply: bool) -> Answer:
    """`options` are the fields of `SetPassthrough`; None = not given. Raises GpuopsError."""
    from gpuops.plan.graphics.passthrough import SetPassthrough

    request = SetPassthrough(**_given(options))
    return _configured(request, f"passthrough-{'on' if request.on else 'off'}", said, apply=apply)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Without what a task leaves out; lists as requests keep them."""
    given = {name: value for name, value in options.items() if value is not None}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _configured(request: HostRequest, kind: str, said: Said, *, apply: bool) -> Answer:
    from gpuops.api import configure
    from gpuops.report.host_plan import host_report_document

    site, warnings = open_site(said)
    with site:
        report = configure(request, site, apply=apply)
    reasons = _reasons(report)
    result: Document = {
        "changed": report.changed,
        "diff": [_difference(step, report.before) for step in report.plan.steps if report.plan.feasible],
        "because": list(report.plan.because),
        "afterwards": list(report.plan.afterwards),
        "reasons": reasons,
        "plan": host_report_document(report, kind),
    }
    headline = "partly done" if report.plan.feasible else "refused, nothing changed"
    message = reasons_line(reasons, headline) if report.exit_code else ""
    return Answer(result, report.exit_code, message, (*warnings, *report.plan.warnings))


def _difference(step: HostStep, before: Inventory) -> Document:
    from gpuops.report.host_plan import changes

    name = before.hosts[step.host].name
    found = changes(step)
    return {
        "before_header": name,
        "after_header": name,
        "before": {change.what: change.before for change in found},
        "after": {change.what: change.after for change in found},
    }


def _reasons(report: HostReport) -> list[str]:
    """Every reason why something is not done, each with its next move."""
    told = [f"{each} (next: {each.hint})" if each.hint else str(each) for each in report.plan.rejections]
    return [*told, *(outcome.reason for outcome in report.outcomes if outcome.verdict in _BAD and outcome.reason)]
