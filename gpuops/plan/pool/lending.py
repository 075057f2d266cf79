"""Changes of a book: a lease, a return, the clock, a server that is drained, dies or comes back.

Every function returns a new book. `to_enable` and `to_disable` are the work that is then left to do in guests;
`enabling`, `enabled`, `disabling` and `cut_off` record its progress. A share is free for others only once its client is
cut off, or was never set up: never before, even after the end of the lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpuops.model.workloads.lease_book import (
    REPORTED_DEAD,
    GpuLease,
    LeaseBook,
    LeaseState,
    LeaseWish,
    PoolServer,
    ServerState,
)
from gpuops.plan.core.command_line import command
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.pool.placing import choose_shares, idle_mib


@dataclass(frozen=True, slots=True)
class Lending:
    """The answer to a request."""

    book: LeaseBook
    lease: GpuLease | None = None
    """The new lease, or the same one that its client has already; None = refused."""
    rejections: tuple[Rejection, ...] = ()


def lend(book: LeaseBook, wish: LeaseWish, id: str, now: datetime) -> Lending:
    """Lend the shares now, or refuse. `id`: of the new lease."""
    book = settle(book, now)
    for lease in book.leases:
        if lease.wish.client_uuid == wish.client_uuid and _is_current(lease, now):
            if (lease.wish.memory_mib, lease.wish.gpus, lease.wish.lasts) == (wish.memory_mib, wish.gpus, wish.lasts):
                return Lending(book, lease)
            return Lending(book, rejections=(_other_lease(lease, book.pool.name),))
    rejections = tuple(_refusals(book, wish, now))
    shares = choose_shares(wish, book)
    if rejections or shares is None:
        return Lending(book, rejections=rejections)
    lease = GpuLease(id, wish, wish.lasts, LeaseState.LENT, now, now + wish.lasts, shares)
    return Lending(book.with_leases([lease]), lease)


def _is_current(lease: GpuLease, now: datetime) -> bool:
    is_lent = lease.state in (LeaseState.LENT, LeaseState.ENDING)
    return is_lent and lease.ends_at is not None and lease.ends_at > now


def _other_lease(lease: GpuLease, pool: str) -> Rejection:
    return Rejection(
        lease.client,
        f"has the lease {lease.id} already: {lease.wish.gpus} x {lease.wish.memory_mib} MiB until "
        f"{lease.ends_at:%Y-%m-%d %H:%MZ}",
        hint=f"{command('pool return', pool=pool, client=lease.client)} first",
    )


def _refusals(book: LeaseBook, wish: LeaseWish, now: datetime) -> Iterator[Rejection]:
    """Yield every reason why it is not lent now: a limit of the pool's file, or no room beside other leases."""
    pool, client, memory_mib = book.pool, wish.client, wish.gpus * wish.memory_mib
    if wish.lasts > pool.longest:
        longest = format_duration(pool.longest)
        rule = f"{format_duration(wish.lasts)} is longer than pool {pool.name} lends: {longest}"
        yield Rejection(client, rule, hint=f"ask for at most {longest}")
    holding = [lease for lease in book.leases if lease.holds]
    ends = [lease.ends_at for lease in holding if lease.ends_at is not None and lease.ends_at > now]
    later = f"ask again when a lease has ended; the next ends at {min(ends):%Y-%m-%d %H:%MZ}" if ends else "ask again"
    shares = [share for lease in holding if lease.wish.owner == wish.owner for share in lease.shares]
    quota, owner = pool.quota_of(wish.owner), wish.owner or "VMs without an owner"
    for rule, needed, limit, lent, unit in (
        ("memory quota", memory_mib, quota.memory_mib, sum(share.memory_mib for share in shares), "MiB"),
        ("quota of shares", wish.gpus, quota.shares, len(shares), ""),
    ):
        if limit is not None and needed > limit - lent:
            hint = later if needed <= limit else "ask for less, or change `quotas` in the pool's file"
            yield Rejection(client, f"{rule} of {owner}, {lent} of {limit} lent", needed, limit - lent, unit, hint=hint)
    sizes = [gpu.memory_mib for server in book.servers if server.state is ServerState.SERVING for gpu in server.gpus]
    room = sum(free_mib >= wish.memory_mib for free_mib in idle_mib(book).values())
    if not sizes:
        yield Rejection(client, f"no server of pool {pool.name} lends", hint=command("pool show", pool=pool.name))
    elif max(sizes) < wish.memory_mib:
        rule, hint = f"no GPU of pool {pool.name} has as much memory", f"ask for at most {max(sizes)}MiB"
        yield Rejection(client, rule, wish.memory_mib, max(sizes), "MiB", hint=hint)
    elif room < wish.gpus:
        is_enough = sum(size_mib >= wish.memory_mib for size_mib in sizes) >= wish.gpus
        hint = later if is_enough else "ask for fewer GPUs, or less memory of each"
        yield Rejection(client, f"GPUs of pool {pool.name} with {wish.memory_mib} MiB idle", wish.gpus, room, hint=hint)


