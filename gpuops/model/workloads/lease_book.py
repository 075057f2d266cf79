"""A pool of GPUs that are lent over the network, and the book of who has which share of which GPU until when.

A server is a VM with whole GPUs, a client a VM without. A lease gives one client a part of the memory of one GPU or of
several, from a moment to a moment. All moments are aware and in UTC, all sizes in MiB.

    asked -> lent -> ending -> ended
          -> waiting -> lent
             lent, ending -> broken      its server died: what is left of it is asked for again, as a new lease
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from gpuops.model.lent_by_night import ServerNight
from gpuops.model.stored import stored_as
from gpuops.model.vcenter.owner import OwnerKey
from gpuops.model.workloads.cluster import Arrangement


class LeaseState(StrEnum):
    """Where a lease stands."""

    ASKED = "asked"
    """Written down, and not decided on yet."""
    WAITING = "waiting"
    """There is no room, or no quota left, before `begins_at`, which is expected."""
    LENT = "lent"
    ENDING = "ending"
    """It is to end at `ends_at`, or was; its client is not cut off yet."""
    ENDED = "ended"
    BROKEN = "broken"
    """A server of it died."""


class ServerState(StrEnum):
    """Whether a server lends."""

    SERVING = "serving"
    DRAINING = "draining"
    """It lends nothing new; what it has lent ends within a grace period."""
    DEAD = "dead"
    LEAVING = "leaving"
    """It is in its pool no more: what serves in its guest is to be ended still."""


@stored_as("ServerGpu", index="index", memory_mib="memory_mib")
@dataclass(frozen=True, slots=True)
class ServerGpu:
    """One whole GPU of a server."""

    index: int
    """From 0, in the order of the VM's devices."""
    memory_mib: int
    """What of its memory is lent: all of it, or what the pool's file says."""


@stored_as(
    "PoolServer",
    name="name",
    uuid="uuid",
    gpus="gpus",
    host="host",
    cluster="cluster",
    state="state",
    because="because",
    night="night",
    started_at="started_at",
    to_start="to_start",
)
@dataclass(frozen=True, slots=True)
class PoolServer:
    """A VM with whole GPUs."""

    name: str
    """Of the VM; unique in its pool."""
    uuid: str
    """Its instance UUID: names change."""
    gpus: tuple[ServerGpu, ...]
    host: str = ""
    """Name of the ESXi host that it runs on; empty = not known."""
    cluster: str = ""
    """Name of that host's cluster; empty = none, or not known."""
    state: ServerState = ServerState.SERVING
    because: str = ""
    """Why it is dead, where that is more than that its VM or its program does not run."""
    night: ServerNight | None = None
    """The night that has it drained, or has it lend; None = none has."""
    started_at: datetime | None = None
    """When its VM was last started, as vCenter had told when it was last looked at."""
    to_start: bool = False
    """Its program is to be started in its guest before it serves anybody."""


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
    "LeaseWish",
    client="client",
    client_uuid="client_uuid",
    memory_mib="memory_mib",
    lasts="lasts",
    gpus="gpus",
    owner="owner",
    host="host",
    cluster="cluster",
)
@dataclass(frozen=True, slots=True)
class LeaseWish:
    """What somebody asks for: shares of `gpus` different GPUs, each of `memory_mib`."""

    client: str
    """Name of the VM."""
    client_uuid: str
    """Its instance UUID."""
    memory_mib: int
    lasts: timedelta
    gpus: int = 1
    owner: str = ""
    """Whose quota it counts against; all that say none have the quota of one owner."""
    host: str = ""
    """Name of the ESXi host that the client runs on; empty = not known."""
    cluster: str = ""
    """Name of that host's cluster; empty = none, or not known."""


