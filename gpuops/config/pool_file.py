"""A pool of GPUs lent over the network as YAML, checked and made into a wish.

`templates/pool.yaml` is the commented example. `gpuops pool create` reads it here.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from gpuops.config.decoding import Section, read_as
from gpuops.config.remote_gpu_file import is_known_name, program_name
from gpuops.errors import UsageError
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.file_keys import Reads, Text, reads_by
from gpuops.model.vcenter.owner import OwnerKey
from gpuops.model.workloads.lease_book import LendingPool, PoolFileWish, PoolQuota
from gpuops.model.workloads.workload import memory_mib

MOST_SERVERS: Final = 200
_HINT: Final = "templates/pool.yaml shows every key, with comments"
_TIME: Final = re.compile(
    r"(?=[0-9])(?:(?P<days>[0-9]{1,3})d)?(?:(?P<hours>[0-9]{1,4})h)?(?:(?P<minutes>[0-9]{1,5})m(?:in)?)?"
)


def lease_time(text: str, *, may_be_zero: bool = False) -> timedelta:
    """Return the time written as `4h`, `90m`, `1h30m` or `2d`; `0`, `0h` if it may be zero. Raises UsageError."""
    match = _TIME.fullmatch("0m" if text == "0" else text)
    parts = {unit: int(number) for unit, number in match.groupdict().items() if number} if match else {}
    time = timedelta(**parts)
    if not time and not (match and may_be_zero):
        raise UsageError(f"{text!r} is no time", hint="write 4h, 90m, 1h30m or 2d")
    return time


LeaseTime = Annotated[timedelta, reads_by(lease_time)]
MemorySize = Annotated[int, reads_by(memory_mib)]
Owner = Annotated[OwnerKey, reads_by(partial(OwnerKey.parse, "owner"))]


class PoolQuotaSection(Section):
    """The most that an owner has at one moment."""

    memory: MemorySize | None = None
    shares: Annotated[int, Meta(ge=1, le=100_000)] | None = None

    def __post_init__(self) -> None:
        if self.memory is None and self.shares is None:
            raise ValueError("say `memory`, `shares` or both")

    def quota(self) -> PoolQuota:
        return PoolQuota(self.memory, self.shares)


class PoolFile(Section, kw_only=True):
    """The whole YAML file."""

    version: Literal[1]
    name: Annotated[str, Reads(program_name)]
    network: Text
    program: Text | None = None
    servers: Annotated[tuple[Text, ...], Meta(max_length=MOST_SERVERS)]
    keep: MemorySize | None = None
    longest_lease: LeaseTime = lease_time("24h")
    grace: LeaseTime = lease_time("15m")
    owner: Owner = OwnerKey.parse("owner", "folder")
    quotas: Annotated[dict[Text, PoolQuotaSection], Meta(max_length=1000)] = msgspec.field(default_factory=dict)
    quota: PoolQuotaSection | None = None

    def __post_init__(self) -> None:
        twice = [name for name, times in Counter(self.servers).items() if times > 1]
        if twice:
            raise ValueError(f"the server {twice[0]!r} is there twice")

    def wish(self) -> PoolFileWish:
        pool = LendingPool(
            name=self.name,
            network=self.network,
            program=self.program,
            longest=self.longest_lease,
            grace=self.grace,
            owner_by=self.owner,
            quotas={owner: section.quota() for owner, section in self.quotas.items()},
            quota=self.quota.quota() if self.quota is not None else PoolQuota(),
        )
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
