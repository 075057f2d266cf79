"""`gpuops scheduler`: how the vGPUs of a GPU share its time."""

from __future__ import annotations

import typer

from gpuops.cli import output
from gpuops.cli.options import Common, DryRun, Rebooting, spread
from gpuops.cli.repeated import Once
from gpuops.plan.core.scope import Scope
from gpuops.plan.hosts.scheduler.change import SetScheduler

scheduler = typer.Typer(
    name="scheduler",
    cls=Once,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Show and set the vGPU scheduler of hosts: best effort, equal share or fixed share.",
)


@scheduler.command()
@spread
def show(common: Common, scope: Scope) -> None:
    """Show per host and GPU which policy is configured, which is in force, and whether a reboot is pending.

    It is read from the options of the nvidia kernel module, by the driver's branch. Changes nothing.

    \b
    Example:
      gpuops scheduler show --host 'esx-0*' --vcenter sim:lab
    """
    from gpuops.api import scheduler_show
    from gpuops.cli.opening import open_site, remember
    from gpuops.report.host_settings import scheduler_document, scheduler_text

    with open_site(common) as site:
        found = scheduler_show(site, scope)
    remember(common, found.inventory)
    output.show(scheduler_text(found), scheduler_document(found))


@scheduler.command(name="set")
@spread
def set_(
    common: Common,
    rebooting: Rebooting,
    request: SetScheduler,
    dry_run: DryRun = False,
) -> None:
    """Set the scheduler policy of GPUs, in the options of their hosts' nvidia kernel module.

    It is in force after the next reboot of each host, which `--reboot rolling` does too.
    Every other option stays as it is. A second run changes nothing and says so.

    \b
    Examples:
      gpuops scheduler set --policy equal-share --time-slice 2ms --gpu 0000:d8:00.0 --host esx-01.lab --vcenter sim:lab
      gpuops scheduler set --policy fixed-share --cluster vdi-cluster --reboot rolling --dry-run --vcenter sim:vdi
    """
    from gpuops.cli.host_change import carry_out

    carry_out(request, "scheduler-set", common, rebooting, dry_run=dry_run)
