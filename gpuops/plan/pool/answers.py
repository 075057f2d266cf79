"""What calls about pools come to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gpuops.model.workloads.lease_book import GpuLease, LeaseBook, PoolServer, ServerState
from gpuops.plan.core.rejection import Rejection


@dataclass(frozen=True, slots=True)
class PoolAnswer:
    """What became of a call, or would."""

    verb: str
    """create, lend, return, reclaim or delete."""
    now: datetime
    before: LeaseBook | None
    """None = there was no such pool."""
    after: LeaseBook
    applied: bool
    rejections: tuple[Rejection, ...] = ()
    about: str | None = None
    """Id of the lease that was asked about; None = of none."""
    failed: tuple[str, ...] = ()
    """What could not be done in guests, or of marks, with its reason; the book has it as not done."""
    warnings: tuple[str, ...] = ()
    deleted: bool = False
    """The pool is out of the book, or would be."""

    @property
    def leases(self) -> tuple[GpuLease, ...]:
        """Those that are another than before."""
        before = set(self.before.leases) if self.before is not None else set()
        return tuple(each for each in self.after.leases if each not in before)

    @property
    def servers(self) -> tuple[PoolServer, ...]:
        """Likewise, those that are gone from the pool left out."""
        before = set(self.before.servers) if self.before is not None else set()
        there = (each for each in self.after.servers if each.state is not ServerState.LEAVING)
        return tuple(each for each in there if each not in before)

    @property
    def gone(self) -> tuple[str, ...]:
        """Names of servers that are in the pool no more."""
        there = {each.name for each in self.after.servers if each.state is not ServerState.LEAVING}
        return tuple(each.name for each in self.before.servers if each.name not in there) if self.before else ()

    @property
    def idle_servers(self) -> tuple[PoolServer, ...]:
        """Those that lend nothing, because they do not run or were started anew; but for those that a night has."""
        return tuple(each for each in self.servers if each.state is ServerState.DEAD and each.night is None)

    @property
    def changed(self) -> bool:
        return self.deleted or self.after != self.before

    @property
    def exit_code(self) -> int:
        """3 = refused, 4 = a guest could not be set up or cut off, or a server that leaves not be seen to."""
        return 3 if self.rejections else 4 if self.failed else 0


@dataclass(frozen=True, slots=True)
class ShownPool:
    """A pool as it stands."""

    book: LeaseBook
    now: datetime
    idle_mib: dict[tuple[str, int], int]
    """By server and index: what of a GPU's memory nobody has now."""
    largest_mib: int
    """The largest share that is idle from now on for as long as a lease may be, and kept for nobody."""
