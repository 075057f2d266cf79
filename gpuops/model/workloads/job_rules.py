"""What a policy says of jobs in containers: which VMs run them, what they may mount, and who may have how many."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Final

from msgspec import Meta

from gpuops.model.file_keys import Key, Mistaken, Reads, Text

_WILD: Final = frozenset("*?[")
_Number = Annotated[int, Meta(ge=0, le=100_000)]

_PATH: Final = re.compile(r"(/[A-Za-z0-9_.@+-]+)+")
_SYSTEM: Final = frozenset({"proc", "sys", "dev", "run", "etc"})
"""Directories below / that a container has itself, or that control its guest: nothing is mounted there."""


def read_guest_path(text: str) -> str:
    """Return the same text. Raises ValueError if it is not a path that a container may mount."""
    if not _PATH.fullmatch(text) or {".", ".."} & set(text.split("/")):
        raise ValueError(
            "is not a path for a mount: write an absolute path of letters, digits and _ . @ + -, without . and .."
        )
    if text.split("/")[1] in _SYSTEM:
        raise ValueError(f"is below /{text.split('/')[1]}, which belongs to the system: mount another directory")
    return text


def read_file_path(text: str) -> str:
    """Return the same text. Raises ValueError if it is not an absolute path."""
    if not text.startswith("/") or not text.isprintable() or {".", ".."} & set(text.split("/")):
        raise ValueError("should be an absolute path without . and ..")
    return text


GuestPath = Annotated[str, Reads(read_guest_path, Text)]
FilePath = Annotated[str, Reads(read_file_path, Annotated[str, Meta(min_length=1, max_length=1000)])]


@dataclass(frozen=True, slots=True)
class Submitter:
    """A person who submits jobs, as the user of a machine's operating system, and as a login of the database that
    several machines share, which its server has checked."""

    user: str
    machine: str
    role: str = ""
    """Of PostgreSQL; empty = the jobs are in a file of the machine."""

    def __str__(self) -> str:
        return f"{self.user}@{self.machine}" + (f"{_WITH_ROLE}{self.role}" if self.role else "")

    @classmethod
    def parse(cls, text: str) -> Submitter:
        """Parse the text form, `USER@MACHINE as role ROLE`, in which the list of jobs keeps it."""
        who, _, role = text.partition(_WITH_ROLE)
        user, _, machine = who.rpartition("@")
        return cls(user, machine, role)

    @property
    def names(self) -> frozenset[str]:
        """Return the entries of `submitters` that mean this submitter: the user, and `role:ROLE`."""
        return frozenset({self.user, *([f"role:{self.role}"] if self.role else [])})


_WITH_ROLE: Final = " as role "


@dataclass(frozen=True, slots=True)
class JobQuota:
    """The limits of one owner; None = any number."""

    waiting: _Number | None = None
    """So many jobs that have not ended."""
    running: _Number | None = None
    """So many at once."""
    profiles: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=100)] = ("*",)
    """Shell patterns of the vGPU profiles that its jobs may ask for."""
    submitters: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=1000)] | None = None
    """Users of the operating system, and `role:NAME` of the database, who may submit for it; None = anybody."""
    secrets: Annotated[tuple[FilePath, ...], Meta(max_length=100)] | None = None
    """Directories of files that its jobs may get as secrets; None = those of `JobRules.secrets`."""

    def lets(self, who: Submitter) -> bool:
        return not self.submitters or not who.names.isdisjoint(self.submitters)


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """The template of which VMs are made for jobs that no other VM fits."""

    name: Text
    """Name, inventory path, `moid:vm-42` or `uuid:...`."""
    at_most: Annotated[int, Meta(ge=1, le=99)]
    """So many of its VMs at once, at most 99."""
    prefix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$")] = "gpuops-job-"
    """How their names begin; two digits follow."""
    keep: bool = False
    """VMs that no job needs stay, unless another job needs their place; else they are removed."""

    @property
    def pattern(self) -> str:
        """Return the shell pattern of the names of VMs that are made of it."""
        return f"{self.prefix}[0-9][0-9]"


def is_pattern(name: str) -> bool:
    """Return whether a name in a policy is a shell pattern, which stands for all VMs whose names match it."""
    return not _WILD.isdisjoint(name)


def refuse_pattern_of_all(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names. Raises Mistaken for a pattern that matches every VM."""
    for name in names:
        if is_pattern(name) and not name.strip("*?"):
            raise Mistaken(f"{name!r} would start every VM", "name what they have in common: `job-*`")
    return names


_Quotas = Annotated[dict[Text, JobQuota], Meta(max_length=1000)]
_Seconds = Reads(lambda number: timedelta(seconds=number), Annotated[int, Meta(ge=10, le=3600)], default=300)
_Minutes = Reads(lambda number: timedelta(minutes=number), Annotated[int, Meta(ge=0, le=24 * 60)], default=15)


@dataclass(frozen=True, slots=True)
class JobRules:
    """How nights run jobs."""

    # Names, paths or shell patterns of the VMs that run jobs, one job at a time each.
    vms: Annotated[
        tuple[str, ...], Reads(refuse_pattern_of_all, Annotated[tuple[Text, ...], Meta(max_length=1000)])
    ] = ()
    # None = gpuops makes no VM.
    template: JobTemplate | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    relocate: bool = False
    # Directories of guests: mounts lie in one of them.
    mounts: Annotated[tuple[GuestPath, ...], Meta(max_length=100)] = ()
    # Directories of the machine of `gpuops job run`: files that jobs get as secrets lie in one of them.
    secrets: Annotated[tuple[FilePath, ...], Meta(max_length=100)] = ()
    # The longest time that the checkpoint of one job takes.
    checkpoint: Annotated[timedelta, Key("checkpoint_s"), _Seconds] = timedelta(minutes=5)
    # A job that would have less time in a night is not started in it.
    minimum_run: Annotated[timedelta, Key("minimum_run_minutes"), _Minutes] = timedelta(minutes=15)
    # By owner, any other owner may have no jobs; empty = anybody may have any number.
    quotas: Annotated[Mapping[str, JobQuota], Reads(dict, _Quotas)] = field(default_factory=dict, hash=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names and patterns of all VMs that run jobs, with those that are made of the template."""
        made_vms = () if self.template is None else (self.template.pattern,)
        return tuple(dict.fromkeys((*self.vms, *made_vms)))

    def quota(self, owner: str | None) -> JobQuota | None:
        """Return the limits of this owner; None = no jobs."""
        return JobQuota() if not self.quotas else self.quotas.get(owner or "")

    def owner_of(self, who: Submitter) -> str | None:
        """Return the owner of jobs without one: the only owner whose `submitters` name this person; None = unclear."""
        names = [owner for owner, quota in self.quotas.items() if quota.submitters and quota.lets(who)]
        return names[0] if len(names) == 1 else None
