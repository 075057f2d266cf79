"""The groups of options that commands share; `gpuops.console.spread` adds a group's options to a command."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpuops.console import completion, output
from gpuops.console.output import Manners, OutputFormat, choose
from gpuops.errors import UsageError
from gpuops.model.vcenter.bulk_reader import BulkReader
from gpuops.model.vcenter.host_settings import Displacement, Rolling, VsanMode

if TYPE_CHECKING:
    from gpuops.api import Site
    from gpuops.hostshell.nvidia_smi import NvidiaSmi


CONNECTION: Final = "Connection"
SITES: Final = "Several vCenters"
OUTPUT: Final = "Output"
HOST_SHELL: Final = "Host shell"
"""Headings of options in the help of commands."""
KNOWN_HOSTS: Final = Path("~/.ssh/known_hosts")


WITHOUT_CSV: Final = tuple(known.value for known in OutputFormat if known is not OutputFormat.CSV)
"""The formats of commands without a table."""


def formats(incomplete: str) -> list[str]:
    """Return the formats of a command without a table that begin with this text."""
    return [name for name in WITHOUT_CSV if name.startswith(incomplete)]


def choose_format(chosen: OutputFormat | None) -> None:
    """Choose the format of a command that reads no vCenter."""
    if chosen is not None:
        choose(chosen)


Format = Annotated[
    OutputFormat | None,
    typer.Option(
        "--output",
        "-o",
        metavar=f"<{'|'.join(WITHOUT_CSV)}>",
        help="text, json or yaml.",
        autocompletion=formats,
        callback=choose_format,
    ),
]
"""--output of a command that reads no vCenter; None = the format given before the command."""


class Shell(StrEnum):
    """How gpuops logs in to hosts."""

    NONE = "none"
    SSH = "ssh"


@dataclass(frozen=True, slots=True)
class HostShellOptions:
    """Whether and how gpuops logs in to hosts."""

    host_shell: Annotated[
        Shell | None,
        typer.Option(
            rich_help_panel=HOST_SHELL,
            show_default="none",
            help="How gpuops logs in to hosts to run nvidia-smi there; their keys must be in --ssh-known-hosts.",
        ),
    ] = None
    ssh_user: Annotated[
        str, typer.Option(rich_help_panel=HOST_SHELL, metavar="NAME", help="The user on the hosts.")
    ] = "root"
    ssh_known_hosts: Annotated[
        Path,
        typer.Option(rich_help_panel=HOST_SHELL, metavar="FILE", help="The SSH keys of the hosts that are trusted."),
    ] = KNOWN_HOSTS
    ssh_key: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=HOST_SHELL,
            metavar="FILE",
            help="The private key to log in with; default: those of the SSH agent and ~/.ssh.",
        ),
    ] = None
    ssh_port: Annotated[
        int,
        typer.Option(rich_help_panel=HOST_SHELL, min=1, max=65535, metavar="PORT", help="The port of the hosts' SSH."),
    ] = 22

    def shell(self) -> NvidiaSmi | None:
        """Return nvidia-smi over SSH; None = hosts are not read."""
        if self.host_shell is not Shell.SSH:
            return None
        from gpuops.hostshell.nvidia_smi import NvidiaSmi
        from gpuops.hostshell.ssh import Ssh

        return NvidiaSmi(Ssh(self.ssh_user, self.ssh_known_hosts, self.ssh_key, self.ssh_port))

    def give_to(self, site: Site, inventory_file: Path | None = None) -> None:
        """Let the site read the hosts over SSH; errors of a host are printed on stderr.

        Raises UsageError with a saved inventory, which does not show the hosts' current state.
        """
        if inventory_file is not None and self.host_shell is Shell.SSH:
            raise UsageError("--host-shell and --inventory exclude each other", hint="remove one of the two options")
        site.shell, site.say = self.shell(), output.note

    def asked_for_measurements(self, site: Site) -> None:
        """Do as `give_to`, for measurements: without the option the target's entry decides."""
        from gpuops.api.connection import host_shell

        self.give_to(site)
        if self.host_shell is None and site.measured.hosts is not None:
            site.shell = host_shell(site.measured.hosts)

    def asked_for_vgpu_use(self, site: Site) -> None:
        """Read the use of vGPUs as these options select; without --host-shell as the target's entry selects."""
        from gpuops.api.connection import vgpu_use

        if self.host_shell is not None:
            site.vgpu_use = vgpu_use(site, self.shell(), output.note)


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """Which vCenter, how it is reached, and how the result is printed. May stand before the command or after it."""

    vcenter: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=CONNECTION,
            metavar="NAME|URL|sim:SCENARIO",
            autocompletion=completion.targets,
            help="The vCenter: a target of the configuration file, an address, a private simulated one (sim:lab), or "
            "one that `gpuops sim serve` runs (sim@READY-FILE).",
        ),
    ] = None
    username: Annotated[str | None, typer.Option(rich_help_panel=CONNECTION, metavar="NAME", help="User name.")] = None
    password_file: Annotated[
        Path | None, typer.Option(rich_help_panel=CONNECTION, metavar="FILE", help="Read the password from a file.")
    ] = None
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", rich_help_panel=CONNECTION, help="Read the password from stdin.")
    ] = False
    ca_file: Annotated[
        Path | None,
        typer.Option(rich_help_panel=CONNECTION, metavar="FILE", help="Trust the certificates of this PEM file alone."),
    ] = None
    thumbprint: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=CONNECTION,
            metavar="SHA256",
            help="In addition to verification, accept only the certificate with this thumbprint.",
        ),
    ] = None
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", rich_help_panel=CONNECTION, help="Do not verify the certificate (warned about and audited)."
        ),
    ] = False
    proxy: Annotated[str | None, typer.Option(rich_help_panel=CONNECTION, metavar="HOST:PORT", help="HTTP proxy.")] = (
        None
    )
    journal_url: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=CONNECTION,
            metavar="URL",
            help="Keep the journal in this PostgreSQL database, for several machines.",
        ),
    ] = None
    reader: Annotated[
        BulkReader | None,
        typer.Option(
            rich_help_panel=CONNECTION,
            help="Read inventories over VI/JSON or SOAP; auto: VI/JSON if `gpuops login test` found both equal.",
        ),
    ] = None
    site: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=SITES,
            metavar="NAME|PATTERN|LABEL=VALUE|all",
            autocompletion=completion.sites,
            help="Read these targets of the configuration file, several at a time (gpuops help sites).",
        ),
    ] = None
    parallel: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=SITES,
            min=1,
            max=256,
            metavar="N",
            show_default="8",
            help="With --site: read at most N vCenters at a time.",
        ),
    ] = None
    site_timeout: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=SITES,
            min=1,
            max=86400,
            metavar="SECONDS",
            show_default="300",
            help="With --site: stop reading a vCenter that takes longer, and report it.",
        ),
    ] = None
    output: Annotated[
        OutputFormat | None,
        typer.Option(
            "--output",
            "-o",
            rich_help_panel=OUTPUT,
            help="text for people; json and yaml are versioned.",
            metavar=f"<{'|'.join(WITHOUT_CSV)}>",
            autocompletion=formats,
        ),
    ] = None
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", rich_help_panel=OUTPUT, help="Print one summary line and errors only."),
    ] = False
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", rich_help_panel=OUTPUT, help="Print a line on stderr as each step ends."),
    ] = False
    no_color: Annotated[
        bool,
        typer.Option(
            "--no-color", rich_help_panel=OUTPUT, help="No colours and no other escape sequences; top shows one table."
        ),
    ] = False

    def over(self, earlier: CommonOptions | None) -> CommonOptions:
        """Return these options; a missing one has the value given before the command."""
        if earlier is None:
            return self
        unset = {field.name: getattr(earlier, field.name) for field in fields(self) if not getattr(self, field.name)}
        return replace(self, **unset)

    @property
    def format(self) -> OutputFormat:
        return self.output or OutputFormat.TEXT

    def manners(self) -> Manners:
        """Return how much is printed, and in which colours. Raises UsageError for --quiet with --verbose."""
        if self.quiet and self.verbose:
            raise UsageError("--quiet and --verbose exclude each other", hint="give one of them")
        return Manners(self.quiet, self.verbose, self.no_color)


