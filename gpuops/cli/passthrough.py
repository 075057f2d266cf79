"""`gpuops passthrough`: whole GPUs for VMs, or back to their host."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli.options import Common, DryRun, Fixed, Rebooting, spread
from gpuops.cli.repeated import Once
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough

passthrough = typer.Typer(
    name="passthrough",
    cls=Once,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Switch DirectPath I/O of hosts' GPUs on and off.",
)


@passthrough.command()
@spread
def on(
    common: Common,
    rebooting: Rebooting,
    request: Annotated[SetPassthrough, Fixed(on=True)],
    dry_run: DryRun = False,
) -> None:
    """Give GPUs to VMs whole, by DirectPath I/O; vGPUs cannot run on them then.

    Where the host cannot do that at once it is in force after its next reboot, which `--reboot rolling` does too.

    \b
    Example:
      gpuops passthrough on --device 0000:af:00.0 --label a40-ml --host esx-02.lab --dry-run --vcenter sim:lab
    """
    from gpuops.cli.host_change import carry_out

    carry_out(request, "passthrough-on", common, rebooting, dry_run=dry_run)


@passthrough.command()
@spread
def off(
    common: Common,
    rebooting: Rebooting,
    request: Annotated[SetPassthrough, Fixed(on=False, label=None)],
    dry_run: DryRun = False,
) -> None:
    """Give GPUs back to their host; refused while a VM has one.

    Where the host cannot do that at once it is in force after its next reboot, which `--reboot rolling` does too.

    \b
    Example:
      gpuops passthrough off --device 0000:d8:00.0 --host esx-02.lab --vcenter sim:lab
    """
    from gpuops.cli.host_change import carry_out

    carry_out(request, "passthrough-off", common, rebooting, dry_run=dry_run)
