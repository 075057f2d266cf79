"""The table of commands: where each is written and what `gpuops --help` says of it.

The module of a command is imported when the command is called or its own help is asked for: `gpuops --help` and the
completion of a word import none of them.
"""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from typing import Any, Final

import typer

SHORT_HELP: Final = {
    "inventory": "Show hosts, NUMA nodes, GPUs, who holds them, what is free.",
    "capacity": "Say how many more vGPUs and whole GPUs fit.",
    "attach": "Give a VM vGPUs, whole GPUs or a device group.",
    "detach": "Take GPU devices from a VM.",
    "place": "Say where VMs that do not exist yet would go.",
    "defrag": "Plan and make the vMotions that free the most GPUs.",
    "doctor": "Say what stands in the way on hosts, GPUs and VMs.",
    "rotate": "Desktops by day, ML VMs on their GPUs by night.",
    "scheduler": "Show and set the vGPU scheduler of hosts.",
    "mode": "Show and set graphics type, vGPU mode, assignment policy.",
    "passthrough": "Switch DirectPath I/O of hosts' GPUs on and off.",
    "mig": "Show and switch MIG mode of hosts' GPUs.",
    "change": "See, resume, abort or give up a rolling change of hosts.",
    "roles": "Compare vCenter's roles with those that gpuops needs.",
    "sim": "Serve a simulated vCenter, and read what was done to it.",
    "demo": "Watch an attach, a night and a morning, simulated.",
    "help": "Show the manual.",
}
"""What `gpuops --help` says of each, whole on a line of 80 columns, and in which order."""


class Commands(UserDict[str, Any]):
    """Every command by its name, each loaded at the first look at it."""

    def __init__(self) -> None:
        super().__init__()
        self.data.update(dict.fromkeys(SHORT_HELP))

    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            self.data[name] = _loaded(name)
        return self.data[name]


def _loaded(name: str) -> Any:
    """The command of gpuops.cli.NAME: a function, or a group of commands."""
    found = getattr(import_module(f"gpuops.cli.{name}"), name)
    if isinstance(found, typer.Typer):
        return typer.main.get_group(found)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name)(found)
    return typer.main.get_command(alone)
