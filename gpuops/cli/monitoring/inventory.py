"""`gpuops inventory`: what is there, who holds it, and what is free."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.console import completion, output
from gpuops.console.options import CommonOptions, HostShellOptions
from gpuops.console.spread import reads_sites, spread
from gpuops.errors import NoPermission, UsageError

if TYPE_CHECKING:
    from gpuops.api import Site
    from gpuops.model.vcenter.inventory import Inventory


@spread
@reads_sites
def inventory(
    common: CommonOptions,
    host_shell: HostShellOptions,
    vms: Annotated[bool, typer.Option("--vms", help="A table of the VMs with GPU devices.")] = False,
    hosts: Annotated[
        bool, typer.Option("--hosts", help="Each host, where more than 20 would be shown as a summary.")
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(help="Only the hosts of this cluster.", metavar="NAME", autocompletion=completion.clusters),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Only this host.", metavar="HOST", autocompletion=completion.hosts)
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help="Only hosts that offer this vGPU profile, and its figures.",
            metavar="NAME",
            autocompletion=completion.profiles,
        ),
    ] = None,
    holder: Annotated[
        str | None,
        typer.Option(help="Only the GPUs that this VM holds.", metavar="VM", autocompletion=completion.vms),
    ] = None,
    free: Annotated[
        bool,
        typer.Option("--free", help="Only GPUs with room for a vGPU (of --profile), or whole and unheld."),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The first N hosts (with --vms: VMs), and how many more.")
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the snapshot, to plan on it later.")] = None,
    saved: Annotated[
        Path | None, typer.Option("--inventory", metavar="FILE", help="Show a saved snapshot, without a vCenter.")
    ] = None,
) -> None:
    """Show hosts, NUMA nodes, GPUs, who holds them, and what is free.

    With --host-shell ssh also the health of GPUs, and where vGPUs lie on them, as the hosts' own nvidia-smi reports it.

    \b
    Examples:
      gpuops inventory --vcenter sim:lab
      gpuops inventory --profile a100-3-20c --free --output json --vcenter sim:lab
      gpuops inventory --save fleet.json --vcenter sim:lab
    """
    from gpuops.api import catalog_of
    from gpuops.console.opening import open_site, read_inventory
    from gpuops.report.monitoring.fleet import FleetFilters, fleet
    from gpuops.report.monitoring.inventory import MOST_HOSTS, fleet_document, fleet_text, summary_text, vms_text

    if vms and (hosts or free):
        raise UsageError(f"--vms and --{'hosts' if hosts else 'free'} exclude each other", hint="give one of them")
    filters = FleetFilters(cluster, host, profile, holder, free)
    with open_site(common, saved=saved) as site:
        host_shell.give_to(site, saved)
        fleet_now = site.with_vgpus(read_inventory(site, common, saved=saved))
        if save is not None and saved is None:
            fleet_now = _with_offers(fleet_now, site)
    if save is not None:
        from gpuops.config import snapshot

        snapshot.save(fleet_now, save)
    part = fleet(fleet_now, catalog_of(fleet_now), filters)
    shows_all = filters == FleetFilters() and limit is None and not hosts
    if vms:
        text = vms_text(part, limit)
    elif shows_all and len(part.gpu_hosts) > MOST_HOSTS:
        text = summary_text(part)
    else:
        text = fleet_text(part, limit)
    output.show(text, fleet_document(part, limit))


def _with_offers(snapshot: Inventory, site: Site) -> Inventory:
    """Return the inventory with the hosts' offers that plans of DirectPath devices and device groups need."""
    try:
        return site.vcenter.with_config_targets(
            snapshot, [host.ref for host in snapshot.hosts.values() if host.gpus and host.connected]
        )
    except NoPermission as error:
        output.note(f"warning: saved without what hosts offer for DirectPath and device groups: {error.message}")
        return snapshot
