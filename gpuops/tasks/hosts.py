"""Tasks that set what hosts do with their GPUs. The modules `host_*` of the collection call them.

What waits for a reboot is said in the result; `reboot=rolling` does it, host by host. Outside of the task's window
nothing is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from gpuops.api import change, configure
from gpuops.config.date_text import parse_window
from gpuops.errors import Refused, UsageError
from gpuops.model.vcenter.host_settings import Rolling
from gpuops.plan.core.plan import Report
from gpuops.plan.core.steps import HostStep
from gpuops.plan.hosts.change.rolling_plan import ChangeReport, shut
from gpuops.plan.hosts.graphics.mode import SetMode
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.plan.hosts.host_plan import HostRequest
from gpuops.plan.hosts.scheduler.change import SetScheduler
from gpuops.report.document import PrintedDocument
from gpuops.report.hosts.change import ChangeDocument
from gpuops.report.hosts.host_plan import changes, host_report_document
from gpuops.tasks.connection import ConnectionArguments, open_site, request_of
from gpuops.tasks.perform import PARTLY, REFUSED, TaskResult, difference, reasons_of, task_result

OPTIONS: Final = ("reboot", "max_hosts", "window", "vms", "vsan_mode")
"""The options for reboots, in addition to the fields of the request."""


def host_gpu_scheduler(connection: ConnectionArguments, *, apply: bool, **options: Any) -> TaskResult:
    """`options` are the fields of `SetScheduler` and those of `OPTIONS`, as for the other tasks of hosts."""
    return _set(connection, SetScheduler, "scheduler set", options, apply=apply)


def host_graphics_mode(connection: ConnectionArguments, *, apply: bool, **options: Any) -> TaskResult:
    return _set(connection, SetMode, "mode set", options, apply=apply)


def host_passthrough(connection: ConnectionArguments, *, state: str, apply: bool, **options: Any) -> TaskResult:
    on = state == "enabled"
    return _set(connection, SetPassthrough, f"passthrough {'on' if on else 'off'}", {**options, "on": on}, apply=apply)


def rolling_of(options: Mapping[str, Any]) -> Rolling | None:
    """Return how to reboot hosts; None = no reboots. Raises UsageError for an option that needs `reboot=rolling`."""
    chosen = {name: options[name] for name in OPTIONS if options.get(name) is not None}
    if chosen.pop("reboot", None) is None:
        # `window` also makes sense without reboots: nothing is set outside of it
        stray = next((name for name in chosen if name != "window"), None)
        if stray is not None:
            raise UsageError(f"{stray} needs reboot=rolling", hint="set both, or neither")
        return None
    if chosen.get("max_hosts", 1) < 1:
        raise UsageError(f"max_hosts {chosen['max_hosts']} is too small", hint="set it to 1 or more")
    return request_of(Rolling, {**chosen, "window": parse_window(chosen["window"])} if "window" in chosen else chosen)


def refuse_outside_window(window: str | None, now: datetime) -> None:
    """Raise Refused while the task's window is closed, UsageError for an invalid window; None = no window."""
    for closed in shut(Rolling(window=parse_window(window)), now) if window is not None else ():
        raise Refused(str(closed), hint=closed.hint)


def _set(
    connection: ConnectionArguments, kind: type[HostRequest], verb: str, options: dict[str, Any], *, apply: bool
) -> TaskResult:
    """Change the settings of hosts; with `reboot=rolling` also reboot the hosts, so that the settings take effect.

    A connection without a verified certificate is refused for reboots, as for a rotation.
    """
    rebooting = {name: options.pop(name, None) for name in OPTIONS}
    request, rolling = request_of(kind, options), rolling_of(rebooting)
    site, warnings = open_site(connection, guarded=rolling is not None, run=verb if rolling and apply else "")
    with site:
        if rolling is not None:
            return change_result(change(request, verb, rolling, site, apply=apply), warnings)
        refuse_outside_window(rebooting["window"], site.clock())
        report = configure(request, site, apply=apply)
    document = host_report_document(report, verb.replace(" ", "-"))
    return _task_result(report, document, report.plan.afterwards, report.plan.steps, warnings)


def change_result(report: ChangeReport, warnings: list[str]) -> TaskResult:
    """Return the result of a rolling change. It has the same keys as that of a change without reboots."""
    steps = [planned.step for planned in report.plan.planned_hosts]
    return _task_result(report, ChangeDocument.made_of(report), report.afterwards, steps, warnings)


def _task_result(
    report: Report[HostStep] | ChangeReport,
    document: PrintedDocument,
    afterwards: Sequence[str],
    steps: Sequence[HostStep],
    warnings: list[str],
) -> TaskResult:
    settings = [(report.before.hosts[step.host].name, changes(step)) for step in steps if report.plan.feasible]
    fields = {
        "changed": report.changed,
        "because": list(report.plan.because),
        "afterwards": list(afterwards),
        "plan": document,
        "diff": [
            difference(
                host,
                {setting.what: setting.before for setting in changed},
                {setting.what: setting.after for setting in changed},
            )
            for host, changed in settings
        ],
    }
    headline = PARTLY if report.plan.feasible else REFUSED  # printed only if the task fails
    return task_result(fields, report.exit_code, reasons_of(report), (*warnings, *report.plan.warnings), headline)
