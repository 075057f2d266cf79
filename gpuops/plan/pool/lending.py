"""What changes a book: a wish, a return, the clock, a server that is taken back, dies or comes back.

Every function returns a new book, in which everybody who can begin has begun. What then is to be done in guests is
`to_enable` and `to_disable`; `enabling`, `enabled`, `disabling` and `cut_off` write down how far that is. Shares are
free for others only when their client is cut off, or was never set up: never before, whatever the clock says.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpuops.model.lent_by_night import ByNight, ServerNight
from gpuops.model.workloads.lease_book import (
    GpuLease,
    LeaseBook,
    LeaseState,
    LeaseWish,
    LentShare,
    PoolServer,
    ServerState,
)
from gpuops.plan.core.command_line import command
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.pool.room import lends_until
from gpuops.plan.pool.waiting import with_beginnings

_NUMBER = re.compile(r"(?P<id>.+?)(?:-(?P<number>\d+))?")


@dataclass(frozen=True, slots=True)
class Lending:
    """What becomes of a wish."""

    book: LeaseBook
    lease: GpuLease | None = None
    """Lent, or waiting with the moment that is expected; None = it is refused."""
    rejections: tuple[Rejection, ...] = ()
    changed: bool = False
    """False = refused, or its client has that lease already. The clock may have changed the book all the same."""


def lend(
    book: LeaseBook,
    wish: LeaseWish,
    id: str,
    now: datetime,
    patience: timedelta | None = None,
) -> Lending:
    """The book with this wish, which begins now or waits. `patience`: it is refused where it would begin later than
    that from now; None = it waits as long as it takes. `id`: of the new lease."""
    settled = settle(book, now, book)
    there = next((each for each in settled.leases if _is_current(each, now) and _same_client(each, wish)), None)
    if there is not None:
        asked = (wish.memory_mib, wish.gpus, wish.lasts)
        if (there.wish.memory_mib, there.wish.gpus, there.wish.lasts) == asked:
            return Lending(settled, there)
        return Lending(settled, rejections=(_other_lease(there, book.pool.name),))
    if rejections := tuple(_never(settled, wish)):
        return Lending(settled, rejections=rejections)
    new = GpuLease(id, wish, wish.lasts, LeaseState.ASKED, now)
    lent = with_beginnings(settled.with_leases([new]), now, settled)
    lease = lent.lease(id)
    assert lease is not None
    if patience is not None and (lease.begins_at is None or lease.begins_at > now + patience):
        return Lending(settled, rejections=(_too_late(lease, patience),))
    return Lending(lent, lease, changed=True)


def _is_current(lease: GpuLease, now: datetime) -> bool:
    """Whether its client has it, or waits for it: not where it is only to be cut off still."""
    if lease.state in (LeaseState.ASKED, LeaseState.WAITING, LeaseState.LENT):
        return True
    return lease.state is LeaseState.ENDING and lease.ends_at is not None and lease.ends_at > now


def _same_client(lease: GpuLease, wish: LeaseWish) -> bool:
    return lease.wish.client_uuid == wish.client_uuid


def _other_lease(there: GpuLease, pool: str) -> Rejection:
    until = f" until {there.ends_at:%Y-%m-%d %H:%MZ}" if there.ends_at is not None else ""
    return Rejection(
        there.client,
        f"has the lease {there.id} already, of {there.wish.gpus} x {there.wish.memory_mib} MiB, {there.state}{until}",
        hint=f"{command('pool return', pool=pool, client=there.client)} first, then lend anew",
    )


def _too_late(lease: GpuLease, patience: timedelta) -> Rejection:
    begins = f"begins at {lease.begins_at:%Y-%m-%d %H:%MZ}" if lease.begins_at is not None else "has no moment to begin"
    return Rejection(
        lease.client,
        f"{lease.wish.gpus} x {lease.wish.memory_mib} MiB for {told(lease.lasts)} {begins}, "
        f"later than {told(patience)} from now",
        hint="ask for less memory, fewer GPUs or less time, or wait",
    )


def _never(book: LeaseBook, wish: LeaseWish) -> Iterator[Rejection]:
    """Why the pool never lends this, whoever ends when: every reason."""
    pool = book.pool
    if wish.lasts > pool.longest:
        yield Rejection(
            wish.client,
            f"{told(wish.lasts)} is longer than a lease of pool {pool.name} may be: {told(pool.longest)}",
            hint=f"ask for {told(pool.longest)} at the most",
        )
    yield from _too_few_gpus(book, wish)
    quota, whose = pool.quota_of(wish.owner), wish.owner or "VMs without an owner"
    memory_mib = wish.gpus * wish.memory_mib
    more = "ask for less, or change `quotas` in the pool's file"
    if quota.memory_mib is not None and memory_mib > quota.memory_mib:
        yield Rejection(wish.client, f"memory quota of {whose}", memory_mib, quota.memory_mib, "MiB", hint=more)
    if quota.shares is not None and wish.gpus > quota.shares:
        yield Rejection(wish.client, f"quota of shares of {whose}", wish.gpus, quota.shares, hint=more)


def _too_few_gpus(book: LeaseBook, wish: LeaseWish) -> Iterator[Rejection]:
    """Why the GPUs of the servers that lend are not enough for it, were they all idle."""
    pool = book.pool.name
    gpus = [gpu.memory_mib for server in book.servers if server.state is ServerState.SERVING for gpu in server.gpus]
    large = sum(each >= wish.memory_mib for each in gpus)
    if large >= wish.gpus:
        return
    if not gpus:
        yield Rejection(wish.client, f"no server of pool {pool} lends", hint=command("pool show", pool=pool))
    elif not large:
        largest = max(gpus)
        yield Rejection(
            wish.client,
            f"no GPU that pool {pool} lends has as much memory",
            wish.memory_mib,
            largest,
            "MiB",
            hint=f"ask for {largest}MiB at the most",
        )
    else:
        rule = f"GPUs that pool {pool} lends, with {wish.memory_mib} MiB"
        yield Rejection(wish.client, rule, wish.gpus, large, hint="ask for fewer GPUs, or less memory of each")


def told(time: timedelta) -> str:
    """`4 h`, `1 h 30 min`, `20 min`."""
    hours, minutes = divmod(round(time.total_seconds() / 60), 60)
    return f"{hours} h" if not minutes else f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def settle(book: LeaseBook, now: datetime, was: LeaseBook | None = None) -> LeaseBook:
    """What the clock alone does: leases whose time is over end, and who waits begins where there is room. `was`: the
    book of which this one is made, as another call left it: see `with_beginnings`."""
    for server in book.servers:
        until = lends_until(server)
        if server.state is ServerState.SERVING and until is not None and until <= now:
            book = _drained(book, server, now, server.night)
    return with_beginnings(book.with_leases([_by_clock(each, now) for each in book.leases if each.open]), now, was)


def _by_clock(lease: GpuLease, now: datetime) -> GpuLease:
    if lease.state is LeaseState.LENT and lease.ends_at is not None and lease.ends_at <= now:
        lease = replace(lease, state=LeaseState.ENDING, because="its time is over")
    if lease.state is LeaseState.ENDING and lease.enabled is False and lease.ends_at is not None:
        return replace(lease, state=LeaseState.ENDED) if lease.ends_at <= now else lease
    return lease


def give_up(book: LeaseBook, client_uuid: str, now: datetime, because: str = "it was returned") -> LeaseBook:
    """The book after this client gave back what it has, and what it waits for; also of a client that is gone."""

    def given_up(lease: GpuLease) -> GpuLease:
        match lease.state:
            case LeaseState.ASKED | LeaseState.WAITING:
                return replace(lease, state=LeaseState.ENDED, because=because, shares=(), begins_at=None, ends_at=now)
            case LeaseState.LENT | LeaseState.ENDING:
                ends_at = now if lease.ends_at is None else min(lease.ends_at, now)
                return replace(lease, state=LeaseState.ENDING, ends_at=ends_at, because=because)
            case LeaseState.ENDED | LeaseState.BROKEN:
                return lease

    mine = [each for each in book.leases if each.open and each.wish.client_uuid == client_uuid]
    return settle(book.with_leases(map(given_up, mine)), now, book)


def take_back(
    book: LeaseBook, server: str, grace: timedelta, now: datetime, night: ServerNight | None = None
) -> LeaseBook:
    """The book after this server was asked to lend nothing more. What it has lent ends when the grace is over, or when
    it would have, and goes on elsewhere for what is left, as soon as there is room: its client keeps its place.
    `night`: that has it drained; None = somebody has."""
    found = book.server(server)
    if found is None or found.state is ServerState.DEAD:
        return settle(book, now, book)
    return settle(_drained(book, found, now + grace, night), now, book)


def _drained(book: LeaseBook, server: PoolServer, at: datetime, night: ServerNight | None) -> LeaseBook:
    """The book after what this server has lent ends then."""
    drained = book.with_server(replace(server, state=ServerState.DRAINING, night=night))
    of_server = _of_server(drained, server.name)
    return drained.with_leases([part for each in of_server for part in _taken_back(drained, each, server.name, at)])


def _taken_back(book: LeaseBook, lease: GpuLease, server: str, at: datetime) -> Iterator[GpuLease]:
    ends_at = lease.ends_at
    if ends_at is None or lease.state not in (LeaseState.LENT, LeaseState.ENDING):
        return
    cut = min(ends_at, at)
    if lease.state is LeaseState.LENT and cut < ends_at:
        yield _successor(lease, ends_at - cut, cut)
    for after in book.leases:
        # a grace that is shorter than the one before: what is lost of it is not lost to the lease that goes on
        if after.follows == lease.id and after.state is LeaseState.WAITING and cut < ends_at:
            yield replace(after, lasts=after.lasts + (ends_at - cut), not_before=cut, begins_at=None)
    if cut < ends_at or lease.state is LeaseState.LENT:
        because = f"server {server} is taken back" if cut < ends_at else lease.because
        yield replace(lease, state=LeaseState.ENDING if cut < ends_at else lease.state, ends_at=cut, because=because)


def take_back_lease(book: LeaseBook, id: str, grace: timedelta, now: datetime) -> LeaseBook:
    """The book after this lease was taken back: it ends when the grace is over, and does not go on."""
    lease = book.lease(id)
    if lease is None or not lease.open or lease.state is LeaseState.BROKEN:
        return settle(book, now, book)
    because = "it is taken back"
    if lease.state in (LeaseState.ASKED, LeaseState.WAITING):
        ended = replace(lease, state=LeaseState.ENDED, because=because, shares=(), begins_at=None, ends_at=now)
        return settle(book.with_leases([ended]), now, book)
    cut = min(lease.ends_at or now, now + grace)
    if lease.state is LeaseState.ENDING and lease.ends_at == cut:
        return settle(book, now, book)
    return settle(book.with_leases([replace(lease, state=LeaseState.ENDING, ends_at=cut, because=because)]), now, book)


def server_died(book: LeaseBook, server: str, now: datetime, because: str = "") -> LeaseBook:
    """The book after this server died: what it has lent is broken at once, and what is left of that is asked for again,
    elsewhere, with the place in the queue that it had. `because`: where that is more than that it does not run."""
    found = book.server(server)
    if found is None or found.state is ServerState.DEAD:
        return settle(book, now, book)
    without = book.with_server(replace(found, state=ServerState.DEAD, because=because, to_start=False))
    why = f"server {server} {because or 'died'}"
    changed = [part for each in _of_server(without, server) for part in _broken(each, why, now)]
    return settle(without.with_leases(changed), now, book)


def break_leases(book: LeaseBook, because: Mapping[str, str], now: datetime) -> LeaseBook:
    """The book after these leases broke, by id with the reason: what is left of them is asked for again likewise."""
    broken = [part for each in book.leases if each.id in because for part in _broken(each, because[each.id], now)]
    return settle(book.with_leases(broken), now, book)


def _broken(lease: GpuLease, because: str, now: datetime) -> Iterator[GpuLease]:
    if lease.state not in (LeaseState.LENT, LeaseState.ENDING):
        return
    if lease.state is LeaseState.LENT and lease.ends_at is not None and lease.ends_at > now:
        yield _successor(lease, lease.ends_at - now, now)
    yield replace(lease, state=LeaseState.BROKEN, ends_at=now, because=because)


def serve_again(
    book: LeaseBook, server: str, now: datetime, night: ServerNight | None = None, *, started: bool = False
) -> LeaseBook:
    """The book after this server was given to the pool again. `night`: that has it lend; None = somebody has, and then
    one that a night gave lends no longer than that night. `started`: its program runs already."""
    found = book.server(server)
    if found is None or found.state is ServerState.SERVING:
        return settle(book, now, book)
    was = found.night
    if night is None and was is not None and was.by_night is ByNight.GIVE and was.until > now:
        night = was
    to_start = book.pool.program is not None and not started
    lends = replace(found, state=ServerState.SERVING, because="", night=night, to_start=to_start)
    return settle(book.with_server(lends), now)


def started(book: LeaseBook, server: str) -> LeaseBook:
    """The book after the program of this server was started in its guest."""
    found = book.server(server)
    return book if found is None else book.with_server(replace(found, to_start=False))


def _of_server(book: LeaseBook, server: str) -> list[GpuLease]:
    """Leases that have shares of it."""
    return [each for each in book.leases if each.holds and any(share.server == server for share in each.shares)]


def _successor(lease: GpuLease, lasts: timedelta, not_before: datetime) -> GpuLease:
    found = _NUMBER.fullmatch(lease.id)
    number = int(found["number"] or 1) + 1 if found is not None else 2
    id = f"{found['id'] if found is not None else lease.id}-{number}"
    return GpuLease(id, lease.wish, lasts, LeaseState.ASKED, lease.asked_at, follows=lease.id, not_before=not_before)


def to_enable(book: LeaseBook) -> tuple[GpuLease, ...]:
    """Leases whose clients are to be set up."""
    return tuple(each for each in book.leases if each.state is LeaseState.LENT and each.enabled is not True)


def to_disable(book: LeaseBook, now: datetime) -> tuple[GpuLease, ...]:
    """Leases whose clients are to be cut off: their time is over, or a server of theirs died."""

    def is_over(lease: GpuLease) -> bool:
        return lease.state is LeaseState.BROKEN or (lease.ends_at is not None and lease.ends_at <= now)

    return tuple(
        each
        for each in book.leases
        if each.enabled is not False and each.state is not LeaseState.LENT and is_over(each)
    )


def enabling(book: LeaseBook, id: str) -> LeaseBook:
    """Before the first guest operation that sets its client up."""
    return _noted(book, id, lambda lease: replace(lease, enabled=None) if lease.enabled is False else lease)


def enabled(book: LeaseBook, id: str) -> LeaseBook:
    """After the last one. A lease that is over meanwhile stays unknown, and is cut off."""
    return _noted(book, id, lambda lease: replace(lease, enabled=True) if lease.state is LeaseState.LENT else lease)


def disabling(book: LeaseBook, id: str) -> LeaseBook:
    """Before the first guest operation that cuts its client off."""
    return _noted(book, id, lambda lease: replace(lease, enabled=None) if lease.enabled is True else lease)


def cut_off(book: LeaseBook, id: str, now: datetime) -> LeaseBook:
    """After the last one: its shares are free."""
    return settle(_noted(book, id, lambda lease: replace(lease, enabled=False)), now, book)


def cut_off_from(book: LeaseBook, id: str, share: LentShare, now: datetime) -> LeaseBook:
    """The book after the client of a lease that is over was cut off from that share, and from others of it not yet."""

    def without(lease: GpuLease) -> GpuLease:
        return replace(lease, shares=tuple(each for each in lease.shares if each != share))

    return settle(_noted(book, id, without), now, book)


def _noted(book: LeaseBook, id: str, change: Callable[[GpuLease], GpuLease]) -> LeaseBook:
    lease = book.lease(id)
    return book if lease is None else book.with_leases([change(lease)])


def with_servers(
    book: LeaseBook, servers: tuple[PoolServer, ...], now: datetime
) -> tuple[LeaseBook, tuple[Rejection, ...]]:
    """The book of a pool that is to have these servers, which stay in the state that they are in; or what speaks
    against it: GPUs that are lent do not leave a pool."""
    before = {each.uuid: each for each in book.servers}
    wanted = tuple(_as_before(each, before.get(each.uuid), book) for each in servers)
    # a VM that has another name now keeps its leases
    names = {before[each.uuid].name: each.name for each in wanted if each.uuid in before}
    leases = [replace(each, shares=tuple(_renamed(share, names) for share in each.shares)) for each in book.leases]
    gpus = {(each.name, gpu.index): gpu.memory_mib for each in wanted for gpu in each.gpus}
    held = Counter[tuple[str, int]]()
    for share in (share for each in leases if each.holds for share in each.shares):
        held[share.server, share.gpu] += share.memory_mib
    lost = sorted({gpu[0] for gpu, held_mib in held.items() if gpus.get(gpu, 0) < held_mib})
    if lost:
        reason = "GPUs of it are lent, and would not be in the pool any more"
        drains = {each: command("pool reclaim", pool=book.pool.name, server=each) for each in lost}
        return book, tuple(Rejection(each, reason, hint=f"{drains[each]} takes it back first") for each in lost)
    uuids, names_now = {each.uuid for each in wanted}, {each.name for each in wanted}
    gone = (each for each in book.servers if each.uuid not in uuids and each.name not in names_now)
    leaving = tuple(replace(each, state=ServerState.LEAVING, night=None, because="", to_start=False) for each in gone)
    return settle(replace(book, servers=(*wanted, *leaving), leases=tuple(leases)), now), ()


def without(book: LeaseBook, uuids: Collection[str]) -> LeaseBook:
    """The book without these servers, where they were leaving it: nothing of it serves in their guests any more."""
    left = (each for each in book.servers if each.state is not ServerState.LEAVING or each.uuid not in uuids)
    return replace(book, servers=tuple(left))


def leaving(book: LeaseBook) -> tuple[PoolServer, ...]:
    """The servers that are in the pool no more, and whose guests are to be seen to still."""
    return tuple(each for each in book.servers if each.state is ServerState.LEAVING)


def _as_before(server: PoolServer, before: PoolServer | None, book: LeaseBook) -> PoolServer:
    """A server of the file, in the state that it is in; the program of one that is new is to be started."""
    if before is None or before.state is ServerState.LEAVING:
        return replace(server, to_start=book.pool.program is not None)
    return replace(before, name=server.name, gpus=server.gpus, host=server.host, cluster=server.cluster)


def _renamed(share: LentShare, names: Mapping[str, str]) -> LentShare:
    return replace(share, server=names.get(share.server, share.server))
