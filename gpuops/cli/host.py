"""`gpuops host`: scheduler, mode, passthrough and mig of hosts' GPUs, shown and set.

With `--reboot rolling` a setting is brought into force host by host, as a change that `gpuops change` resumes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpuops.console import output
from gpuops.console.commands import VerbTable
from gpuops.console.options import CommonOptions, DryRun, HostShellOptions, RebootOptions
from gpuops.console.spread import Fixed, reads_sites, spread
from gpuops.errors import UsageError, report_exit_code
from gpuops.plan.core.scope import Scope
from gpuops.plan.hosts.graphics.mig_mode import NO_SHELL, SetMig
from gpuops.plan.hosts.graphics.mode import SetMode
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.plan.hosts.scheduler.scheduler_change import SetScheduler

if TYPE_CHECKING:
    from gpuops.api import HostShell
    from gpuops.model.vcenter.host_settings import Rolling
    from gpuops.plan.hosts.host_plan import HostRequest


host = VerbTable("host", "Show and set the scheduler, mode, DirectPath I/O and MIG mode of hosts' GPUs.")
scheduler = VerbTable("scheduler", "Show and set the vGPU scheduler of hosts: best effort, equal share or fixed share.")


@scheduler.command("show")
@spread
@reads_sites
def scheduler_show(common: CommonOptions, scope: Scope) -> None:
    """Show per host and GPU which policy is configured, which is in force, and whether a reboot is pending.

    It is read from the options of the nvidia kernel module, by the driver's branch. Changes nothing.

    \b
    Example:
      gpuops host scheduler show --host 'esx-0*' --vcenter sim:lab
    """
    from gpuops.api import scheduler_show
    from gpuops.console.opening import open_site, remember
    from gpuops.report.hosts.host_settings_view import SchedulerShowDocument, scheduler_text

    with open_site(common) as site:
        state = scheduler_show(site, scope)
    remember(common, state.inventory)
    output.show(scheduler_text(state), SchedulerShowDocument.made_of(state))


@scheduler.command("set")
@spread
def scheduler_set(
    common: CommonOptions,
    reboot_options: RebootOptions,
    request: SetScheduler,
    dry_run: DryRun = False,
) -> None:
    """Set the scheduler policy of GPUs, in the options of their hosts' nvidia kernel module.

    It takes effect after the next reboot of each host; `--reboot rolling` reboots them.
    The other options of the module stay unchanged. A second run changes nothing and says so.

    \b
    Examples:
      gpuops host scheduler set --scheduler equal-share --gpu d8:00.0 --host esx-01.lab --vcenter sim:lab
      gpuops host scheduler set --scheduler fixed-share --host esx-01 --reboot rolling --dry-run --vcenter sim:scattered
    """

    set_on_hosts(request, "scheduler-set", common, reboot_options, dry_run=dry_run)


mode = VerbTable("mode", "Show and set what hosts use their GPUs for: graphics type, vGPU mode, assignment policy.")


@mode.command("show")
@spread
@reads_sites
def mode_show(common: CommonOptions, scope: Scope) -> None:
    """Show per host and GPU what it is used as, what it is configured as, and whether a reboot is pending.

    From vSphere 9.1 on also the mode of each DirectPath device, its driver, memory and what is reserved of it.
    Changes nothing.

    \b
    Example:
      gpuops host mode show --host esx-02.lab --vcenter sim:lab
    """
    from gpuops.api import mode_show
    from gpuops.console.opening import open_site, remember
    from gpuops.report.hosts.host_settings_view import mode_document, mode_text

    with open_site(common) as site:
        inventory, hosts = mode_show(site, scope)
    remember(common, inventory)
    output.show(mode_text(inventory, hosts), mode_document(inventory, hosts))


@mode.command("set")
@spread
def mode_set(
    common: CommonOptions,
    reboot_options: RebootOptions,
    request: SetMode,
    dry_run: DryRun = False,
) -> None:
    """Set graphics types, vGPU modes and the assignment policy, in one change per host.

    A graphics type takes effect after the host's next reboot (`--reboot rolling` does one), the others at once.
    Settings without an option stay unchanged. A second run changes nothing and says so.

    \b
    Examples:
      gpuops host mode set --vgpu-mode sameSize --gpu 0000:d8:00.0 --host esx-01.lab --vcenter sim:lab
      gpuops host mode set --assignment consolidation --cluster lab-cluster --dry-run --vcenter sim:lab
    """

    set_on_hosts(request, "mode-set", common, reboot_options, dry_run=dry_run)


passthrough = VerbTable("passthrough", "Show and switch DirectPath I/O of hosts' GPUs and other devices.")


@passthrough.command("show")
@spread
@reads_sites
def passthrough_show(common: CommonOptions, scope: Scope) -> None:
    """Show per host and device whether DirectPath I/O gives it to VMs, and whether a reboot is pending.

    Changes nothing.

    \b
    Example:
      gpuops host passthrough show --host esx-02.lab --vcenter sim:lab
    """
    from gpuops.console.opening import open_site, read_inventory
    from gpuops.report.hosts.device_modes_view import PassthroughShowDocument, passthrough_text

    with open_site(common) as site:
        inventory = read_inventory(site, common)
    scope.check(inventory)
    hosts = scope.device_hosts(inventory)
    document = PassthroughShowDocument.from_attributes(inventory, read_at=inventory.taken_at, hosts=hosts)
    output.show(passthrough_text(inventory, hosts), document)


@passthrough.command("on")
@spread
def passthrough_on(
    common: CommonOptions,
    reboot_options: RebootOptions,
    request: Annotated[SetPassthrough, Fixed(on=True)],
    dry_run: DryRun = False,
) -> None:
    """Give GPUs and other PCI devices to VMs as complete devices, by DirectPath I/O; vGPUs cannot run on such GPUs.

    If the host cannot do that at once, it takes effect after its next reboot; `--reboot rolling` does one.

    \b
    Examples:
      gpuops host passthrough on --gpu 0000:af:00.0 --label a100-ml --host esx-01.lab --dry-run --vcenter sim:lab
      gpuops host passthrough on --device 0000:af:00.0 --host esx-02.acc --dry-run --vcenter sim:accelerators
    """

    set_on_hosts(request, "passthrough-on", common, reboot_options, dry_run=dry_run)


@passthrough.command("off")
@spread
def passthrough_off(
    common: CommonOptions,
    reboot_options: RebootOptions,
    request: Annotated[SetPassthrough, Fixed(on=False, label=None)],
    dry_run: DryRun = False,
) -> None:
    """Give GPUs and other PCI devices back to their host; refused while a VM has one.

    If the host cannot do that at once, it takes effect after its next reboot; `--reboot rolling` does one.

    \b
    Example:
      gpuops host passthrough off --gpu 0000:d8:00.0 --host esx-02.lab --vcenter sim:lab
    """

    set_on_hosts(request, "passthrough-off", common, reboot_options, dry_run=dry_run)


mig = VerbTable("mig", "Show and switch MIG mode of hosts' GPUs, and check layouts of GPU instances.")
for noun in (scheduler, mode, passthrough, mig):
    host.add_typer(noun)


@mig.command("show")
@spread
@reads_sites
def mig_show(common: CommonOptions, host_shell: HostShellOptions, scope: Scope) -> None:
    """Show per host and GPU whether MIG mode is on; with a host shell also what waits for a reset or a reboot.

    Changes nothing. Exit code 4 if nvidia-smi on a host did not answer.

    \b
    Example:
      gpuops host mig show --host esx-01.lab --vcenter sim:lab
    """
    from gpuops.api import mig_show
    from gpuops.console.opening import open_site
    from gpuops.report.hosts.host_settings_view import mig_document, mig_text

    with open_site(common) as site:
        host_shell.give_to(site)
        inventory, hosts = mig_show(site, scope)
    output.show(mig_text(inventory, hosts), mig_document(inventory, hosts))
    output.leave(report_exit_code(partly=any(host.settings is not None and host.settings.silent for host in hosts)))


@mig.command("on")
@spread
def mig_on(
    common: CommonOptions,
    reboot_options: RebootOptions,
    host_shell: HostShellOptions,
    request: Annotated[SetMig, Fixed(on=True)],
    dry_run: DryRun = False,
) -> None:
    """Switch MIG mode of GPUs on: each vGPU then runs in a GPU instance. Needs a host shell.

    It takes effect after a reset of the GPU or the host's next reboot; --reboot rolling does one.

    \b
    Example:
      gpuops host mig on --gpu 0000:3b:00.0 --host esx-01.lab --host-shell ssh --dry-run --vcenter prod
    """
    _switch_mig(request, common, reboot_options, host_shell, dry_run=dry_run)


@mig.command("off")
@spread
def mig_off(
    common: CommonOptions,
    reboot_options: RebootOptions,
    host_shell: HostShellOptions,
    request: Annotated[SetMig, Fixed(on=False)],
    dry_run: DryRun = False,
) -> None:
    """Switch MIG mode of GPUs off: vGPUs then share the time of the GPU. Needs a host shell.

    \b
    Example:
      gpuops host mig off --host esx-01.lab --host-shell ssh --reboot rolling --dry-run --vcenter prod
    """
    _switch_mig(request, common, reboot_options, host_shell, dry_run=dry_run)


@mig.command("check")
@spread
def mig_check(
    file: Annotated[
        Path, typer.Option(metavar="FILE", help="Layouts in the form of mig-parted or vgpu-device-manager.")
    ],
    model: Annotated[str, typer.Option(metavar="NAME", help="GPU model: a100 (gpuops profiles lists them).")],
    layout: Annotated[str | None, typer.Option(metavar="NAME", help="Only the layout of this name.")] = None,
) -> None:
    """Say whether GPUs of a model can have the named layouts of a file, and what else would fit. Asks no vCenter.

    Exit code 3 if a layout does not fit, or if none is for that model.

    \b
    Examples:
      gpuops host mig check --file templates/mig-layout.yaml --model a100
      gpuops host mig check --file templates/mig-layout.yaml --layout balanced --model h100 --output json
    """
    from gpuops.advise.gpu_profiles import judge_layout
    from gpuops.catalog import load
    from gpuops.config.layout_file import find_layout, load_layouts
    from gpuops.plan.capacity.gpu_models import find_board
    from gpuops.report.hosts.device_modes_view import layouts_document, layouts_exit_code, layouts_text

    board = find_board(model, load(everything=True))
    layouts = load_layouts(file)
    if layout is not None:
        layouts = (find_layout(layout, layouts, file),)
    judged = [judge_layout(file_layout, board) for file_layout in layouts]
    output.show(layouts_text(judged, board, file), layouts_document(judged, board, file))
    output.leave(layouts_exit_code(judged))


def _switch_mig(
    request: SetMig,
    common: CommonOptions,
    reboot_options: RebootOptions,
    host_shell: HostShellOptions,
    *,
    dry_run: bool,
) -> None:
    """Switch MIG mode over the host shell. Raises UsageError without --host-shell ssh."""
    shell = host_shell.shell()
    if shell is None:
        raise UsageError(NO_SHELL, hint="add --host-shell ssh (gpuops help mig)")
    kind = f"mig-set-{'on' if request.on else 'off'}"
    set_on_hosts(request, kind, common, reboot_options, dry_run=dry_run, shell=shell)


NO_REBOOTS: Final = RebootOptions()


def set_on_hosts(
    request: HostRequest,
    kind: str,
    common: CommonOptions,
    reboot_options: RebootOptions = NO_REBOOTS,
    *,
    dry_run: bool,
    shell: HostShell | None = None,
) -> None:
    """Carry out the request, print its report, and end with its exit code.

    `kind` names the JSON document (`scheduler-set`). With --reboot rolling it is a change that reboots the hosts.
    """
    rolling = reboot_options.rolling()
    if rolling is not None:
        _roll(request, kind, common, rolling, shell, yes=reboot_options.yes, dry_run=dry_run)
        return
    from gpuops.api import configure
    from gpuops.console.opening import open_site, remember
    from gpuops.console.running import show_brief
    from gpuops.report.hosts.host_plan_view import host_report_document, host_report_text
    from gpuops.report.run_progress import run_line

    with open_site(common) as site:
        site.shell = shell
        report = configure(request, site, apply=not dry_run)
    remember(common, report.before)
    document = host_report_document(report, kind)
    if output.manners().quiet:
        show_brief(run_line(report, kind), report.plan.warnings, document)
    else:
        output.show(host_report_text(report), document)
    output.leave(report.exit_code)


def _roll(
    request: HostRequest,
    kind: str,
    common: CommonOptions,
    rolling: Rolling,
    shell: HostShell | None,
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    from gpuops.api import change
    from gpuops.cli.change import confirm_reboots, show
    from gpuops.console.drawn_progress import ChangeProgress
    from gpuops.console.opening import open_site, remember

    verb = kind.replace("-", " ")
    with open_site(common, require_verified=True, run="" if dry_run else verb) as site, ChangeProgress() as progress:
        site.shell = shell
        report = change(
            request, verb, rolling, site, apply=not dry_run, consent=confirm_reboots(yes=yes), on_progress=progress
        )
    remember(common, report.before)
    show(report)
