"""Makes, changes, shows and deletes pools: decides in one transaction, then does in guests what the book wants.

Whoever is killed in between leaves a book that says what is to be done: the next call of any verb for that pool goes
on, and `pool reclaim --due`, which cron runs, needs nobody else. A lease's guests are touched by one process of this
machine at a time.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from gpuops.config.remote_gpu_file import load_program
from gpuops.errors import StateDamaged
from gpuops.execute.pool.book import PoolBooks, known_book
from gpuops.execute.pool.call import NotDecided, PoolCall, called, read_inventory
from gpuops.execute.pool.guest_work import EACH
from gpuops.execute.pool.nights import nights_now
from gpuops.execute.site import Site, catalog_of
from gpuops.model.workloads.lease_book import LeaseBook, PoolFileWish
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.pool import by_night, deleting, lending, promises, served
from gpuops.plan.pool.answers import PoolAnswer, ShownPool
from gpuops.plan.pool.by_night import NO_NIGHTS, NightsNow
from gpuops.plan.pool.members import (
    ShareRequest,
    as_the_fleet_is,
    client_uuid,
    pool_meant,
    server_called,
    servers_of,
    wish_of,
)
from gpuops.plan.pool.reclaim import Reclaim
from gpuops.plan.pool.room import idle_mib, largest_idle_mib

_ID_BYTES: Final = 4
PoolConsent = Callable[[PoolAnswer], None]
"""Told of what would be taken from clients, or deleted, before it is; what it raises ends the call with nothing
changed."""


def create(wish: PoolFileWish, site: Site, *, apply: bool) -> PoolAnswer:
    """The pool as its file says, made or changed. Raises UsageError, StateDamaged, NotConnected."""
    if wish.pool.program is not None:
        load_program(wish.pool.program)
    now = site.clock()
    inventory = read_inventory(site, wish.pool.owner_by.needs_tags)
    servers, refused = servers_of(wish, inventory, catalog_of(inventory))

    def decide(book: LeaseBook | None) -> LeaseBook:
        if refused:
            raise NotDecided(*refused)
        after, rejections = lending.with_servers(replace(book or LeaseBook(wish.pool), pool=wish.pool), servers, now)
        if book is not None and any(each.holds for each in book.leases):
            set_up = (book.pool.program, book.pool.network)
            if set_up != (wish.pool.program, wish.pool.network):
                reason = f"leases of it are set up with {set_up[0] or 'no program'} in the network {set_up[1]}"
                rejections += (Rejection(wish.pool.name, reason, hint="gpuops pool reclaim takes them back first"),)
        if rejections:
            raise NotDecided(*rejections)
        return as_the_fleet_is(after, inventory, now)

    return PoolCall(site, wish.pool.name, inventory, "create", now).answer(decide, apply=apply, start=EACH)


def show(name: str | None, site: Site, *, ended: int = 0) -> tuple[ShownPool, ...]:
    """Pools as they stand in the book, or the one of this name; `ended`: so many of the leases that are over too.

    Changes nothing. Raises UsageError, StateDamaged.
    """
    now = site.clock()
    with PoolBooks.to_read(site.state_dir, site.journal_url, site.vcenter.uuid) as books:
        names = books.names() if name is None else (pool_meant(name, books.names()),)
        found = [known_book(books.read(each, ended), each) for each in names]
    return tuple(
        ShownPool(each, now, idle_mib(each, now), largest_idle_mib(each, now, each.pool.longest)) for each in found
    )


def lend(name: str | None, request: ShareRequest, site: Site, *, apply: bool) -> PoolAnswer:
    """The lease that is asked for, lent or waiting, and its client set up. Raises UsageError, StateDamaged,
    NotConnected."""
    call = called(name, site, "lend")
    now, about = site.clock(), ""

    def decide(found: LeaseBook | None) -> LeaseBook:
        nonlocal about
        book = as_the_fleet_is(known_book(found, call.pool), call.inventory, now)
        program = load_program(book.pool.program) if book.pool.program is not None else None
        wish, rejections = wish_of(request, book, call.inventory, program)
        if wish is None:
            raise NotDecided(*rejections)
        made = lending.lend(book, wish, secrets.token_hex(_ID_BYTES), now, request.within)
        if made.lease is None:
            raise NotDecided(*made.rejections)
        about = made.lease.id
        return made.book

    answer = call.answer(decide, apply=apply)
    return replace(answer, about=about or None)


def give_back(name: str | None, client: str, site: Site, *, apply: bool) -> PoolAnswer:
    """What this client has, or waits for, is given up, and it is cut off. Raises as `lend`."""
    call = called(name, site, "return")
    now = site.clock()

    def decide(found: LeaseBook | None) -> LeaseBook:
        book = as_the_fleet_is(known_book(found, call.pool), call.inventory, now)
        return lending.give_up(book, client_uuid(client, book, call.inventory), now)

    return call.answer(decide, apply=apply)


def reclaim(name: str | None, wanted: Reclaim, site: Site, consent: PoolConsent, *, apply: bool) -> PoolAnswer:
    """What is wanted of a server or of a lease; and always what the clock wants: leases end, those that wait begin,
    servers that died lose theirs. `consent` is asked where a client loses something early. Raises as `lend`."""
    call = called(name, site, "reclaim")
    now = site.clock()
    if wanted.server is not None and call.book is not None:
        wanted = replace(wanted, server=server_called(wanted.server, call.book, call.inventory))
    was, healths = call.healths() if wanted.is_due_only else (None, ())
    unstarted = list[str]()
    nights = _nights(call, unstarted) if wanted.is_due_only else NO_NIGHTS
    started = call.started_again(nights, unstarted, apply=apply) if wanted.is_due_only else frozenset()

    def decide(found: LeaseBook | None) -> LeaseBook:
        book = as_the_fleet_is(known_book(found, call.pool), call.inventory, now)
        for server in promises.dead(healths):
            book = lending.server_died(book, server, now)
        if was is not None:
            book = lending.break_leases(book, served.lost(was, book, healths, now), now)
            book = by_night.bounded(book, nights)
            again = by_night.lend_now(book, nights, call.inventory, now)
            book = by_night.lending_again(book, [each for each in again if each.server in started], now)
        rejections = wanted.refused(book, call.inventory)
        if rejections:
            raise NotDecided(*rejections)
        return wanted.book_after(book, now)

    if wanted.takes and apply:
        planned = call.answer(decide, apply=False)
        if planned.rejections:
            return planned
        if planned.leases:
            consent(planned)
    leftovers = served.leftovers(was, healths, call.inventory) if was is not None else ()
    answer = call.answer(decide, apply=apply, start=wanted.server if wanted.again else None, leftovers=leftovers)
    return replace(answer, warnings=(*answer.warnings, *unstarted, *promises.warnings(answer.after, healths)))


def delete(name: str, site: Site, consent: PoolConsent, *, apply: bool) -> PoolAnswer:
    """The pool is out of the book, with its leases that are over, and its mark off its servers. Refused while a lease
    is open. Once its servers are leaving, any call for it goes on after a kill. Raises as `lend`."""
    call = called(name, site, "delete")
    now = site.clock()

    def decide(found: LeaseBook | None) -> LeaseBook:
        book = as_the_fleet_is(known_book(found, call.pool), call.inventory, now)
        after, rejections = deleting.without_servers(book, now)
        if rejections:
            raise NotDecided(*rejections)
        return after

    if apply:
        planned = call.answer(decide, apply=False)
        if planned.rejections:
            return planned
        consent(planned)
    answer = call.answer(decide, apply=apply)
    if answer.applied and not (answer.deleted or answer.failed):
        answer = replace(answer, failed=(f"pool {call.pool} is not deleted: another call has changed it meanwhile",))
    return answer


def night_change(name: str, decide: Callable[[LeaseBook], LeaseBook], site: Site) -> PoolAnswer:
    """What a night or its return wants of a pool, which is asked nobody about: the policy says it. Raises as `lend`."""
    call = called(name, site, "reclaim")
    now = site.clock()
    return call.answer(
        lambda found: decide(as_the_fleet_is(known_book(found, call.pool), call.inventory, now)), apply=True
    )


def _nights(call: PoolCall, unstarted: list[str]) -> NightsNow:
    """What nights do with the pool now; where the journal cannot be read leases end all the same, and it is told."""
    try:
        return nights_now(call.pool, call.site, call.inventory)
    except StateDamaged as damaged:
        unstarted.append(f"what nights do with this pool is not known: {damaged.message}")
        return NO_NIGHTS
