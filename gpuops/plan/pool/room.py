"""What is free of each GPU of a pool, and of each owner's quota, over time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Final

from gpuops.model.lent_by_night import ByNight
from gpuops.model.workloads.cluster import Arrangement
from gpuops.model.workloads.lease_book import (
    GpuLease,
    LeaseBook,
    LeaseState,
    LentShare,
    PoolServer,
    ServerGpu,
    ServerState,
)

NEVER: Final = datetime.max.replace(tzinfo=UTC)
OVERDUE = timedelta(minutes=1)
"""A lease whose time is over and whose client is not cut off yet is expected to be that much later."""


@dataclass(slots=True)
class Usage:
    """How much of something is taken, from moment to moment: a step function that is 0 in the beginning."""

    _at: list[datetime] = field(default_factory=list)
    _taken: list[int] = field(default_factory=list)
    _changes: defaultdict[datetime, int] | None = field(default_factory=lambda: defaultdict(int))
    """Until it is read for the first time, how much more is taken from each moment on: nobody looks for places yet."""

    def add(self, begin: datetime, end: datetime, amount: int) -> None:
        """Takes so much more from `begin` until `end`; a negative amount gives it back."""
        if self._changes is not None:
            self._changes[begin] += amount
            self._changes[end] -= amount
            return
        first, behind = self._step(begin), self._step(end)
        for place in range(first, behind):
            self._taken[place] += amount

    @property
    def peak(self) -> int:
        """The most that is ever taken at once."""
        self._make_steps()
        return max(self._taken, default=0)

    def most(self, begin: datetime, end: datetime) -> int:
        """The most that is taken at once in between."""
        self._make_steps()
        first, behind = bisect_right(self._at, begin) - 1, bisect_left(self._at, end)
        return max(self._taken[max(first, 0) : behind], default=0)

    def begins(
        self, limit: int, lasts: timedelta, earliest: datetime, before: datetime
    ) -> Iterator[tuple[datetime, datetime]]:
        """From when to when something may begin that lasts so long, if no more than `limit` may be taken meanwhile.

        The first and the last such moment of each stretch, in order; those not before `before` are left out.
        """
        if limit < 0:
            return
        self._make_steps()
        at, taken, begin = self._at, self._taken, earliest
        for place in range(max(bisect_right(at, earliest) - 1, 0), len(at)):
            if taken[place] <= limit:
                continue
            if begin < at[place] and begin <= (last := at[place] - lasts):
                yield begin, last
            if begin < at[place + 1]:  # the last step takes nothing: there is another one
                begin = at[place + 1]
            if begin >= before:
                return
        if begin < before:
            yield begin, before

    def _make_steps(self) -> None:
        if self._changes is not None:
            self._at = sorted(self._changes)
            self._taken = list(accumulate(self._changes[moment] for moment in self._at))
            self._changes = None

    def _step(self, moment: datetime) -> int:
        """The place of the step that begins then; made if there is none."""
        place = bisect_left(self._at, moment)
        if place == len(self._at) or self._at[place] != moment:
            self._at.insert(place, moment)
            self._taken.insert(place, self._taken[place - 1] if place else 0)
        return place


class PoolRoom:
    """What a pool has, less what is taken of it by leases and kept for those that wait."""

    def __init__(self, book: LeaseBook, now: datetime) -> None:
        """With what is taken by leases; those that wait are added by `take`."""
        self.now = now
        self._pool = book.pool
        self._serving = {each.name: each for each in book.servers if each.state is ServerState.SERVING}
        self._memory = {(server.name, gpu.index): gpu.memory_mib for server in book.servers for gpu in server.gpus}
        self._of_gpu: defaultdict[tuple[str, int], Usage] = defaultdict(Usage)
        self._memory_of: defaultdict[str, Usage] = defaultdict(Usage)
        self._shares_of: defaultdict[str, Usage] = defaultdict(Usage)
        for lease in book.leases:
            if lease.holds and lease.shares:
                self.take(lease, lease.shares, now, held_until(lease, now))
        for server in book.servers:
            # one that a night has lend lends nothing beyond that: no lease keeps a desktop from coming back
            if (until := lends_until(server)) is not None:
                for gpu in server.gpus:
                    self._of_gpu[server.name, gpu.index].add(max(until, now), NEVER, gpu.memory_mib)

    @property
    def is_enough(self) -> bool:
        """Whether nobody ever has, or has kept, more than there is of a GPU, or than the quota of its owner."""
        gpus = (usage.peak <= self._memory.get(gpu, 0) for gpu, usage in self._of_gpu.items())
        return all(gpus) and all(map(self._is_within_quota, self._memory_of))

    def _is_within_quota(self, owner: str) -> bool:
        quota = self._pool.quota_of(owner)
        memory_mib, shares = self._memory_of[owner].peak, self._shares_of[owner].peak
        return (quota.memory_mib is None or memory_mib <= quota.memory_mib) and (
            quota.shares is None or shares <= quota.shares
        )

    def serves(self, shares: Iterable[LentShare]) -> bool:
        """Whether all of these are of servers that lend."""
        return all(each.server in self._serving for each in shares)

    @property
    def placement(self) -> Arrangement:
        return self._pool.placement

    def gpus(self) -> Iterator[tuple[PoolServer, ServerGpu]]:
        """Those of servers that lend."""
        for server in self._serving.values():
            for gpu in server.gpus:
                yield server, gpu

    def take(self, lease: GpuLease, shares: Sequence[LentShare], begin: datetime, end: datetime) -> None:
        """From here on they are its own in that time."""
        self._change(lease, shares, begin, end, 1)

    def release(self, lease: GpuLease, shares: Sequence[LentShare], begin: datetime, end: datetime) -> None:
        """The opposite of `take`."""
        self._change(lease, shares, begin, end, -1)

    def _change(self, lease: GpuLease, shares: Sequence[LentShare], begin: datetime, end: datetime, sign: int) -> None:
        for share in shares:
            self._of_gpu[share.server, share.gpu].add(begin, end, sign * share.memory_mib)
        owner = lease.wish.owner
        self._memory_of[owner].add(begin, end, sign * sum(share.memory_mib for share in shares))
        self._shares_of[owner].add(begin, end, sign * len(shares))

    def free_mib(self, server: str, gpu: int, begin: datetime, end: datetime) -> int:
        """So much of that GPU's memory is free all the time in between; 0 where its server does not lend."""
        if server not in self._serving or (server, gpu) not in self._memory:
            return 0
        return self._memory[server, gpu] - self._of_gpu[server, gpu].most(begin, end)

    def fits(self, shares: Sequence[LentShare], begin: datetime, end: datetime) -> bool:
        """Whether all of these are free in that time."""
        return all(self.free_mib(each.server, each.gpu, begin, end) >= each.memory_mib for each in shares)

    def within_quota(self, lease: GpuLease, begin: datetime, end: datetime) -> bool:
        """Whether its owner may have its shares too in that time."""
        return all(usage.most(begin, end) <= limit for usage, limit in self._quota_limits(lease))

    def _quota_limits(self, lease: GpuLease) -> Iterator[tuple[Usage, int]]:
        """What its owner has, and how much that may be for its shares to be within the quota too."""
        owner, wish = lease.wish.owner, lease.wish
        quota = self._pool.quota_of(owner)
        if quota.memory_mib is not None:
            yield self._memory_of[owner], quota.memory_mib - wish.gpus * wish.memory_mib
        if quota.shares is not None:
            yield self._shares_of[owner], quota.shares - wish.gpus

    def quota_counts(self, lease: GpuLease) -> bool:
        """Whether its owner has a quota."""
        return any(True for _ in self._quota_limits(lease))

    def may_begin_on(
        self, gpus: Iterable[tuple[str, int]], lease: GpuLease, earliest: datetime, before: datetime
    ) -> bool:
        """Whether one of these GPUs has room for a share of the lease, as long as it lasts, from a moment before
        `before` on. Its other shares and its quota aside."""

        def has_room(gpu: tuple[str, int]) -> bool:
            limit = self._memory[gpu] - lease.wish.memory_mib
            stretches = self._of_gpu[gpu].begins(limit, lease.lasts, earliest, before)
            return any(first < before for first, _ in stretches)

        return any(has_room(gpu) for gpu in gpus if gpu in self._memory and gpu[0] in self._serving)

    def first_moment(self, lease: GpuLease, earliest: datetime, before: datetime) -> datetime | None:
        """The first one from which on enough GPUs, and its owner's quota, have room for the lease as long as it lasts;
        None = there is none before `before`.

        Each GPU and each quota says in which stretches the lease may begin; at the moment that is looked for enough of
        them are open at once. The work is that of reading each GPU's steps once, however many leases end meanwhile.
        """
        wish, quotas = lease.wish, list(self._quota_limits(lease))
        opened: list[tuple[datetime, bool, bool]] = []
        """Moment, whether a stretch closes there (which is behind those that open: its last moment is one of it), and
        whether it is a quota's."""
        for usage, limit in quotas:
            stretches = list(usage.begins(limit, lease.lasts, earliest, before))
            if not stretches or stretches[0][0] >= before:
                return None  # who waits for a quota mostly waits for nothing else: no GPU need be looked at
            earliest = max(earliest, stretches[0][0])
            for first, last in stretches:
                opened += ((first, False, True), (last, True, True))
        for server, gpu in self.gpus():
            limit = gpu.memory_mib - wish.memory_mib
            for first, last in self._of_gpu[server.name, gpu.index].begins(limit, lease.lasts, earliest, before):
                opened += ((first, False, False), (last, True, False))
        missing = {False: wish.gpus, True: len(quotas)}
        for moment, closes, of_quota in sorted(opened):
            missing[of_quota] += 1 if closes else -1
            if missing[False] <= 0 and missing[True] <= 0:
                return moment if moment < before else None
        return None


