"""Reads the YAML file of a pool, and that of the program that lends its GPUs over the network.

`templates/pool.yaml` is the commented example of a pool. `templates/remote-gpu` has the programs that come with gpuops;
a pool names one of them, or the path of another file. A program's file holds shell commands for guests: anyone who can
write it can run commands there as the login for guests.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from gpuops.config.decoding import read_as
from gpuops.errors import PolicyError, UsageError
from gpuops.extras.lending.lease_book import LendingPool, PoolFileWish
from gpuops.extras.lending.remote_gpu import PROGRAM_NAME, RemoteProgram
from gpuops.files.file import templates
from gpuops.files.private_file import replaceable
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.file_keys import Key, Text
from gpuops.model.workloads.workload import Memory

FOLDER: Final = "remote-gpu"
_PROGRAM_HINT: Final = "templates/remote-gpu/lupine.yaml shows every key, with comments"


def known_programs() -> tuple[str, ...]:
    """Return the names of the programs that come with gpuops."""
    return tuple(Path(name).stem for name in templates() if name.startswith(f"{FOLDER}/"))


def is_known_name(text: str) -> bool:
    """Whether the text has the form of a program's name; any other text is the path of a file."""
    return PROGRAM_NAME.fullmatch(text) is not None


def load_program(name: str) -> RemoteProgram:
    """Return the program with this name, or from the file at this path. Raises PolicyError, UsageError."""
    if not is_known_name(name):
        path = Path(name)
        text = read_text(path)
        if (opening := replaceable(path)) is not None:  # other machines may write the book
            message = f"{path} is not used, for its scripts run in guests: {opening.why}"
            raise UsageError(message, hint=opening.fix)
        return parse_remote_gpu(text, name)
    if name not in known_programs():
        message = f"no program {name!r} comes with gpuops, which knows {', '.join(known_programs())}"
        raise UsageError(message, hint=f"name a file of your own by its path: ./{name}.yaml")
    return parse_remote_gpu(read_text(templates()[f"{FOLDER}/{name}.yaml"]), name)


def parse_remote_gpu(text: str, name: str) -> RemoteProgram:
    """Return the program of a YAML text; errors call it `name`. Raises PolicyError."""
    content = parse_yaml(text, name)
    if isinstance(content, dict) and content.get("version") == 1:
        raise PolicyError(f"{name}: version 1 had scripts that gpuops no longer runs", hint=_PROGRAM_HINT)
    return read_as(RemoteProgram, content, name, _PROGRAM_HINT)


MOST_SERVERS: Final = 200
_HINT: Final = "templates/pool.yaml shows every key, with comments"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFile(LendingPool):
    """The whole YAML file."""

    version: Literal[1]
    servers: Annotated[tuple[Text, ...], Meta(max_length=MOST_SERVERS)]
    keep: Annotated[Memory | None, Key("keep")] = None

    def __post_init__(self) -> None:
        repeated_names = [name for name, times in Counter(self.servers).items() if times > 1]
        if repeated_names:
            raise ValueError(f"the server {repeated_names[0]!r} is there twice")

    def wish(self) -> PoolFileWish:
        pool = LendingPool(**{field.name: getattr(self, field.name) for field in fields(LendingPool)})
        return PoolFileWish(pool, self.servers, self.keep or 0)


def load_pool(path: Path) -> PoolFileWish:
    """Return the pool that this file describes. Raises PolicyError: one line with file, key and reason.

    A path in `program` is relative to the directory of the file. It is made absolute, because later commands run in
    other directories.
    """
    wish = parse_pool(read_text(path), str(path))
    program = wish.pool.program
    if program is None or is_known_name(program):
        return wish
    return replace(wish, pool=replace(wish.pool, program=str(path.absolute().parent / program)))


def parse_pool(text: str, name: str) -> PoolFileWish:
    """Return the pool of a YAML text; errors call it `name`. Raises PolicyError."""
    return read_as(PoolFile, parse_yaml(text, name), name, _HINT).wish()
