"""A pool of GPUs that are lent over the network, and the book of its leases: client, shares of GPUs, and end.

A server is a VM with whole GPUs, a client a VM without a GPU. A lease gives one client a part of the memory of one or
several GPUs until it ends. All times are in UTC, all sizes in MiB.

    lent -> ending -> ended
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated, Final, Literal

from msgspec import Meta

from gpuops.errors import UsageError, report_exit_code
from gpuops.model.file_keys import Key, Reads, Text, reads_by
from gpuops.model.stored import stored_as
from gpuops.model.vcenter.owner import OwnerKey
from gpuops.model.workloads.workload import Memory
from gpuops.plan.core.rejection import Rejection

REPORTED_DEAD: Final = "was reported dead"
PROGRAM_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?")
_TIME: Final = re.compile(
    r"(?=[0-9])(?:(?P<days>[0-9]{1,3})d)?(?:(?P<hours>[0-9]{1,4})h)?(?:(?P<minutes>[0-9]{1,5})m(?:in)?)?"
)


class LeaseState(StrEnum):
    """The state of a lease."""

    LENT = "lent"
    ENDING = "ending"
    """It ends at `ends_at`, because it is taken back; after that time its client must still be cut off."""
    ENDED = "ended"
    """Its client is cut off, or was never set up, so its shares are free. It is no longer stored."""


class ServerState(StrEnum):
    """Whether a server lends."""

    SERVING = "serving"
    DRAINING = "draining"
    """It lends nothing new; its leases end within the grace period."""
    DEAD = "dead"


@stored_as("ServerGpu", index="index", memory_mib="memory_mib")
@dataclass(frozen=True, slots=True)
class ServerGpu:
    """One whole GPU of a server."""

    index: int
    """From 0, in the order of the VM's devices."""
    memory_mib: int
    """The memory that may be lent: all of it, less `keep` of the pool's file."""


@stored_as("PoolServer", name="name", uuid="uuid", gpus="gpus", state="state", because="because")
@dataclass(frozen=True, slots=True)
class PoolServer:
    """A VM with whole GPUs."""

    name: str
    """Of the VM when the pool got it; unique in its pool."""
    uuid: str
    """Its instance UUID: names change."""
    gpus: tuple[ServerGpu, ...]
    state: ServerState = ServerState.SERVING
    because: str = ""
    """Why it is dead, such as `REPORTED_DEAD`; empty for a dead server = its VM does not run."""

    @property
    def is_reported_dead(self) -> bool:
        """Return whether an admin reported it dead (`pool reclaim --dead`): without its VM, its shares are free."""
        return self.state is ServerState.DEAD and self.because == REPORTED_DEAD


@stored_as("LentShare", server="server", gpu="gpu", memory_mib="memory_mib")
@dataclass(frozen=True, slots=True)
class LentShare:
    """A part of one GPU's memory."""

    server: str
    """Name of the server."""
    gpu: int
    """Its `index`."""
    memory_mib: int


@stored_as(
    "LeaseWish", client="client", client_uuid="client_uuid", memory_mib="memory_mib", lasts="lasts", gpus="gpus",
    owner="owner"
)  # fmt: skip
@dataclass(frozen=True, slots=True)
class LeaseWish:
    """A request: shares of `gpus` different GPUs, each of `memory_mib`."""

    client: str
    """Name of the VM."""
    client_uuid: str
    """Its instance UUID; empty = not looked up yet."""
    memory_mib: int
    lasts: timedelta
    gpus: int = 1
    owner: str = ""
    """Whose quota it counts against; all clients without an owner share one quota."""


@stored_as(
    "GpuLease", id="id", wish="wish", lasts="lasts", state="state", asked_at="asked_at", ends_at="ends_at",
    shares="shares", enabled="enabled", because="because"
)  # fmt: skip
@dataclass(frozen=True, slots=True)
class GpuLease:
    """The shares of one client until `ends_at`."""

    id: str
    wish: LeaseWish
    lasts: timedelta
    state: LeaseState
    asked_at: datetime
    """When it began."""
    ends_at: datetime
    shares: tuple[LentShare, ...] = ()
    enabled: bool | None = False
    """Whether its client can use the shares; None = unknown, from the first hook of a change until the last one."""
    because: str = ""
    """Why it ended, or is taken back."""

    @property
    def holds(self) -> bool:
        """Return whether its shares are taken: until its client is cut off, even after `ends_at`."""
        return self.state is not LeaseState.ENDED

    def has_shares_of(self, server: str) -> bool:
        return any(share.server == server for share in self.shares)


@stored_as("PoolQuota", memory_mib="memory_mib", shares="shares")
@dataclass(frozen=True, slots=True)
class PoolQuota:
    """The most that an owner may have at one time; None = no limit."""

    memory_mib: Annotated[Memory | None, Key("memory")] = None
    shares: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    """A lease of several GPUs has one share for each GPU."""


def program_name(text: str) -> str:
    """Return the name of a program or a pool. Raises ValueError for a text of another form."""
    if not PROGRAM_NAME.fullmatch(text):
        raise ValueError("should have at most 50 lower-case letters, digits, and hyphens between them")
    return text


