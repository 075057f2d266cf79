"""Command: a line for people to copy into a shell, whose words stay words there, whoever has named what is in them.

A VM's owner chooses its name: `x; reboot` must not be two commands, `--yes` no option, and `moid:vm-7` not another VM.
"""

from __future__ import annotations

from shlex import join
from typing import Final

from gpuops.model.vm import Vm

_OF_OTHERS: Final = (":", "/")
"""In what follows --vm, an id or a path has them."""
_LITERAL: Final = {ord(each): f"[{each}]" for each in "*?["}


def command(verb: str, **options: str) -> str:
    """`gpuops VERB --option VALUE...`, quoted for a shell."""
    words = ["gpuops", *verb.split()]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        words += [f"{option}={value}"] if value.startswith("-") else [option, value]
    return join(words)


def called(vm: Vm) -> str:
    """What `--vm` finds the VM by: its name, or its id where the name would be taken for something else."""
    plain = vm.name.isprintable() and not vm.name.startswith("-") and not any(each in vm.name for each in _OF_OTHERS)
    return vm.name if plain else f"moid:{vm.ref}"


def hosts_called(name: str) -> str:
    """What `--host` finds the hosts of exactly that name by: it takes a pattern."""
    return name.translate(_LITERAL)
