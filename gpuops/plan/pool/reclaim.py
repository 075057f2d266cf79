"""What `gpuops pool reclaim` changes in a book."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.lease_book import REPORTED_DEAD, LeaseBook
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.pool import lending
from gpuops.plan.pool.members import is_back


@dataclass(frozen=True, slots=True)
class Reclaim:
    """A server or a lease to take back; without either, only what is due by the clock."""

    server: str | None = None
    """Its name in the pool."""
    lease: str | None = None
    """Its id."""
    grace: timedelta | None = None
    """How long clients keep their leases; None = as the pool says."""
    dead: bool = False
    """The server is dead: its leases break at once."""
    again: bool = False
    """The server lends again."""

    @property
    def is_due_only(self) -> bool:
        return self.server is None and self.lease is None

    def refused(self, book: LeaseBook, inventory: Inventory) -> tuple[Rejection, ...]:
        """Return every reason against it."""
        pool = book.pool.name
        if self.lease is not None and book.lease(self.lease) is None:
            hint = f"gpuops pool show --pool {pool} shows their ids"
            return (Rejection(self.lease, f"is no open lease of pool {pool}", hint=hint),)
        if self.server is None:
            return ()
        server = book.server(self.server)
        if server is None:
            names = ", ".join(server.name for server in book.servers)
            return (Rejection(self.server, f"is no server of pool {pool}", hint=f"its servers: {names}"),)
        refused = is_back(server, inventory) if self.again else None
        return (refused,) if refused is not None else ()

    def book_after(self, book: LeaseBook, now: datetime) -> LeaseBook:
        """Return the book once it is done."""
        at = now + (book.pool.grace if self.grace is None else self.grace)
        if self.lease is not None:
            return lending.take_back_lease(book, self.lease, at, now)
        if self.server is None:
            return lending.settle(book, now)
        if self.again:
            return lending.serve_again(book, self.server, now)
        if self.dead:
            return lending.server_died(book, self.server, now, REPORTED_DEAD)
        return lending.take_back(book, self.server, at, now)
