"""The health of servers, compared with the book: leases that are lost, shares that nobody is lent, and too much use.

Guests are asked before the book is changed, while other commands may lend and return. So a lease is lost only if it was
set up before the guests were asked and is still, and a share is a leftover only if the book lends it to nobody when it
is revoked (`is_held`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpuops.advise.lending_servers import POOL_MARK
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.lease_book import GpuLease, LeaseBook, LeaseState
from gpuops.model.workloads.remote_gpu import ServerCondition, ServerHealth
from gpuops.plan.core.command_line import command


@dataclass(frozen=True, slots=True)
class Leftover:
    """A share that a server serves and the book lends to nobody: of a command that was killed, or of an older book."""

    server: str
    lease: str
    gpu: int

    def __str__(self) -> str:
        return f"{self.server}: a share of GPU {self.gpu} for the lease {self.lease}, which the book does not lend"


def dead_servers(healths: Iterable[ServerHealth]) -> Mapping[str, str]:
    """Return the servers that serve nobody, with the reason."""
    return {health.server: health.why for health in healths if health.condition is ServerCondition.DEAD}


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


def leftovers(was: LeaseBook, healths: Iterable[ServerHealth], inventory: Inventory) -> Iterator[Leftover]:
    """Yield the shares that are served and that the book lends to nobody, of servers with the mark of this pool: a
    server with the mark of another pool serves shares of that one."""
    for health in healths:
        server = was.server(health.server)
        vm = next(iter(inventory.vms_with_uuid(server.uuid)), None) if server is not None else None
        is_marked = vm is not None and vm.attributes.get(POOL_MARK) == was.pool.name
        for share in health.shares if is_marked else ():
            leftover = Leftover(health.server, share.lease, share.gpu)
            if not is_held(was, leftover):
                yield leftover


def is_held(book: LeaseBook, leftover: Leftover) -> bool:
    """Whether the book lends that share, or has yet to cut its client off."""
    lease = book.lease(leftover.lease)
    shares = lease.shares if lease is not None and lease.holds else ()
    return any((share.server, share.gpu) == (leftover.server, leftover.gpu) for share in shares)


def health_warnings(book: LeaseBook, healths: Iterable[ServerHealth]) -> Iterator[str]:
    """Yield a warning for each server of unknown health, and for each client that uses more than its share."""
    for health in healths:
        if health.condition is ServerCondition.UNKNOWN:
            yield f"{health.server}: its health is unknown: {health.why}"
        for share in health.shares:
            lease = book.lease(share.lease)
            lent = lease.shares if lease is not None and lease.holds else ()
            lent_mib = [one.memory_mib for one in lent if (one.server, one.gpu) == (health.server, share.gpu)]
            if lease is not None and lent_mib and share.used_mib > lent_mib[0]:
                used = f"uses {share.used_mib} MiB of GPU {share.gpu} of {health.server}, and is lent {lent_mib[0]} MiB"
                takes_back = command("pool reclaim", pool=book.pool.name, lease=lease.id)
                yield f"{lease.client}: lease {lease.id} {used}: {takes_back} takes it back"
