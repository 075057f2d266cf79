"""The `gpuops` command: its own options, the table of its commands, and how it ends.

The module of a command is imported when the command is called or its own help is asked for: `gpuops --help` and the
completion of a word import none of them.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
from collections import UserDict
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from keyword import iskeyword
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from gpuops import __version__
from gpuops.config.user_paths import name_missing_user
from gpuops.console import output, signals
from gpuops.console.commands import CommandGroup, VerbCommand
from gpuops.console.completion import completing
from gpuops.console.failure import run_guarded
from gpuops.console.options import CommonOptions
from gpuops.console.spread import also_csv, reads_sites, spread
from gpuops.distribution import NAME, refuse_other_project
from gpuops.extensions import command_module, missing_commands
from gpuops.files import private_file

SECTIONS: Final = {
    "see what is there": {
        "inventory": "Show hosts, NUMA nodes, GPUs, who holds them, what is free.",
        "top": "Watch hosts, GPUs and VMs, and what they use now.",
        "capacity": "Say how many more vGPUs and whole GPUs fit.",
        "profiles": "Show vGPU profiles of a GPU model, and which mix.",
        "place": "Say where VMs that do not exist yet would go.",
        "size": "Say how many VMs may share a GPU, by which scheduler.",
        "measure": "Measure how VMs share a GPU, with temporary VMs.",
        "job": "Say where jobs in containers fit, and how long they take.",
        "what-if": "Compare the fleet with itself after planned changes.",
        "diagnose": "Say which component slows VMs down.",
        "doctor": "Say what stands in the way on hosts, GPUs and VMs.",
        "guest": "Ask guests whether they are ready for work on their GPUs.",
        "report": "Report the fleet and its nights, as one HTML page too.",
        "serve": "Serve the page of `report` over HTTP, kept current.",
        "readiness": "Say whether hosts can be emptied, or lost.",
        "mcp": "Let an AI assistant read and plan, by tools.",
    },
    "GPUs of VMs": {
        "attach": "Give a VM vGPUs, whole GPUs or a device group.",
        "detach": "Take GPU devices from a VM.",
        "cluster": "Make, show and remove clusters of VMs for training.",
        "pool": "Lend shares of GPUs over the network, with an end.",
        "defrag": "Plan and make the vMotions that free the most GPUs.",
    },
    "what should be": {
        "diff": "Show what differs from a file of the intended state.",
        "apply": "Change what differs from the file; safe to repeat.",
        "assert": "Check in CI that nothing differs from the file.",
        "drift": "Show what drifts from the file, and set it back.",
        "export": "Write the current state as such a file.",
    },
    "night and day": {
        "rotate": "Desktops by day, ML VMs on their GPUs by night.",
        "queue": "Show who waits for a night, in order, and why.",
        "idle": "Say whether desktops are idle, and by which numbers.",
        "broker": "Show desktop pools of the broker, and their sessions.",
        "history": "Show past nights and changes, GPU-hours, who ran them.",
        "notify": "Test where notices go; send those that wait.",
        "observe": "Store performance counters for weeks.",
        "runner": "Run nights of many vCenters, on several machines.",
        "metrics": "Give Prometheus metrics of GPUs, their VMs and nights.",
    },
    "GPUs of hosts": {
        "host": "Show and set scheduler, mode, DirectPath I/O and MIG of GPUs.",
        "change": "See, resume, abort or give up a rolling change of hosts.",
    },
    "first steps and help": {
        "demo": "Watch an attach, a night and a morning, simulated.",
        "setup": "Set up a vCenter: address, certificate, login, files.",
        "config": "Write, show and change the file of this machine's vCenters.",
        "login": "Test a login: user, privileges, how inventories are read.",
        "roles": "Compare vCenter's roles with those that gpuops needs.",
        "template": "Show and write the templates that come with gpuops.",
        "bundle": "Write an archive for a bug report, names hidden.",
        "sim": "Serve a simulated vCenter, and read what was done to it.",
        "explain": "Explain a key of a policy, the configuration or another file.",
        "schema": "Print the JSON Schemas of documents and files.",
        "help": "Show the manual.",
    },
}
"""The summary of each command in `gpuops help --all`, by heading, in the order in which they are listed.