@stored_as(
    "GpuLease",
    id="id",
    wish="wish",
    lasts="lasts",
    state="state",
    asked_at="asked_at",
    begins_at="begins_at",
    ends_at="ends_at",
    shares="shares",
    follows="follows",
    not_before="not_before",
    enabled="enabled",
    because="because",
)
@dataclass(frozen=True, slots=True)
class GpuLease:
    """Shares of one client until a moment."""

    id: str
    wish: LeaseWish
    lasts: timedelta
    """What the wish says, or what is left of that where it goes on after a lease that broke or was taken back."""
    state: LeaseState
    asked_at: datetime
    """Of the first lease where it goes on after one: it keeps its place among those that wait."""
    begins_at: datetime | None = None
    """Of one that waits, when it is expected to; None = asked, or nobody can say."""
    ends_at: datetime | None = None
    """Of one that waits, likewise. Never None of one that is lent or ending."""
    shares: tuple[LentShare, ...] = ()
    """Of one that waits those that are kept for it from `begins_at` on."""
    follows: str | None = None
    """The lease that it goes on after."""
    not_before: datetime | None = None
    """It begins then at the earliest."""
    enabled: bool | None = False
    """Whether its client is set up; None = not known: from before the first guest operation until it is done, and from
    before the first one that undoes it until that is."""
    because: str = ""
    """Why it ended, broke, or is taken back."""

    @property
    def client(self) -> str:
        return self.wish.client

    @property
    def holds(self) -> bool:
        """Whether its shares are taken: until its client is cut off, whatever the clock says."""
        return self.state in (LeaseState.LENT, LeaseState.ENDING) or self.enabled is not False

    @property
    def open(self) -> bool:
        """Whether anything is to be done for it still."""
        return self.state in (LeaseState.ASKED, LeaseState.WAITING) or self.holds


@stored_as("PoolQuota", memory_mib="memory_mib", shares="shares")
@dataclass(frozen=True, slots=True)
class PoolQuota:
    """The most that an owner may have at one moment; None = as much as there is."""

    memory_mib: int | None = None
    shares: int | None = None
    """Of several GPUs, one for each."""


@stored_as(
    "LendingPool",
    name="name",
    network="network",
    program="program",
    longest="longest",
    placement="placement",
    grace="grace",
    owner_by="owner_by",
    quotas="quotas",
    quota="quota",
)
@dataclass(frozen=True, slots=True)
class LendingPool:
    """What is agreed for a pool."""

    name: str
    network: str
    """The port group by which clients reach servers."""
    program: str | None = None
    """Name of a file of `templates/remote-gpu`; None = gpuops keeps the book, and people set up the guests."""
    longest: timedelta = timedelta(hours=24)
    """No lease is longer."""
    placement: Arrangement = Arrangement.PACKED
    """Packed: large idle shares stay whole; spread: as few leases as can be share a GPU's time."""
    grace: timedelta = timedelta(minutes=15)
    """So long a client keeps what is taken back."""
    owner_by: OwnerKey = field(default_factory=OwnerKey)
    quotas: Mapping[str, PoolQuota] = field(default_factory=dict)
    """By owner."""
    quota: PoolQuota = field(default_factory=PoolQuota)
    """Of each owner that `quotas` does not name."""

    def quota_of(self, owner: str) -> PoolQuota:
        return self.quotas.get(owner, self.quota)


@dataclass(frozen=True, slots=True)
class PoolFileWish:
    """What a file says of a pool."""

    pool: LendingPool
    servers: tuple[str, ...]
    """VMs as `gpuops` takes them: names, inventory paths, `uuid:...`."""
    keep_mib: int = 0
    """Of each GPU's memory, for the server itself: it is not lent."""


@dataclass(frozen=True, slots=True)
class LeaseBook:
    """A pool as it is written down at one moment."""

    pool: LendingPool
    servers: tuple[PoolServer, ...] = ()
    leases: tuple[GpuLease, ...] = ()
    """By the moment when they were asked for, then by id. Those that are over may be left out."""

    def server(self, name: str) -> PoolServer | None:
        return next((each for each in self.servers if each.name == name), None)

    def lease(self, id: str) -> GpuLease | None:
        return next((each for each in self.leases if each.id == id), None)

    def with_server(self, server: PoolServer) -> LeaseBook:
        """The same with this server in the place of the one of its name."""
        return replace(self, servers=tuple(server if each.name == server.name else each for each in self.servers))

    def with_leases(self, changed: Iterable[GpuLease]) -> LeaseBook:
        """The same with these leases, in the place of those of their ids or beside the others."""
        by_id = {each.id: each for each in self.leases} | {each.id: each for each in changed}
        ordered = sorted(by_id.values(), key=lambda each: (each.asked_at, each.id))
        return replace(self, leases=tuple(ordered))
