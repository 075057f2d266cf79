"""The commands of `gpuops pool`: each decides in one transaction, by one look at vCenter, then runs hooks in guests.

If gpuops is killed in between, the book has what is left to do: the next command for that pool does it, and
`pool reclaim --due`, which cron runs, is enough.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from gpuops.config.remote_gpu_file import is_known_name, known_programs, load_program
from gpuops.errors import Locked, Refused
from gpuops.execute.pool.book import PoolBooks, known_book
from gpuops.execute.pool.guests import PoolGuests
from gpuops.execute.pool.marks import mark_servers
from gpuops.execute.site import Site, catalog_of
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.lease_book import LeaseBook, LendingPool, PoolFileWish, ServerState
from gpuops.model.workloads.remote_gpu import ServerCondition
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.pool import lending, served
from gpuops.plan.pool.answers import PoolAnswer, ShownPool
from gpuops.plan.pool.members import (
    ShareRequest,
    as_the_fleet_is,
    client_uuid,
    in_another_pool,
    pool_meant,
    server_called,
    servers_of,
    unseen,
    wish_of,
)
from gpuops.plan.pool.placing import idle_mib
from gpuops.plan.pool.reclaim import Reclaim
from gpuops.plan.rotation.nights.stop_conditions import ahead_by, clock_trouble

MOST_AGE: Final = timedelta(minutes=10)
"""No decision uses readings of vCenter and of servers that are older: a process that was stopped for an hour would
break leases by an old state. A person who is asked for consent must answer within this time."""
PoolConsent = Callable[[PoolAnswer], None]
"""Called with what would be taken from clients, or deleted; if it raises, nothing is changed."""
Decide = Callable[[LeaseBook | None], tuple[LeaseBook, tuple[Rejection, ...]]]


class NotDecided(Exception):
    """Leaves a transaction with nothing written."""

    def __init__(self, rejections: tuple[Rejection, ...]) -> None:
        super().__init__(rejections)
        self.rejections = rejections


def create(wish: PoolFileWish, site: Site, *, apply: bool) -> PoolAnswer:
    """Make the pool of this file, or change it to that. Raises UsageError, StateDamaged, NotConnected."""
    if wish.pool.program is not None:
        load_program(wish.pool.program)
    call = _PoolCall.of(wish.pool.name, site, "create", wish.pool.owner_by.needs_tags)
    servers, refused = servers_of(wish, call.inventory, catalog_of(call.inventory))

    def decide(book: LeaseBook | None) -> tuple[LeaseBook, tuple[Rejection, ...]]:
        after, rejections = lending.with_servers(
            replace(book or LeaseBook(wish.pool), pool=wish.pool), servers, call.began
        )
        if book is not None and any(lease.holds for lease in book.leases) and not _can_revoke(wish.pool, book.pool):
            rule = f"its leases are set up with {book.pool.program or 'no program'} in the network {book.pool.network}"
            rejections += (Rejection(wish.pool.name, rule, hint="gpuops pool reclaim takes them back first"),)
        return as_the_fleet_is(after, call.inventory, call.began), refused + rejections

    return call.answer(decide, apply=apply)


def show(name: str | None, site: Site, *, ended: int = 0) -> tuple[ShownPool, ...]:
    """Return pools as they stand in the book, or the one of this name, with so many of the leases that ended.

    Raises UsageError, StateDamaged.
    """
    with PoolBooks.to_read(site.state_dir, site.journal_url, site.vcenter.uuid) as books:
        names = books.names() if name is None else (pool_meant(name, books.names()),)
        shown = [known_book(books.read(pool, ended), pool) for pool in names]
    return tuple(ShownPool(book, idle_mib(book)) for book in shown)


def lend(name: str | None, request: ShareRequest, site: Site, *, apply: bool) -> PoolAnswer:
    """Lend shares to a client, and set it up. Raises UsageError, StateDamaged, NotConnected."""
    call, about = _called(name, site, "lend"), list[str]()

    def decide(book: LeaseBook | None) -> tuple[LeaseBook, tuple[Rejection, ...]]:
        after = call.with_fleet(book)
        if after.pool.program is not None:
            load_program(after.pool.program)  # nothing is lent by a program that cannot be read
        wish, rejections = wish_of(request, after, call.inventory)
        if wish is None:
            return after, rejections
        lent = lending.lend(after, wish, secrets.token_hex(4), call.began)
        about[:] = [lent.lease.id] if lent.lease is not None else []
        return lent.book, lent.rejections

    answer = call.answer(decide, apply=apply)
    return replace(answer, about=about[0] if about else None)


def give_back(name: str | None, client: str, site: Site, *, apply: bool) -> PoolAnswer:
    """End the lease of this client, and cut it off. Raises as `lend`."""
    call = _called(name, site, "return")

    def decide(book: LeaseBook | None) -> tuple[LeaseBook, tuple[Rejection, ...]]:
        after = call.with_fleet(book)
        return lending.give_up(after, client_uuid(client, after, call.inventory), call.began), ()

    return call.answer(decide, apply=apply)


def reclaim(name: str | None, request: Reclaim, site: Site, consent: PoolConsent, *, apply: bool) -> PoolAnswer:
    """Take a server or a lease back, and do what is due: end leases, ask servers for their health.

    `consent` is asked before a client loses something early. Raises as `lend`.
    """
    call = _called(name, site, "reclaim")
    with PoolBooks.to_read(site.state_dir, site.journal_url, site.vcenter.uuid) as books:
        was = known_book(books.read(call.pool), call.pool)
    if request.server is not None:
        request = replace(request, server=server_called(request.server, was, call.inventory))
    healths = PoolGuests(site, call.inventory, call.with_fleet(was)).healths() if request.is_due_only else ()

    def decide(book: LeaseBook | None) -> tuple[LeaseBook, tuple[Rejection, ...]]:
        after = lending.settle(call.with_fleet(book), call.began)
        for health in healths:
            if health.condition is ServerCondition.DEAD:
                after = lending.server_died(after, health.server, call.began, f"cannot serve: {health.why}")
        after = lending.break_leases(after, served.lost_leases(was, after, healths), call.began)
        return request.book_after(after, call.began), request.refused(after, call.inventory)

    if apply and not request.is_due_only:
        planned = call.answer(decide, apply=False)
        if planned.rejections:
            return planned
        if not request.again and planned.leases:
            consent(planned)
        server = was.server(request.server or "")
        if request.again and server is not None and server.state is ServerState.DEAD:
            PoolGuests(site, call.inventory, was).revoke_all(server.name)
    answer = call.answer(decide, apply=apply)
    return replace(answer, warnings=(*answer.warnings, *served.health_warnings(was, answer.after, healths)))


def delete(name: str, site: Site, consent: PoolConsent, *, apply: bool) -> PoolAnswer:
    """Take the pool out of the book with its closed leases; refused while a lease is open. Raises as `lend`."""
    call = _called(name, site, "delete")

    def decide(book: LeaseBook | None) -> tuple[LeaseBook, tuple[Rejection, ...]]:
        return lending.without_servers(call.with_fleet(book), call.began)

    if apply:
        planned = call.answer(decide, apply=False)
        if planned.rejections:
            return planned
        consent(planned)
    answer = call.answer(decide, apply=apply)
    if answer.applied and answer.deleted:
        with PoolBooks.to_write(site.state_dir, site.journal_url, site.vcenter.uuid) as books:
            books.remove(call.pool)
    return answer


def _can_revoke(pool: LendingPool, before: LendingPool) -> bool:
    """Whether leases that were set up under the earlier settings can be cut off under these.

    Only a program that came with an earlier gpuops may be replaced: what happened to the file of another one, and
    whether another machine can read it, is unknown.
    """
    old, new = before.program, pool.program
    is_removed = old is not None and is_known_name(old) and old not in known_programs()
    return pool.network == before.network and (old == new or (is_removed and new is not None))


def _called(name: str | None, site: Site, verb: str) -> _PoolCall:
    with PoolBooks.to_read(site.state_dir, site.journal_url, site.vcenter.uuid) as books:
        pool = pool_meant(name, books.names())
        book = known_book(books.read(pool), pool)
    return _PoolCall.of(pool, site, verb, book.pool.owner_by.needs_tags)


@dataclass(frozen=True, slots=True)
class _PoolCall:
    """One command, with the moment when it began and the one reading of vCenter that it decides by."""

    site: Site
    pool: str
    verb: str
    began: datetime
    inventory: Inventory

    @staticmethod
    def of(pool: str, site: Site, verb: str, tags: bool) -> _PoolCall:
        """Return the command with a new reading of vCenter. Raises Refused if the clocks differ.

        Machines that share a book would otherwise end leases too early or too late.
        """
        began = site.clock()
        inventory = site.vcenter.inventory()
        ahead = ahead_by(inventory.taken_at, began, site.clock()) if site.same_time else None
        if trouble := clock_trouble(ahead, "when a lease ends cannot be told"):
            raise Refused(f"clocks: {trouble}", hint="set both by NTP; servers end their leases by themselves")
        return _PoolCall(site, pool, verb, began, site.vcenter.with_tags(inventory) if tags else inventory)

    def with_fleet(self, book: LeaseBook | None) -> LeaseBook:
        return as_the_fleet_is(known_book(book, self.pool), self.inventory, self.began)

    def answer(self, decide: Decide, *, apply: bool) -> PoolAnswer:
        """Return the decision, with `apply` written to the book and done in guests."""

        def decided(book: LeaseBook | None) -> LeaseBook:
            if self.site.clock() - self.began > MOST_AGE:
                message = f"pool {self.pool}: this command read vCenter over {MOST_AGE.seconds // 60} min ago"
                raise Locked(f"{message}: nothing was changed", hint="type the same again")
            after, rejections = decide(book)
            if rejections:
                raise NotDecided(rejections)
            return after

        def look(before: LeaseBook | None, after: LeaseBook, others: tuple[LeaseBook, ...]) -> None:
            if rejections := tuple(in_another_pool(before, after, others)):
                raise NotDecided(rejections)

        site, opening = self.site, PoolBooks.to_write if apply else PoolBooks.to_read
        with opening(site.state_dir, site.journal_url, site.vcenter.uuid) as books:
            try:
                before, after = (books.change if apply else books.foresee)(self.pool, decided, look)
            except NotDecided as refused:
                book = books.read(self.pool)
                empty = LeaseBook(LendingPool(self.pool, ""))
                return PoolAnswer(self.verb, book, book or empty, applied=False, rejections=refused.rejections)
            guests, marks = PoolGuests(site, self.inventory, after), list[str]()
            if apply:
                marks += mark_servers(after, self.inventory, site.vcenter)
                guests.do_work(books)
            if guests.book != after:
                marks += mark_servers(guests.book, self.inventory, site.vcenter)
        failed = tuple(dict.fromkeys((*guests.failed, *marks)))
        answer = PoolAnswer(self.verb, before, guests.book, applied=apply, failed=failed)
        return replace(answer, warnings=(*unseen(answer.after, self.inventory), *guests.warnings))