ByTimer = Annotated[
    bool,
    typer.Option("--by-timer", help="For timers: do nothing, without an error, outside the hours of this command."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan; change nothing.")]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a plan is carried out."""

    dry_run: DryRun = False
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before something is stopped, moved or rebooted.")
    ] = False
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show every host and GPU that was considered, and why it was chosen or not."),
    ] = False


class Reboot(StrEnum):
    """How a setting that needs a reboot of its host takes effect."""

    ROLLING = "rolling"


@dataclass(frozen=True, slots=True)
class RebootOptions:
    """Whether hosts are rebooted for the change, and how."""

    reboot: Annotated[
        Reboot | None,
        typer.Option(help="Empty, set and reboot one host after another, and bring its VMs back."),
    ] = None
    max_hosts: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most N hosts are down at once (1).")] = (
        None
    )
    window: Annotated[
        str | None,
        typer.Option(
            metavar="WINDOW",
            help="Start with a host only in this window: 'Sat 22:00-04:00 Europe/Berlin' (Saturdays only).",
        ),
    ] = None
    running_vms: Annotated[
        Displacement | None, typer.Option(help="What to do with VMs that run there; default: move, by vMotion.")
    ] = None
    vsan_mode: Annotated[
        VsanMode | None, typer.Option(help="What vSAN does with a host's data; default: ensureObjectAccessibility.")
    ] = None
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before hosts are rebooted.")] = False

    def rolling(self) -> Rolling | None:
        """Return how hosts are rebooted; None without --reboot. Raises UsageError for options that need --reboot."""
        settings = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("reboot", "yes")
        }
        chosen = {name: setting for name, setting in settings.items() if setting is not None}
        if self.reboot is None:
            stray = next(iter(chosen), "yes" if self.yes else None)
            if stray is not None:
                raise UsageError(
                    f"--{stray.replace('_', '-')} needs --reboot rolling",
                    hint=f"add --reboot rolling, or remove --{stray.replace('_', '-')}",
                )
            return None
        if self.window is not None:
            from gpuops.config.date_text import parse_window

            chosen["window"] = parse_window(self.window)
        if self.running_vms is not None:
            chosen["vms"] = chosen.pop("running_vms")
        return Rolling(**chosen)


