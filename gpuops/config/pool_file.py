"""A pool of GPUs lent over the network as YAML, checked and made into a wish.

`templates/pool.yaml` is the commented example. `gpuops pool create` reads it here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from gpuops.config.remote_gpu_file import is_known_name, program_name
from gpuops.config.sections.section import Section, Text
from gpuops.errors import PolicyError, UsageError
from gpuops.files.wrong_value import first_wrong
from gpuops.files.yaml_file import parse_yaml, read_text
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


def _checked(parse: Callable[[str], object]) -> AfterValidator:
    """Return a validator that calls `parse`, turns its UsageError into ValueError, and returns the text unchanged."""

    def check(text: str) -> str:
        try:
            parse(text)
        except UsageError as error:
            raise ValueError(f"{error.message}; {error.hint}") from error
        return text

    return AfterValidator(check)


LeaseTime = Annotated[Text, _checked(lease_time)]
MemorySize = Annotated[Text, _checked(memory_mib)]
Owner = Annotated[Text, _checked(partial(OwnerKey.parse, "owner"))]


class PoolQuotaSection(Section):
    """The most that an owner has at one moment."""

    memory: MemorySize | None = None
    shares: int | None = Field(default=None, ge=1, le=100_000)

    @model_validator(mode="after")
    def _says_something(self) -> PoolQuotaSection:
        if self.memory is None and self.shares is None:
            raise ValueError("say `memory`, `shares` or both")
        return self

    def quota(self) -> PoolQuota:
        return PoolQuota(memory_mib(self.memory) if self.memory is not None else None, self.shares)


class PoolFile(Section):
    """The whole YAML file."""

    version: Literal[1]
    name: Annotated[str, AfterValidator(program_name)]
    network: Text
    program: Text | None = None
    servers: list[Text] = Field(max_length=MOST_SERVERS)
    keep: MemorySize | None = None
    longest_lease: LeaseTime = "24h"
    grace: LeaseTime = "15m"
    owner: Owner = "folder"
    quotas: dict[Text, PoolQuotaSection] = Field(default_factory=dict, max_length=1000)
    quota: PoolQuotaSection | None = None

    @model_validator(mode="after")
    def _once_each(self) -> PoolFile:
        twice = [name for name, times in Counter(self.servers).items() if times > 1]
        if twice:
            raise ValueError(f"the server {twice[0]!r} is there twice")
        return self

    def wish(self) -> PoolFileWish:
        pool = LendingPool(
            name=self.name,
            network=self.network,
            program=self.program,
            longest=lease_time(self.longest_lease),
            grace=lease_time(self.grace),
            owner_by=OwnerKey.parse("owner", self.owner),
            quotas={owner: section.quota() for owner, section in self.quotas.items()},
            quota=self.quota.quota() if self.quota is not None else PoolQuota(),
        )
        return PoolFileWish(pool, tuple(self.servers), memory_mib(self.keep) if self.keep is not None else 0)


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
    try:
        return PoolFile.model_validate(parse_yaml(text, name)).wish()
    except ValidationError as error:
        raise PolicyError(f"{name}: {first_wrong(error)}", hint=_HINT) from error
