"""The commands of `gpuops pool`: each decides in one transaction, by one read of vCenter, then runs hooks in guests.

If gpuops is killed in between, the book shows which hooks must still run. The next command for that pool runs them, for
example `pool reclaim --due`, which cron runs.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from gpuops.errors import Locked, Refused
from gpuops.execute.site import Site, catalog_of
from gpuops.execute.site.agreement import Agreement, ask_until_agreed
from gpuops.extras.lending import lending, pool_members
from gpuops.extras.lending.lease_book import LeaseBook, LeaseWish, LendingPool, PoolAnswer, PoolFile, ServerState
from gpuops.extras.lending.pool_book import PoolBooks, known_book
from gpuops.extras.lending.pool_file import load_program
from gpuops.extras.lending.pool_guests import PoolGuests, mark_servers
from gpuops.extras.lending.pool_members import Reclaim
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.rotation.nights.night_refusals import ahead_by, clock_trouble

MOST_AGE: Final = timedelta(minutes=10)
"""The age up to which readings of vCenter and of servers are used. A process that was stopped for an hour would end
leases by an old state. An admin must answer the question of the command within this time."""


def create_pool(file: PoolFile, site: Site, *, apply: bool) -> PoolAnswer:
    """Make the pool of this file, or change it; without servers it is deleted.

    Raises UsageError, StateDamaged, NotConnected.
    """
    pool = file.pool
    if pool.program is not None:
        load_program(pool.program)
    with _pool_command(pool.name, site, pool, apply=apply) as command:
        servers, refused = pool_members.servers_of(file, command.inventory, catalog_of(command.inventory))

        def decide(book: LeaseBook) -> lending.Decision:
            after, rejections = lending.with_servers(replace(book, pool=pool), servers, command.began)
            old = book.pool
            if book.open_leases and (old.network, old.program) != (pool.network, pool.program):
                rule = f"its leases are set up with {old.program or 'no program'} in the network {old.network}"
                rejections += (Rejection(pool.name, rule, hint="end its leases with gpuops pool reclaim first"),)
            return pool_members.with_dead_servers(after, command.inventory, command.began), refused + rejections

        return command.answer(decide)


def read_pools(name: str | None, site: Site) -> tuple[LeaseBook, ...]:
    """Return the books of all pools, or of the one with this name. Raises UsageError, StateDamaged."""
    with PoolBooks.open(site.state_dir, site.journal_url, site.vcenter.uuid, write=False) as books:
        pools = books.read()
        return tuple(pools.values()) if name is None else (pool_members.choose_pool(name, pools),)


def lend_gpus(name: str | None, wish: LeaseWish, site: Site, *, apply: bool) -> PoolAnswer:
    """Lend shares to a client, and set it up. Raises UsageError, StateDamaged, NotConnected."""
    id = secrets.token_hex(4)
    with _pool_command(name, site, apply=apply) as command:

        def decide(book: LeaseBook) -> lending.Decision:
            if book.pool.program is not None:
                load_program(book.pool.program)  # raises if it cannot be read: then nothing is lent
            complete_wish, rejections = pool_members.complete_wish(wish, book, command.inventory)
            if rejections:
                return book, rejections
            return lending.lend(book, complete_wish, id, command.began)

        answer = command.answer(decide)
        if answer.rejections:
            return answer
        client = command.inventory.find_vm(wish.client).instance_uuid or ""
        return replace(answer, requested_lease=lending.current_lease(answer.after, client, command.began))


def return_lease(name: str | None, client: str, site: Site, *, apply: bool) -> PoolAnswer:
    """End the lease of this client, and cut it off. Raises as `lend_gpus`."""
    with _pool_command(name, site, apply=apply) as command:

        def decide(book: LeaseBook) -> lending.Decision:
            uuid = pool_members.client_uuid(client, book, command.inventory)
            return lending.end_lease_of(book, uuid, command.began), ()

        return command.answer(decide)


def reclaim_gpus(
    name: str | None, request: Reclaim, site: Site, consent: Callable[[PoolAnswer], None], *, apply: bool
) -> PoolAnswer:
    """Take a server back, or do what is due: end leases, check the health of servers.

    `consent` is called before a client loses something early; if it raises, nothing is changed. Raises as `lend_gpus`.
    """
    with _pool_command(name, site, apply=apply) as command:
        old_book = pool_members.choose_pool(command.pool, command.books.read())
        guests = PoolGuests(site, command.inventory, command.books, command.with_fleet(old_book))
        healths = guests.healths() if request.server is None else ()

        def decide(book: LeaseBook) -> lending.Decision:
            after = pool_members.after_health(old_book, lending.settle(book, command.began), healths, command.began)
            return request.decide(after, command.inventory, command.began)

        def prepare(planned: PoolAnswer) -> None:
            server = request.pool_server(old_book, command.inventory) if request.server is not None else None
            if server is not None and request.again and server.state is ServerState.DEAD:
                guests.revoke_all(server.name)  # its leases ended while its guest could not be reached
            if server is not None and not request.again and planned.changes.leases:
                consent(planned)

        answer = command.answer(decide, prepare)
        return replace(
            answer, warnings=(*answer.warnings, *pool_members.health_warnings(old_book, answer.after, healths))
        )


@contextmanager
def _pool_command(
    name: str | None, site: Site, new: LendingPool | None = None, *, apply: bool
) -> Iterator[_PoolCommand]:
    """Yield the command with a new reading of vCenter. `new`: the settings of a pool that may not exist.

    Raises Refused if the clocks differ: machines that share a book would otherwise end leases too early or too late.
    """
    with PoolBooks.open(site.state_dir, site.journal_url, site.vcenter.uuid, write=apply) as books:
        pool = new or pool_members.choose_pool(name, books.read()).pool
        began, inventory = site.clock(), site.vcenter.inventory()
        # the clock of a simulated vCenter may be set to any time
        ahead = ahead_by(inventory.taken_at, began, site.clock()) if site.same_time else None
        if trouble := clock_trouble(ahead, "it is unknown when a lease ends"):
            raise Refused(f"clocks: {trouble}", hint="synchronise the clocks of this machine and vCenter by NTP")
        inventory = site.vcenter.with_tags(inventory) if pool.owner_by.needs_tags else inventory
        yield _PoolCommand(site, books, pool.name, apply, LeaseBook(new) if new else None, began, inventory)


@dataclass(frozen=True, slots=True)
class _PoolCommand:
    """One command, with the moment when it began and the one reading of vCenter that it decides by."""

    site: Site
    books: PoolBooks
    pool: str
    apply: bool
    new: LeaseBook | None
    """The empty book of a pool that may not exist."""
    began: datetime
    inventory: Inventory

    def with_fleet(self, book: LeaseBook | None) -> LeaseBook:
        """Return the book, or that of a new pool, in which servers that do not run are dead."""
        return pool_members.with_dead_servers(known_book(book or self.new, self.pool), self.inventory, self.began)

    def answer(
        self,
        decide: Callable[[LeaseBook], lending.Decision],
        prepare: Callable[[PoolAnswer], None] = lambda planned: None,
    ) -> PoolAnswer:
        """Decide; with `apply` also write the decision to the book and run the hooks. Return the changes and failures.

        `prepare` is called with the decision before it is written, and again if another command changes it meanwhile.
        """
        decision = self._change_book(decide)
        if self.apply and not decision.rejections:
            decision = ask_until_agreed(decision, prepare, partial(self._change_book, decide), _same_changes)
        if decision.rejections:
            return decision
        after = decision.after
        guests, marks = PoolGuests(self.site, self.inventory, self.books, after), list[str]()
        if self.apply:
            marks += mark_servers(after, self.inventory, self.site)  # before clients are set up
            guests.do_work()
        if guests.book != after:  # clients were cut off, so some servers may no longer lend
            marks += mark_servers(guests.book, self.inventory, self.site)
        failed = tuple(dict.fromkeys((*guests.failed, *marks)))
        if self.apply and not failed:
            self.books.remove_empty(self.pool)
        warnings = (*pool_members.unseen(guests.book, self.inventory), *guests.warnings)
        return PoolAnswer(decision.before, guests.book, self.apply, failed=failed, warnings=warnings)

    def _change_book(
        self, decide: Callable[[LeaseBook], lending.Decision], agreement: Agreement[PoolAnswer] | None = None
    ) -> PoolAnswer:
        """Return the decision. It is written only with an `agreement`, which raises if the decision is a new one."""

        def decide_book(book: LeaseBook | None, other_books: tuple[LeaseBook, ...]) -> lending.Decision:
            if self.site.clock() - self.began > MOST_AGE:
                message = (
                    f"pool {self.pool} was not changed: this command read vCenter over {MOST_AGE.seconds // 60} min ago"
                )
                raise Locked(message, hint="run the same command again")
            after, rejections = decide(self.with_fleet(book))
            rejections = rejections or tuple(pool_members.servers_of_other_pools(book, after, other_books))
            if agreement is not None and not rejections:
                agreement.require(PoolAnswer(book, after, applied=False))
            return after, rejections

        before, (after, rejections) = self.books.change(self.pool, decide_book, write=agreement is not None)
        if rejections:  # a refused command changes nothing: show the stored book
            after = before or LeaseBook(LendingPool(self.pool, ""))
        return PoolAnswer(before, after, applied=False, rejections=rejections)


def _same_changes(agreed: PoolAnswer, current: PoolAnswer) -> bool:
    return agreed.changes == current.changes