def format_duration(duration: timedelta) -> str:
    """Return `4 h`, `1 h 30 min`, `20 min`."""
    hours, minutes = divmod(round(duration.total_seconds() / 60), 60)
    return f"{hours} h" if not minutes else f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def settle(book: LeaseBook, now: datetime) -> LeaseBook:
    """Return the book after the leases whose time is over have ended."""
    return book.with_leases(_by_clock(lease, now) for lease in book.leases if lease.holds)


def _by_clock(lease: GpuLease, now: datetime) -> GpuLease:
    is_over = lease.ends_at is not None and lease.ends_at <= now
    if lease.state is LeaseState.LENT and is_over:
        lease = replace(lease, state=LeaseState.ENDING, because="its time is over")
    if lease.state is LeaseState.ENDING and lease.enabled is False and is_over:
        return replace(lease, state=LeaseState.ENDED)
    return lease


def give_up(book: LeaseBook, client_uuid: str, now: datetime) -> LeaseBook:
    """Return the book after this client gave its lease back."""
    leases = [lease for lease in book.leases if lease.wish.client_uuid == client_uuid]
    return settle(book.with_leases(_ending(lease, now, "it was returned") for lease in leases), now)


def take_back(book: LeaseBook, server: str, at: datetime, now: datetime) -> LeaseBook:
    """Return the book after this server was drained: it lends nothing new, and its leases end at `at` or before."""
    pool_server = book.server(server)
    if pool_server is None or pool_server.state is ServerState.DEAD:
        return settle(book, now)
    because = f"server {server} is taken back"
    ending = [_ending(lease, at, because) for lease in book.leases if lease.has_shares_of(server)]
    return settle(book.with_server(replace(pool_server, state=ServerState.DRAINING)).with_leases(ending), now)


def take_back_lease(book: LeaseBook, id: str, at: datetime, now: datetime) -> LeaseBook:
    """Return the book in which this lease ends at `at`, or before."""
    lease = book.lease(id)
    return settle(book.with_leases([_ending(lease, at, "it is taken back")] if lease else []), now)


def _ending(lease: GpuLease, at: datetime, because: str) -> GpuLease:
    if lease.state not in (LeaseState.LENT, LeaseState.ENDING) or lease.ends_at is None or lease.ends_at <= at:
        return lease
    return replace(lease, state=LeaseState.ENDING, ends_at=at, because=because)


def server_died(book: LeaseBook, server: str, now: datetime, because: str = "") -> LeaseBook:
    """Return the book after this server died: its leases are broken. `because`: empty = its VM does not run.

    Of a server that is dead already only a report (`REPORTED_DEAD`) is recorded.
    """
    pool_server = book.server(server)
    if pool_server is None or (pool_server.state is ServerState.DEAD and because != REPORTED_DEAD):
        return settle(book, now)
    book = book.with_server(replace(pool_server, state=ServerState.DEAD, because=because))
    ids = [lease.id for lease in book.leases if lease.has_shares_of(server)]
    return break_leases(book, dict.fromkeys(ids, f"server {server} {because or 'does not run'}"), now)


def break_leases(book: LeaseBook, because: Mapping[str, str], now: datetime) -> LeaseBook:
    """Return the book after these leases broke; `because`: the reason, by id."""
    broken = [
        replace(lease, state=LeaseState.BROKEN, ends_at=min(lease.ends_at or now, now), because=because[lease.id])
        for lease in book.leases
        if lease.id in because and lease.state in (LeaseState.LENT, LeaseState.ENDING)
    ]
    return settle(book.with_leases(broken), now)


def serve_again(book: LeaseBook, server: str, now: datetime) -> LeaseBook:
    """Return the book after this server was given to the pool again."""
    pool_server = book.server(server)
    if pool_server is not None:
        book = book.with_server(replace(pool_server, state=ServerState.SERVING, because=""))
    return settle(book, now)


