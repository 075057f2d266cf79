"""`gpuops capacity`: how many more vGPUs and whole GPUs fit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.console import output
from gpuops.console.options import CommonOptions, HostShellOptions
from gpuops.console.spread import reads_sites, spread
from gpuops.errors import UsageError
from gpuops.plan.capacity.capacity_request import CapacityRequest


@spread
@reads_sites
def capacity(
    common: CommonOptions,
    request: CapacityRequest,
    host_shell: HostShellOptions,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also what fits when all desktops that this rotation policy may take sleep."),
    ] = None,
    saved: Annotated[
        Path | None, typer.Option("--inventory", metavar="FILE", help="Ask a saved snapshot, without a vCenter.")
    ] = None,
    forecast: Annotated[
        bool,
        typer.Option("--forecast", help="When each profile runs out, by the history that gpuops observe keeps."),
    ] = False,
) -> None:
    """Say how many more vGPUs and whole GPUs fit, and the largest request that does. Changes nothing.

    Each figure is for its profile alone: profiles share the same GPUs. A range means that vCenter does not tell more;
    with --host-shell ssh the hosts' own nvidia-smi is asked where vGPUs lie.

    \b
    Examples:
      gpuops capacity --vcenter sim:lab
      gpuops capacity --profile a40-48c --policy templates/policy.yaml --vcenter sim:vdi
      gpuops capacity --forecast --vcenter sim:lab
    """
    from gpuops import api
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site, read_inventory
    from gpuops.report.advice.capacity import capacity_document, capacity_text

    if forecast:
        _forecast(common, request, host_shell, policy, saved)
        return
    rotation_policy = load_policy(policy) if policy is not None else None
    with open_site(common, saved=saved) as site:
        host_shell.give_to(site, saved)
        inventory = site.with_vgpus(read_inventory(site, common, saved=saved))
        free_room = api.capacity(request, inventory, site, rotation_policy)
    policy_name = rotation_policy.name if rotation_policy is not None else None
    output.show(capacity_text(free_room, request.scope, policy_name), capacity_document(free_room, policy_name))


def _forecast(
    common: CommonOptions,
    request: CapacityRequest,
    host_shell: HostShellOptions,
    policy: Path | None,
    saved: Path | None,
) -> None:
    """Print when profiles run out. Raises UsageError for an option that excludes a forecast."""
    from gpuops.console.opening import open_site, read_inventory
    from gpuops.extensions import load

    excluded = {
        "--policy": policy,
        "--inventory": saved,
        "--cluster": request.cluster,
        "--host": request.host,
    }
    if conflicting := next((name for name, setting in excluded.items() if setting is not None), None):
        raise UsageError(
            f"--forecast and {conflicting} exclude each other",
            hint="the history is that of a whole vCenter: leave one of them out",
        )
    with open_site(common) as site:
        host_shell.give_to(site)
        inventory = site.with_vgpus(read_inventory(site, common))
        forecasts = load("gpuops.extras.observe.running_out.capacity_forecast")(request, inventory, site)
    output.show(*load("gpuops.extras.observe.run_out_view.run_out_views")(forecasts, inventory))
