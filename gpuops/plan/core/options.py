"""How the fields of a request are given as options: on the command line, and as arguments of an Ansible module.

The fields of requests are annotated with `Option`; `gpuops.cli.options` and `gpuops.tasks` read the annotations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, TypeVar

from gpuops.errors import UsageError

Word = TypeVar("Word", bound=StrEnum)


class Names(StrEnum):
    """Which names of a vCenter complete the value of an option."""

    VMS = "vms"
    HOSTS = "hosts"
    PROFILES = "profiles"


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
    tuple[str, ...], Option("Only this GPU of each host: 0000:86:00.0. May be repeated.", "PCI-ADDRESS")
]
HostPattern = Annotated[str | None, Option("Hosts named so (esx-0*).", "PATTERN", Names.HOSTS)]
ClusterName = Annotated[str | None, Option("The hosts of this cluster.", "NAME")]


def word(kind: type[Word], text: str, option: str) -> Word:
    """The member of the vocabulary that `text` is. Raises UsageError."""
    try:
        return kind(text)
    except ValueError:
        known = ", ".join(kind)
        raise UsageError(f"--{option} {text!r} is not one of {known}") from None
