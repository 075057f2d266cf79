"""Decides for a verb in one transaction, by one look at vCenter, then does in guests what the book wants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpuops.errors import GpuopsError, Locked, NotConnected, Refused, StateDamaged
from gpuops.execute.pool.book import PoolBooks, known_book
from gpuops.execute.pool.clients import PoolGuests
from gpuops.execute.pool.guest_work import PoolGuestWork, alone, pool_guests
from gpuops.execute.pool.marks import mark_servers, unmark_servers
from gpuops.execute.site import Site
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.lease_book import LeaseBook, LendingPool, ServerState
from gpuops.model.workloads.remote_gpu import ServerHealth
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.pool import by_night, lending
from gpuops.plan.pool.answers import PoolAnswer
from gpuops.plan.pool.by_night import NightsNow
from gpuops.plan.pool.deleting import to_delete
from gpuops.plan.pool.members import (
    as_the_fleet_is,
    left_behind,
    lends_elsewhere,
    lends_something,
    pool_meant,
    unseen,
)
from gpuops.plan.pool.served import Leftover
from gpuops.plan.rotation.nights.stop_conditions import ahead_by, clock_trouble

MOST_AGE: Final = timedelta(minutes=10)
"""What was read of vCenter and of servers is not decided by once it is older: a process that stood still for an hour
would break leases by it. A person who is asked has that long to answer."""


class NotDecided(Exception):
    """Leaves a transaction with nothing written."""

    def __init__(self, *rejections: Rejection) -> None:
        super().__init__(rejections)
        self.rejections = rejections


def _look_elsewhere(before: LeaseBook | None, after: LeaseBook, others: tuple[LeaseBook, ...]) -> None:
    if refused := tuple(lends_elsewhere(before, after, others)):
        raise NotDecided(*refused)


def called(name: str | None, site: Site, verb: str) -> PoolCall:
    """The call of this verb for the pool of that name, or for the only one. Raises as `read_inventory`,
    and UsageError, StateDamaged."""
    began = site.clock()
    with PoolBooks.to_read(site.state_dir, site.journal_url, site.vcenter.uuid) as books:
        pool = pool_meant(name, books.names())
        book = known_book(books.read(pool), pool)
    return PoolCall(site, pool, read_inventory(site, book.pool.owner_by.needs_tags), verb, began, book)


def read_inventory(site: Site, tags: bool) -> Inventory:
    """What vCenter shows. Raises Refused where the clocks differ: machines that share a book, and do not tell the same
    time, would end each other's leases."""
    asked = site.clock()
    inventory = site.vcenter.inventory()
    ahead = ahead_by(inventory.taken_at, asked, site.clock()) if site.same_time else None
    if trouble := clock_trouble(ahead, "when a lease ends cannot be told"):
        raise Refused(f"clocks: {trouble}", hint="set both by NTP; servers end their leases by themselves")
    return site.vcenter.with_tags(inventory) if tags else inventory