def lease_time(text: str, option: str = "", *, may_be_zero: bool = False) -> timedelta:
    """Return the duration written as `4h`, `90m`, `1h30m` or `2d`; `0` or `0h` only if it may be zero.

    Raises UsageError, with the option in its message if there is one.
    """
    match = _TIME.fullmatch("0m" if text == "0" else text)
    time = timedelta(**{unit: int(number) for unit, number in match.groupdict("0").items()}) if match else None
    if time is None or not (time or may_be_zero):
        raise UsageError(f"{option}: {text!r} is not a duration".removeprefix(": "), hint="write 4h, 90m, 1h30m or 2d")
    return time


_Quotas = Annotated[dict[Text, PoolQuota], Meta(max_length=1000)]


@stored_as(
    "LendingPool", name="name", network="network", program="program", longest="longest", grace="grace",
    owner_by="owner_by", quotas="quotas", quota="quota"
)  # fmt: skip
@dataclass(frozen=True, slots=True)
class LendingPool:
    """The settings of a pool."""

    name: Annotated[str, Reads(program_name)]
    network: Text
    """The port group by which clients reach servers."""
    program: Text | None = None
    """A file of `templates/remote-gpu`, or the path of your own file; without it, gpuops only keeps the book."""
    longest: Annotated[timedelta, Key("longest_lease"), reads_by(lease_time)] = timedelta(hours=24)
    """No lease is longer."""
    grace: Annotated[timedelta, reads_by(lease_time)] = timedelta(minutes=15)
    """How long a client keeps a lease that is taken back."""
    owner_by: Annotated[OwnerKey, Key("owner"), reads_by(partial(OwnerKey.parse, "owner"))] = field(
        default_factory=OwnerKey
    )
    quotas: Annotated[Mapping[str, PoolQuota], Reads(dict, _Quotas)] = field(default_factory=dict)
    quota: Annotated[PoolQuota, Reads(lambda quota: quota or PoolQuota(), PoolQuota | None, default=None)] = PoolQuota()
    """The quota of each owner that is not in `quotas`; without it, such owners have no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFile(LendingPool):
    """The YAML file of a pool."""

    version: Literal[1]
    servers: Annotated[tuple[Text, ...], Meta(max_length=200)]
    """VMs as `gpuops` takes them: names, inventory paths, `uuid:...`."""
    keep: Annotated[Memory | None, Key("keep")] = None
    """The memory of each GPU that is not lent, in MiB."""

    @property
    def pool(self) -> LendingPool:
        return LendingPool(**{field.name: getattr(self, field.name) for field in fields(LendingPool)})


@stored_as("LeaseBook", pool="pool", servers="servers", leases="leases")
@dataclass(frozen=True, slots=True)
class LeaseBook:
    """A pool with its servers and leases at one moment."""

    pool: LendingPool
    servers: tuple[PoolServer, ...] = ()
    leases: tuple[GpuLease, ...] = ()
    """Sorted by `asked_at`, then by id."""

    def server(self, name: str) -> PoolServer | None:
        return next((server for server in self.servers if server.name == name), None)

    @property
    def open_leases(self) -> tuple[GpuLease, ...]:
        """Return the leases whose shares are taken."""
        return tuple(lease for lease in self.leases if lease.holds)

    def with_server(self, server: PoolServer) -> LeaseBook:
        """Return the book with this server in place of the one with its name."""
        return replace(self, servers=tuple(server if old.name == server.name else old for old in self.servers))

    def with_leases(self, changed: Iterable[GpuLease]) -> LeaseBook:
        """Return the book with these leases added, or in place of those with their ids."""
        by_id = {lease.id: lease for lease in (*self.leases, *changed)}
        return replace(self, leases=tuple(sorted(by_id.values(), key=lambda lease: (lease.asked_at, lease.id))))


@dataclass(frozen=True, slots=True)
class PoolAnswer:
    """The changes that a command made, or would make."""

    before: LeaseBook | None
    """None = there was no such pool."""
    after: LeaseBook
    applied: bool
    rejections: tuple[Rejection, ...] = ()
    requested_lease: GpuLease | None = None
    """The lease that the command requested; it may have existed before."""
    failed: tuple[str, ...] = ()
    """Hooks that failed in guests, and marks that could not be changed; the next command tries them again."""
    warnings: tuple[str, ...] = ()

    @property
    def deleted(self) -> bool:
        """Return whether the pool is deleted, or would be: it has no servers, and their marks could be removed."""
        return not self.after.servers and not self.failed and not self.rejections

    @property
    def changes(self) -> LeaseBook:
        """Return the pool with only the servers and leases that changed, and the requested lease."""
        before = self.before or LeaseBook(self.after.pool)
        servers = tuple(server for server in self.after.servers if server not in before.servers)
        leases = (lease for lease in self.after.leases if lease == self.requested_lease or lease not in before.leases)
        return replace(self.after, servers=servers, leases=tuple(leases))

    @property
    def removed_servers(self) -> tuple[str, ...]:
        """Return the names of servers that leave the pool."""
        servers = self.before.servers if self.before is not None else ()
        return tuple(server.name for server in servers if self.after.server(server.name) is None)

    @property
    def changed(self) -> bool:
        return self.after != self.before

    @property
    def exit_code(self) -> int:
        """Return the exit code: 3 = refused, 4 = something failed."""
        return report_exit_code(refused=self.rejections, partly=self.failed)
