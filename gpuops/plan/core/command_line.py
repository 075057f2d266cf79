"""Describes the options of requests, and prints gpuops commands that a person can copy into a shell.

The fields of requests are annotated with `Option`, from which `gpuops.console.options` makes the options of commands,
and `make generate` those of Ansible's modules.

The owner of a VM chooses its name. In a printed command, `x; reboot` must not become two commands, `--yes` not an
option, and `moid:vm-7` not another VM.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from shlex import join
from typing import Annotated, Final, TypeVar

from gpuops.errors import UsageError
from gpuops.model.vcenter.vm import Vm

Word = TypeVar("Word", bound=StrEnum)


class Names(StrEnum):
    """The names in a vCenter that a shell offers to complete the value of an option."""

    VMS = "vms"
    HOSTS = "hosts"
    CLUSTERS = "clusters"
    PROFILES = "profiles"
    DEVICES = "devices"
    """PCI addresses of GPUs."""
    LABELS = "labels"
    """Hardware labels of Dynamic DirectPath I/O."""


@dataclass(frozen=True, slots=True)
class Option:
    """The help text, value and completion of the option for one field of a request.

    The option has the name of the field, with dashes. If the field is a tuple, the option may be repeated.
    """

    help: str
    metavar: str | None = None
    names: Names | None = None
    least: int | None = None
    most: int | None = None


VmName = Annotated[str, Option("Name, path, moid:vm-42 or uuid:...", "VM", Names.VMS)]
GpusOfHosts = Annotated[
    tuple[str, ...], Option("Only this GPU of each host: 0000:86:00.0. May be repeated.", "PCI-ADDRESS", Names.DEVICES)
]
HostPattern = Annotated[str | None, Option("Hosts whose name matches: esx-0*.", "HOST", Names.HOSTS)]
ClusterName = Annotated[str | None, Option("The hosts of this cluster.", "NAME", Names.CLUSTERS)]


def word(kind: type[Word], text: str, option: str) -> Word:
    """Return the member of this enumeration with the value `text`. Raises UsageError if no member has it."""
    try:
        return kind(text)
    except ValueError:
        allowed = ", ".join(kind)
        raise UsageError(f"--{option} {text!r} is not one of {allowed}") from None


_LITERAL: Final = {ord(character): f"[{character}]" for character in "*?["}


def command(verb: str, **options: str) -> str:
    """Return a gpuops command line, quoted for a shell.

    >>> command("rotate restore", vm="desk 7")
    "gpuops rotate restore --vm 'desk 7'"
    """
    words = ["gpuops", *verb.split()]
    for name, argument in options.items():
        option = f"--{name.replace('_', '-')}"
        words += [f"{option}={argument}"] if argument.startswith("-") else [option, argument]
    return join(words)


def called(vm: Vm) -> str:
    """Return the value of `--vm` that selects this VM: its name, or `moid:ID` if the name could mean another thing."""
    # `:` and `/` are in ids (`moid:vm-7`) and paths.
    is_plain = vm.name.isprintable() and not vm.name.startswith("-") and ":" not in vm.name and "/" not in vm.name
    return vm.name if is_plain else f"moid:{vm.ref}"


def hosts_called(name: str) -> str:
    """Return the pattern for `--host` that only this name matches."""
    return name.translate(_LITERAL)
