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
from gpuops.extras.observe.stored_gpu_use import current_use
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
    level: Annotated[TopLevel, typer.Option("--show", help="What a row is.")] = TopLevel.HOSTS,
    sort: Annotated[SortKey, typer.Option(help="The largest first; names from A to Z.")] = SortKey.USE,
    containing: Annotated[
        str, typer.Option("--filter", metavar="TEXT", help="Rows with this text: name, host, model, state.")
    ] = "",
    cluster: Annotated[
        str | None,
        typer.Option(help="Only the hosts of this cluster.", metavar="NAME", autocompletion=completion.clusters),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Only this host.", metavar="HOST", autocompletion=completion.hosts)
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also whether each desktop of this rotation policy is idle.")
    ] = None,
    every: Annotated[int, typer.Option(min=5, max=3600, metavar="SECONDS", help="Look again so often.")] = EVERY_S,
    once: Annotated[bool, typer.Option("--once", help="One table, on a terminal too.")] = False,
) -> None:
    """Show hosts, GPUs or VMs with what they use now, and what runs for a night or a change. Changes nothing.

    On a terminal it is kept current until `q`: arrows select, Enter goes from a host to its GPUs and from a GPU to the
    VMs on it, Esc goes back, `s` sorts, `/` filters. Anywhere else it is one table. `?` is what vCenter does not tell.

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

    judging = load_policy(policy) if policy is not None else None
    filters = FleetFilters(cluster, host)
    live = not once and not output.chosen().is_document and _moves_cursor() and not output.manners().no_color
    with open_site(common) as site:
        state = _look(site, common, filters, judging, of_vms=live or level is TopLevel.VMS)
        if live:
            from gpuops.extras.web.top_screen import TopScreen

            def look() -> Top:
                return _look(site, common, filters, judging)

            TopScreen(look, every, TopView(level, sort, containing), state).run()
            return
    rows = filter_and_sort(state.rows(level), sort, containing)
    output.show(top_text(state, level, rows), top_document(state, level, rows))


def _moves_cursor() -> bool:
    """Return whether stdin and stdout are a terminal that can be drawn on."""
    dumb = os.environ.get("TERM", "dumb").lower() in ("", "dumb", "unknown")
    return sys.stdin.isatty() and sys.stdout.isatty() and not dumb


def _look(
    site: Site, common: CommonOptions, filters: FleetFilters, judging: Policy | None, *, of_vms: bool = True
) -> Top:
    """Read vCenter, the newest samples of GPUs (with `of_vms` also of VMs), and what the journal has open."""
    from gpuops import api
    from gpuops.console.opening import read_inventory
    from gpuops.extras.web.top import Top
    from gpuops.report.monitoring.fleet_view import fleet

    inventory: Inventory = site.with_health(read_inventory(site, common))
    judged = {}
    if judging is not None:
        inventory, verdicts = api.idle(inventory, site, judging)
        judged = {judged_vm.vm.ref: judged_vm for judged_vm in verdicts if judged_vm.pool is not None}
    part = fleet(inventory, api.catalog_of(inventory), filters)
    hosts = [gpu_host.ref for gpu_host in part.gpu_hosts]
    use = current_use(site, inventory, hosts, [vm.ref for vm in part.vms] if of_vms else [])
    return Top(part, use, api.rotate_status(site, judging, inventory), api.change_status(site), judged)
