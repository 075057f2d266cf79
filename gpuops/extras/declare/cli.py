"""`gpuops diff`, `apply`, `assert`, `drift` and `export`: compare a vCenter with a site file, or write one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.console import output
from gpuops.console.options import CommonOptions, DryRun, HostShellOptions, Reboot, RebootOptions
from gpuops.console.spread import spread
from gpuops.errors import UsageError
from gpuops.extras.declare.layout_site import LayoutOptions, load_wishes

if TYPE_CHECKING:
    from gpuops.extras.declare.applying import SiteReport
    from gpuops.model.vcenter.host_settings import Rolling

SitePath = Annotated[
    Path,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="The site file, such as templates/site.yaml; a directory of them; or a file of mig-parted.",
    ),
]


@spread
def diff(common: CommonOptions, host_shell: HostShellOptions, file: SitePath, layout: LayoutOptions) -> None:
    """Show which hosts and VMs differ from a site file, and whether that can be changed. Changes nothing.

    Exit code 3 if an entry of the file cannot be fulfilled.

    \b
    Examples:
      gpuops diff --file templates/site.yaml --vcenter sim:lab
      gpuops diff --file site/ --output json --vcenter prod
      gpuops diff --file templates/mig-layout.yaml --layout balanced --host 'esx-01*' --mode-only --vcenter sim:lab
    """
    from gpuops.extras.declare.view import DiffDocument, site_report_text

    report = _compare(common, host_shell, file, layout)
    output.show(site_report_text(report), DiffDocument.made_of(report))
    output.leave(report.exit_code)


@spread
def apply(
    common: CommonOptions,
    rebooting: RebootOptions,
    host_shell: HostShellOptions,
    file: SitePath,
    layout: LayoutOptions,
    dry_run: DryRun = False,
) -> None:
    """Change hosts and VMs that differ from a site file: hosts first, then VMs.

    If an entry of the file cannot be fulfilled, nothing is changed. After an interruption run the same command again.
    Hosts, VMs and settings that the file does not name are not changed.

    \b
    Examples:
      gpuops apply --file templates/site.yaml --dry-run --vcenter sim:lab
      gpuops apply --file site.yaml --reboot rolling --window 'Sat 22:00-04:00 Europe/Berlin' --yes --vcenter prod
    """
    from gpuops.console.drawn_progress import ChangeProgress
    from gpuops.console.opening import open_site, remember
    from gpuops.console.running import confirm
    from gpuops.extras.declare.applying import apply_site
    from gpuops.extras.declare.view import ApplyDocument, site_report_text

    wishes, rolling = load_wishes(file, layout), _rolling(rebooting)

    def consent(planned: SiteReport) -> None:
        if planned.disruptive and not rebooting.yes:
            confirm([*site_report_text(replace(planned, afterwards=()))])

    with (
        open_site(common, require_verified=True, run="" if dry_run else "apply") as site,
        ChangeProgress() as progress,
    ):
        host_shell.give_to(site)
        report = apply_site(wishes(site), site, rolling, apply=not dry_run, consent=consent, hear_progress=progress)
    remember(common, report.before)
    output.show(site_report_text(report), ApplyDocument.made_of(report))
    output.leave(report.exit_code)


def _rolling(rebooting: RebootOptions) -> Rolling | None:
    """Return how hosts are rebooted. --yes is accepted without --reboot, because changes of VMs ask for consent too."""
    if rebooting.reboot is None:
        return replace(rebooting, yes=False).rolling()
    return rebooting.rolling()


@spread
def assert_(
    common: CommonOptions,
    host_shell: HostShellOptions,
    file: SitePath,
    layout: LayoutOptions,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Also write the result as JUnit XML.")
    ] = None,
) -> None:
    """Check that hosts and VMs are as a site file says, for CI. Changes nothing.

    Exit code 0 if everything is as the file says, 3 if not. A setting that waits for a reboot still differs.

    \b
    Examples:
      gpuops assert --file templates/site.yaml --vcenter sim:lab
      gpuops assert --file site.yaml --junit result.xml --vcenter prod
    """
    from gpuops.extras.declare.view import AssertDocument, assertion_text, junit_xml
    from gpuops.files.private_file import write_readable

    report = _compare(common, host_shell, file, layout)
    document = AssertDocument.made_of(report)
    if junit is not None:
        write_readable(junit, junit_xml(report))
    output.show(assertion_text(report), document)
    output.leave(document.exit_code)


@spread
def drift(
    common: CommonOptions,
    host_shell: HostShellOptions,
    file: SitePath,
    layout: LayoutOptions,
    heal: Annotated[
        list[str] | None,
        typer.Option(
            "--heal", metavar="KEY", help="Set this key of the file back: mig, scheduler, drs, ... May be repeated."
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option("--window", metavar="WINDOW", help="Set keys back only in this window: 'Sat 22:00-04:00 UTC'."),
    ] = None,
    reboot: Annotated[
        Reboot | None,
        typer.Option(help="With --heal mig: set a host without running VMs in maintenance mode; reboot it if needed."),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Compare once and end: exit code 3 if something differs.")
    ] = False,
) -> None:
    """Report within a minute which hosts and VMs drift from a site file, until it is stopped.

    --heal sets keys back whose change stops, moves and reboots nothing. The MIG mode of some GPUs needs a reboot of
    the host: --reboot rolling reboots it while no VM runs on it.

    \b
    Examples:
      gpuops drift --file templates/site.yaml --once --vcenter sim:lab
      gpuops drift --file site.yaml --heal mig --heal scheduler --window 'Sat 22:00-04:00 UTC' --vcenter prod
    """
    from gpuops.config.date_text import parse_window
    from gpuops.console.opening import open_site
    from gpuops.extras.declare.drift import DriftLook, DriftWatch, check_heals, follow
    from gpuops.extras.declare.view import DriftDocument, drift_text

    def show(look: DriftLook) -> None:
        output.show(drift_text(look), DriftDocument.made_of(look))

    wishes, heals = load_wishes(file, layout), check_heals(heal or ())
    if reboot is not None and "mig" not in heals:
        raise UsageError("--reboot needs --heal mig", hint="add --heal mig, or remove --reboot")
    if window is not None and not heals:
        raise UsageError("--window needs --heal", hint="add --heal KEY, or remove --window")
    heal_window = parse_window(window) if window is not None else None
    with open_site(common, require_verified=bool(heals), run="drift" if heals else "") as site:
        host_shell.give_to(site)
        watch = DriftWatch(wishes(site), site, heals, heal_window, reboot is not None)
        if not once:
            follow(watch, show)
        look = watch.look()
    show(look)
    output.leave(look.exit_code)


@spread
def export(
    common: CommonOptions,
    host_shell: HostShellOptions,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write the site file to FILE, which must not exist.")
    ] = None,
) -> None:
    """Write a site file of the present hosts with GPUs and VMs, as short as possible. Changes nothing in vCenter.

    Applying the file changes nothing. Comments in it name devices and settings that a site file cannot describe.

    \b
    Examples:
      gpuops export --vcenter sim:lab
      gpuops export --save site.yaml --vcenter prod
    """
    from gpuops.console.opening import open_site, remember
    from gpuops.errors import Refused
    from gpuops.execute.site import catalog_of
    from gpuops.extras.declare.applying import read_for
    from gpuops.extras.declare.entries import HostEntry, SiteFile
    from gpuops.extras.declare.export import export_site, yaml_text
    from gpuops.extras.declare.view import ExportDocument
    from gpuops.files.private_file import write_new
    from gpuops.model.time_text import format_zoned_minute

    with open_site(common) as site:
        host_shell.give_to(site)
        inventory = read_for(SiteFile(1, hosts=(HostEntry(host=("*",), mig=True),)), site)
    remember(common, inventory)
    exported = export_site(inventory, catalog_of(inventory))
    text = yaml_text(exported, f"state at {format_zoned_minute(inventory.taken_at)}, written by gpuops export")
    document = ExportDocument.of(inventory, text, exported.left_out)
    if save is None:
        output.show(text.rstrip("\n").split("\n"), document)
        return
    if not write_new(save, text):
        raise Refused(f"{save} exists already: nothing was written", hint="choose another name with --save")
    output.show(f"{save}: {len(text.splitlines())} lines", document)


def _compare(common: CommonOptions, host_shell: HostShellOptions, file: Path, layout: LayoutOptions) -> SiteReport:
    """Return the plan for the file on the present vCenter. Changes nothing."""
    from gpuops.console.opening import open_site, remember
    from gpuops.extras.declare.applying import plan_site

    wishes = load_wishes(file, layout)
    with open_site(common) as site:
        host_shell.give_to(site)
        report = plan_site(wishes(site), site)
    remember(common, report.before)
    return report
