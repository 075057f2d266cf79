"""What servers tell when they are asked: which are dead, which could not be asked, and who uses more than its share.

A program that limits nobody has shares that are a promise: what is measured in the server says whether it is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuops.model.workloads.lease_book import LeaseBook
from gpuops.model.workloads.remote_gpu import ServerCondition, ServerHealth
from gpuops.plan.core.command_line import command


def dead(healths: Iterable[ServerHealth]) -> tuple[str, ...]:
    """Names of the servers that surely serve nobody."""
    return tuple(each.server for each in healths if each.condition is ServerCondition.DEAD)


def warnings(book: LeaseBook, healths: Iterable[ServerHealth]) -> Iterator[str]:
    """What somebody should see to."""
    for health in healths:
        if health.condition is ServerCondition.UNKNOWN:
            yield f"{health.server}: whether it serves is not known: {health.why}"
        elif health.condition is ServerCondition.SERVES and health.why:
            yield f"{health.server}: {health.why}"
        yield from _broken_promises(book, health)


def _broken_promises(book: LeaseBook, health: ServerHealth) -> Iterator[str]:
    for measured in health.measured:
        lease = book.lease(measured.lease)
        shares = lease.shares if lease is not None and lease.holds else ()
        where = f"GPU {measured.gpu} of {health.server}"
        lent = [each.memory_mib for each in shares if (each.server, each.gpu) == (health.server, measured.gpu)]
        if not lent:
            yield f"lease {measured.lease} uses {measured.used_mib} MiB of {where}, which is not lent to it"
        elif measured.used_mib > lent[0] and lease is not None:
            used = f"uses {measured.used_mib} MiB of {where}, and is lent {lent[0]} MiB"
            takes_back = command("pool reclaim", pool=book.pool.name, lease=lease.id)
            yield f"{lease.client}: lease {lease.id} {used}: {takes_back} takes it back"
