"""The decorator `spread`, which makes an option of each field of a dataclass, and marks of commands that it reads.

A parameter whose type is a dataclass stands for one option per field. Two kinds: the groups of `console/options.py`,
whose fields are annotated with `typer.Option` and whose options end each command's list, and the requests of `plan/`,
whose fields are annotated with `Option` of `plan.core.command_line` and whose options stand where the parameter is
written. A field of a request without an annotation is no option: it keeps its default, or has the value that the
command's `Fixed` gives it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import partial, wraps
from typing import Annotated, Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

import typer

from gpuops.console import completion, output
from gpuops.console.options import (
    OUTPUT,
    CommonOptions,
    Format,
    HostShellOptions,
    MeasureOptions,
    RebootOptions,
    RunOptions,
)
from gpuops.console.output import OutputFormat
from gpuops.errors import UsageError
from gpuops.plan.core.command_line import Names, Option

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
    """Mark a command that also prints CSV, or has a subcommand that does; used below `spread`."""
    command.__dict__[_ALSO_CSV] = True
    return command


_READS_SITES: Final = "reads_sites"
_SERVES_SITES: Final = "serves_sites"
_SITE_OPTIONS: Final = ("site", "parallel", "site_timeout")


def reads_sites(command: Command) -> Command:
    """Mark a command that only reads, so that --site may run it for several vCenters; used below `spread`."""
    command.__dict__[_READS_SITES] = True
    return command


def serves_sites(command: Command) -> Command:
    """Mark a command that is a service: with --site and --listen it manages the processes of its vCenters itself.

    Used below `spread`, above `reads_sites`.
    """
    command.__dict__[_SERVES_SITES] = True
    return command


def _with_csv(option: inspect.Parameter) -> inspect.Parameter:
    """Return the option, with csv among its formats if it is --output."""
    if option.name != "output":
        return option
    with_csv = typer.Option(
        "--output", "-o", rich_help_panel=OUTPUT, help="text for people; json and yaml are versioned; csv of history."
    )
    return option.replace(annotation=Annotated[OutputFormat | None, with_csv])


class Fixed:
    """Annotation of a request among a command's parameters: the fields that the command sets itself.

    `Annotated[SetMig, Fixed(on=True)]`: `on` is no option of this command.
    """

    def __init__(self, **values: Any) -> None:
        self.values = values


_FORMAT: Final = inspect.Parameter("format", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Format)


def spread(command: Command) -> Command:
    """Return the command with the fields of each group and request among its parameters as options.

    Typer reads options from a signature: this writes that signature, and builds the groups from its values.
    `CommonOptions` is merged with the options before the command; a command without them gets --output alone.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    shared: list[inspect.Parameter] = []
    groups: dict[str, Callable[[dict[str, Any]], Any]] = {}
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        group, fixed = _split_annotation(hint)
        if hint in _GROUPS:
            options = _group_options(hint, command)
            shared = options + shared  # a later group stands before an earlier one
            groups[parameter.name] = partial(_build_group, hint, options, {})
        elif is_dataclass(group):
            options = _request_options(cast(type, group), fixed)
            parameters += options
            groups[parameter.name] = partial(_build_group, group, options, fixed)
        else:
            parameters.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))
    parameters += shared or [_FORMAT]  # in the help, a command's own options come before those that it shares
    has_context = any(parameter.annotation is typer.Context for parameter in parameters)
    if not has_context:
        parameters.append(inspect.Parameter("_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))

    @wraps(command)
    def run_with_groups(**arguments: Any) -> Any:
        context = arguments["context"] if has_context else arguments.pop("_context")
        arguments.pop(_FORMAT.name, None)
        for name, build_group in groups.items():
            built_group = build_group(arguments)
            if isinstance(built_group, CommonOptions):
                built_group = built_group.over(context.find_object(CommonOptions))
                _set_output_style(built_group, context, csv=_ALSO_CSV in command.__dict__)
            arguments[name] = built_group
        common = next((argument for argument in arguments.values() if isinstance(argument, CommonOptions)), None)
        is_site_service = _SERVES_SITES in command.__dict__ and arguments.get("listen") is not None
        is_for_sites = common is not None and _is_for_sites(common, context, reads=_READS_SITES in command.__dict__)
        if common is not None and is_for_sites and not is_site_service:
            from gpuops.extensions import load

            return load("gpuops.extras.fleet.sites.ask_sites")(command, arguments, common)
        return command(**arguments)

    run_with_groups.__dict__["__signature__"] = inspect.Signature(parameters)
    run_with_groups.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run_with_groups  # type: ignore[return-value]  # typer reads the signature that it was given


def _set_output_style(common: CommonOptions, context: Any, *, csv: bool) -> None:
    """Set format and style of the output by these options. Raises UsageError for CSV without a table."""
    if context.parent is not None:  # the options of the root apply until those of the command are parsed
        output.choose(common.format)
        if common.format is OutputFormat.CSV and not csv:
            raise output.no_csv()
    output.behave(common.manners())


def for_one_vcenter(context: Any) -> UsageError:
    """Return the error for --site with a command that changes something or is about this machine."""
    command = context.command_path.partition(" ")[2]
    return UsageError(
        f"gpuops {command} works on one vCenter and does not accept --site",
        hint="select it with --vcenter NAME; gpuops help sites lists the commands that read several",
    )


def _is_for_sites(common: CommonOptions, context: Any, *, reads: bool) -> bool:
    """Return whether this command is run for several vCenters. Raises UsageError if it cannot be."""
    if context.parent is None:
        return False
    if common.site is None:
        if common.parallel or common.site_timeout:
            raise UsageError("--parallel and --site-timeout need --site", hint="add --site all")
        return False
    if not reads:
        raise for_one_vcenter(context)
    return context.invoked_subcommand is None


def _build_group(group: Any, options: list[inspect.Parameter], fixed: dict[str, Any], arguments: dict[str, Any]) -> Any:
    """Return the group or request of these options, which are removed from `arguments`."""
    settings = {option.name: arguments.pop(option.name) for option in options}
    # requests are hashable: the lists of options that take several values become tuples
    return group(
        **fixed,
        **{name: tuple(setting) if isinstance(setting, list) else setting for name, setting in settings.items()},
    )


def _split_annotation(hint: Any) -> tuple[Any, dict[str, Any]]:
    """Return the type of a parameter without its annotation, and the fields that the command sets itself."""
    if get_origin(hint) is not Annotated:
        return hint, {}
    kind, *notes = get_args(hint)
    return kind, next((note.values for note in notes if isinstance(note, Fixed)), {})


def _group_options(group: type, command: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the fields of a group as options, without those of --site if the command changes something."""
    hints = get_type_hints(group, include_extras=True)
    options = [_parameter(field, hints[field.name]) for field in fields(group)]
    if _READS_SITES not in command.__dict__:
        options = [option for option in options if option.name not in _SITE_OPTIONS]
    return [_with_csv(option) for option in options] if _ALSO_CSV in command.__dict__ else options


def _request_options(request: type, fixed: dict[str, Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(request, include_extras=True)
    options_of_fields = {
        name: option for name, hint in hints.items() for option in get_args(hint)[1:] if isinstance(option, Option)
    }
    return [
        _parameter(field, _typer_annotation(field.name, get_args(hints[field.name])[0], options_of_fields[field.name]))
        for field in fields(request)
        if field.name in options_of_fields and field.name not in fixed
    ]


def _parameter(field: Field[Any], annotation: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _typer_annotation(name: str, kind: Any, option_facts: Option) -> Any:
    """Return the annotation from which typer makes the option of a request's field."""
    # for a boolean without explicit flags typer would add a second flag, --no-NAME
    flags = [f"--{name.replace('_', '-')}"] if kind is bool else []
    complete = _COMPLETIONS[option_facts.names] if option_facts.names is not None else None
    several = get_origin(kind) is tuple
    option = typer.Option(
        *flags,
        help=option_facts.help,
        metavar=option_facts.metavar,
        autocompletion=complete,
        min=option_facts.least,
        max=option_facts.most,
    )
    return Annotated[list[str] if several else kind, option]
