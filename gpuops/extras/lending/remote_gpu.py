"""A program that carries CUDA calls over the network: its hooks and ports, read from a YAML file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta

from gpuops.model.file_keys import Key, Reads, Text

PROGRAM_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?")


def program_name(text: str) -> str:
    """Return the name of a program or a pool. Raises ValueError for a text of another form."""
    if not PROGRAM_NAME.fullmatch(text):
        raise ValueError("should have only small letters, digits and - between them, at most 50")
    return text


def _script(text: str) -> str:
    if not all(character.isprintable() or character in "\n\t" for character in text):
        raise ValueError("has a control character in it")
    return text


Script = Annotated[str, Reads(_script, Annotated[str, Meta(min_length=1, max_length=10_000)])]


@dataclass(frozen=True, slots=True)
class ServerPorts:
    """The ports of a server: one for each share that it lends."""

    first: Annotated[int, Meta(ge=1024, le=65535)]
    count: Annotated[int, Meta(ge=1, le=1000)] = 64

    def __post_init__(self) -> None:
        if self.last > 65535:
            raise ValueError("`first` and `count` reach beyond port 65535")

    @property
    def last(self) -> int:
        return self.first + self.count - 1


@dataclass(frozen=True, slots=True)
class ProgramHook:
    """The commands of one hook."""

    server: Script
    client: Script


@dataclass(frozen=True, slots=True)
class RemoteProgram:
    """A program that lends GPUs. Its hooks are POSIX sh, run in guests."""

    version: Literal[2]
    name: Annotated[str, Key("program"), Reads(program_name)]
    about: Text
    ports: ServerPorts
    # The template has the variables of each hook, and `gpuops explain` shows that text: no docstring takes its place.
    grant: ProgramHook
    revoke: ProgramHook
    health: Script
