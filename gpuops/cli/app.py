"""The `gpuops` command: its own options, how it ends, and the table of its commands (`commands.py`)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gpuops import __version__
from gpuops.cli import output, signals
from gpuops.cli.commands import SHORT_HELP, Commands
from gpuops.cli.failure import guarded
from gpuops.cli.options import Common, spread
from gpuops.cli.repeated import Once
from gpuops.config import private_file


class Gpuops(Once):
    """The group of all commands. Every way in, tests included, ends with one line and an exit code."""

    def __init__(self, **told: Any) -> None:
        super().__init__(**told)
        self.commands = Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(SHORT_HELP)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands, from the table alone: none is imported for it."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SHORT_HELP.items()))

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *unused: Any, **extra: Any) -> Any:
        extra["standalone_mode"] = False
        output.choose(_wished(sys.argv[1:] if args is None else args))
        sys.exit(guarded(lambda: TyperGroup.main(self, args, prog_name, *unused, **extra)))


app = typer.Typer(
    name="gpuops",
    cls=Gpuops,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _wished(args: Sequence[str]) -> output.OutputFormat:
    """The format of an error that comes before the options are understood: `--output json --bogus`."""
    found = re.findall(r"(?:^|\0)(?:-o\0?|--output[\0=])(text|json|yaml)(?=\0|$)", "\0".join(args))
    return output.OutputFormat(found[-1]) if found else output.OutputFormat.TEXT


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpuops {__version__}")
        raise typer.Exit


@app.callback()
@spread
def root(
    context: typer.Context,
    common: Common,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Attach, place, rotate and explain NVIDIA GPUs on vSphere.

    \b
    Try it, with nothing configured:
      gpuops inventory --vcenter sim:lab
      gpuops attach --vm ml-07 --profile a100-3-20c --vcenter sim:lab
    """
    context.obj = common


def main() -> None:
    """Runs the command line; the entry point of the `gpuops` script."""
    private_file.forbid_core_files()
    signals.install()
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        # a name that the terminal's encoding lacks must not end a night
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app(prog_name="gpuops")


def _open_missing_streams() -> None:
    """A stream that the caller closed (`>&-`) reads as empty and takes everything, as if it were /dev/null.

    In the order of their numbers: else the next socket would be stderr.
    """
    for name, way in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), way, encoding="utf-8"))
