"""Compares the health of servers with the book: leases no longer served, shares not lent, clients over their share.

Guests are asked before the book is changed, while other commands may lend and return: so a lease is lost only if it was
set up before the guests were asked, and is still.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpuops.model.workloads.lease_book import GpuLease, LeaseBook, LeaseState
from gpuops.model.workloads.remote_gpu import ServerCondition, ServerHealth
from gpuops.plan.core.command_line import command


def lost_leases(was: LeaseBook, book: LeaseBook, healths: Iterable[ServerHealth]) -> Mapping[str, str]:
    """Return the leases that a server no longer serves, by id with the reason. `was`: the book before the question."""
    set_up = {lease.id for lease in was.leases if _is_set_up(lease)}
    lost = dict[str, str]()
    for health in healths:
        if health.condition is ServerCondition.SERVES:
            served = {(share.lease, share.gpu) for share in health.shares}
            for lease in (lease for lease in book.leases if lease.id in set_up and _is_set_up(lease)):
                gpus = [share.gpu for share in lease.shares if share.server == health.server]
                if any((lease.id, gpu) not in served for gpu in gpus):
                    lost[lease.id] = f"server {health.server} no longer serves it"
    return lost


def _is_set_up(lease: GpuLease) -> bool:
    return lease.state is LeaseState.LENT and lease.enabled is True


def health_warnings(was: LeaseBook, book: LeaseBook, healths: Iterable[ServerHealth]) -> Iterator[str]:
    """Yield a warning for each server of unknown health, and for each share that is not lent, or used beyond its size.
    `was`: the book before the question."""
    for health in healths:
        if health.condition is ServerCondition.UNKNOWN:
            yield f"{health.server}: its health is unknown: {health.why}"
        for share in health.shares:
            lent_mib = max(_lent_mib(one, share.lease, health.server, share.gpu) for one in (was, book))
            uses = f"lease {share.lease} uses {share.used_mib} MiB of GPU {share.gpu} of {health.server}"
            if not lent_mib:
                yield f"{uses}, and is not lent there: if no other pool lends it, end it in that guest"
            elif share.used_mib > lent_mib:
                takes_back = command("pool reclaim", pool=book.pool.name, lease=share.lease)
                yield f"{uses}, and is lent {lent_mib} MiB: {takes_back} takes it back"


def _lent_mib(book: LeaseBook, id: str, server: str, gpu: int) -> int:
    lease = book.lease(id)
    shares = lease.shares if lease is not None and lease.holds else ()
    return sum(share.memory_mib for share in shares if (share.server, share.gpu) == (server, gpu))
