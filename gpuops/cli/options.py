"""The options that commands share, and `spread`, by which a command takes a dataclass for all its options.

A parameter whose type is a dataclass stands for one option per field. Two kinds: the groups below, whose fields are
annotated with `typer.Option` and which end each command's list, and the requests of `plan/`, whose fields are annotated
with `Option` of `plan.core.options` and which stand where they are written. A field of a request without an annotation
is no option: it keeps its default, or has the value that the command's `Fixed` gives it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

import typer

from gpuops.cli import completion, output
from gpuops.cli.output import Manners, OutputFormat
from gpuops.errors import UsageError
from gpuops.model.host_settings import Displacement, Rolling, VsanMode
from gpuops.model.login import BulkReader
from gpuops.plan.core.command_line import Names, Option

if TYPE_CHECKING:
    from gpuops.api import Site
    from gpuops.hostshell.nvidia_smi import NvidiaSmi


CONNECTION: Final = "Connection"
SITES: Final = "Several vCenters"
OUTPUT: Final = "Output"
HOST_SHELL: Final = "Host shell"
MEASURING: Final = "With --measure"
"""Under which heading of a command's help options stand."""
KNOWN: Final = Path("~/.ssh/known_hosts")


WITHOUT_CSV: Final = tuple(each.value for each in OutputFormat if each is not OutputFormat.CSV)
"""What --output takes of the commands that have no table."""


def formats(incomplete: str) -> list[str]:
    """The formats of a command without a table that begin so."""
    return [each for each in WITHOUT_CSV if each.startswith(incomplete)]


class Shell(StrEnum):
    """How hosts themselves are asked."""

    NONE = "none"
    SSH = "ssh"


@dataclass(frozen=True, slots=True)
class HostShellOptions:
    """Whether hosts themselves are asked, and how."""

    host_shell: Annotated[
        Shell | None,
        typer.Option(
            rich_help_panel=HOST_SHELL,
            show_default="none",
            help="Whether the hosts' own nvidia-smi is asked, and how; their keys must be known.",
        ),
    ] = None
    ssh_user: Annotated[str, typer.Option(rich_help_panel=HOST_SHELL, metavar="NAME", help="Who enters a host.")] = (
        "root"
    )
    ssh_known_hosts: Annotated[
        Path,
        typer.Option(rich_help_panel=HOST_SHELL, metavar="FILE", help="The hosts' SSH keys; no other is trusted."),
    ] = KNOWN
    ssh_key: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=HOST_SHELL,
            metavar="FILE",
            help="The key to enter with; default: the agent's and ~/.ssh.",
        ),
    ] = None
    ssh_port: Annotated[
        int,
        typer.Option(rich_help_panel=HOST_SHELL, min=1, max=65535, metavar="PORT", help="The port of the hosts' SSH."),
    ] = 22

    def shell(self) -> NvidiaSmi | None:
        """The way in; None = hosts are not entered."""
        if self.host_shell is not Shell.SSH:
            return None
        from gpuops.hostshell.nvidia_smi import NvidiaSmi
        from gpuops.hostshell.ssh import Ssh

        return NvidiaSmi(Ssh(self.ssh_user, self.ssh_known_hosts, self.ssh_key, self.ssh_port))

    def give_to(self, site: Site, saved: Path | None = None) -> None:
        """Lets the site ask the hosts themselves; what one of them does not answer is said on stderr.

        Raises UsageError with a saved inventory: what hosts tell now is not true of it.
        """
        if saved is not None and self.host_shell is Shell.SSH:
            raise UsageError("--host-shell and --inventory exclude each other", hint="leave one of them out")
        site.shell, site.say = self.shell(), output.note

    def asked_for_measurements(self, site: Site) -> None:
        """As `give_to`, for what is measured: where no option says whether hosts are asked, the target's entry does."""
        from gpuops.api.connection import host_shell

        self.give_to(site)
        if self.host_shell is None and site.measured.hosts is not None:
            site.shell = host_shell(site.measured.hosts)

    def asked_for_vgpu_use(self, site: Site) -> None:
        """Has the use of vGPUs asked for as these options say; without --host-shell as the target's entry does."""
        from gpuops.api.connection import vgpu_use

        if self.host_shell is not None:
            site.vgpu_use = vgpu_use(site, self.shell(), output.note)


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """Which vCenter, how it is reached, and how the result is printed. Each may stand before the command or after."""

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
            help="Beside verification, accept this certificate alone (its thumbprint).",
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
            help="Read inventories over VI/JSON or SOAP; auto: VI/JSON where `gpuops login test` proved it.",
        ),
    ] = None
    site: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=SITES,
            metavar="NAME|PATTERN|LABEL=VALUE|all",
            autocompletion=completion.sites,
            help="Of commands that read: these targets of the configuration file, at once (gpuops help sites).",
        ),
    ] = None
    jobs: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=SITES,
            min=1,
            max=256,
            metavar="N",
            show_default="8",
            help="With --site: so many vCenters at a time at the most.",
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
            help="With --site: a vCenter that takes longer is named and left.",
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
        typer.Option(
            "--quiet", "-q", rich_help_panel=OUTPUT, help="Of a run one line, and what is wrong; no progress."
        ),
    ] = False
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", rich_help_panel=OUTPUT, help="A line on stderr as each step ends."),
    ] = False
    no_color: Annotated[
        bool, typer.Option("--no-color", rich_help_panel=OUTPUT, help="No colours, as with NO_COLOR set.")
    ] = False

    def over(self, earlier: CommonOptions | None) -> CommonOptions:
        """These options, and where one is not given, what stood before the command."""
        if earlier is None:
            return self
        unset = {field.name: getattr(earlier, field.name) for field in fields(self) if not getattr(self, field.name)}
        return replace(self, **unset)

    @property
    def format(self) -> OutputFormat:
        return self.output or OutputFormat.TEXT

    def manners(self) -> Manners:
        """How much is said, and in which colours. Raises UsageError for more and less at once."""
        if self.quiet and self.verbose:
            raise UsageError("--quiet and --verbose exclude each other", hint="give one of them")
        return Manners(self.quiet, self.verbose, self.no_color)


DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan; change nothing.")]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a plan is carried out."""

    dry_run: DryRun = False
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before something is stopped, moved or rebooted.")
    ] = False
    explain: Annotated[bool, typer.Option("--explain", help="Show every host and GPU looked at, and why.")] = False


class Reboot(StrEnum):
    """What is done for a setting that waits for a reboot of its host."""

    ROLLING = "rolling"


@dataclass(frozen=True, slots=True)
class RebootOptions:
    """Whether hosts are rebooted for the change, and how."""

    reboot: Annotated[
        Reboot | None,
        typer.Option(help="Bring it into force: empty, set and reboot one host after another, and fill it again."),
    ] = None
    max_hosts: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="So many hosts are down at once at the most (1).")
    ] = None
    window: Annotated[
        str | None,
        typer.Option(
            metavar="WINDOW", help="Begin a host only while it is open: 'Sat 22:00-04:00 Europe/Berlin'; no other day."
        ),
    ] = None
    vms: Annotated[
        Displacement | None, typer.Option(help="What is done to VMs that run there; move, by vMotion, is the default.")
    ] = None
    vsan_mode: Annotated[
        VsanMode | None, typer.Option(help="What vSAN does with a host's data (ensureObjectAccessibility).")
    ] = None
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before hosts are rebooted.")] = False

    def rolling(self) -> Rolling | None:
        """How hosts are rebooted; None = they are not. Raises UsageError for what means nothing then."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("reboot", "yes")}
        told = {name: value for name, value in given.items() if value is not None}
        if self.reboot is None:
            stray = next(iter(told), "yes" if self.yes else None)
            if stray is not None:
                raise UsageError(f"--{stray.replace('_', '-')} is of --reboot rolling", hint="say both, or neither")
            return None
        if self.window is not None:
            from gpuops.config.date_text import parse_window

            told["window"] = parse_window(self.window)
        return Rolling(**told)


Saved = Annotated[
    Path | None,
    typer.Option(
        "--inventory", metavar="FILE", help="Plan on a saved inventory, without a vCenter; nothing is changed."
    ),
]


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """What is made and run to measure how VMs share a GPU."""

    measure: Annotated[
        bool,
        typer.Option(
            "--measure", rich_help_panel=MEASURING, help="Make VMs of a template, run a command in them, remove them."
        ),
    ] = False
    template: Annotated[
        str | None, typer.Option(rich_help_panel=MEASURING, metavar="NAME", help="A Linux template without GPUs.")
    ] = None
    counts: Annotated[
        str | None, typer.Option(rich_help_panel=MEASURING, metavar="N,N,...", help="So many VMs at once: 1,2,4,8.")
    ] = None
    run: Annotated[
        str | None,
        typer.Option("--run", rich_help_panel=MEASURING, metavar="COMMAND", help="A command for a shell in guests."),
    ] = None
    schedulers: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=MEASURING,
            metavar="NAME,NAME",
            help="best-effort,equal-share: those not in force are left for a later call. Default: the one in force.",
        ),
    ] = None
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            rich_help_panel=MEASURING,
            metavar="HOST",
            autocompletion=completion.hosts,
            help="The host whose GPU is shared; default: that of the template.",
        ),
    ] = None
    limit: Annotated[
        int, typer.Option(rich_help_panel=MEASURING, min=1, metavar="SECONDS", help="What the command may take.")
    ] = 3600
    remove: Annotated[
        bool,
        typer.Option("--remove", rich_help_panel=MEASURING, help="Remove what a measurement left that was cut off."),
    ] = False
    dry_run: DryRun = False
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before VMs are made, run and removed.")] = False


PolicyFile = typer.Option("--policy", metavar="FILE", help="The rotation policy (templates/policy.yaml explains it).")

_GROUPS: Final = (CommonOptions, RunOptions, RebootOptions, HostShellOptions, MeasureOptions)
_COMPLETIONS: Final = {
    Names.VMS: completion.vms,
    Names.HOSTS: completion.hosts,
    Names.CLUSTERS: completion.clusters,
    Names.PROFILES: completion.profiles,
    Names.DEVICES: completion.devices,
    Names.LABELS: completion.labels,
}
Command = TypeVar("Command", bound=Callable[..., Any])


_ALSO_CSV: Final = "also_csv"


def also_csv(command: Command) -> Command:
    """The same command, which prints its result as CSV too, or leads to one that does; stands below `spread`."""
    command.__dict__[_ALSO_CSV] = True
    return command


_READS_SITES: Final = "reads_sites"
_OF_SITES: Final = ("site", "jobs", "site_timeout")


def reads_sites(command: Command) -> Command:
    """The same command, which may be asked of several vCenters by --site, for it only reads; stands below `spread`."""
    command.__dict__[_READS_SITES] = True
    return command


def _with_csv(option: inspect.Parameter) -> inspect.Parameter:
    """The option as it is of a command that has a table."""
    if option.name != "output":
        return option
    words = typer.Option(
        "--output", "-o", rich_help_panel=OUTPUT, help="text for people; json and yaml are versioned; csv of history."
    )
    return option.replace(annotation=Annotated[OutputFormat | None, words])


class Fixed:
    """Annotation of a request among a command's parameters: the fields that the command itself says.

    `Annotated[SetMig, Fixed(on=True)]`: `on` is no option of this command.
    """

    def __init__(self, **values: Any) -> None:
        self.values = values


def spread(command: Command) -> Command:
    """The same command with each group and request among its parameters spread into options.

    Typer reads options from a signature: this writes the one it should read, and puts the values together again.
    `CommonOptions` is merged with the options that stood before the command.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    shared: list[inspect.Parameter] = []
    groups: dict[str, Callable[[dict[str, Any]], Any]] = {}
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        group, fixed = _request(hint)
        if hint in _GROUPS:
            options = _options(hint, command)
            shared = options + shared
            groups[parameter.name] = partial(_gathered, hint, options, {})
        elif is_dataclass(group):
            options = _request_options(cast(type, group), fixed)
            parameters += options
            groups[parameter.name] = partial(_gathered, group, options, fixed)
        else:
            parameters.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))
    parameters += shared  # what a command is about comes first in its help
    has_context = any(parameter.annotation is typer.Context for parameter in parameters)
    if not has_context:
        parameters.append(inspect.Parameter("_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))

    @wraps(command)
    def gathered(**given: Any) -> Any:
        context = given["context"] if has_context else given.pop("_context")
        for name, gather in groups.items():
            value = gather(given)
            if isinstance(value, CommonOptions):
                value = value.over(context.find_object(CommonOptions))
                _behave(value, context, csv=_ALSO_CSV in command.__dict__)
            given[name] = value
        common = next((value for value in given.values() if isinstance(value, CommonOptions)), None)
        if common is not None and _asked_of_sites(common, context, reads=_READS_SITES in command.__dict__):
            from gpuops.cli.sites import ask_sites

            return ask_sites(command, given, common)
        return command(**given)

    gathered.__dict__["__signature__"] = inspect.Signature(parameters)
    gathered.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return gathered  # type: ignore[return-value]


def _behave(common: CommonOptions, context: Any, *, csv: bool) -> None:
    """Has everything printed as these options say. Raises UsageError for CSV of a command without a table."""
    if context.parent is not None:  # the root's word stands until the command's own is understood
        output.choose(common.format)
        if common.format is OutputFormat.CSV and not csv:
            raise output.no_csv()
    output.behave(common.manners())


def for_one_vcenter(context: Any) -> UsageError:
    """What a command says to --site that changes something, or is of this machine."""
    command = context.command_path.partition(" ")[2]
    return UsageError(
        f"{command} works on one vCenter: it takes no --site",
        hint="name it by --vcenter NAME; gpuops help sites lists the commands that read several",
    )


def _asked_of_sites(common: CommonOptions, context: Any, *, reads: bool) -> bool:
    """Whether this command is to be asked of several vCenters. Raises UsageError where it cannot be."""
    if context.parent is None:
        return False
    if common.site is None:
        if common.jobs or common.site_timeout:
            raise UsageError("--jobs and --site-timeout are of --site alone", hint="say --site all too")
        return False
    if not reads:
        raise for_one_vcenter(context)
    return context.invoked_subcommand is None


def _gathered(group: Any, options: list[inspect.Parameter], fixed: dict[str, Any], given: dict[str, Any]) -> Any:
    """The group or request that these options make; they are taken out of `given`."""
    told = {option.name: given.pop(option.name) for option in options}
    return group(**fixed, **{name: tuple(value) if isinstance(value, list) else value for name, value in told.items()})


def _request(hint: Any) -> tuple[Any, dict[str, Any]]:
    """The type of a parameter without its annotation, and the fields that the command itself says."""
    if get_origin(hint) is not Annotated:
        return hint, {}
    kind, *notes = get_args(hint)
    return kind, next((note.values for note in notes if isinstance(note, Fixed)), {})


def _options(group: type, command: Callable[..., Any]) -> list[inspect.Parameter]:
    """Its fields as options, without those of --site where the command does not read."""
    hints = get_type_hints(group, include_extras=True)
    options = [_parameter(field, hints[field.name]) for field in fields(group)]
    if _READS_SITES not in command.__dict__:
        options = [option for option in options if option.name not in _OF_SITES]
    return [_with_csv(option) for option in options] if _ALSO_CSV in command.__dict__ else options


def _request_options(request: type, fixed: dict[str, Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(request, include_extras=True)
    told = {name: option for name, hint in hints.items() for option in get_args(hint)[1:] if isinstance(option, Option)}
    return [
        _parameter(field, _typed(field.name, get_args(hints[field.name])[0], told[field.name]))
        for field in fields(request)
        if field.name in told and field.name not in fixed
    ]


def _parameter(field: Field[Any], annotation: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _typed(name: str, kind: Any, told: Option) -> Any:
    """The annotation as typer reads it."""
    # Without a flag of its own a boolean option would get a second one, --no-NAME.
    flags = [f"--{name.replace('_', '-')}"] if kind is bool else []
    complete = _COMPLETIONS[told.names] if told.names is not None else None
    several = get_origin(kind) is tuple
    option = typer.Option(
        *flags, help=told.help, metavar=told.metavar, autocompletion=complete, min=told.least, max=told.most
    )
    return Annotated[list[str] if several else kind, option]
