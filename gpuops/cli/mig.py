"""`gpuops mig`: GPUs in MIG mode, or not."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli import output
from gpuops.cli.entering import Entering
from gpuops.cli.options import Common, DryRun, Fixed, Rebooting, spread
from gpuops.cli.repeated import Once
from gpuops.errors import UsageError
from gpuops.plan.core.scope import Scope
from gpuops.plan.hosts.graphics.mig import NO_SHELL, SetMig

mig = typer.Typer(
    name="mig",
    cls=Once,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Show MIG mode of hosts' GPUs, and switch it by the hosts' own nvidia-smi.",
)
switch = typer.Typer(
    name="set", cls=Once, rich_markup_mode=None, no_args_is_help=True, help="Switch MIG mode of GPUs on or off."
)
mig.add_typer(switch)


@mig.command()
@spread
def show(common: Common, entering: Entering, scope: Scope) -> None:
    """Show per host and GPU whether MIG mode is on; with a host shell also what waits for a reset or a reboot.

    Changes nothing. Exit code 4 when a host's own nvidia-smi was asked and did not answer.

    \b
    Example:
      gpuops mig show --host esx-01.lab --vcenter sim:lab
    """
    from gpuops.api import mig_show
    from gpuops.cli.opening import open_site
    from gpuops.report.host_settings import mig_document, mig_text

    with open_site(common) as site:
        site.shell = entering.shell()
        inventory, hosts = mig_show(site, scope)
    output.show(mig_text(inventory, hosts), mig_document(inventory, hosts))
    if any(host.settings is not None and host.settings.silent for host in hosts):
        raise typer.Exit(4)


@switch.command()
@spread
def on(
    common: Common,
    rebooting: Rebooting,
    entering: Entering,
    request: Annotated[SetMig, Fixed(on=True)],
    dry_run: DryRun = False,
) -> None:
    """Have GPUs in MIG mode: their vGPUs then have parts of the GPU of their own. Needs a host shell.

    It waits for a reset of the GPU or the host's next reboot, which --reboot rolling does.

    \b
    Example:
      gpuops mig set on --gpu 0000:3b:00.0 --host esx-01.lab --host-shell ssh --dry-run --vcenter prod
    """
    _set(request, common, rebooting, entering, dry_run=dry_run)


@switch.command()
@spread
def off(
    common: Common,
    rebooting: Rebooting,
    entering: Entering,
    request: Annotated[SetMig, Fixed(on=False)],
    dry_run: DryRun = False,
) -> None:
    """Have GPUs out of MIG mode: their vGPUs share its time again. Needs a host shell.

    \b
    Example:
      gpuops mig set off --host esx-01.lab --host-shell ssh --reboot rolling --dry-run --vcenter prod
    """
    _set(request, common, rebooting, entering, dry_run=dry_run)


def _set(request: SetMig, common: Common, rebooting: Rebooting, entering: Entering, *, dry_run: bool) -> None:
    from gpuops.cli.host_change import carry_out

    shell = entering.shell()
    if shell is None:
        raise UsageError(NO_SHELL, hint="--host-shell ssh lets gpuops ask it (gpuops help mig)")
    kind = f"mig-set-{'on' if request.on else 'off'}"
    carry_out(request, kind, common, rebooting, dry_run=dry_run, shell=shell)