def to_enable(book: LeaseBook) -> tuple[GpuLease, ...]:
    """Return the leases whose clients are to be set up."""
    return tuple(lease for lease in book.leases if lease.state is LeaseState.LENT and lease.enabled is not True)


def to_disable(book: LeaseBook, now: datetime) -> tuple[GpuLease, ...]:
    """Return the leases whose clients are to be cut off: their time is over, or they are broken."""

    def is_over(lease: GpuLease) -> bool:
        ended = lease.ends_at is not None and lease.ends_at <= now
        return lease.state is LeaseState.BROKEN or (lease.state is not LeaseState.LENT and ended)

    return tuple(lease for lease in book.leases if lease.enabled is not False and is_over(lease))


def enabling(book: LeaseBook, id: str) -> LeaseBook:
    """Record that its client is about to be set up."""
    return _changed(book, id, lambda lease: replace(lease, enabled=None) if lease.enabled is False else lease)


def enabled(book: LeaseBook, id: str) -> LeaseBook:
    """Record that its client is set up. A lease that ended meanwhile stays unknown, and is cut off."""
    return _changed(book, id, lambda lease: replace(lease, enabled=True) if lease.state is LeaseState.LENT else lease)


def disabling(book: LeaseBook, id: str) -> LeaseBook:
    """Record that its client is about to be cut off."""
    return _changed(book, id, lambda lease: replace(lease, enabled=None) if lease.enabled is True else lease)


def cut_off(book: LeaseBook, id: str, now: datetime) -> LeaseBook:
    """Record that its client is cut off: its shares are free."""
    return settle(_changed(book, id, lambda lease: replace(lease, enabled=False)), now)


def _changed(book: LeaseBook, id: str, change: Callable[[GpuLease], GpuLease]) -> LeaseBook:
    lease = book.lease(id)
    return book if lease is None else book.with_leases([change(lease)])


def with_servers(
    book: LeaseBook, servers: tuple[PoolServer, ...], now: datetime
) -> tuple[LeaseBook, tuple[Rejection, ...]]:
    """Return the book with these servers, which keep the state that they have; or a rejection for each one with leases
    that would leave the pool."""
    book = settle(book, now)
    before = {server.uuid: server for server in book.servers}
    servers = tuple(
        replace(server, state=before[server.uuid].state, because=before[server.uuid].because)
        if server.uuid in before
        else server
        for server in servers
    )
    uuids = {server.name: server.uuid for server in book.servers}
    gpus = {(server.uuid, gpu.index): gpu.memory_mib for server in servers for gpu in server.gpus}
    held_mib = Counter[tuple[str, int]]()
    for share in (share for lease in book.leases if lease.holds for share in lease.shares):
        held_mib[share.server, share.gpu] += share.memory_mib
    # by the UUID: another VM may have the name of a server by now
    lost = {name for (name, gpu), size_mib in held_mib.items() if gpus.get((uuids.get(name, ""), gpu), 0) < size_mib}
    if lost:
        rule = "GPUs of it are lent, and would leave the pool"
        hint = "{} ends its leases first"
        hints = {name: hint.format(command("pool reclaim", pool=book.pool.name, server=name)) for name in sorted(lost)}
        return book, tuple(Rejection(name, rule, hint=hint) for name, hint in hints.items())
    # a VM that was renamed keeps its leases
    names = {before[server.uuid].name: server.name for server in servers if server.uuid in before}
    leases = [
        replace(
            lease,
            shares=tuple(replace(share, server=names.get(share.server, share.server)) for share in lease.shares),
        )
        for lease in book.leases
    ]
    return replace(book, servers=servers, leases=tuple(leases)), ()


def without_servers(book: LeaseBook, now: datetime) -> tuple[LeaseBook, tuple[Rejection, ...]]:
    """Return the book that may be deleted; or a rejection for each lease that is still open."""
    book, pool = settle(book, now), book.pool.name
    rejections = []
    for lease in (lease for lease in book.leases if lease.holds):
        rule = f"has the lease {lease.id} until {lease.ends_at:%Y-%m-%d %H:%MZ}"
        hint = f"{command('pool return', pool=pool, client=f'uuid:{lease.wish.client_uuid}')} gives it back"
        if lease in to_disable(book, now):
            rule, hint = f"is not cut off yet from the lease {lease.id}", "gpuops pool reclaim --due tries it again"
        rejections.append(Rejection(lease.client, rule, hint=hint))
    return (book, tuple(rejections)) if rejections else (replace(book, servers=()), ())
