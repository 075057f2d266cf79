"""Changing hosts: what every command that sets something on hosts does: open, run, report, and the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from gpuops.cli import output
from gpuops.cli.options import Common, Rebooting

if TYPE_CHECKING:
    from gpuops.api import HostShell
    from gpuops.model.rolling import Rolling
    from gpuops.plan.hosts.host_plan import HostRequest

AS_THEY_ARE: Final = Rebooting()


def carry_out(
    request: HostRequest,
    kind: str,
    common: Common,
    rebooting: Rebooting = AS_THEY_ARE,
    *,
    dry_run: bool,
    shell: HostShell | None = None,
) -> None:
    """Runs it and prints the report; ends with its exit code. `kind` names the JSON document."""
    rolling = rebooting.rolling()
    if rolling is not None:
        _roll(request, kind, common, rolling, shell, yes=rebooting.yes, dry_run=dry_run)
        return
    from gpuops.api import configure
    from gpuops.cli.opening import open_site, remember
    from gpuops.report.host_plan import host_report_document, host_report_text

    with open_site(common) as site:
        site.shell = shell
        report = configure(request, site, apply=not dry_run)
    remember(common, report.before)
    output.show(host_report_text(report), host_report_document(report, kind))
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _roll(
    request: HostRequest,
    kind: str,
    common: Common,
    rolling: Rolling,
    shell: HostShell | None,
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    from gpuops.api import change
    from gpuops.cli.change import Told, asking, show
    from gpuops.cli.opening import open_site, remember

    verb = kind.replace("-", " ")
    with open_site(common, guarded=True) as site, Told() as told:
        site.shell = shell
        report = change(request, verb, rolling, site, apply=not dry_run, consent=asking(yes=yes), told=told)
    remember(common, report.before)
    show(report)