`gpuops --help` shows the summaries of EVERYDAY and names the others by subject (BY_SUBJECT). A summary fits on a line
of 80 columns.
"""
_MISSING: Final = missing_commands()
SHORT_HELP: Final = {
    name: text for commands in SECTIONS.values() for name, text in commands.items() if name not in _MISSING
}


def _select_installed(names: str) -> tuple[str, ...]:
    return tuple(name for name in names.split() if name not in _MISSING)


EVERYDAY: Final = _select_installed("inventory capacity attach detach place rotate idle history doctor top")
BY_SUBJECT: Final = {
    "VMs": _select_installed("defrag guest diagnose cluster job pool"),
    "hosts": _select_installed("host change readiness"),
    "as code": _select_installed("diff apply assert drift export"),
    "sizing": _select_installed("profiles size measure what-if"),
    "nights": _select_installed("queue broker observe notify"),
    "services": _select_installed("report serve metrics runner mcp"),
    "set up": _select_installed("setup demo config login roles template explain help"),
}
"""The commands that `gpuops --help` only names. `gpuops help --all` has those for developers too."""


class Commands(UserDict[str, Any]):
    """Every command by its name; each is imported at its first use."""

    def __init__(self) -> None:
        super().__init__()
        self.data.update({name: name for name in SHORT_HELP})

    def __getitem__(self, name: str) -> Any:
        """Return the command. Raises UsageError if its extra is not installed, KeyError for other words."""
        return _load_command(name if name in _MISSING else self.data[name])


_MODULES: Final = {
    "what_fits": ("capacity", "place", "profiles"),
    "change": ("change",),
    "first_steps.help": ("help", "template"),
    "first_steps.schema": ("explain", "schema"),
    "first_steps.setup": ("config", "login", "setup"),
    "first_steps.sim": ("demo", "sim"),
    "host": ("host",),
    "looks": ("broker", "history", "idle", "queue"),
    "monitoring": ("doctor", "guest", "inventory", "readiness", "roles"),
    "rotate": ("rotate",),
    "vms": ("attach", "defrag", "detach"),
}
"""The commands of each module below `gpuops.cli`."""


@cache
def _load_command(name: str) -> Any:
    """Return the command of that name: a function, or a group of commands. It is created once in a process."""
    module = command_module(name)  # None = a command of the core
    if module is None:
        module = "gpuops.cli." + next(core_module for core_module, commands in _MODULES.items() if name in commands)
    function = f"{name}_" if iskeyword(name) else name.replace("-", "_")  # `assert_`: `assert` is a keyword of Python
    command = getattr(import_module(module), function)
    if isinstance(command, typer.Typer):
        return typer.main.get_group(command)
    # a function becomes a command of typer in an app of its own
    single_command_app = typer.Typer(add_completion=False, rich_markup_mode=None)
    single_command_app.command(name, cls=VerbCommand)(command)
    return typer.main.get_command(single_command_app)


class RootGroup(CommandGroup):
    """The group of all commands. Each way of calling it, tests included, ends with one line and an exit code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(SHORT_HELP)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write `gpuops --help`: one screen, with everyday commands first."""
        self.format_usage(ctx, formatter)
        description, _, example = (self.help or "").partition("\n\n")
        with formatter.indentation():
            formatter.write_paragraph()
            formatter.write_text(description)
        with formatter.section("Every day"):
            formatter.write_dl([(name, SHORT_HELP[name]) for name in EVERYDAY])
        with formatter.section("More commands, by subject"):
            formatter.write_dl([(subject, ", ".join(names)) for subject, names in BY_SUBJECT.items() if names])
        with formatter.section("Options"):
            options = [option for option in self.get_params(ctx) if option.name in ("version", "help")]
            formatter.write_dl(list(filter(None, (option.get_help_record(ctx) for option in options))))
        with formatter.indentation():
            formatter.write_paragraph()
            formatter.write_text(example)
            formatter.write_paragraph()
            formatter.write_text(
                "\b\ngpuops COMMAND --help   the options of a command\n"
                "gpuops help --all       all commands, and the options that every command takes\n"
                "gpuops help             the manual"
            )

    def format_everything(self, ctx: Any, formatter: Any) -> None:
        """Write `gpuops help --all`: all options of the program, and all commands with their summaries."""
        super().format_help(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List all commands from the table, so that none of them is imported."""
        spacing = 2 + max(map(len, SHORT_HELP))
        for title, commands in SECTIONS.items():
            rows = [(f"{name:<{spacing - 2}}", text) for name, text in commands.items() if name in SHORT_HELP]
            if rows:  # without their extra all commands of a section may be missing
                with formatter.section(f"Commands ({title})"):
                    formatter.write_dl(rows)

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *unused: Any, **extra: Any) -> Any:
        """Run one command line; typer passes the exceptions on, and `run_guarded` reports them."""
        extra["standalone_mode"] = False
        output.behave(output.Manners())
        output.choose(_format_before_parsing(sys.argv[1:] if args is None else args))
        with completing():
            sys.exit(run_guarded(lambda: TyperGroup.main(self, args, prog_name, *unused, **extra)))


app = typer.Typer(
    name="gpuops",
    cls=RootGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _format_before_parsing(args: Sequence[str]) -> output.OutputFormat:
    """Return the format of an error that comes before the options are understood: `--output json --bogus`."""
    # \0 separates the arguments; the last --output or -o counts
    formats = re.findall(r"(?:^|\0)(?:-o\0?|--output[\0=])(text|json|yaml|csv)(?=\0|$)", "\0".join(args))
    return output.OutputFormat(formats[-1]) if formats else output.OutputFormat.TEXT


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"gpuops {__version__} ({NAME})")
        raise typer.Exit


@app.callback()
@spread
@also_csv
@reads_sites
def root(
    context: typer.Context,
    common: CommonOptions,
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Attach, place, rotate and explain NVIDIA GPUs on vSphere.

    \b
    Try it, with nothing configured:
      gpuops inventory --vcenter sim:lab
      gpuops attach --vm ml-07 --profile a100-3-20c --vcenter sim:lab
    """
    context.obj = common


NEW_OBJECTS_BEFORE_COLLECTION: Final = 200_000
"""Python looks for unreachable cycles after 700 new objects; importing a command's modules makes 120,000 that stay."""


def main() -> None:
    """Run the command line, unless another project's files lie among ours."""
    gc.set_threshold(NEW_OBJECTS_BEFORE_COLLECTION)
    # Python ends by looking twice for cycles among all objects, 0.04 s each, whose memory the system takes back anyway.
    atexit.register(gc.freeze)
    private_file.forbid_core_files()
    name_missing_user()
    signals.install()
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        # a name that the terminal's encoding lacks must not end a night
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if exit_code := run_guarded(refuse_other_project):
        sys.exit(exit_code)
    app(prog_name="gpuops")


def _open_missing_streams() -> None:
    """Open /dev/null for each stream that the caller closed (`>&-`).

    In the order of their descriptors 0, 1, 2: a socket that took descriptor 2 would be written to as stderr.
    """
    for name, file_mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), file_mode, encoding="utf-8"))
