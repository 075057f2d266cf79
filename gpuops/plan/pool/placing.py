"""Which GPUs a lease gets its shares of.

request: 1 share of 10 GiB, client on esx-01         free         server        left   chosen
gpu-a/0 on esx-02 of the same cluster               12 GiB       near          2 GiB  yes: nearer than gpu-c, and
gpu-a/1                                             40 GiB       near         30 GiB       leaves less than gpu-a/1
gpu-c/0 in another cluster                          10 GiB       far           0 GiB
"""

from __future__ import annotations

from gpuops.model.workloads.lease_book import LeaseBook, LeaseWish, LentShare, PoolServer, ServerState


def idle_mib(book: LeaseBook) -> dict[tuple[str, int], int]:
    """Return the memory of each GPU that may be lent now, by server and index; 0 where its server does not lend."""
    idle = {
        (server.name, gpu.index): gpu.memory_mib if server.state is ServerState.SERVING else 0
        for server in book.servers
        for gpu in server.gpus
    }
    for share in (share for lease in book.leases if lease.holds for share in lease.shares):
        if idle.get((share.server, share.gpu)):
            idle[share.server, share.gpu] -= share.memory_mib
    return idle


def choose_shares(wish: LeaseWish, book: LeaseBook) -> tuple[LentShare, ...] | None:
    """Return a share of each of `wish.gpus` different GPUs; None = fewer have room now.

    1. As few servers as possible: each one more can die and break the lease.
    2. The nearest: on the client's host no call leaves the host, in its cluster it uses the cluster's own switches.
    3. The GPUs with the least room, so that large idle shares stay.
    4. The name, so that the same question has the same answer.
    """
    rooms = {name: list[tuple[int, int]]() for name in (server.name for server in book.servers)}
    for (name, gpu), free_mib in idle_mib(book).items():
        if free_mib >= wish.memory_mib:
            rooms[name].append((free_mib, gpu))
    if sum(map(len, rooms.values())) < wish.gpus:
        return None

    shares: list[LentShare] = []
    while missing := wish.gpus - len(shares):

        def rank(server: PoolServer, missing: int = missing) -> tuple[int, int, int, str]:
            best = sorted(rooms[server.name])[:missing]
            return -len(best), distance(wish, server), sum(room for room, _ in best), server.name

        name = min((server for server in book.servers if rooms[server.name]), key=rank).name
        shares += [LentShare(name, gpu, wish.memory_mib) for _, gpu in sorted(rooms[name])[:missing]]
        rooms[name] = []
    return tuple(sorted(shares, key=lambda share: (share.server, share.gpu)))


def distance(wish: LeaseWish, server: PoolServer) -> int:
    """Return 0 for a server on the client's host, 1 in its cluster, 2 elsewhere or unknown."""
    if wish.host and wish.host == server.host:
        return 0
    return 1 if wish.cluster and wish.cluster == server.cluster else 2
