"""Changes of the book of a pool: a lease, a return, the end of a lease, a server that is drained, dies or comes back.

Every function returns a new book. `to_enable` and `to_disable` return the leases whose hooks must then run in guests;
`hooks_begin` and `hooks_ended` record that. A share is free for others only when its client is cut off or was never set
up, even after the end of the lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from gpuops.extras.lending.lease_book import (
    REPORTED_DEAD,
    GpuLease,
    LeaseBook,
    LeaseState,
    LeaseWish,
    LentShare,
    PoolServer,
    ServerState,
)
from gpuops.model.time_text import format_hours, format_minute
from gpuops.plan.core.command_line import command
from gpuops.plan.core.rejection import Rejection

Decision = tuple[LeaseBook, tuple[Rejection, ...]]
"""The book after a command, and every reason to refuse the command."""


def lend(book: LeaseBook, wish: LeaseWish, id: str, now: datetime) -> Decision:
    """Return the book with a new lease (`id`), or the reasons against it.

    If the client has a lease of the same size and duration already, nothing is changed.
    """
    book = settle(book, now)
    lease = current_lease(book, wish.client_uuid, now)
    if lease is not None:
        if (lease.wish.memory_mib, lease.wish.gpus, lease.wish.lasts) == (wish.memory_mib, wish.gpus, wish.lasts):
            return book, ()
        size = f"{lease.wish.gpus} x {lease.wish.memory_mib} MiB"
        rule = f"already has the lease {lease.id}: {size} until {format_minute(lease.ends_at)}Z"
        hint = f"run {command(f'pool return {book.pool.name}', client=lease.wish.client)} first"
        return book, (Rejection(lease.wish.client, rule, hint=hint),)
    shares = choose_shares(wish, book)
    if rejections := tuple(_refusals(book, wish, len(shares), now)):
        return book, rejections
    return book.with_leases([GpuLease(id, wish, wish.lasts, LeaseState.LENT, now, now + wish.lasts, shares)]), ()


def current_lease(book: LeaseBook, client_uuid: str, now: datetime) -> GpuLease | None:
    """Return the lease of this client whose time is not over."""
    leases = (lease for lease in book.open_leases if lease.wish.client_uuid == client_uuid)
    return next((lease for lease in leases if lease.ends_at > now), None)


def _refusals(book: LeaseBook, wish: LeaseWish, room: int, now: datetime) -> Iterator[Rejection]:
    """Yield every reason against this lease: a limit in the pool's file, or too few GPUs with enough idle memory.

    `room`: the number of shares of the requested size that can be lent now.
    """
    pool, client = book.pool, wish.client
    if wish.lasts > pool.longest:
        longest = format_hours(pool.longest)
        rule = f"{format_hours(wish.lasts)} is more than `longest_lease` of pool {pool.name}, {longest}"
        yield Rejection(client, rule, hint=f"set --for to at most {longest}")
    ends = [lease.ends_at for lease in book.open_leases if lease.ends_at > now]
    next_end = f"; the next lease ends at {format_minute(min(ends))}Z" if ends else ""
    leases = [lease for lease in book.open_leases if lease.wish.owner == wish.owner]
    sizes_mib = [share.memory_mib for lease in leases for share in lease.shares]
    quota = pool.quotas.get(wish.owner, pool.quota)
    for rule, needed, limit, lent, unit in (
        ("memory quota", wish.gpus * wish.memory_mib, quota.memory_mib, sum(sizes_mib), "MiB"),
        ("quota of shares", wish.gpus, quota.shares, len(sizes_mib), ""),
    ):
        if limit is not None and needed > limit - lent:
            rule += f" of {wish.owner or 'VMs without an owner'}, {lent} of {limit} lent"
            yield Rejection(
                client, rule, needed, limit - lent, unit, hint=f"set a smaller --gpu-memory or --gpus{next_end}"
            )
    if room < wish.gpus:
        rule = f"GPUs of pool {pool.name} with {wish.memory_mib} MiB of idle memory"
        hint = f"a share of at most {max(idle_mib(book).values(), default=0)}MiB is idle now{next_end}"
        yield Rejection(client, rule, wish.gpus, room, hint=hint)


def idle_mib(book: LeaseBook) -> dict[tuple[str, int], int]:
    """Return the MiB of each GPU that may be lent now, by server and index; 0 if the server lends nothing new."""
    lent = lent_mib(book)
    return {
        (server.name, gpu.index): gpu.memory_mib - lent[server.name, gpu.index]
        if server.state is ServerState.SERVING
        else 0
        for server in book.servers
        for gpu in server.gpus
    }


def lent_mib(book: LeaseBook) -> Counter[tuple[str, int]]:
    """Return the MiB of each GPU that are lent, by server and index of the GPU."""
    lent = Counter[tuple[str, int]]()
    for share in (share for lease in book.open_leases for share in lease.shares):
        lent[share.server, share.gpu] += share.memory_mib
    return lent


def choose_shares(wish: LeaseWish, book: LeaseBook) -> tuple[LentShare, ...]:
    """Return a share of each of `wish.gpus` different GPUs, or of fewer if no more have room now.

    Chosen in this order of importance:
    1. As few servers as possible, because the death of one ends the lease.
    2. The GPUs with the least room, so that large idle shares remain.
    3. The name of the server, so that equal requests get equal shares.
    """
    rooms = dict[str, list[tuple[int, int]]]()
    for (name, gpu), free_mib in sorted(idle_mib(book).items()):
        if free_mib >= wish.memory_mib:
            rooms.setdefault(name, []).append((free_mib, gpu))
    shares: list[LentShare] = []
    while rooms and len(shares) < wish.gpus:
        missing = wish.gpus - len(shares)
        best = {name: sorted(room)[:missing] for name, room in rooms.items()}
        name = min(best, key=lambda name: (-len(best[name]), sum(free_mib for free_mib, _ in best[name]), name))
        shares += [LentShare(name, gpu, wish.memory_mib) for _, gpu in best[name]]
        del rooms[name]
    return tuple(sorted(shares, key=lambda share: (share.server, share.gpu)))


def settle(book: LeaseBook, now: datetime) -> LeaseBook:
    """Return the book in which leases whose time is over are ended; if a client must be cut off first, ending."""
    return book.with_leases(
        replace(
            lease,
            state=LeaseState.ENDED if lease.enabled is False else LeaseState.ENDING,
            because=lease.because or "its time is over",
        )
        for lease in book.open_leases
        if lease.ends_at <= now
    )


def end_leases(
    book: LeaseBook, because: str, applies: Callable[[GpuLease], bool], at: datetime, now: datetime
) -> LeaseBook:
    """Return the book in which each lease for which `applies` is true ends at `at`, unless it ends earlier."""
    leases = [lease for lease in book.open_leases if lease.ends_at > at and applies(lease)]
    ending = [replace(lease, state=LeaseState.ENDING, ends_at=at, because=because) for lease in leases]
    return settle(book.with_leases(ending), now)


def end_lease_of(book: LeaseBook, client_uuid: str, now: datetime) -> LeaseBook:
    """Return the book in which the lease of this client has ended, because it was returned."""
    return end_leases(book, "it was returned", lambda lease: lease.wish.client_uuid == client_uuid, now, now)


def take_back(book: LeaseBook, server: PoolServer, at: datetime, now: datetime) -> LeaseBook:
    """Return the book in which this server lends nothing new, and its leases end at `at` or earlier."""
    if server.state is ServerState.DEAD:
        return settle(book, now)
    book = book.with_server(replace(server, state=ServerState.DRAINING))
    return _end_leases_of(book, server, "is taken back", at, now)


def server_died(book: LeaseBook, server: PoolServer, now: datetime, because: str = "") -> LeaseBook:
    """Return the book in which this server is dead: its leases end at once. `because`: empty = its VM does not run.

    If the server is dead already, only the report of an admin (`REPORTED_DEAD`) changes its reason.
    """
    if server.state is ServerState.DEAD and because != REPORTED_DEAD:
        return settle(book, now)
    book = book.with_server(replace(server, state=ServerState.DEAD, because=because))
    return _end_leases_of(book, server, because or "does not run", now, now)


def _end_leases_of(book: LeaseBook, server: PoolServer, because: str, at: datetime, now: datetime) -> LeaseBook:
    return end_leases(book, f"server {server.name} {because}", lambda lease: lease.has_shares_of(server.name), at, now)


def serve_again(book: LeaseBook, server: PoolServer, now: datetime) -> LeaseBook:
    """Return the book in which this server lends again."""
    return settle(book.with_server(replace(server, state=ServerState.SERVING, because="")), now)


def to_enable(book: LeaseBook) -> tuple[GpuLease, ...]:
    """Return the leases whose clients must be set up."""
    return tuple(lease for lease in book.leases if lease.state is LeaseState.LENT and lease.enabled is not True)


def to_disable(book: LeaseBook, now: datetime) -> tuple[GpuLease, ...]:
    """Return the leases whose clients must be cut off, because their time is over."""
    return tuple(lease for lease in settle(book, now).open_leases if lease.ends_at <= now)


def hooks_begin(book: LeaseBook, id: str, now: datetime) -> LeaseBook:
    """Return the book with a note that hooks of this lease will run now; unchanged if none have to."""
    return book.with_leases(
        replace(lease, enabled=None) for lease in (*to_enable(book), *to_disable(book, now)) if lease.id == id
    )


def hooks_ended(book: LeaseBook, id: str, enabled: bool, now: datetime) -> LeaseBook:
    """Return the book in which the client of this lease is set up (`enabled`), or cut off, so that its shares are free.

    A lease that ended while its client was set up is not recorded as set up: it is cut off next.
    """
    leases = [lease for lease in book.leases if lease.id == id and (lease.state is LeaseState.LENT or not enabled)]
    return settle(book.with_leases(replace(lease, enabled=enabled) for lease in leases), now)


def with_servers(book: LeaseBook, servers: Iterable[PoolServer], now: datetime) -> Decision:
    """Return the book with these servers instead of its own, or unchanged with the reasons against it.

    A server that the book has already keeps its name and state. Refused: to remove a server with leases, or to make
    a GPU smaller than what is lent of it.
    """
    book = settle(book, now)
    old_servers = {server.uuid: server for server in book.servers}
    servers = [
        replace(old_servers[server.uuid], gpus=server.gpus) if server.uuid in old_servers else server
        for server in servers
    ]
    # by the UUID: another VM may have the name of a server by now
    gpus = {
        (server.name, gpu.index): gpu.memory_mib
        for server in servers
        if server.uuid in old_servers
        for gpu in server.gpus
    }
    rejections = []
    for name in sorted({gpu[0] for gpu, size_mib in lent_mib(book).items() if gpus.get(gpu, 0) < size_mib}):
        hint = f"{command(f'pool reclaim {book.pool.name}', server=name)} ends its leases first"
        rejections.append(Rejection(name, "has lent shares of GPUs that would leave the pool", hint=hint))
    names = [server.name for server in servers]
    rule, hint = "is listed twice, or has the name of another server", "list it once, or rename one of the VMs"
    rejections += [Rejection(name, rule, hint=hint) for name in sorted({*names}) if names.count(name) > 1]
    return (book if rejections else replace(book, servers=tuple(servers))), tuple(rejections)
