"""Answers of the commands about pools."""

from __future__ import annotations

from dataclasses import dataclass

from gpuops.model.workloads.lease_book import GpuLease, LeaseBook, PoolServer
from gpuops.plan.core.rejection import Rejection


@dataclass(frozen=True, slots=True)
class PoolAnswer:
    """What a command did, or would do."""

    verb: str
    """create, lend, return, reclaim or delete."""
    before: LeaseBook | None
    """None = there was no such pool."""
    after: LeaseBook
    applied: bool
    rejections: tuple[Rejection, ...] = ()
    about: str | None = None
    """Id of the lease that was asked for."""
    failed: tuple[str, ...] = ()
    """Hooks that failed in guests, and marks that could not be cleared; the next command tries them again."""
    warnings: tuple[str, ...] = ()

    @property
    def deleted(self) -> bool:
        """Whether the pool is out of the book, or would be: once the mark of each server is cleared."""
        return self.verb == "delete" and not self.after.servers and not self.failed

    @property
    def leases(self) -> tuple[GpuLease, ...]:
        """The leases that changed."""
        before = set(self.before.leases) if self.before is not None else set()
        return tuple(lease for lease in self.after.leases if lease not in before)

    @property
    def servers(self) -> tuple[PoolServer, ...]:
        """The servers that changed."""
        before = set(self.before.servers) if self.before is not None else set()
        return tuple(server for server in self.after.servers if server not in before)

    @property
    def removed_servers(self) -> tuple[PoolServer, ...]:
        """The servers that leave the pool."""
        uuids = {server.uuid for server in self.after.servers}
        return tuple(server for server in self.before.servers if server.uuid not in uuids) if self.before else ()

    @property
    def changed(self) -> bool:
        return self.deleted or self.after != self.before

    @property
    def exit_code(self) -> int:
        """3 = refused, 4 = something failed."""
        return 3 if self.rejections else 4 if self.failed else 0


@dataclass(frozen=True, slots=True)
class ShownPool:
    """A pool as it stands."""

    book: LeaseBook
    idle_mib: dict[tuple[str, int], int]
    """The memory of each GPU that may be lent now, by server and index."""
