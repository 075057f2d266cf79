"""`gpuops top`: GPUs, who is on them and what they use, on the terminal and kept current."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpuops.console import completion, output
from gpuops.console.options import CommonOptions
from gpuops.console.spread import reads_sites, spread
from gpuops.extras.observe.current_use import current_use
from gpuops.extras.web.top import SortKey, TopLevel

if TYPE_CHECKING:
    from gpuops.api import Site
    from gpuops.extras.web.top import Top
    from gpuops.model.nights.rotation_policy import Policy
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.report.monitoring.fleet_view import FleetFilters

EVERY_S: Final = 20
"""Hosts make a sample of their counters every 20 s."""


@spread
@reads_sites
def top(
    common: CommonOptions,
    level: Annotated[TopLevel, typer.Option("--show", help="Show a row for each of these.")] = TopLevel.HOSTS,
    sort: Annotated[SortKey, typer.Option(help="Sort rows by this, largest first; names from A to Z.")] = SortKey.USE,
    containing: Annotated[
        str, typer.Option("--filter", metavar="TEXT", help="Only rows with this text in name, host, model or state.")
    ] = "",
    cluster: Annotated[
        str | None,
        typer.Option(help="Only the hosts of this cluster.", metavar="NAME", autocompletion=completion.clusters),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Only this host.", metavar="HOST", autocompletion=completion.hosts)
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also show whether each desktop of this rotation policy is idle."),
    ] = None,
    every: Annotated[
        int, typer.Option(min=5, max=3600, metavar="SECONDS", help="Read vCenter again after this time.")
    ] = EVERY_S,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end, also on a terminal.")] = False,
) -> None:
    """Show hosts, GPUs or VMs with what they use now, and what runs for a night or a change. Changes nothing.

    On a terminal it is kept current until `q`: arrows select, Enter goes from a host to its GPUs and from a GPU to the
    VMs on it, Esc goes back, `s` sorts, `/` filters. Anywhere else it is one table. `?` = vCenter does not report it.

    \b
    Examples:
      gpuops top --once --vcenter sim:lab
      gpuops top --show vms --sort sessions --output json --vcenter sim:vdi
    """
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site
    from gpuops.extras.web.top import filter_and_sort
    from gpuops.extras.web.top_table import top_document, top_text
    from gpuops.extras.web.top_view import TopView
    from gpuops.report.monitoring.fleet_view import FleetFilters

    rotation_policy = load_policy(policy) if policy is not None else None
    filters = FleetFilters(cluster, host)
    is_live = not once and not output.chosen().is_document and _moves_cursor() and not output.manners().no_color
    with open_site(common) as site:
        # rows of hosts and GPUs need no samples of VMs, but on the live view a key may switch to VMs
        with_vm_use = is_live or level is TopLevel.VMS
        fleet_now = _read_top(site, common, filters, rotation_policy, with_vm_use=with_vm_use)
        if is_live:
            from gpuops.extras.web.top_screen import TopScreen

            def read() -> Top:
                return _read_top(site, common, filters, rotation_policy)

            TopScreen(read, every, TopView(level, sort, containing), fleet_now).run()
            return
    rows = filter_and_sort(fleet_now.rows(level), sort, containing)
    output.show(top_text(fleet_now, level, rows), top_document(fleet_now, level, rows))


def _moves_cursor() -> bool:
    """Return whether stdin and stdout are a terminal that can be drawn on."""
    is_dumb = os.environ.get("TERM", "dumb").lower() in ("", "dumb", "unknown")
    return sys.stdin.isatty() and sys.stdout.isatty() and not is_dumb


def _read_top(
    site: Site, common: CommonOptions, filters: FleetFilters, policy: Policy | None, *, with_vm_use: bool = True
) -> Top:
    """Read vCenter, the newest samples of GPUs (and of VMs if `with_vm_use` is set), and the open nights and changes.

    With a policy, also judge which of its desktops are idle.
    """
    from gpuops import api
    from gpuops.console.opening import read_inventory
    from gpuops.extras.web.top import Top
    from gpuops.report.monitoring.fleet_view import fleet

    inventory: Inventory = site.with_health(read_inventory(site, common))
    judged = {}
    if policy is not None:
        inventory, verdicts = api.idle(inventory, site, policy)
        judged = {judged_vm.vm.ref: judged_vm for judged_vm in verdicts if judged_vm.pool is not None}
    shown_fleet = fleet(inventory, api.catalog_of(inventory), filters)
    hosts = [gpu_host.ref for gpu_host in shown_fleet.gpu_hosts]
    use = current_use(site, inventory, hosts, [vm.ref for vm in shown_fleet.vms] if with_vm_use else [])
    return Top(shown_fleet, use, api.rotate_status(site, policy, inventory), api.change_status(site), judged)
