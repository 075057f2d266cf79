"""`gpuops change`: shows, resumes, aborts or gives up a rolling change of hosts, or moves of VMs, that did not end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.console import output
from gpuops.console.commands import UNFINISHED, VerbTable
from gpuops.console.drawn_progress import ChangeProgress
from gpuops.console.options import CommonOptions, DryRun, HostShellOptions, RunOptions
from gpuops.console.spread import reads_sites, spread
from gpuops.errors import UsageError
from gpuops.plan.core.plan import Report

if TYPE_CHECKING:
    from gpuops.plan.core.abandonment import Abandonment
    from gpuops.plan.hosts.change.rolling_plan import ChangeReport

change = VerbTable("change", "See, finish or give up a rolling change of hosts that did not end.")


@change.command()
@spread
@reads_sites
def status(common: CommonOptions) -> None:
    """Show the change that has not ended: which hosts are done, and which VMs are not back. Changes nothing.

    \b
    Example:
      gpuops change status --vcenter prod
    """
    from gpuops.api import change_status
    from gpuops.console.opening import open_site
    from gpuops.report.hosts.change_view import ChangeStatusDocument, status_text

    with open_site(common) as site:
        change_state = change_status(site)
    output.show(status_text(change_state), ChangeStatusDocument.made_of(change_state))


@change.command(epilog=UNFINISHED)
@spread
def resume(common: CommonOptions, run_options: RunOptions, host_shell: HostShellOptions) -> None:
    """Finish an interrupted or stopped change, with its original options.

    A host whose turn has begun is finished at any hour; another is begun only while the change's window is open.
    A change of MIG mode needs its --host-shell again.

    \b
    Example:
      gpuops change resume --yes --vcenter prod
    """
    from gpuops.api import change_resume

    _carry_out(change_resume, "change resume", common, run_options, host_shell)


@change.command(epilog=UNFINISHED)
@spread
def abort(common: CommonOptions, run_options: RunOptions) -> None:
    """Stop the change: hosts under way serve VMs again and get their own back; the others are left alone.

    What was set on a host and is not in force yet stays set, for its next reboot.

    \b
    Example:
      gpuops change abort --yes --vcenter prod
    """
    from gpuops.api import change_abort

    _carry_out(change_abort, "change abort", common, run_options, HostShellOptions())


@change.command(epilog=UNFINISHED)
@spread
def abandon(
    common: CommonOptions,
    host: Annotated[
        str | None, typer.Option("--host", metavar="HOST", help="A host of the change that never comes back.")
    ] = None,
    vm: Annotated[
        str | None, typer.Option("--vm", metavar="VM", help="A VM that it took from its host and cannot bring back.")
    ] = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
) -> None:
    """Give up one host or VM of a change for good: the change no longer waits for it.

    vCenter is not changed. The host stays as it is, perhaps in maintenance mode and with some settings changed. VMs
    that were moved from it stay where they are, and those that were shut down for it are not started. When nothing else
    remains, the change ends, and other changes and nights run again. doctor and status list it until it is back.

    \b
    Example:
      gpuops change abandon --host esx-03 --yes --vcenter prod
      gpuops change abandon --vm vdi-007 --vcenter prod
    """
    from gpuops.api import change_abandon
    from gpuops.console.opening import open_site
    from gpuops.model.nights.history import Thing

    if (host is None) == (vm is None):
        raise UsageError("abandon needs either a host or a VM", hint="add --host NAME or --vm NAME")
    kind, name = (Thing.HOST, host) if host is not None else (Thing.VM, vm)
    with open_site(common, require_verified=True) as site:
        show_abandoned(change_abandon(site, kind, name or "", apply=not dry_run, consent=confirm_giving_up(yes=yes)))


def _carry_out(
    api_function: Callable[..., ChangeReport | Report],
    command: str,
    common: CommonOptions,
    run_options: RunOptions,
    host_shell: HostShellOptions,
) -> None:
    from gpuops.console.opening import open_site

    run = command if not run_options.dry_run else ""
    with open_site(common, require_verified=True, run=run) as site, ChangeProgress() as progress:
        host_shell.give_to(site)
        report = api_function(
            site, apply=not run_options.dry_run, consent=confirm_reboots(yes=run_options.yes), on_progress=progress
        )
    show(report)


def confirm_reboots(*, yes: bool) -> Callable[[ChangeReport], None]:
    """Return a function that asks before hosts are taken out of service; with `yes` it does not ask."""

    def ask(report: ChangeReport) -> None:
        from gpuops.console.running import confirm
        from gpuops.report.hosts.change_view import change_text

        if not yes:
            confirm(change_text(report))

    return ask


def confirm_giving_up(*, yes: bool) -> Callable[[Abandonment], None]:
    """Return a function that asks before a host or VM is given up; with `yes` it does not ask."""

    def ask(abandonment: Abandonment) -> None:
        from gpuops.console.running import confirm
        from gpuops.report.hosts.change_view import abandonment_text

        if not yes:
            confirm(abandonment_text(abandonment), "the above gives something up for good")

    return ask


def show_abandoned(abandonment: Abandonment) -> None:
    """Print what was given up."""
    from gpuops.report.hosts.change_view import abandonment_document, abandonment_text

    output.show(abandonment_text(abandonment), abandonment_document(abandonment))


def show(report: ChangeReport | Report) -> None:
    """Print the report and end with its exit code."""
    from gpuops.console.running import show_brief
    from gpuops.report.hosts.change_view import ChangeDocument, change_text
    from gpuops.report.plan_json import DefragExecuteDocument
    from gpuops.report.plan_text import report_text
    from gpuops.report.run_progress import change_line, run_line

    document = DefragExecuteDocument.made_of(report) if isinstance(report, Report) else ChangeDocument.made_of(report)
    if output.manners().quiet:
        line = run_line(report, "defrag-execute") if isinstance(report, Report) else change_line(report)
        show_brief(line, report.plan.warnings, document)
    else:
        output.show(report_text(report) if isinstance(report, Report) else change_text(report), document)
    output.leave(report.exit_code)
