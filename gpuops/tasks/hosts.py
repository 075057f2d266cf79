"""Tasks that set what hosts do with their GPUs. The modules `host_*` of the collection call them.

What waits for a reboot is said in the result; `reboot=rolling` does it, host by host. Outside of the task's window
nothing is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_type_hints

from gpuops.errors import Refused, UsageError
from gpuops.plan.core.outcome import Verdict
from gpuops.tasks.connection import ConnectionArguments, open_site
from gpuops.tasks.result import TaskResult, reasons_line

if TYPE_CHECKING:
    from gpuops.model.vcenter.host_settings import Rolling
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.plan.core.host_steps import HostStep
    from gpuops.plan.core.outcome import Report
    from gpuops.plan.hosts.change.report import ChangeReport
    from gpuops.plan.hosts.host_plan import HostRequest
    from gpuops.report.document import Document


OPTIONS: Final = ("reboot", "max_hosts", "window", "vms", "vsan_mode")
"""What a task says of it, beside the fields of its request."""


def rolling_of(options: Mapping[str, Any]) -> Rolling | None:
    """How hosts are rebooted; None = they are not. Raises UsageError for what means nothing then."""
    from gpuops.model.vcenter.host_settings import Displacement, Rolling, VsanMode

    given = {name: options[name] for name in OPTIONS if options.get(name) is not None}
    if given.pop("reboot", None) is None:
        stray = next((name for name in given if name != "window"), None)
        if stray is not None:
            raise UsageError(f"{stray} is of reboot=rolling", hint="say both, or neither")
        return None
    if given.get("max_hosts", 1) < 1:
        raise UsageError(f"max_hosts {given['max_hosts']} means nothing here", hint="it is 1 or more")
    words = {"vms": Displacement, "vsan_mode": VsanMode}
    said = {name: words[name](value) if name in words else value for name, value in given.items()}
    return Rolling(**{**said, "window": _window(options)} if "window" in said else said)


def refuse_outside_window(options: Mapping[str, Any], now: datetime) -> None:
    """Raises Refused while the task's window is closed, UsageError for text that is none."""
    from gpuops.model.vcenter.host_settings import Rolling
    from gpuops.plan.hosts.change.roll import shut

    if options.get("window") is None:
        return
    for closed in shut(Rolling(window=_window(options)), now):
        raise Refused(str(closed), hint=closed.hint)


def rolled(report: ChangeReport) -> tuple[Document, list[str]]:
    """What a rolling change returns beside its diff and its reasons: the same keys as one without reboots."""
    from gpuops.report.document import as_values
    from gpuops.report.hosts.change import change_document

    result: Document = {
        "changed": report.changed,
        "because": list(report.plan.because),
        "afterwards": list(report.afterwards),
        "plan": as_values(change_document(report)),
    }
    return result, list(report.plan.warnings)


def _window(options: Mapping[str, Any]) -> Any:
    from gpuops.config.date_text import parse_window

    return parse_window(options["window"])


_BAD: Final = frozenset({Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED})

Request = TypeVar("Request")

ALONE: Final[Mapping[str, Any]] = MappingProxyType({})
"""Of a task that reboots nothing, at any time."""


def host_gpu_scheduler(
    connection: ConnectionArguments, options: Mapping[str, Any], rebooting: Mapping[str, Any] = ALONE, *, apply: bool
) -> TaskResult:
    """`options` are the fields of `SetScheduler`, `rebooting` what `rolling_of` reads; None = not given."""
    from gpuops.plan.hosts.scheduler.change import SetScheduler

    request = _request(SetScheduler, options)
    return _set(request, "scheduler-set", connection, rebooting, apply=apply)


def host_graphics_mode(
    connection: ConnectionArguments, options: Mapping[str, Any], rebooting: Mapping[str, Any] = ALONE, *, apply: bool
) -> TaskResult:
    """`options` are the fields of `SetMode`; None = not given. Raises GpuopsError."""
    from gpuops.plan.hosts.graphics.mode import SetMode

    request = _request(SetMode, options)
    return _set(request, "mode-set", connection, rebooting, apply=apply)


def host_passthrough(
    connection: ConnectionArguments, options: Mapping[str, Any], rebooting: Mapping[str, Any] = ALONE, *, apply: bool
) -> TaskResult:
    """`options` are the fields of `SetPassthrough`; None = not given. Raises GpuopsError."""
    from gpuops.plan.hosts.graphics.passthrough import SetPassthrough

    request = _request(SetPassthrough, options)
    return _set(request, f"passthrough-{'on' if request.on else 'off'}", connection, rebooting, apply=apply)


def _request(kind: type[Request], options: Mapping[str, Any]) -> Request:
    """The request that these options make: text becomes the word of the field's vocabulary. None = not given."""
    hints = get_type_hints(kind)
    return kind(**{name: _value(hints[name], value) for name, value in options.items() if value is not None})


def _value(hint: Any, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    words = [each for each in (hint, *get_args(hint)) if isinstance(each, type) and issubclass(each, StrEnum)]
    return words[0](value) if words else value


def _set(
    request: HostRequest, kind: str, connection: ConnectionArguments, rebooting: Mapping[str, Any], *, apply: bool
) -> TaskResult:
    """Set, and with `reboot=rolling` brought into force, which asks of the connection what a rotation does."""
    from gpuops.api import change, configure

    rolling = rolling_of(rebooting)
    verb = kind.replace("-", " ")
    site, warnings = open_site(connection, guarded=rolling is not None, run=verb if rolling and apply else "")
    with site:
        if rolling is not None:
            return _change_result(change(request, verb, rolling, site, apply=apply), warnings)
        refuse_outside_window(rebooting, site.clock())
        return _settings_result(configure(request, site, apply=apply), kind, warnings)


def _change_result(report: ChangeReport, warnings: list[str]) -> TaskResult:
    result, doubts = rolled(report)
    steps = [turn.step for turn in report.plan.planned_hosts]
    return _result(report, result, steps, (*warnings, *doubts))


def _settings_result(report: Report[HostStep], kind: str, warnings: list[str]) -> TaskResult:
    from gpuops.report.document import as_values
    from gpuops.report.hosts.host_plan import host_report_document

    result: Document = {
        "changed": report.changed,
        "because": list(report.plan.because),
        "afterwards": list(report.plan.afterwards),
        "plan": as_values(host_report_document(report, kind)),
    }
    return _result(report, result, report.plan.steps, (*warnings, *report.plan.warnings))


def _result(
    report: Report[HostStep] | ChangeReport, result: Document, steps: Sequence[HostStep], warnings: tuple[str, ...]
) -> TaskResult:
    reasons, feasible = _reasons(report), report.plan.feasible
    headline = "partly done" if feasible else "refused, nothing changed"
    message = reasons_line(reasons, headline) if report.exit_code else ""
    diff = [_difference(step, report.before) for step in steps if feasible]
    return TaskResult({**result, "diff": diff, "reasons": reasons}, report.exit_code, message, warnings)


def _difference(step: HostStep, before: Inventory) -> Document:
    from gpuops.report.hosts.host_plan import changes

    name = before.hosts[step.host].name
    found = changes(step)
    return {
        "before_header": name,
        "after_header": name,
        "before": {change.what: change.before for change in found},
        "after": {change.what: change.after for change in found},
    }


def _reasons(report: Report[HostStep] | ChangeReport) -> list[str]:
    """Every reason why something is not done, each with its next move."""
    told = [each.line for each in report.plan.rejections]
    return [*told, *(outcome.reason for outcome in report.outcomes if outcome.verdict in _BAD and outcome.reason)]
