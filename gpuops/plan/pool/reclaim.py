"""What `gpuops pool reclaim` wants of a book."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.lease_book import LeaseBook, ServerState
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.pool import lending
from gpuops.plan.pool.members import is_back


@dataclass(frozen=True, slots=True)
class Reclaim:
    """A server or a lease, and what is to become of it; without either, only what the clock wants."""

    server: str | None = None
    """Its name in the pool."""
    lease: str | None = None
    """Its id."""
    grace: timedelta | None = None
    """So long clients keep what they have; None = as the pool says."""
    dead: bool = False
    """The server is dead: nothing of it is waited for."""
    again: bool = False
    """The server lends again."""

    @property
    def is_due_only(self) -> bool:
        return self.server is None and self.lease is None

    @property
    def takes(self) -> bool:
        """Whether clients may lose something before its time."""
        return not self.is_due_only and not self.again

    def refused(self, book: LeaseBook, inventory: Inventory) -> tuple[Rejection, ...]:
        """Every reason against it."""
        pool = book.pool.name
        if self.lease is not None and book.lease(self.lease) is None:
            rule = f"is no open lease of pool {pool}"
            return (Rejection(self.lease, rule, hint=f"gpuops pool show --pool {pool} tells their ids"),)
        if self.server is None:
            return ()
        server = book.server(self.server)
        if server is None or server.state is ServerState.LEAVING:
            there = ", ".join(each.name for each in book.servers if each.state is not ServerState.LEAVING)
            return (Rejection(self.server, f"is no server of pool {pool}", hint=f"servers there: {there}"),)
        refused = is_back(server, inventory) if self.again else None
        return (refused,) if refused is not None else ()

    def book_after(self, book: LeaseBook, now: datetime) -> LeaseBook:
        """The book once it is done."""
        grace = book.pool.grace if self.grace is None else self.grace
        if self.lease is not None:
            return lending.take_back_lease(book, self.lease, grace, now)
        if self.server is None:
            return lending.settle(book, now)
        if self.again:
            return lending.serve_again(book, self.server, now)
        if self.dead:
            return lending.server_died(book, self.server, now)
        return lending.take_back(book, self.server, grace, now)
