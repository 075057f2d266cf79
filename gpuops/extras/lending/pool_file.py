"""Reads the YAML files of a pool, and of the program that lends its GPUs over the network.

`templates/pool.yaml` is the commented example of a pool. `templates/remote-gpu` has the programs that come with gpuops;
a pool names one of them, or the path of another file. A program's file holds shell commands for guests: anyone who can
write it can run commands there as the login for guests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from gpuops.config.decoding import read_as
from gpuops.errors import UsageError
from gpuops.extras.lending.lease_book import PROGRAM_NAME, PoolFile, program_name
from gpuops.files.file import templates
from gpuops.files.private_file import replaceable
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.file_keys import Key, Reads, Text


def _checked_script(text: str) -> str:
    if not all(character.isprintable() or character in "\n\t" for character in text):
        raise ValueError("contains a control character")
    return text


Script = Annotated[str, Reads(_checked_script, Annotated[str, Meta(min_length=1, max_length=10_000)])]


@dataclass(frozen=True, slots=True)
class ServerPorts:
    """The ports of a server: one for each share that it lends."""

    first: Annotated[int, Meta(ge=1024, le=65535)]
    count: Annotated[int, Meta(ge=1, le=1000)] = 64

    def __post_init__(self) -> None:
        if self.last > 65535:
            raise ValueError("`first` + `count` goes beyond port 65535")

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


def load_program(name: str) -> RemoteProgram:
    """Return the program with this name, or from the file at this path. Raises PolicyError, UsageError."""
    if not PROGRAM_NAME.fullmatch(name):
        path = Path(name)
        text = read_text(path)
        # checked here, because the path may come from the stored book
        if (opening := replaceable(path)) is not None:
            message = f"{path} is refused, because its scripts run in guests: {opening.why}"
            raise UsageError(message, hint=opening.fix)
        return parse_remote_gpu(text, name)
    programs = {Path(file).stem: path for file, path in templates().items() if file.startswith("remote-gpu/")}
    if name not in programs:
        message = f"gpuops has no program {name!r}; it has {', '.join(programs)}"
        raise UsageError(message, hint=f"set one of these, or the path of your own file: ./{name}.yaml")
    return parse_remote_gpu(read_text(programs[name]), name)


def parse_remote_gpu(text: str, name: str) -> RemoteProgram:
    """Return the program of a YAML text; `name`: its name in error messages. Raises PolicyError."""
    hint = "templates/remote-gpu/lupine.yaml shows every key, with comments"
    return read_as(RemoteProgram, parse_yaml(text, name), name, hint)


def load_pool(path: Path) -> PoolFile:
    """Return the pool that this file describes. Raises PolicyError: one line with file, key and reason.

    A path in `program` is relative to the directory of the file. It is made absolute, because later commands run in
    other directories.
    """
    hint = "templates/pool.yaml shows every key, with comments"
    pool = read_as(PoolFile, parse_yaml(read_text(path), str(path)), str(path), hint)
    if pool.program is None or PROGRAM_NAME.fullmatch(pool.program):
        return pool
    return replace(pool, program=str(path.absolute().parent / pool.program))
