"""A pool of GPUs lent over the network as YAML, checked and made into a wish.

`templates/pool.yaml` is the commented example. `gpuops pool create` reads it here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from gpuops.config.decoding import read_as
from gpuops.extras.lending.lease_book import LendingPool, PoolFileWish
from gpuops.extras.lending.remote_gpu_file import is_known_name
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.file_keys import Key, Text
from gpuops.model.workloads.workload import Memory

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
