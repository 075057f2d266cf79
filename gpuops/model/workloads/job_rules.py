"""What a policy says of jobs in containers: which VMs run them, what they may mount, and who may have how many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Final

from msgspec import Meta

from gpuops.model.file_keys import Text

_Number = Annotated[int, Meta(ge=0, le=100_000)]


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
        """As the list of jobs keeps it."""
        who, _, role = text.partition(_WITH_ROLE)
        user, _, machine = who.rpartition("@")
        return cls(user, machine, role)

    @property
    def names(self) -> frozenset[str]:
        """By which of `submitters` they are meant."""
        return frozenset({self.user, *([f"role:{self.role}"] if self.role else [])})


_WITH_ROLE: Final = " as role "


@dataclass(frozen=True, slots=True)
class JobQuota:
    """What one owner may have at the most; None = any number."""

    waiting: _Number | None = None
    """So many jobs that have not ended."""
    running: _Number | None = None
    """So many at once."""
    profiles: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=100)] = ("*",)
    """Shell patterns of the vGPU profiles that its jobs may ask for."""
    submitters: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=1000)] | None = None
    """Users of the operating system, and `role:NAME` of the database, who may submit for it; None = anybody."""

    def lets(self, who: Submitter) -> bool:
        return not self.submitters or not who.names.isdisjoint(self.submitters)


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """The template of which VMs are made for jobs that no other VM fits."""

    name: Text
    """Name, inventory path, `moid:vm-42` or `uuid:...`."""
    at_most: Annotated[int, Meta(ge=1, le=99)]
    """So many of its VMs at once, 99 at the most."""
    prefix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$")] = "gpuops-job-"
    """How their names begin; two digits follow."""
    keep: bool = False
    """VMs that no job needs stay, unless another job needs their place; else they are removed."""

    @property
    def pattern(self) -> str:
        """The shell pattern of their names."""
        return f"{self.prefix}[0-9][0-9]"


@dataclass(frozen=True, slots=True)
class JobRules:
    """How nights run jobs."""

    vms: tuple[str, ...]
    """Names, paths or shell patterns of the VMs that run jobs, one at a time each."""
    mounts: tuple[str, ...] = ()
    """Directories of guests: mounts lie in one of them."""
    quotas: Mapping[str, JobQuota] = field(default_factory=dict, hash=False)
    """By owner, who else may have none; empty = anybody any number."""
    checkpoint: timedelta = timedelta(minutes=5)
    """What the checkpoint of one job may take."""
    minimum_run: timedelta = timedelta(minutes=15)
    """A job that would have less of a night is not started in it."""
    template: JobTemplate | None = None
    """None = no VM is made."""

    def quota(self, owner: str | None) -> JobQuota | None:
        """What this owner may have; None = nothing."""
        return JobQuota() if not self.quotas else self.quotas.get(owner or "")

    def owner_of(self, who: Submitter) -> str | None:
        """Whose the jobs are that say no owner: the one owner whose `submitters` name this person; None = nobody's."""
        names = [owner for owner, quota in self.quotas.items() if quota.submitters and quota.lets(who)]
        return names[0] if len(names) == 1 else None
