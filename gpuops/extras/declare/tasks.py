"""The task that makes hosts and VMs what a site file says. The module `gpu_site` calls it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuops.extras.declare.applying import SiteReport, apply_site
from gpuops.extras.declare.site_file import decode_site, load_site
from gpuops.extras.declare.view import ApplyDocument, subject
from gpuops.report.document import Document
from gpuops.tasks.changes import refuse_outside_window, rolling_of
from gpuops.tasks.perform import PARTLY, REFUSED, TaskResult, difference, task_result
from gpuops.tasks.task_connection import NO_SHELL, ConnectionArguments, HostShellArguments, open_site


def gpu_site(
    connection: ConnectionArguments,
    file: str | None,
    content: Mapping[str, Any] | None,
    *,
    apply: bool,
    shell: HostShellArguments = NO_SHELL,
    **options: Any,
) -> TaskResult:
    """Change what differs from a site file, or from the content of one; `options` are those of `gpuops.tasks.changes`.

    Raises PolicyError for the file, UsageError for invalid options, and whatever `gpuops apply` raises.
    """
    site_file = load_site(Path(file).expanduser()) if file is not None else decode_site(content, "content")
    rolling = rolling_of(options)
    site, warnings = open_site(connection, require_verified=True, run="apply" if apply else "", shell=shell)
    with site:
        if rolling is None:
            refuse_outside_window(options.get("window"), site.clock())
        report = apply_site(site_file, site, rolling, apply=apply)
    fields = {
        "changed": report.changed,
        "afterwards": list(report.afterwards),
        "plan": ApplyDocument.made_of(report),
        "diff": _diff(report),
    }
    return task_result(
        fields,
        report.exit_code,
        _reasons(report),
        (*warnings, *report.warnings),
        PARTLY if report.feasible else REFUSED,
    )


def _diff(report: SiteReport) -> list[Document]:
    """Return the settings that are changed, for each host, GPU and VM; empty if `changed` is False."""
    before: dict[str, dict[str, str | None]] = {}
    after: dict[str, dict[str, str | None]] = {}
    for setting in report.differences if report.changed else ():
        # a setting that waits for a reboot changes only with one, and what was not done differs as before
        is_left = setting in report.remaining if report.applied else setting.pending and not report.roll.rounds
        if not is_left:
            before.setdefault(subject(setting), {})[setting.title] = setting.before
            after.setdefault(subject(setting), {})[setting.title] = setting.after
    return [difference(name, before[name], after[name]) for name in before]


def _reasons(report: SiteReport) -> list[str]:
    """Return every reason why something was not done, each with its next step."""
    return [rejection.line for rejection in (*report.rejections, *report.unmet, *report.failures)]