def lends_until(server: PoolServer) -> datetime | None:
    """When what a night lets it lend is over at the latest; None = no night does."""
    night = server.night
    return night.until if night is not None and night.by_night is ByNight.GIVE else None


def held_until(lease: GpuLease, now: datetime) -> datetime:
    """When the shares of a lease are expected to be free, which is later than now."""
    return lease.ends_at if lease.ends_at is not None and lease.ends_at > now else now + OVERDUE


def idle_mib(book: LeaseBook, now: datetime) -> dict[tuple[str, int], int]:
    """By server and index: what of a GPU's memory nobody has now; 0 where its server does not lend."""
    room = PoolRoom(book, now)
    every = ((server.name, gpu.index) for server in book.servers for gpu in server.gpus)
    return {each: room.free_mib(*each, now, now + OVERDUE) for each in every}


def largest_idle_mib(book: LeaseBook, now: datetime, lasts: timedelta) -> int:
    """The largest share of one GPU that nobody has, and for nobody is kept, from now on for so long."""
    room = room_of(book, now)
    return max((room.free_mib(server.name, gpu.index, now, now + lasts) for server, gpu in room.gpus()), default=0)


def room_of(book: LeaseBook, now: datetime) -> PoolRoom:
    """With what is kept for those that wait."""
    room = PoolRoom(book, now)
    for lease in book.leases:
        if lease.state is LeaseState.WAITING and lease.begins_at is not None and lease.ends_at is not None:
            room.take(lease, lease.shares, lease.begins_at, lease.ends_at)
    return room
