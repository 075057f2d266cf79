"""The classes of commands, groups and options on the command line, which change what typer does in three respects.

An option that takes one value may be given once. In the help of a command its own options come first, under "Options";
those that every command shares have headings of their own, and the options of the connection only their names: `gpuops
help --all` lists them in full. `PlainOption` leaves pydantic out where it can: typer checks each option with it, given
or not, and to import it and to build some 30 validators takes a third of the time of a short command.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.models import Default

from gpuops.console.options import CONNECTION
from gpuops.console.spread import for_one_vcenter
from gpuops.errors import UsageError

_NEEDS_TYPER: Final = object()


class PlainOption(TyperOption):
    """An option whose value typer checks only if `_convert_simple` cannot convert it."""

    def process_value(self, ctx: Any, typed: Any) -> Any:
        converted = self._convert_simple(typed)
        if converted is _NEEDS_TYPER:
            return super().process_value(ctx, typed)
        return converted if self.callback is None else self.callback(ctx, self, converted)

    def _convert_simple(self, typed: Any) -> Any:
        """Return the value for the command, or _NEEDS_TYPER if pydantic has to check it.

        Converts here: an option that is not given (None), any text, a number that is already an int (a default), a path
        that typer would accept, and the exact word of an enum.
        """
        if self.required or self.multiple or self.nargs != 1:
            return _NEEDS_TYPER
        kind, parameter = self.type_descriptor.annotation, self.type_descriptor.parameter_info
        if typed is None or (kind in (str, int) and type(typed) is kind and parameter.parser is None):
            return typed
        if kind is Path and not parameter.exists and _typer_accepts_path(typed):
            return Path(typed)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return next((member for member in kind if typed in (member, member.value)), _NEEDS_TYPER)
        return _NEEDS_TYPER


def _typer_accepts_path(path: str | Path) -> bool:
    """Return whether typer accepts the path: it refuses existing files that cannot be read."""
    return "\0" not in str(path) and (os.access(path, os.R_OK) or not Path(path).exists())


def without_needless_checks(parameters: list[Any]) -> list[Any]:
    """Return the parameters of a command with each option of typer as a `PlainOption`."""
    for parameter in parameters:
        if type(parameter) is TyperOption:
            parameter.__class__ = PlainOption
    return parameters


UNFINISHED: Final = """\b
resume   finish what was interrupted, with its original options
abort    stop a change of hosts and bring its VMs back; for a night: rotate day
abandon  give up one VM or host that never comes back, so that the rest can end"""
"""The end of the help of `resume`, `abort` and `abandon`, of rotations and of changes of hosts."""
Function = TypeVar("Function", bound=Callable[..., Any])
_OWN_OPTIONS: Final = "Options"


class VerbCommand(TyperCommand):
    """A command: refuses --site if it takes one vCenter, and reads a first word without an option as `--vm`."""

    def get_params(self, ctx: Any) -> list[Any]:
        return without_needless_checks(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        names = {parameter.name for parameter in self.params}
        if "vcenter" in names and "site" not in names and _has_option(args, "--site"):
            raise for_one_vcenter(ctx)
        if args and not args[0].startswith("-") and self._is_about_one_vm:
            if _has_option(args, "--vm"):
                raise UsageError(f"the VM is named twice: {args[0]} and --vm", hint="name it once")
            args = ["--vm", *args]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*(["[VM]"] if self._is_about_one_vm else []), *super().collect_usage_pieces(ctx)]

    @property
    def _is_about_one_vm(self) -> bool:
        """Return whether the command requires `--vm` once: then the name may follow the command without it."""
        vm = next((parameter for parameter in self.params if "--vm" in parameter.opts), None)
        return vm is not None and vm.required and not getattr(vm, "multiple", False)

    def get_short_help_str(self, limit: int = 45) -> str:
        return summary(self.help or "")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter, connection_by_name=True)


class CommandGroup(TyperGroup):
    """A group of commands: refuses an option that is repeated but takes one value."""

    def get_params(self, ctx: Any) -> list[Any]:
        return without_needless_checks(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, arguments = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, TyperGroup):
            refuse_repeated(command, arguments)
        return name, command, arguments

    def get_short_help_str(self, limit: int = 45) -> str:
        return summary(self.help or "")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


class VerbTable(typer.Typer):
    """A typer app of `CommandGroup` and `VerbCommand`. Without `help` the docstring of its callback is the help."""

    def __init__(self, name: str, help: str = "") -> None:
        # typer shows the docstring only for its own default, not for an empty text
        text = help or Default("")
        super().__init__(name=name, cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True, help=text)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        return super().command(name, cls=VerbCommand, **settings)


def summary(help_text: str) -> str:
    """Return the summary of a command for a list: the complete first clause of its help.

    >>> summary("Skip the next night of a policy: the one that is open, or else the first to open.")
    'Skip the next night of a policy.'
    """
    paragraph = inspect.cleandoc(help_text).partition("\n\n")[0]
    return re.split(r"[.:;](?:\s|$)", " ".join(paragraph.split()))[0] + "."


def _write_options(command: Any, ctx: Any, formatter: Any, *, connection_by_name: bool = False) -> None:
    """Write each heading with its options; with `connection_by_name` only the names of connection options."""
    panels: dict[str, list[tuple[str, str]]] = {_OWN_OPTIONS: []}
    connection_names: list[str] = []
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        panel = getattr(parameter, "rich_help_panel", None) or _OWN_OPTIONS
        # --vcenter is shown in full everywhere
        if connection_by_name and panel == CONNECTION and parameter.name != "vcenter":
            connection_names.append(parameter.opts[0])
        else:
            panels.setdefault(panel, []).append(record)
    for title, records in panels.items():
        if not records:
            continue
        with formatter.section(title):
            formatter.write_dl(records)
            if title == CONNECTION and connection_names:
                formatter.write_text(f"{' '.join(connection_names)}: see gpuops help targets")


def _has_option(arguments: Sequence[str], name: str) -> bool:
    """Return whether these arguments have the option, as `--name VALUE` or `--name=VALUE`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return any(argument.partition("=")[0] == name for argument in arguments[:end])


def refuse_repeated(command: Any, arguments: Sequence[str]) -> None:
    """Raise UsageError for the first option of the command that is repeated but takes one value."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    names = [argument.partition("=")[0] for argument in arguments[:end]]
    for parameter in command.params:
        if getattr(parameter, "multiple", True) or getattr(parameter, "is_flag", False):
            continue
        times = sum(names.count(name) for name in parameter.opts)
        if times > 1:
            # --profile is repeated to attach several vGPUs, which takes one command each
            hint = "attach one after the other, with --add" if parameter.opts[0] == "--profile" else "give it once"
            raise UsageError(f"{parameter.opts[0]} is given {times} times, but takes one value", hint=hint)
