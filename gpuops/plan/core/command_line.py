"""How the fields of a request are given as options, and command lines of gpuops for people to copy.

The fields of requests are annotated with `Option`, from which `gpuops.console.options` makes the options of commands,
and `make generate` those of Ansible's modules.
A VM's owner chooses its name, and it stays one word of a shell there: `x; reboot` must not be two commands, `--yes` no
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
    """Which names of a vCenter complete the value of an option."""

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
    """The annotation of a request's field: what its option is called in help, and what completes it.

    The option is the field's name with dashes. A field of type tuple may be given several times.
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
HostPattern = Annotated[str | None, Option("Hosts named so (esx-0*).", "PATTERN", Names.HOSTS)]
ClusterName = Annotated[str | None, Option("The hosts of this cluster.", "NAME", Names.CLUSTERS)]


def word(kind: type[Word], text: str, option: str) -> Word:
    """Return the member of the vocabulary that `text` is. Raises UsageError."""
    try:
        return kind(text)
    except ValueError:
        allowed = ", ".join(kind)
        raise UsageError(f"--{option} {text!r} is not one of {allowed}") from None


_OF_OTHERS: Final = (":", "/")
"""In what follows --vm, an id or a path has them."""
_LITERAL: Final = {ord(character): f"[{character}]" for character in "*?["}


def command(verb: str, **options: str) -> str:
    """`gpuops VERB --option VALUE...`, quoted for a shell."""
    words = ["gpuops", *verb.split()]
    for name, argument in options.items():
        option = f"--{name.replace('_', '-')}"
        words += [f"{option}={argument}"] if argument.startswith("-") else [option, argument]
    return join(words)


def called(vm: Vm) -> str:
    """Return what `--vm` finds the VM by: its name, or its id where the name would be taken for something else."""
    plain = (
        vm.name.isprintable()
        and not vm.name.startswith("-")
        and not any(character in vm.name for character in _OF_OTHERS)
    )
    return vm.name if plain else f"moid:{vm.ref}"


def hosts_called(name: str) -> str:
    """Return what `--host` finds the hosts of exactly that name by: it takes a pattern."""
    return name.translate(_LITERAL)