Saved = Annotated[
    Path | None,
    typer.Option(
        "--inventory", metavar="FILE", help="Plan on a saved inventory, without a vCenter; nothing is changed."
    ),
]


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How VMs that share a GPU are measured."""

    template: Annotated[str | None, typer.Option(metavar="NAME", help="A Linux template without GPUs.")] = None
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", autocompletion=completion.profiles, help="The vGPU profile of its VMs: a40-8q."),
    ] = None
    counts: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="How many VMs at once, one measurement for each number: 1,2,4,8."),
    ] = None
    guest_command: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="The work to measure: a shell command that runs in the guests."),
    ] = None
    overlap: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="The share of their work that VMs do at the same time; default: all."),
    ] = None
    schedulers: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="best-effort,equal-share; without --set-schedulers only the one in force is measured (the default).",
        ),
    ] = None
    set_schedulers: Annotated[
        bool,
        typer.Option(
            "--set-schedulers",
            help="Set each of --schedulers, then the previous one again, each with a rolling reboot of the host.",
        ),
    ] = False
    window: Annotated[
        str | None,
        typer.Option(metavar="WINDOW", help="With --set-schedulers: when the host may be rebooted."),
    ] = None
    running_vms: Annotated[
        Displacement | None, typer.Option(help="With --set-schedulers: what to do with VMs that run there.")
    ] = None
    host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            autocompletion=completion.hosts,
            help="The host whose GPU is shared; default: that of the template.",
        ),
    ] = None
    whole: Annotated[
        bool, typer.Option("--whole", help="Also measure one VM with a whole GPU, once as vGPU and once as DirectPath.")
    ] = False
    timeout: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="How long the command may take.")] = 3600
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the VMs of an interrupted measurement; other options are ignored.")
    ] = False
    dry_run: DryRun = False
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before VMs are cloned, powered on and removed.")
    ] = False


PolicyFile = typer.Option("--policy", metavar="FILE", help="The rotation policy (templates/policy.yaml explains it).")
