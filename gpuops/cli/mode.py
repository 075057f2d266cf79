"""`gpuops mode`: what the GPUs of hosts are used for."""

from __future__ import annotations

import typer

from gpuops.cli import output
from gpuops.cli.options import Common, DryRun, Rebooting, spread
from gpuops.cli.repeated import Once
from gpuops.plan.core.scope import Scope
from gpuops.plan.hosts.graphics.mode import SetMode

mode = typer.Typer(
    name="mode",
    cls=Once,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Show and set what hosts use their GPUs for: graphics type, vGPU mode, assignment policy.",
)


@mode.command()
@spread
def show(common: Common, scope: Scope) -> None:
    """Show per host and GPU what it is used as, what it is configured as, and whether a reboot is pending.

    Changes nothing.

    \b
    Example:
      gpuops mode show --host esx-02.lab --vcenter sim:lab
    """
    from gpuops.cli.opening import open_site, read_inventory
    from gpuops.report.host_settings import mode_document, mode_text

    with open_site(common) as site:
        seen = read_inventory(site, common)
    scope.check(seen)
    hosts = scope.hosts(seen)
    output.show(mode_text(seen, hosts), mode_document(seen, hosts))


@mode.command(name="set")
@spread
def set_(
    common: Common,
    rebooting: Rebooting,
    request: SetMode,
    dry_run: DryRun = False,
) -> None:
    """Set graphics types, vGPU modes and the assignment policy, in one change per host.

    A graphics type is in force after the host's next reboot, which `--reboot rolling` does too; the rest at once.
    What is not named stays as it is. A second run changes nothing and says so.

    \b
    Examples:
      gpuops mode set --vgpu-mode sameSize --gpu 0000:af:00.0 --host esx-02.lab --vcenter sim:lab
      gpuops mode set --assignment consolidation --cluster lab-cluster --dry-run --vcenter sim:lab
    """
    from gpuops.cli.host_change import carry_out

    carry_out(request, "mode-set", common, rebooting, dry_run=dry_run)
