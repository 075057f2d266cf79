"""Changing hosts: what every command that sets something on hosts does: open, run, report, and the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from gpuops.cli import output
from gpuops.cli.options import Common

if TYPE_CHECKING:
    from gpuops.plan.host_plan import HostRequest


def carry_out(request: HostRequest, kind: str, common: Common, *, dry_run: bool) -> None:
    """Runs it and prints the report; ends with its exit code. `kind` names the JSON document."""
    from gpuops.api import configure
    from gpuops.cli.opening import open_site, remember
    from gpuops.report.host_plan import host_report_document, host_report_text

    with open_site(common) as site:
        report = configure(request, site, apply=not dry_run)
    remember(common, report.before)
    output.show(host_report_text(report), host_report_document(report, kind))
    if report.exit_code:
        raise typer.Exit(report.exit_code)
