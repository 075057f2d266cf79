"""Answers of the commands about pools."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuops.errors import report_exit_code
from gpuops.extras.lending.lease_book import GpuLease, LeaseBook
from gpuops.plan.core.rejection import Rejection


@dataclass(frozen=True, slots=True)
class PoolAnswer:
    """What a command did, or would do."""

    before: LeaseBook | None
    """None = there was no such pool."""
    after: LeaseBook
    applied: bool
    rejections: tuple[Rejection, ...] = ()
    about: GpuLease | None = None
    """The lease that was asked for, new or not."""
    failed: tuple[str, ...] = ()
    """Hooks that failed in guests, and marks that could not be cleared; the next command tries them again."""
    warnings: tuple[str, ...] = ()

    @property
    def deleted(self) -> bool:
        """Whether the pool is out of the book, or would be: once the mark of each server is cleared."""
        return not self.after.servers and not self.failed and not self.rejections

    @property
    def changes(self) -> LeaseBook:
        """The pool with the servers and leases alone that changed, and the lease that was asked for."""
        before = self.before or LeaseBook(self.after.pool)
        servers = tuple(server for server in self.after.servers if server not in before.servers)
        leases = (lease for lease in self.after.leases if lease == self.about or lease not in before.leases)
        return replace(self.after, servers=servers, leases=tuple(leases))

    @property
    def removed_servers(self) -> tuple[str, ...]:
        """The names of servers that leave the pool."""
        servers = self.before.servers if self.before is not None else ()
        return tuple(server.name for server in servers if self.after.server(server.name) is None)

    @property
    def changed(self) -> bool:
        return self.after != self.before

    @property
    def exit_code(self) -> int:
        """3 = refused, 4 = something failed."""
        return report_exit_code(refused=self.rejections, partly=self.failed)
