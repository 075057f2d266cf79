"""What `gpuops pool delete` wants of a book: a pool without leases, whose servers all leave it.

A file of a pool names a server at the least, so a book in which every server is leaving is that of a pool to delete:
whichever call goes on with those servers takes the pool out of the book after the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gpuops.model.workloads.lease_book import GpuLease, LeaseBook, LeaseState, ServerState
from gpuops.plan.core.command_line import command
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.pool.lending import settle, with_servers


def without_servers(book: LeaseBook, now: datetime) -> tuple[LeaseBook, tuple[Rejection, ...]]:
    """The book from which all servers are leaving; or why not, a line for each lease that is not over."""
    settled = settle(book, now, book)
    if rejections := tuple(_refused(settled, now)):
        return book, rejections
    return with_servers(settled, (), now)


def to_delete(book: LeaseBook) -> bool:
    """Whether the pool is out of the book once the servers that are leaving it have left."""
    are_leaving = all(each.state is ServerState.LEAVING for each in book.servers)
    return are_leaving and not any(each.open for each in book.leases)


def may_go(book: LeaseBook) -> bool:
    """Whether they have."""
    return not book.servers and to_delete(book)


def _refused(book: LeaseBook, now: datetime) -> Iterator[Rejection]:
    for lease in book.leases:
        if lease.open:
            rule, hint = _why(lease, book, now)
            yield Rejection(lease.client, rule, hint=hint)


def _why(lease: GpuLease, book: LeaseBook, now: datetime) -> tuple[str, str]:
    """What this lease is, and the next move."""
    pool = book.pool.name
    gives_back = command("pool return", pool=pool, client=lease.client)
    if lease.state in (LeaseState.ASKED, LeaseState.WAITING):
        return f"waits for the lease {lease.id} of pool {pool}", f"{gives_back} ends that"
    until = f"{lease.ends_at:%Y-%m-%d %H:%MZ}" if lease.ends_at is not None else "no known moment"
    if lease.state is LeaseState.LENT and lease.shares:
        grace = f"{round(book.pool.grace.total_seconds() / 60)}m"
        takes_back = command("pool reclaim", pool=pool, server=lease.shares[0].server, grace=grace)
        hint = f"{gives_back} gives it back, {takes_back} takes its server back"
        return f"has the lease {lease.id} of pool {pool} until {until}", hint
    if lease.state is LeaseState.ENDING and lease.ends_at is not None and lease.ends_at > now:
        return f"has the lease {lease.id} of pool {pool}, which ends at {until}", f"wait, or {gives_back} gives it back"
    cuts_off = f"{command('pool reclaim', pool=pool)} --due"
    return f"is not cut off from the lease {lease.id} of pool {pool} yet", f"{cuts_off} does it"