@dataclass(frozen=True, slots=True)
class PoolCall:
    """One call on its way."""

    site: Site
    pool: str
    inventory: Inventory
    verb: str
    began: datetime
    book: LeaseBook | None = None
    """The pool when the call began; None = there may be none."""

    def answer(
        self,
        decide: Callable[[LeaseBook | None], LeaseBook],
        *,
        apply: bool,
        start: str | None = None,
        leftovers: Iterable[Leftover] = (),
    ) -> PoolAnswer:
        """What is decided, and with `apply` done: in the book, then in guests. `start`: this server's program is
        started first, or that of each that lends. `leftovers`: are cut off, where the book lends them to nobody."""
        site, now = self.site, self.site.clock()
        opening = PoolBooks.to_write if apply else PoolBooks.to_read
        with opening(site.state_dir, site.journal_url, site.vcenter.uuid) as books:
            changing = books.change if apply else books.foresee
            try:
                before, after = changing(self.pool, lambda found: decide(self._in_time(found)), _look_elsewhere)
            except NotDecided as refused:
                before = books.read(self.pool)
                there = before or LeaseBook(LendingPool(self.pool, ""))
                return PoolAnswer(self.verb, now, before, there, applied=False, rejections=refused.rejections)
            behind = tuple(left_behind(after, self.inventory))
            if not apply:
                hidden = (*unseen(after, self.inventory), *behind)
                return PoolAnswer(
                    self.verb, now, before, after, applied=False, warnings=hidden, deleted=to_delete(after)
                )
            work = PoolGuestWork(site, self.pool, self.inventory, books, after)
            unmarked = mark_servers(after, self.inventory, site.vcenter)
            work.done(start, leftovers)
            marked = unmark_servers(work.seen, before, self.inventory, site.vcenter)
            deleted = work.without_left(marked)
        others = (*unmarked.values(), *(why for why in marked.values() if why not in work.failed))
        warnings = (*unseen(work.seen, self.inventory), *behind, *work.warnings, *others)
        failed = tuple(work.failed)
        return PoolAnswer(self.verb, now, before, work.seen, True, failed=failed, warnings=warnings, deleted=deleted)

    def _in_time(self, book: LeaseBook | None) -> LeaseBook | None:
        """The same, while it may still be decided. Raises Locked."""
        age = self.site.clock() - self.began
        if age > MOST_AGE:
            message = (
                f"pool {self.pool}: what this call read of vCenter is {lending.told(age)} old: nothing was changed"
            )
            raise Locked(message, hint="type the same again")
        return book

    def started_again(self, nights: NightsNow, unstarted: list[str], *, apply: bool) -> frozenset[str]:
        """Names of the servers that are to lend now, for a night or after one, whose program was started anew, which
        leaves nothing of what was lent before; with `apply` False as if. Why others could not goes to `unstarted`.
        Raises NotConnected, Locked, StateDamaged."""
        opening = PoolBooks.to_read(self.site.state_dir, self.site.journal_url, self.site.vcenter.uuid)
        with opening as books:
            book, names = self._to_lend_now(books, nights)
            if book.pool.program is None or not apply or not names:
                return frozenset(names)
            with alone(self.site, books, self.pool) as still_alone:
                # whoever worked there until now may have had them lend: their clients keep what they have
                book, names = self._to_lend_now(books, nights)
                guests = pool_guests(book, self.inventory, self.site, still_alone)
                assert guests is not None, "a pool with a program has guests"
                return frozenset(each for each in names if self._started_anew(book, guests, each, unstarted))

    def _to_lend_now(self, books: PoolBooks, nights: NightsNow) -> tuple[LeaseBook, list[str]]:
        """The book as it is, and the names of the servers that are to lend now."""
        now = self.site.clock()
        book = as_the_fleet_is(known_book(books.read(self.pool), self.pool), self.inventory, now)
        return book, [each.server for each in by_night.lend_now(book, nights, self.inventory, now)]

    def _started_anew(self, book: LeaseBook, guests: PoolGuests, name: str, unstarted: list[str]) -> bool:
        server = book.server(name)
        if server is None or lends_something(book, name):
            return False  # whoever is not cut off there yet is cut off first
        try:
            guests.stop_server(server)
            guests.start_server(server)
        except (NotConnected, Locked, StateDamaged):
            raise
        except GpuopsError as error:
            unstarted.append(f"{name} does not lend yet: {error.line}")
            return False
        return True

    def healths(self) -> tuple[LeaseBook, tuple[ServerHealth, ...]]:
        """What the servers that may live tell of themselves, and the book before they were asked; nothing for a pool
        without a program. Raises NotConnected."""
        with PoolBooks.to_read(self.site.state_dir, self.site.journal_url, self.site.vcenter.uuid) as books:
            book = known_book(books.read(self.pool), self.pool)
        guests = pool_guests(book, self.inventory, self.site)
        if guests is None:
            return book, ()
        idle = (ServerState.DEAD, ServerState.LEAVING)
        asked = (each for each in book.servers if each.state not in idle and not each.to_start)
        return book, tuple(map(guests.health, asked))
