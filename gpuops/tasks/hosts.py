"""Hosts: tasks that set what hosts do with their GPUs. What waits for a reboot is said; `reboot=rolling` does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from gpuops.plan.core.outcome import Verdict
from gpuops.tasks.answer import Answer, reasons_line
from gpuops.tasks.connection import Said, open_site
from gpuops.tasks.rolling import must_be_open, rolled, rolling_of

if TYPE_CHECKING:
    from gpuops.model.inventory import Inventory
    from gpuops.plan.core.steps import HostStep
    from gpuops.plan.hosts.change.report import ChangeReport
    from gpuops.plan.hosts.host_plan import HostReport, HostRequest
    from gpuops.report.plan_json import Document

_BAD: Final = frozenset({Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED})

ALONE: Final[Mapping[str, Any]] = MappingProxyType({})
"""Of a task that reboots nothing, at any time."""


def host_gpu_scheduler(
    said: Said, options: Mapping[str, Any], rebooting: Mapping[str, Any] = ALONE, *, apply: bool
) -> Answer:
    """`options` are the fields of `SetScheduler`, `rebooting` what `rolling_of` reads; None = not given."""
    from gpuops.model.scheduler import SchedulerPolicy
    from gpuops.plan.hosts.scheduler.change import SetScheduler

    given = _given(options)
    request = SetScheduler(**{**given, "policy": SchedulerPolicy(given["policy"])})
    return _set(request, "scheduler-set", said, rebooting, apply=apply)


def host_graphics_mode(
    said: Said, options: Mapping[str, Any], rebooting: Mapping[str, Any] = ALONE, *, apply: bool
) -> Answer:
    """`options` are the fields of `SetMode`; None = not given. Raises GpuopsError."""
    from gpuops.model.gpu import AssignmentPolicy
    from gpuops.model.host_settings import SharedType, SizeMode
    from gpuops.plan.hosts.graphics.mode import SetMode

    words = {"default_type": SharedType, "type": SharedType, "vgpu_mode": SizeMode, "assignment": AssignmentPolicy}
    given = _given(options)
    chosen: dict[str, Any] = {name: kind(given[name]) for name, kind in words.items() if name in given}
    request = SetMode(**{**given, **chosen})
    return _set(request, "mode-set", said, rebooting, apply=apply)


def host_passthrough(
    said: Said, options: Mapping[str, Any], rebooting: Mapping[str, Any] = ALONE, *, apply: bool
) -> Answer:
    """`options` are the fields of `SetPassthrough`; None = not given. Raises GpuopsError."""
    from gpuops.plan.hosts.graphics.passthrough import SetPassthrough

    request = SetPassthrough(**_given(options))
    return _set(request, f"passthrough-{'on' if request.on else 'off'}", said, rebooting, apply=apply)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Without what a task leaves out; lists as requests keep them."""
    given = {name: value for name, value in options.items() if value is not None}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _set(request: HostRequest, kind: str, said: Said, rebooting: Mapping[str, Any], *, apply: bool) -> Answer:
    """Set, and with `reboot=rolling` brought into force, which asks of the connection what a rotation does."""
    from gpuops.api import change, configure

    rolling = rolling_of(rebooting)
    site, warnings = open_site(said, guarded=rolling is not None)
    with site:
        if rolling is not None:
            return _told(change(request, kind.replace("-", " "), rolling, site, apply=apply), warnings)
        must_be_open(rebooting, site.clock())
        return _configured(configure(request, site, apply=apply), kind, warnings)


def _told(report: ChangeReport, warnings: list[str]) -> Answer:
    result, doubts = rolled(report)
    steps = [turn.step for turn in report.plan.turns]
    return _answer(report, result, steps, (*warnings, *doubts))


def _configured(report: HostReport, kind: str, warnings: list[str]) -> Answer:
    from gpuops.report.host_plan import host_report_document

    result: Document = {
        "changed": report.changed,
        "because": list(report.plan.because),
        "afterwards": list(report.plan.afterwards),
        "plan": host_report_document(report, kind),
    }
    return _answer(report, result, report.plan.steps, (*warnings, *report.plan.warnings))


def _answer(
    report: HostReport | ChangeReport, result: Document, steps: Sequence[HostStep], warnings: tuple[str, ...]
) -> Answer:
    reasons, feasible = _reasons(report), report.plan.feasible
    headline = "partly done" if feasible else "refused, nothing changed"
    message = reasons_line(reasons, headline) if report.exit_code else ""
    diff = [_difference(step, report.before) for step in steps if feasible]
    return Answer({**result, "diff": diff, "reasons": reasons}, report.exit_code, message, warnings)


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


def _reasons(report: HostReport | ChangeReport) -> list[str]:
    """Every reason why something is not done, each with its next move."""
    told = [each.line for each in report.plan.rejections]
    return [*told, *(outcome.reason for outcome in report.outcomes if outcome.verdict in _BAD and outcome.reason)]
