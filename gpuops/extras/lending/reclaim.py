"""What `gpuops pool reclaim` changes in a book: a server that is taken back, and what the health of servers shows.

Guests are asked before the book is changed, while other commands may lend and return: so a lease is lost only if it was
set up before the guests were asked (`was`), and is still.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpuops.errors import VmNotFound
from gpuops.extras.lending import lending
from gpuops.extras.lending.lease_book import REPORTED_DEAD, GpuLease, LeaseBook, LeaseState, PoolServer
from gpuops.extras.lending.members import vm_with
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.command_line import command
from gpuops.plan.core.rejection import Rejection


@dataclass(frozen=True, slots=True)
class Reclaim:
    """A server to take back; without one only what is due by the clock and by the health of servers."""

    server: str | None = None
    """Its name in the pool, or what its VM is called now."""
    grace: timedelta | None = None
    """How long clients keep their leases; None = as the pool says."""
    dead: bool = False
    """The server is dead: its leases end at once."""
    again: bool = False
    """The server lends again."""

    def pool_server(self, book: LeaseBook, inventory: Inventory) -> PoolServer | None:
        """Return the server. Raises VmAmbiguous."""
        text = self.server or ""
        try:
            uuid = inventory.find_vm(text).instance_uuid if book.server(text) is None else None
        except VmNotFound:
            uuid = text.removeprefix("uuid:")
        return book.server(text) or next((server for server in book.servers if server.uuid == uuid), None)

    def decide(self, book: LeaseBook, inventory: Inventory, now: datetime) -> lending.Decision:
        """Return the book once it is done, and every reason against it. Raises VmAmbiguous."""
        if self.server is None:
            return lending.settle(book, now), ()
        server = self.pool_server(book, inventory)
        if server is None:
            hint = f"its servers: {', '.join(server.name for server in book.servers)}"
            return book, (Rejection(self.server, f"is no server of pool {book.pool.name}", hint=hint),)
        if self.dead:
            return lending.server_died(book, server.name, now, REPORTED_DEAD), ()
        if not self.again:
            grace = book.pool.grace if self.grace is None else self.grace
            return lending.take_back(book, server.name, now + grace, now), ()
        vm = vm_with(server.uuid, inventory)
        if vm is None or vm.power is not PowerState.ON:
            rule = "its VM is not in this vCenter" if vm is None else f"its VM does not run ({vm.power or 'unknown'})"
            return book, (Rejection(server.name, rule, hint="power it on first"),)
        return lending.serve_again(book, server.name, now), ()


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """The answer of a server's health hook."""

    server: str
    used_mib: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """The memory that is used of each share that it serves, by lease and GPU."""
    why: str = ""
    """Why it does not serve, or why that is unknown; empty = it serves."""
    is_dead: bool = False
    """The hook failed; False and `why` = it could not be run."""


def after_health(was: LeaseBook, book: LeaseBook, healths: Iterable[ServerHealth], now: datetime) -> LeaseBook:
    """Return the book after dead servers died, and the leases that a server no longer serves ended."""
    set_up = {lease.id for lease in was.leases if _is_set_up(lease)}
    for health in healths:
        if health.is_dead:
            book = lending.server_died(book, health.server, now, f"cannot serve: {health.why}")
        elif not health.why:
            because = f"server {health.server} no longer serves it"
            lost = [
                lease.id
                for lease in book.leases
                if lease.id in set_up and _is_set_up(lease)
                for share in lease.shares
                if share.server == health.server and (lease.id, share.gpu) not in health.used_mib
            ]
            book = lending.end_leases(book, dict.fromkeys(lost, because), now, now)
    return book


def _is_set_up(lease: GpuLease) -> bool:
    return lease.state is LeaseState.LENT and lease.enabled is True


def health_warnings(was: LeaseBook, book: LeaseBook, healths: Iterable[ServerHealth]) -> Iterator[str]:
    """Yield a warning for each server of unknown health, and for each share not lent, or used beyond its size."""
    leases = {lease.id: lease for lease in (*book.leases, *was.leases) if lease.holds}
    for health in healths:
        if health.why and not health.is_dead:
            yield f"{health.server}: its health is unknown: {health.why}"
        for (id, gpu), used_mib in health.used_mib.items():
            shares = leases[id].shares if id in leases else ()
            lent_mib = sum(share.memory_mib for share in shares if (share.server, share.gpu) == (health.server, gpu))
            uses = f"lease {id} uses {used_mib} MiB of GPU {gpu} of {health.server}"
            if not lent_mib:
                yield f"{uses}, and is not lent there: if no other pool lends it, end it in that guest"
            elif used_mib > lent_mib:
                ends = command(f"pool return {book.pool.name}", client=leases[id].client)
                yield f"{uses}, and is lent {lent_mib} MiB: {ends} ends it"
