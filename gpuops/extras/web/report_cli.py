"""`gpuops report`: the fleet, its nights and what needs attention as one page, a summary, a document and a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.console import output
from gpuops.console.options import CommonOptions, HostShellOptions
from gpuops.console.spread import reads_sites, spread


@spread
@reads_sites
def report(
    common: CommonOptions,
    host_shell: HostShellOptions,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one page that opens from disk and loads nothing.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write GPU-hours by owner, in the columns of FinOps FOCUS.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="SINCE", help="Nights that began since then: 30d, 12w or a date in UTC."),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also which desktops of this rotation policy are idle, and what a night frees."
        ),
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="folder|tag:CATEGORY|attribute:NAME", help="What of an ML VM tells its owner.")
    ] = "folder",
) -> None:
    """Report the fleet, past nights, what is idle, free or in the way, and whose GPU-hours. Changes nothing.

    \b
    Examples:
      gpuops report --vcenter sim:lab
      gpuops report --html fleet.html --policy templates/policy.yaml --vcenter sim:vdi
      gpuops report --csv gpu-hours.csv --since 12w --by attribute:owner
    """
    from gpuops import clock
    from gpuops.config.date_text import parse_since
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site, remember
    from gpuops.extras.web.page.fleet_report import fleet_report_document
    from gpuops.extras.web.page.fleet_report_text import fleet_report_text
    from gpuops.extras.web.reporting import fleet_report
    from gpuops.model.vcenter.owner import OwnerKey

    owners = OwnerKey.parse("--by", by)
    night = load_policy(policy) if policy is not None else None
    began = parse_since("--since", since, clock.wall_clock()) if since is not None else None
    with open_site(common) as site:
        host_shell.give_to(site)
        fleet_state = fleet_report(site, since=began, policy=night, owners=owners)
    remember(common, fleet_state.fleet.inventory)
    document = fleet_report_document(fleet_state)
    if html is not None:
        from gpuops.extras.web.page.html import page
        from gpuops.report.document import as_values

        _write(html, page(as_values(document)))
    if csv is not None:
        from gpuops.extras.web.page.fleet_report_text import focus_csv

        _write(csv, focus_csv(fleet_state.showback))
    output.show(fleet_report_text(fleet_state, document), document)


def _write(path: Path, text: str) -> None:
    """Replace the file and keep its mode; a new one is readable only by this user: it names VMs and owners."""
    from gpuops.files.private_file import write_private

    write_private(path, text, like=path if path.is_file() else None)
    output.progress(f"wrote {path}")
