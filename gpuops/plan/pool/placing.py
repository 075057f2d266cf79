"""Which GPUs a lease gets its shares of.

wish: 1 share of 10 GiB, client on esx-01            free         server        left   chosen
gpu-a/0 on esx-02 of the same cluster               12 GiB       near          2 GiB  yes: nearer than gpu-c, and
gpu-a/1                                             40 GiB       near         30 GiB       leaves less than gpu-a/1
gpu-c/0 in another cluster                          10 GiB       far           0 GiB
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from gpuops.model.workloads.cluster import Arrangement
from gpuops.model.workloads.lease_book import LeaseWish, LentShare, PoolServer
from gpuops.plan.pool.room import PoolRoom


class _FreeGpu(NamedTuple):
    """A GPU with room for one share. Ordered: the best comes first."""

    cost_mib: int
    """What is left of it, with a minus where the pool is spread: the less, the better."""
    number: int


def chosen_shares(wish: LeaseWish, room: PoolRoom, begin: datetime, end: datetime) -> tuple[LentShare, ...] | None:
    """A share of each of `wish.gpus` different GPUs that are free in that time; None = there are not so many."""
    by_server: dict[str, list[_FreeGpu]] = {}
    servers: dict[str, PoolServer] = {}
    for server, gpu in room.gpus():
        left_mib = room.free_mib(server.name, gpu.index, begin, end) - wish.memory_mib
        if left_mib >= 0:
            cost_mib = left_mib if room.placement is Arrangement.PACKED else -left_mib
            by_server.setdefault(server.name, []).append(_FreeGpu(cost_mib, gpu.index))
            servers[server.name] = server
    if sum(map(len, by_server.values())) < wish.gpus:
        return None
    for free in by_server.values():
        free.sort()
    shares: list[LentShare] = []
    while len(shares) < wish.gpus:
        missing = wish.gpus - len(shares)
        name = _best_server((servers[each] for each in by_server), by_server, missing, wish)
        shares += [LentShare(name, free.number, wish.memory_mib) for free in by_server.pop(name)[:missing]]
    return tuple(sorted(shares, key=lambda each: (each.server, each.gpu)))


def _best_server(
    servers: Iterable[PoolServer], by_server: dict[str, list[_FreeGpu]], missing: int, wish: LeaseWish
) -> str:
    """The server that the next shares are of.

    1. As few servers as can be: each is one more that can die and break the lease, and one more way through the
       network. So the one that has most of what is missing comes first, which gives the fewest in all.
    2. The nearest: on the client's host no call leaves the host, within its cluster it takes the cluster's own
       switches. Each call pays for the way during the whole lease; room is fragmented until the lease's end only.
    3. Packed, what leaves least of its GPUs (best fit): large idle shares stay whole for large wishes. Spread, what
       leaves most: leases on one GPU share its time. Which of the two a pool wants depends on its wishes; README.md has
       figures of both.
    4. The name, so that the same question has the same answer.
    """

    def rank(server: PoolServer) -> tuple[int, int, int, str]:
        free = by_server[server.name][:missing]
        return -len(free), distance(wish, server), sum(each.cost_mib for each in free), server.name

    return min(servers, key=rank).name


def distance(wish: LeaseWish, server: PoolServer) -> int:
    """0 = on the client's host, 1 = in its cluster, 2 = elsewhere, or not known."""
    if wish.host and wish.host == server.host:
        return 0
    return 1 if wish.cluster and wish.cluster == server.cluster else 2
