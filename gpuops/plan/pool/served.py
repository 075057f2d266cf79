"""What is in the guests of servers, compared with the book: leases whose sessions are lost, and shares of nobody.

The guests are asked before the book is changed, while others may lend and return. So a lease is lost only where it was
set up before the guests were asked and is still, and a share is of nobody only where the book lends it to nobody when
it is cut off (`is_held`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from gpuops.advise.lending_servers import POOL_MARK
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.lease_book import GpuLease, LeaseBook, LeaseState
from gpuops.model.workloads.remote_gpu import ServerCondition, ServerHealth

AT_ONCE: Final = 64
"""A guest may tell of any number: so many are cut off in one call."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A share in the guest of a server that the book lends to nobody: of a run that was killed, or an older book."""

    server: str
    lease: str
    gpu: int

    def __str__(self) -> str:
        return f"{self.server}: a share of GPU {self.gpu} for the lease {self.lease}, which the book does not lend"


def lost(was: LeaseBook, book: LeaseBook, healths: Iterable[ServerHealth], now: datetime) -> Mapping[str, str]:
    """By id of a lease that a client has, why its session is lost. `was`: the book before the guests were asked."""
    set_up = {each.id for each in was.leases if _is_set_up(each, now)}
    found = dict[str, str]()
    for health in (each for each in healths if each.condition is ServerCondition.SERVES):
        there = {(each.lease, each.gpu): each.lost for each in health.shares}
        for lease in (each for each in book.leases if each.id in set_up and _is_set_up(each, now)):
            gpus = [share.gpu for share in lease.shares if share.server == health.server]
            if any(there.get((lease.id, gpu), True) for gpu in gpus):
                is_there = all((lease.id, gpu) in there for gpu in gpus)
                why = "its guest was started anew" if is_there else "it is not in its guest"
                found[lease.id] = f"server {health.server} has lost its session: {why}"
    return found


def _is_set_up(lease: GpuLease, now: datetime) -> bool:
    return (
        lease.state is LeaseState.LENT and lease.enabled is True and lease.ends_at is not None and lease.ends_at > now
    )


def leftovers(was: LeaseBook, healths: Iterable[ServerHealth], inventory: Inventory) -> tuple[Leftover, ...]:
    """The shares of nobody, in guests of servers that carry the mark of this pool: one that carries another pool's has
    shares of that pool too."""
    return tuple(islice(_leftovers(was, healths, inventory), AT_ONCE))


def _leftovers(was: LeaseBook, healths: Iterable[ServerHealth], inventory: Inventory) -> Iterator[Leftover]:
    for health in healths:
        server = was.server(health.server)
        vm = next(iter(inventory.vms_with_uuid(server.uuid)), None) if server is not None else None
        if vm is None or vm.attributes.get(POOL_MARK) != was.pool.name:
            continue
        for share in health.shares:
            leftover = Leftover(health.server, share.lease, share.gpu)
            if not is_held(was, leftover):
                yield leftover


def is_held(book: LeaseBook, share: Leftover) -> bool:
    """Whether the book lends that share, or has still to cut its client off."""
    lease = book.lease(share.lease)
    held = lease.shares if lease is not None and lease.holds else ()
    return any((each.server, each.gpu) == (share.server, share.gpu) for each in held)
