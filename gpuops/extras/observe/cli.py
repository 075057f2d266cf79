"""`gpuops observe`: stores the performance counters of VMs and hosts, as a service or once from cron."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from gpuops.console import output
from gpuops.console.commands import VerbTable
from gpuops.console.options import CommonOptions, HostShellOptions
from gpuops.console.signals import collect_garbage_often
from gpuops.console.spread import spread
from gpuops.model.measurements.measurement_settings import Retention

observe = VerbTable("observe")
DEFAULTS: Final = Retention()

FineDays = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=366,
        metavar="N",
        show_default=str(DEFAULTS.fine_days),
        help="Keep steps of five minutes for N days.",
    ),
]
HourlyDays = Annotated[
    int | None,
    typer.Option(min=1, max=3660, metavar="N", show_default=str(DEFAULTS.hourly_days), help="Keep hours for N days."),
]


@observe.callback(invoke_without_command=True, no_args_is_help=False)
@spread
def observe_vcenter(
    context: typer.Context,
    common: CommonOptions,
    host_shell: HostShellOptions,
    once: Annotated[bool, typer.Option("--once", help="Observe once and end: for cron, every 20 minutes.")] = False,
    fine_days: FineDays = None,
    hourly_days: HourlyDays = None,
) -> None:
    """Store the performance counters of VMs and hosts on this machine. Changes nothing in vCenter.

    Reads them every 20 minutes until it is stopped; the systemd unit is templates/gpuops-observe.service. With
    --host-shell ssh it also runs nvidia-smi on the hosts. Settings that no option sets are those of
    [targets.NAME.measurements] in the configuration file.

    \b
    Example:
      gpuops observe --once --vcenter sim:lab
      gpuops observe status
    """
    from gpuops.console.opening import open_site
    from gpuops.extras.observe.observing import observe as observe_once
    from gpuops.extras.observe.observing import observe_for_ever
    from gpuops.extras.observe.view import ObserveDocument, cycle_text
    from gpuops.model.measurements.measurement import Cycle

    if context.invoked_subcommand is not None:
        context.obj = common
        return

    def print_cycle(cycle: Cycle) -> None:
        if output.manners().verbose:
            output.progress(cycle_text(cycle))

    with open_site(common) as site:
        host_shell.asked_for_measurements(site)
        stored_days = site.measured.retention
        retention = Retention(fine_days or stored_days.fine_days, hourly_days or stored_days.hourly_days)
        if not once:
            collect_garbage_often()
            observe_for_ever(site, retention, print_cycle)
        cycle = observe_once(site, retention)
    output.show(cycle_text(cycle), ObserveDocument.made_of(cycle))


@observe.command()
@spread
def status(common: CommonOptions) -> None:
    """Show what is stored and since when, of how many VMs and hosts, its size and its gaps. Reads no vCenter.

    \b
    Example:
      gpuops observe status
    """
    from gpuops.console.opening import measurements_of
    from gpuops.extras.observe.store_reads import stored_measurements
    from gpuops.extras.observe.view import ObserveStatusDocument, stored_text

    stored = stored_measurements(*measurements_of(common))
    output.show(stored_text(stored), ObserveStatusDocument.made_of(stored))
